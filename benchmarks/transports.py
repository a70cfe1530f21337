"""How fast chunks travel: a fetch over TCP with its CRC verified, against a plain socket copy of the same bytes.

Both ends of each run are on this machine: a sending process and this one, joined by loopback. The peer is the simplest
program that moves these bytes (`sendall` on one side, `recv_into` on the other, one connection, no check). Ours asks
for each chunk by its region, receives it in a slot, and verifies header and both CRCs of the chunk on the way. Runs
alternate, so that a busy moment of the machine hits both, and the ratio is the median of the ratios of neighbours. Two
connections and shared memory are measured for comparison, without a bar.

    python -m benchmarks.transports [--rounds N] [--chunks N] [--json FILE]

Exit code 1 when the bar is missed.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.bars import Bar, Row
from benchmarks.report import Report, parser
from chicle_elastic.chunks import layout
from chicle_elastic.chunks.arrival import ArrivingChunk
from chicle_elastic.chunks.views import Chunk, StateSpec
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.checksum import fastest_crc32
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints, Route, TransportSelector

MIN_RATIO = 0.8
SLOT_BYTES = 1 << 20
NUM_FEATURES = 128
STATE = StateSpec(outputs=1, width=1)


def fill(arena: Arena) -> int:
    """Put a dense float32 chunk of just below 1 MiB, state included, into every slot; returns its bytes."""
    chunk_bytes = 0
    num_rows = (SLOT_BYTES - 1024) // (4 * NUM_FEATURES + 4 + 8 + STATE.size_bytes(1))
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
    for slot in range(arena.num_slots):
        chunk = Chunk(
            id=ChunkId(slot),
            rows=rows + np.float32(slot),
            targets=np.zeros(num_rows, dtype=np.int32),
            row_ids=np.arange(num_rows),
            state=STATE.zeros(num_rows),
        )
        chunk_bytes = layout.encode(chunk, arena.view(slot))
    return chunk_bytes


def serve(num_chunks: int, secret_file: Path) -> None:
    """The sending process: an agent's transports, and the plain sender; ends when its input does."""
    with (
        TransportSelector(JobSecret.load(secret_file), name="source") as transports,
        Arena.create(num_chunks, slot_bytes=SLOT_BYTES) as arena,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        chunk_bytes = fill(arena)
        transports.register(arena)
        told = {"offer": transports.endpoints.to_json(), "plain": listener.getsockname(), "chunk_bytes": chunk_bytes}
        print(json.dumps(told), flush=True)
        for _ in sys.stdin:  # a line per plain copy
            connection, _ = listener.accept()
            with connection:
                for slot in range(num_chunks):
                    connection.sendall(arena.view(slot)[:chunk_bytes])


def copy_plain(source: "subprocess.Popen[str]", address: tuple[str, int], arena: Arena, chunk_bytes: int) -> float:
    """Seconds for all chunks over one plain connection."""
    assert source.stdin is not None
    source.stdin.write("\n")
    source.stdin.flush()
    with socket.create_connection(address) as connection:
        start = time.perf_counter()
        for slot in range(arena.num_slots):
            view, position = arena.view(slot), 0
            while position < chunk_bytes:
                count = connection.recv_into(view[position:chunk_bytes])
                if not count:
                    sys.exit("the plain sender ended early")
                position += count
        return time.perf_counter() - start


def fetch_slots(route: Route, arena: Arena, chunk_bytes: int, slots: range) -> None:
    """Fetch the chunks of these slots over one connection, every byte verified."""
    crc32, _ = fastest_crc32()
    checks = {}
    for slot in slots:
        view = arena.view(slot)[:chunk_bytes]
        check = ArrivingChunk(view, chunk_id=ChunkId(slot), where=f"slot {slot}", crc32=crc32)
        checks[Pull(Region(0, arena.offset(slot), chunk_bytes), view, check)] = check
    for pull, error in route.transport.fetch_each(route.address, list(checks)):
        if error is not None:
            raise error
        checks[pull].finish()  # raises unless every byte was checked


def fetch_all(route: Route, arena: Arena, chunk_bytes: int, num_threads: int) -> float:
    """Seconds for all chunks, divided between some threads with a connection each."""
    parts = [range(first, arena.num_slots, num_threads) for first in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as threads:
        start = time.perf_counter()
        list(threads.map(lambda slots: fetch_slots(route, arena, chunk_bytes, slots), parts))
        return time.perf_counter() - start


def sum_all(arena: Arena, chunk_bytes: int) -> float:
    """Seconds of one thread that only sums up all chunks, from memory."""
    crc32, _ = fastest_crc32()
    start = time.perf_counter()
    for slot in range(arena.num_slots):
        crc32(arena.view(slot)[:chunk_bytes], 0)
    return time.perf_counter() - start


def measure(rounds: int, num_chunks: int) -> tuple[dict[str, list[float]], int]:
    """Seconds per run of each way by name, and bytes per run; the first round warms up and is thrown away."""
    with tempfile.TemporaryDirectory() as folder, Arena.create(num_chunks, slot_bytes=SLOT_BYTES) as arena:
        secret_file = Path(folder, "secret")
        secret = JobSecret.create(secret_file)
        command = [sys.executable, "-m", "benchmarks.transports", "--serve", folder, "--chunks", str(num_chunks)]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as source,
            TransportSelector(secret, name="target") as transports,
        ):
            assert source.stdout is not None
            assert source.stdin is not None
            told = json.loads(source.stdout.readline())
            size = told["chunk_bytes"]
            endpoints = Endpoints.from_json(told["offer"], peer="source")
            shm = transports.route(endpoints)
            tcp = transports.route(Endpoints(host=endpoints.host, tcp=endpoints.tcp))
            seconds: dict[str, list[float]] = {"plain": [], "tcp": [], "tcp_two": [], "shm": [], "crc": []}
            for _ in range(rounds + 1):
                seconds["plain"].append(copy_plain(source, tuple(told["plain"]), arena, size))
                seconds["tcp"].append(fetch_all(tcp, arena, size, 1))
                seconds["tcp_two"].append(fetch_all(tcp, arena, size, 2))
                seconds["shm"].append(fetch_all(shm, arena, size, 1))
                seconds["crc"].append(sum_all(arena, size))
            source.stdin.close()
        return {name: runs[1:] for name, runs in seconds.items()}, num_chunks * size


def main() -> int:
    """Measure, print a table and one line of JSON, compare with the bar."""
    line = parser("Chunks over TCP with CRC, against a plain socket copy.")
    line.add_argument("--rounds", type=int, help="runs of each (default 15; 2 when quick)")
    line.add_argument("--chunks", type=int, default=256, help="chunks of 1 MiB per run (default 256)")
    line.add_argument("--serve", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = line.parse_args()
    if arguments.serve:
        serve(arguments.chunks, arguments.serve / "secret")
        return 0
    rounds = arguments.rounds or (2 if arguments.quick else 15)
    report = Report(arguments, repeats=rounds)
    seconds, num_bytes = measure(rounds, arguments.chunks)
    rates = {name: [num_bytes / run / 1e9 for run in runs] for name, runs in seconds.items()}
    texts = {
        "tcp": "tcp, one connection, CRC verified",
        "tcp_two": "tcp, two connections, CRC verified",
        "shm": "shm, CRC verified",
        "crc": f"CRC alone, from memory ({fastest_crc32()[1]})",
    }
    for name, text in texts.items():
        ratio = statistics.median(mine / plain for mine, plain in zip(rates[name], rates["plain"], strict=True))
        bar = Bar(MIN_RATIO) if name == "tcp" else None
        ours, peer = (
            f"{statistics.median(runs):.2f} GB/s, slowest {min(runs):.2f}" for runs in (rates[name], rates["plain"])
        )
        what = f"{text}, over a plain socket copy without a check"
        report.add([Row("transports", what, None, ours, peer, ratio, bar, {"gb_per_s": rates[name]})])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
