"""What TLS costs links and chunks: each measured with and without it, in turns, between two processes on loopback.

A *dial* makes a link until both ends have proven the secret, and closes it. A *round trip* is a message of 200 bytes
and its answer. *Messages* are sent over a link and *chunks* fetched, one way; of chunks nothing
is verified, so that what TLS takes is not hidden behind checksums. *CPU* is the time of this process alone, which other
processes of the machine change less. A ratio is the median of the ratios of neighbours.

    python -m benchmarks.tls [--rounds N] [--json FILE]

Needs the program openssl. There is no bar: TLS is a choice.
"""

import argparse
import json
import os
import selectors
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bars import Row
from benchmarks.report import Report, parser
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports import wire
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.links import Link, LinkListener, connect
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tcp import TcpTransport
from chicle_elastic.transports.tls import TlsIdentity
from tests.harness.certificates import Authority

LISTEN = "tcp://127.0.0.1:0"
NUM_DIALS, NUM_TRIPS, NUM_MESSAGES, NUM_CHUNKS = 20, 500, 64, 128
MESSAGE, LONG_MESSAGE = "x" * 200, "x" * (1 << 20)
SLOT_BYTES = 1 << 20
END = "end"
WAYS = ("plain", "tls")
WHAT = ("dial", "round trip", "messages", "chunks")

Figures = dict[str, dict[str, list[tuple[float, float]]]]
"""By what and by way: wall-clock and CPU seconds of each round."""


def exchange(link: Link, is_over: Callable[[Any], bool]) -> None:
    """Flush and read, as an agent's loop does, until a message is the one that is waited for."""
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        while True:
            selector.modify(link, selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_to_write else 0))
            selector.select()
            if link.wants_to_write:
                link.flush()
            if any(is_over(message) for message in link.receive()):
                return


def answer(listener: LinkListener) -> None:
    """Answer every short message of every link, one link after the other; runs until the process ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            selector.select()
            while (link := listener.accept()) is not None:
                threading.Thread(target=answer_link, args=(link,), daemon=True).start()


def answer_link(link: Link) -> None:
    """Answer one link until its caller hangs up."""

    def read(message: str) -> bool:
        if len(message) < len(LONG_MESSAGE):
            link.send(message)
        return False

    try:
        exchange(link, read)
    except Exception:  # the caller hung up
        link.close()


def serve(folder: Path) -> None:
    """The other process: two listeners for links and two for chunks; ends when its input does."""
    secret, tls = JobSecret.load(folder / "secret"), TlsIdentity(folder / "tls")
    with Arena.create(2, slot_bytes=SLOT_BYTES) as arena:
        told = {}
        for way, identity in zip(WAYS, (None, tls), strict=True):
            listener = LinkListener(LISTEN, secret, name=f"links-{way}", tls=identity)
            threading.Thread(target=answer, args=(listener,), daemon=True).start()
            transport = TcpTransport(LISTEN, secret, name=f"chunks-{way}", tls=identity)
            transport.register(arena)
            told[way] = (listener.address, transport.address)
        print(json.dumps(told), flush=True)
        sys.stdin.read()
    os._exit(0)  # threads wait in their selectors


def measure(rounds: int) -> Figures:
    """Seconds by what was measured and by way, one for each round; the first round warms up and is thrown away."""
    figures: Figures = {what: {way: [] for way in WAYS} for what in WHAT}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        secret = JobSecret.create(folder / "secret")
        tls = TlsIdentity(Authority(folder / "ca").issue(folder / "tls"))
        command = [sys.executable, "-m", "benchmarks.tls", "--serve", name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as source:
            assert source.stdout is not None
            assert source.stdin is not None
            told = json.loads(source.stdout.readline())
            for _ in range(rounds + 1):
                for way, identity in zip(WAYS, (None, tls), strict=True):
                    links_at, chunks_at = told[way]
                    for what, run in (
                        ("dial", lambda at=links_at, tls=identity: run_dials(at, secret, tls)),
                        ("round trip", lambda at=links_at, tls=identity: run_trips(at, secret, tls)),
                        ("messages", lambda at=links_at, tls=identity: run_messages(at, secret, tls)),
                        ("chunks", lambda at=chunks_at, tls=identity: run_chunks(at, secret, tls)),
                    ):
                        start, start_cpu = time.perf_counter(), time.process_time()
                        run()
                        took = time.perf_counter() - start, time.process_time() - start_cpu
                        figures[what][way].append(took)
            source.stdin.close()
    return {what: {way: runs[1:] for way, runs in ways.items()} for what, ways in figures.items()}


def run_dials(address: str, secret: JobSecret, tls: TlsIdentity | None) -> None:
    """Make links, one after the other."""
    for _ in range(NUM_DIALS):
        connect(address, secret, name="n2", tls=tls).close()


def run_trips(address: str, secret: JobSecret, tls: TlsIdentity | None) -> None:
    """Send short messages, each after the answer to the one before."""
    with connect(address, secret, name="n2", tls=tls) as link:
        for _ in range(NUM_TRIPS):
            link.send(MESSAGE)
            exchange(link, lambda message: message == MESSAGE)


def run_messages(address: str, secret: JobSecret, tls: TlsIdentity | None) -> None:
    """Send long messages; a link keeps no more than some of them, so an answer is waited for now and then."""
    frame = wire.pack_json(wire.Kind.MESSAGE, LONG_MESSAGE)
    with connect(address, secret, name="n2", tls=tls) as link:
        for number in range(NUM_MESSAGES):
            link.send_frame(frame)
            if number % 8 == 7:
                link.send(END)
                exchange(link, lambda message: message == END)


def run_chunks(address: str, secret: JobSecret, tls: TlsIdentity | None) -> None:
    """Fetch regions over one connection."""
    with (
        TcpTransport(LISTEN, secret, name="reader", tls=tls) as reader,
        Arena.create(1, slot_bytes=SLOT_BYTES) as arena,
    ):
        for _, error in reader.fetch_each(address, [Pull(Region(0, 0, SLOT_BYTES), arena.view(0), None)] * NUM_CHUNKS):
            if error is not None:
                raise error


def main() -> int:
    """Measure, and print a table and one line of JSON."""
    line = parser("Links and chunks with and without TLS.")
    line.add_argument("--rounds", type=int, help="runs of each (default 15; 2 when quick)")
    line.add_argument("--serve", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = line.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return 0
    rounds = arguments.rounds or (2 if arguments.quick else 15)
    report = Report(arguments, repeats=rounds)
    report.notes.append(ssl.OPENSSL_VERSION)
    scales = {
        "dial": ("ms", 1e3 / NUM_DIALS),
        "round trip": ("us", 1e6 / NUM_TRIPS),
        "messages": ("ms/MiB", 1e3 / NUM_MESSAGES),
        "chunks": ("ms/MiB", 1e3 / NUM_CHUNKS),
    }
    for what, ways in measure(rounds).items():
        unit, scale = scales[what]
        for which, clock in enumerate(("", ", CPU")):
            plain, tls = ([scale * run[which] for run in ways[way]] for way in WAYS)
            ratio = statistics.median(b / a for a, b in zip(plain, tls, strict=True))
            ours, peer = (f"{statistics.median(values):.3g} {unit}" for values in (tls, plain))
            details = {"unit": unit, "plain": plain, "tls": tls}
            report.add([Row("tls", f"{what}{clock}: with TLS over without", None, ours, peer, ratio, None, details)])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
