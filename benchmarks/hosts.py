"""What a change of the membership costs nodes on several hosts, over links of several rates and round trips.

Four nodes of Chicle train on a chunk folder over each link; a node is given notice, another one joins in its place, one
is killed, another one joins. Stock torchrun, tuned, sees the same changes on the same hosts, with a model of 33 numbers
and no data. See `elastic_laps` for what a stall is and `hosts_nodes` for the hosts; it needs root, as they do.

    python -m benchmarks.hosts [--rounds N] [--stock-rounds N] [--only LINK] [--quick] [--json FILE]

    round trips    by which a stall is longer at 20 ms than at the switch's own round trip, with the same data
    raw socket     what one TCP connection between two hosts carries over the link; of the transport, beside it

The last line is the whole result as JSON. Exit code 1 when a bar is missed.
"""

import argparse
import itertools
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bars import Bar, Row
from benchmarks.elastic import (
    JOIN,
    NOTICE,
    SIGKILL,
    Phases,
    Stalls,
    add_one,
    phase_rows,
    phases_of,
    settle,
    summary,
    take_one,
)
from benchmarks.elastic_data import LARGE_MB, SMALL_MB, write_data
from benchmarks.elastic_nodes import NUM_NODES
from benchmarks.hosts_nodes import ChicleOnHosts, HostSide, Link, StockOnHosts
from benchmarks.report import Report, parser
from benchmarks.transports import SLOT_BYTES, fetch_slots, fill
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints, TransportSelector
from tests.hosts.lab import Lab, reason_to_skip

LONG_S = 0.020
LINKS = (
    Link("unbounded, 0.1 ms", None, 0.0),
    Link("unbounded, 20 ms", None, LONG_S),
    Link("1 Gbit/s, 0.1 ms", 1.0, 0.0),
    Link("1 Gbit/s, 20 ms", 1.0, LONG_S),
)
STALL_MS = {("1 Gbit/s, 0.1 ms", LARGE_MB): 250.0, ("unbounded, 20 ms", SMALL_MB): 400.0}
"""Of a join and of a notice."""
ROUND_TRIPS = 10.0
"""Of a join and of a notice, at most."""
KINDS = (JOIN, NOTICE, SIGKILL)
NUM_CHUNKS = 32


@dataclass(slots=True)
class Found:
    """What was measured over one link.

    Attributes:
        stalls_ms: By MiB of data (None for stock) and kind of change.
        phases_ms: Median of each phase, by MiB of data and kind of change, as the agents wrote them.
        raw_mb_s: MB/s of one plain connection.
        chunks_mb_s: MB/s of chunks over one connection of the transport, verified.
    """

    stalls_ms: dict[int | None, Stalls] = field(default_factory=dict)
    phases_ms: dict[int, Phases] = field(default_factory=dict)
    raw_mb_s: list[float] = field(default_factory=list)
    chunks_mb_s: list[float] = field(default_factory=list)


def play(side: HostSide, rounds: int) -> Stalls:
    """So many notices and kills, a join after each; milliseconds of stall by kind."""
    stalls: Stalls = {kind: [] for kind in KINDS}
    for _ in range(NUM_NODES):
        side.start()
    settle(side, 0.0)
    for number, kind in enumerate([NOTICE, SIGKILL] * rounds):
        stalls[kind].append(take_one(side, kind, number // 2 % NUM_NODES))
        settle(side, time.perf_counter())
        stalls[JOIN].append(add_one(side))
        settle(side, time.perf_counter())
        print(f"    {side.name}: {kind} {stalls[kind][-1]:.0f} ms, join {stalls[JOIN][-1]:.0f} ms", flush=True)
    return stalls


def measure_transfer(link: Link, folder: Path, runs: int, found: Found) -> None:
    """One plain connection and one of the transport, turn about, between two hosts."""
    secret = JobSecret.load_or_create(folder / "transfer.secret")
    with Lab(folder / "transfer") as lab, Arena.create(NUM_CHUNKS, slot_bytes=SLOT_BYTES) as source_arena:
        source, target = lab.boot("source", "target")
        for host in (source, target):
            link.apply(host)
        lab.network.delay(link.round_trip_s / 2)
        address = source.addresses[0]
        num_bytes = fill(source_arena)

        def serve() -> tuple[TransportSelector, socket.socket]:
            listening = f"tcp://{address}:0"
            transports = TransportSelector(secret, name="source", tcp_address=listening, has_shm=False, rdma="off")
            transports.register(source_arena)
            listener = socket.create_server((address, 0))
            threading.Thread(target=_send_plain, args=(listener, source_arena, num_bytes), daemon=True).start()
            return transports, listener

        def fetch() -> None:
            with (
                Arena.create(NUM_CHUNKS, slot_bytes=SLOT_BYTES) as arena,
                TransportSelector(
                    secret, name="target", tcp_address=f"tcp://{target.addresses[0]}:0", has_shm=False, rdma="off"
                ) as transports,
            ):
                route = transports.route(endpoints)
                fetch_slots(route, arena, num_bytes, range(NUM_CHUNKS))  # connects, and opens the window
                for _ in range(runs):
                    begun_s = time.perf_counter()
                    fetch_slots(route, arena, num_bytes, range(NUM_CHUNKS))
                    found.chunks_mb_s.append(NUM_CHUNKS * num_bytes / (time.perf_counter() - begun_s) / 1e6)
                    found.raw_mb_s.append(NUM_CHUNKS * num_bytes / _receive_plain(plain, NUM_CHUNKS * num_bytes) / 1e6)

        transports, listener = source.inside(serve)
        with transports, listener:
            endpoints = Endpoints(host="source", tcp=transports.endpoints.tcp)
            with target.inside(lambda: socket.create_connection(listener.getsockname())) as plain:
                _receive_plain(plain, NUM_CHUNKS * num_bytes)
                target.inside(fetch)


def _send_plain(listener: socket.socket, arena: Arena, num_bytes: int) -> None:
    """Send all chunks for each byte that the caller sends."""
    connection, _ = listener.accept()
    with connection:
        while connection.recv(1):
            for slot in range(arena.num_slots):
                connection.sendall(arena.view(slot)[:num_bytes])


def _receive_plain(connection: socket.socket, num_bytes: int) -> float:
    """Seconds to receive all chunks over a plain connection."""
    into = memoryview(bytearray(1 << 20))
    begun_s = time.perf_counter()
    connection.sendall(b"!")
    while num_bytes:
        count = connection.recv_into(into, min(num_bytes, len(into)))
        if not count:
            raise ConnectionError(f"the plain sender ended with {num_bytes} bytes to come")
        num_bytes -= count
    return time.perf_counter() - begun_s


def measure(data_folder: Path, folder: Path, link: Link, arguments: argparse.Namespace) -> Found:
    """Everything over one link; `folder` is new."""
    folder.mkdir()
    found = Found()
    print(f"  {link.name}", flush=True)
    measure_transfer(link, folder, arguments.transfers, found)
    for mb in arguments.sizes:
        data = data_folder / f"{mb}-mb"
        if not data.exists():
            write_data(data, mb)
        with (
            Lab(folder / f"lab-{mb}") as lab,
            ChicleOnHosts(lab, link, folder / f"job-{mb}", arguments.iteration_ms, data) as side,
        ):
            found.stalls_ms[mb] = play(side, arguments.rounds)
            found.phases_ms[mb] = phases_of(side)
    if arguments.stock_rounds:
        with (
            Lab(folder / "lab-stock") as lab,
            StockOnHosts(lab, link, folder / "stock", arguments.iteration_ms, None) as peer,
        ):
            found.stalls_ms[None] = play(peer, arguments.stock_rounds)
    return found


def rows_of(found: dict[str, Found]) -> Iterator[Row]:
    """Per link, size of the data and kind of change: the stall, and by how many round trips it is longer than near."""
    for name, one in found.items():
        for mb, kind in itertools.product((size for size in one.stalls_ms if size is not None), KINDS):
            stalls, stock = one.stalls_ms[mb][kind], one.stalls_ms.get(None, {}).get(kind, [])
            most = STALL_MS.get((name, mb)) if kind != SIGKILL else None
            what, shown = f"{name}, {mb} MB: stall on {kind}", (summary(stalls), summary(stock))
            bar = None if most is None else Bar(most, at_most=True)
            details = {"ours_ms": stalls, "stock_ms": stock}
            yield Row("stall", f"{what}, ms", None, *shown, statistics.median(stalls), bar, details)
            near = found.get(name.replace("20 ms", "0.1 ms"))
            if "20 ms" in name and near is not None and mb in near.stalls_ms:
                more_ms = statistics.median(stalls) - statistics.median(near.stalls_ms[mb][kind])
                bar = Bar(ROUND_TRIPS, at_most=True) if kind != SIGKILL else None
                trips = more_ms / (1e3 * LONG_S)
                yield Row("stall", f"{what}, round trips more", None, f"{more_ms:.0f} ms", "", trips, bar, {})
        raw, chunks = statistics.median(one.raw_mb_s), statistics.median(one.chunks_mb_s)
        shown, details = (f"{chunks:.0f} MB/s", f"{raw:.0f} MB/s"), {"raw": one.raw_mb_s, "chunks": one.chunks_mb_s}
        yield Row("transfer", f"{name}: chunks over a raw socket", None, *shown, chunks / raw, None, details)
        for mb, phases in one.phases_ms.items():
            yield from phase_rows(phases, f"{name}, {mb} MB, ")


def main() -> int:
    """Measure, print the table and one line of JSON, compare with the bars."""
    line = parser("The stall of each change of the membership, on several hosts.")
    line.add_argument("--rounds", type=int, default=3, help="notices, and kills, per job (default 3)")
    line.add_argument("--stock-rounds", type=int, default=1, help="the same for stock, 0 leaves it out (default 1)")
    line.add_argument("--transfers", type=int, default=5, help="runs of each way to transfer (default 5)")
    line.add_argument("--only", action="append", help="a link, by its name; by default all of them")
    line.add_argument("--iteration-ms", type=float, default=30.0, help="what a solver takes (default 30)")
    arguments = line.parse_args()
    arguments.sizes = [SMALL_MB] if arguments.quick else [SMALL_MB, LARGE_MB]
    if arguments.quick:
        arguments.rounds, arguments.stock_rounds, arguments.transfers = 1, 0, 2
    if arguments.rounds < 1:
        line.error("--rounds has to be 1 or more")
    links = [link for link in LINKS if not arguments.only or link.name in arguments.only]
    if not links:
        line.error(f"--only is one of {', '.join(repr(link.name) for link in LINKS)}")
    if (reason := reason_to_skip()) is not None:
        print(reason, file=sys.stderr)
        return 2
    report = Report(arguments, packages=["torch"])
    with tempfile.TemporaryDirectory(prefix="chicle-bench-hosts-") as name:
        parent = Path(name)
        found = {
            link.name: measure(parent, parent / f"link-{number}", link, arguments) for number, link in enumerate(links)
        }
    report.add(rows_of(found))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
