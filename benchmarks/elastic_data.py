"""What a change of the membership costs when the data is large: rows have to travel while training goes on.

Four nodes of Chicle train on a chunk folder with CoCoA; the same changes strike jobs of little and of much data, turn
about, and the stalls are compared. Rows of `NUM_FEATURES` float32 with wide margins: most duals are settled after some
passes, shrinking leaves their rows out, and iterations are as long as asked for whatever the size of the data.

    python -m benchmarks.elastic_data [--pairs N] [--rounds N] [--iteration-ms MS] [--quick] [--json FILE]

    hot to work    from when the task of a joiner is ready, and its node asks to join, to its first iteration;
                   before it, its process starts, which takes what two imports of torch take
    plain copy     of the joiner's share from one memory file to another one that is new, by one thread: what `hot to
                   work` may take twice of, beyond what a joiner of little data takes. With nothing else going on; and,
                   for comparison only, one by a new process beside the job after each join
    throughput     iterations of those who stay per second, from the start of the joiner's process to its first
                   iteration, over what it was before; also from when it is hot: that is a few iterations and one stall
    time to whole  after a kill: until an iteration has every sample again, what was lost being read from the folder
"""

import itertools
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.bars import Bar, Row
from benchmarks.elastic import (
    JOIN,
    NOTICE,
    SIGKILL,
    Phases,
    add_one,
    iterations_of,
    phase_rows,
    phases_of,
    settle,
    summary,
    take_one,
)
from benchmarks.elastic_laps import NUM_BEFORE
from benchmarks.elastic_nodes import NUM_NODES, Chicle, Side
from benchmarks.report import Report, parser
from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.cluster.net.event_file import read_events

SMALL_MB, LARGE_MB, JOIN_MB = 40, 400, 200
STALL_MS = {JOIN: Bar(120, at_most=True), NOTICE: Bar(150, at_most=True), SIGKILL: Bar(300, at_most=True)}
GROWTH = {JOIN: Bar(1.5, at_most=True), NOTICE: Bar(1.5, at_most=True)}
"""Stall with much data over that with little."""
COPIES = Bar(2.0, at_most=True)
"""From a hot joiner to its first iteration, in plain copies of its share."""
THROUGHPUT = Bar(0.8)
NUM_FEATURES = 256
ROWS_PER_BLOCK = 16384
MARGIN = 8.0
MIB = 1 << 20


@dataclass(slots=True)
class Joined:
    """What it took to have a joiner work.

    Attributes:
        start_s: From the start of its process until it was hot.
        work_s: From then to its first iteration.
        throughput: Iterations of the others per second in both, over what is normal.
        throughput_hot: The same for the second part.
    """

    start_s: float
    work_s: float
    throughput: float
    throughput_hot: float


@dataclass(slots=True)
class Found:
    """What the changes of jobs of one size cost.

    Attributes:
        stalls_ms: By kind of change.
        whole_s: From a kill until nothing was missing.
        joined: What each joiner took.
        copies_s: What a plain copy of `JOIN_MB` took beside the job, after each.
        phases: Of each job.
    """

    stalls_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    whole_s: list[float] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    copies_s: list[float] = field(default_factory=list)
    phases: list[Phases] = field(default_factory=list)


def write_data(path: Path, megabytes: int) -> Path:
    """A chunk folder of about so many MiB, dense, float32, two classes with few rows near the border."""
    rng = np.random.default_rng(0)
    num_rows = megabytes * MIB // (4 * NUM_FEATURES)
    with ChunkFolderWriter(path, kind="dense", dtype="float32", max_tasks=NUM_NODES) as writer:
        for start in range(0, num_rows, ROWS_PER_BLOCK):
            count = min(ROWS_PER_BLOCK, num_rows - start)
            rows = rng.standard_normal((count, NUM_FEATURES), dtype=np.float32)
            codes = rng.integers(0, 2, count)
            rows[:, 0] += MARGIN * (2 * codes - 1)
            writer.add(rows, codes.astype(np.float64))
        writer.finish(classes=(0, 1))
    return path


def plain_copy_s(num_bytes: int) -> float:
    """Seconds that a copy of so many bytes takes from one memory file to a new one."""
    source = os.memfd_create("source")
    try:
        for _ in range(num_bytes // MIB):
            os.write(source, b"\1" * MIB)
        return _copy_s(source, num_bytes)
    finally:
        os.close(source)


def plain_copy_beside_s(num_bytes: int) -> float:
    """The same in a new process, as the tasks of a joiner are one."""
    program = f"from benchmarks.elastic_data import plain_copy_s; print(plain_copy_s({num_bytes}))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return float(done.stdout)


def _copy_s(source: int, num_bytes: int) -> float:
    target = os.memfd_create("target")
    try:
        start_s = time.perf_counter()
        os.posix_fallocate(target, 0, num_bytes)
        with mmap.mmap(target, num_bytes) as pages, memoryview(pages) as into:
            position = 0
            while position < num_bytes:
                position += os.preadv(source, [into[position : position + MIB]], position)
        return time.perf_counter() - start_s
    finally:
        os.close(target)


def play(side: Chicle, data_rows: int, rounds: int, found: Found) -> None:
    """So many notices and kills on one job, a join after each."""
    for _ in range(NUM_NODES):
        side.start()
    settle(side, 0.0)
    for number, kind in enumerate([NOTICE, SIGKILL] * rounds):
        start_time = time.time()
        found.stalls_ms[kind].append(take_one(side, kind, number // 2 % NUM_NODES))
        notes = f"{kind} {found.stalls_ms[kind][-1]:.0f} ms"
        if kind == SIGKILL:
            found.whole_s.append(wait_until_whole(side, data_rows, start_time) - start_time)
            notes += f", whole after {found.whole_s[-1]:.2f} s"
        settle(side, time.perf_counter())
        add_measured(side, found)
        found.copies_s.append(plain_copy_beside_s(JOIN_MB * MIB))
        settle(side, time.perf_counter())
        last = found.joined[-1]
        notes += f", join {found.stalls_ms[JOIN][-1]:.0f} ms, hot to work {last.work_s:.2f} s"
        print(f"  {side.folder.name}: {notes}, {last.throughput:.2f} of the throughput", flush=True)
    found.phases.append(phases_of(side))


def wait_until_whole(side: Side, data_rows: int, start_time: float) -> float:
    """When the first iteration after an instant ended that had every sample."""
    whole: list[float] = []

    def is_whole() -> bool:
        whole[:] = [
            event["time"]
            for event in iterations_of(side)
            if event["time"] > start_time
            and len(event["samples"]) == len(side.nodes)
            and sum(event["samples"].values()) == data_rows
        ]
        return bool(whole)

    side.wait_for("an iteration with every sample", is_whole)
    return whole[0]


def add_measured(side: Side, found: Found) -> None:
    """Start another node, and note what it took to have it work."""
    others = list(side.nodes)
    start_s, start_time = time.perf_counter(), time.time()
    found.stalls_ms[JOIN].append(add_one(side))
    node = side.nodes[-1]
    hot_time = next(event["time"] for event in read_events(side.folder, node.name) if event["kind"] == "hot")
    hot_s = start_s + hot_time - start_time
    work_s = node.laps()[0].end_s
    laps = [lap.end_s for lap in others[0].laps()]
    normal = [lap for lap in laps if lap <= start_s][-NUM_BEFORE:]
    rate = (len(normal) - 1) / (normal[-1] - normal[0])
    kept, kept_hot = (
        sum(since < lap <= work_s for lap in laps) / (work_s - since) / rate for since in (start_s, hot_s)
    )
    found.joined.append(Joined(hot_s - start_s, work_s - hot_s, kept, kept_hot))


def measure(folder: Path, *, rounds: int, pairs: int, iteration_ms: float) -> dict[int, Found]:
    """Jobs of all sizes, turn about; what was found by size in MiB."""
    share = NUM_NODES * JOIN_MB
    sizes = {mb: write_data(folder / f"{mb}-mb", mb) for mb in (SMALL_MB, LARGE_MB, share)}
    found: dict[int, Found] = {mb: Found() for mb in sizes}
    turns = [*itertools.chain.from_iterable([SMALL_MB, LARGE_MB] for _ in range(pairs)), share]
    for number, mb in enumerate(turns):
        num_rows = mb * MIB // (4 * NUM_FEATURES)
        with Chicle(folder / f"job-{number}-{mb}-mb", iteration_ms, sizes[mb]) as side:
            play(side, num_rows, rounds, found[mb])
    return found


def rows_of(found: dict[int, Found]) -> Iterator[Row]:
    """With much data in the column of ours, with little beside it."""
    small, large, share = found.values()

    def row(
        what: str, unit: str, little: list[float], much: list[float], value: float | None, bar: Bar | None = None
    ) -> Row:
        shown = (summary(much, unit), summary(little, unit))
        return Row("data", what, None, *shown, value, bar, {"little": little, "much": much})

    def growth(little: list[float], much: list[float]) -> float:
        return statistics.median(much) / statistics.median(little)

    sizes = f"{LARGE_MB} MB over {SMALL_MB} MB"
    for kind, bar in STALL_MS.items():
        little, much = small.stalls_ms[kind], large.stalls_ms[kind]
        yield row(f"stall on {kind}, ms", "ms", little, much, statistics.median(much), bar)
        yield row(f"stall on {kind}, {sizes}", "ms", little, much, growth(little, much), GROWTH.get(kind))
    whole = growth(small.whole_s, large.whole_s)
    yield row(f"time to whole after SIGKILL, {sizes}", "s", small.whole_s, large.whole_s, whole)
    alone_s = statistics.median(plain_copy_s(JOIN_MB * MIB) for _ in range(5))
    beside_s = statistics.median(share.copies_s)
    little, much = ([joined.work_s for joined in some.joined] for some in (small, share))
    more_s = statistics.median(much) - statistics.median(little)
    for where, copy_s, limit in (("with nothing beside", alone_s, COPIES), ("beside the job", beside_s, None)):
        what = f"hot to work with {JOIN_MB} MB: difference in plain copies {where}, of {1e3 * copy_s:.0f} ms"
        yield row(what, "s", little, much, more_s / copy_s, limit)
    little, much = ([joined.throughput for joined in some.joined] for some in (small, share))
    yield row(f"throughput meanwhile, {JOIN_MB} MB", "", little, much, statistics.median(much), THROUGHPUT)
    little, much = ([joined.throughput_hot for joined in some.joined] for some in (small, share))
    yield row(f"throughput from hot to work, {JOIN_MB} MB", "", little, much, statistics.median(much))
    little, much = ([joined.start_s for joined in some.joined] for some in (small, share))
    yield row("start of the process to hot", "s", little, much, None)


def main() -> int:
    """Measure, print the tables and one line of JSON, compare with the bars."""
    line = parser("The stall of each change of the membership, with little and much data.")
    line.add_argument("--pairs", type=int, default=2, help="jobs of each size, turn about (default 2)")
    line.add_argument("--rounds", type=int, default=3, help="notices, and kills, per job (default 3)")
    line.add_argument("--iteration-ms", type=float, default=30.0, help="what a solver takes (default 30)")
    arguments = line.parse_args()
    if arguments.quick:
        arguments.pairs = arguments.rounds = 1
    if arguments.pairs < 1 or arguments.rounds < 1:
        line.error("--pairs and --rounds have to be 1 or more")
    report = Report(arguments)
    with tempfile.TemporaryDirectory(prefix="chicle-bench-elastic-data-") as name:
        found = measure(Path(name), rounds=arguments.rounds, pairs=arguments.pairs, iteration_ms=arguments.iteration_ms)
    report.add(rows_of(found))
    for mb, one in found.items():
        for phases in one.phases:
            report.add(phase_rows(phases, f"{mb} MB, "))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
