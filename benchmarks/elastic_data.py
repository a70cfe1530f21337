"""What a change of the membership costs when the data is large: rows have to travel while training goes on.

Four nodes of Chicle train on a chunk folder with CoCoA; the same changes strike jobs of little and of much data, turn
about, and the stalls are compared. Rows of `NUM_FEATURES` float32 with wide margins: most duals are settled after some
passes, shrinking leaves their rows out, and iterations are as long as asked for whatever the size of the data.

    python -m benchmarks.elastic_data [--pairs N] [--rounds N] [--iteration-ms MS] [--json FILE]

    hot to work    from when the task of a joiner is ready, and its node asks to join, to its first iteration;
                   before it, its process starts, which takes what two imports of torch take
    plain copy     of the joiner's share from one memory file to another one that is new, by one thread: what `hot to
                   work` may take twice of, beyond what a joiner of little data takes. With nothing else going on; and,
                   for comparison only, one by a new process beside the job after each join
    throughput     iterations of those who stay per second, from the start of the joiner's process to its first
                   iteration, over what it was before; also from when it is hot: that is a few iterations and one stall
    time to whole  after a kill: until an iteration has every sample again, what was lost being read from the folder
"""

import argparse
import itertools
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar
from benchmarks.elastic_laps import NUM_AROUND, NUM_BEFORE, first_after, stall_s
from benchmarks.elastic_nodes import NUM_NODES, Chicle, Node, Side
from benchmarks.machine import machine
from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.cluster.net.event_file import read_events

JOIN, NOTICE, SIGKILL = "join", "notice", "SIGKILL"
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
PHASES = ("ahead_ms", "pause_ms", "rendezvous_ms", "move_ms", "group_ms", "first_ms", "stall_ms")
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
        phases: Of joins, as the agents wrote them.
    """

    stalls_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    whole_s: list[float] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    copies_s: list[float] = field(default_factory=list)
    phases: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))


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
        _take_one(side, kind, number // 2 % NUM_NODES, data_rows, found)
        _add_one(side, found)
        found.copies_s.append(plain_copy_beside_s(JOIN_MB * MIB))
        settle(side, time.perf_counter())
        notes = [f"{kind} {found.stalls_ms[kind][-1]:.0f} ms", f"join {found.stalls_ms[JOIN][-1]:.0f} ms"]
        if kind == SIGKILL:
            notes.append(f"whole after {found.whole_s[-1]:.2f} s")
        last = found.joined[-1]
        notes.append(f"hot to work {last.work_s:.2f} s, {last.throughput:.2f} of the throughput")
        print(f"  {side.folder.name}: {', '.join(notes)}", flush=True)
    _note_phases(side, found)


def settle(side: Side, start_s: float) -> None:
    """Wait until all nodes have iterated together for long enough to be compared with."""
    members = len(side.nodes)

    def is_settled() -> bool:
        for node in side.nodes:
            laps = node.laps()
            first = first_after(laps, start_s, members)
            if first is None or len(laps) - first <= NUM_BEFORE + NUM_AROUND or laps[-1].members != members:
                return False
        return True

    side.wait_for(f"iterations of {members} nodes", is_settled)


def _take_one(side: Side, kind: str, which: int, data_rows: int, found: Found) -> None:
    victim = side.nodes.pop(which)
    start_s, start_time = time.perf_counter(), time.time()
    victim.send(signal.SIGTERM if kind == NOTICE else signal.SIGKILL, to_task=kind == SIGKILL)
    settle(side, start_s)
    found.stalls_ms[kind].append(1e3 * max(stall_s(node.laps(), start_s, len(side.nodes)) for node in side.nodes))
    if kind == SIGKILL:
        whole: list[float] = []

        def is_whole() -> bool:
            whole[:] = [
                event["time"]
                for event in _events(side, side.nodes[0], "iteration")
                if event["time"] > start_time
                and len(event["samples"]) == len(side.nodes)
                and sum(event["samples"].values()) == data_rows
            ]
            return bool(whole)

        side.wait_for("an iteration with every sample", is_whole)
        found.whole_s.append(whole[0] - start_time)
        settle(side, time.perf_counter())


def _add_one(side: Side, found: Found) -> None:
    others = list(side.nodes)
    start_s, start_time = time.perf_counter(), time.time()
    node = side.start()
    settle(side, start_s)
    found.stalls_ms[JOIN].append(
        1e3 * max(stall_s(other.laps(), start_s, len(side.nodes), is_join=True) for other in others)
    )
    hot_time = next(event["time"] for event in _events(side, node, "hot"))
    hot_s = start_s + hot_time - start_time
    work_s = node.laps()[0].end_s
    laps = [lap.end_s for lap in others[0].laps()]
    normal = [lap for lap in laps if lap <= start_s][-NUM_BEFORE:]
    rate = (len(normal) - 1) / (normal[-1] - normal[0])
    kept, kept_hot = (
        sum(since < lap <= work_s for lap in laps) / (work_s - since) / rate for since in (start_s, hot_s)
    )
    found.joined.append(Joined(hot_s - start_s, work_s - hot_s, kept, kept_hot))


def _note_phases(side: Side, found: Found) -> None:
    for event in read_events(side.folder, side.nodes[0].name):
        if event["kind"] == "transition" and event["stall_ms"]:
            ends = {reason.rpartition(" ")[2] for reason in event["reasons"]}
            for kind, end in ((JOIN, "joins"), (NOTICE, "leaves"), (SIGKILL, "lost")):
                if end in ends:
                    found.phases[kind].append(event)


def _events(side: Side, node: Node, kind: str) -> Iterator[dict[str, Any]]:
    return (event for event in read_events(side.folder, node.name) if event["kind"] == kind)


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


def rows_of(found: dict[int, Found]) -> Iterator[dict[str, Any]]:
    """A row per bar."""
    small, large, share = found.values()
    for kind, bar in STALL_MS.items():
        small_ms, large_ms = small.stalls_ms[kind], large.stalls_ms[kind]
        row: dict[str, Any] = {"what": f"stall on {kind}", "unit": "ms", "small": small_ms, "large": large_ms}
        median_ms = statistics.median(large_ms)
        row |= {"ratio": median_ms / statistics.median(small_ms), "bar": f"<= {bar.gate:g} ms"}
        row["verdicts"] = [bar.verdict(median_ms)]
        if kind in GROWTH:
            row["bar"] += f" and <= {GROWTH[kind].gate:g} x"
            row["verdicts"].append(GROWTH[kind].verdict(row["ratio"]))
        yield row
    yield _row(
        "time to whole after SIGKILL",
        "s",
        small.whole_s,
        large.whole_s,
        statistics.median(large.whole_s) / statistics.median(small.whole_s),
    )
    alone_s = statistics.median(plain_copy_s(JOIN_MB * MIB) for _ in range(5))
    beside_s = statistics.median(share.copies_s)
    little, much = ([joined.work_s for joined in some.joined] for some in (small, share))
    more_s = statistics.median(much) - statistics.median(little)
    yield _row(
        f"hot to work; the joiner of the second column gets {JOIN_MB} MB; difference in plain copies with nothing "
        f"beside, of {1e3 * alone_s:.0f} ms",
        "s",
        little,
        much,
        more_s / alone_s,
        COPIES,
    )
    yield _row(
        f"the same in plain copies beside the job, of {1e3 * beside_s:.0f} ms ({1e3 * min(share.copies_s):.0f} to "
        f"{1e3 * max(share.copies_s):.0f})",
        "s",
        little,
        much,
        more_s / beside_s,
    )
    little, much = ([joined.throughput for joined in some.joined] for some in (small, share))
    yield _row(f"throughput meanwhile, {JOIN_MB} MB", "", little, much, statistics.median(much), THROUGHPUT)
    little, much = ([joined.throughput_hot for joined in some.joined] for some in (small, share))
    yield _row(f"throughput from hot to work, {JOIN_MB} MB", "", little, much, statistics.median(much))
    little, much = ([joined.start_s for joined in some.joined] for some in (small, share))
    yield _row("start of the process to hot", "s", little, much, None)


def _row(
    what: str, unit: str, small: list[float], large: list[float], ratio: float | None, bar: Bar | None = None
) -> dict[str, Any]:
    row: dict[str, Any] = {"what": what, "unit": unit, "small": small, "large": large, "ratio": ratio}
    if bar is None or ratio is None:
        return {**row, "bar": "reported", "verdicts": []}
    return {**row, "bar": f"{'<=' if bar.at_most else '>='} {bar.gate:g}", "verdicts": [bar.verdict(ratio)]}


def as_markdown(row: dict[str, Any]) -> str:
    """A line of the table."""
    verdict = "" if not row["verdicts"] else "MISSED" if "GATE MISSED" in row["verdicts"] else "met"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    cells = (row["what"], _summary(row["small"], row["unit"]), _summary(row["large"], row["unit"]), ratio)
    return f"| {' | '.join((*cells, row['bar'], verdict))} |"


def print_tables(found: dict[int, Found], rows: Sequence[dict[str, Any]]) -> None:
    """What was found, for a page."""
    print(f"\n| median (range; count) | {SMALL_MB} MB | {LARGE_MB} MB | ratio | bar | |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(as_markdown(row))
    print(f"\n| phases, median ms | {' | '.join(name.removesuffix('_ms') for name in PHASES)} |")
    print(f"| {' | '.join(['---'] * (len(PHASES) + 1))} |")
    for mb, kind in itertools.product(found, STALL_MS):
        events = found[mb].phases[kind]
        if events:
            medians = (f"{statistics.median(event[name] for event in events):.0f}" for name in PHASES)
            print(f"| {kind}, {mb} MB | {' | '.join(medians)} |")


def _summary(values: Sequence[float], unit: str) -> str:
    if not values:
        return ""
    digits = 0 if unit == "ms" else 2
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} {unit} ({low} to {high}; {len(values)})".replace("  ", " ")


def main() -> int:
    """Measure, print the tables and one line of JSON, compare with the bars."""
    parser = argparse.ArgumentParser(
        description="The stall of each change of the membership, with little and much data."
    )
    parser.add_argument("--pairs", type=int, default=2, help="jobs of each size, turn about (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="notices, and kills, per job (default 3)")
    parser.add_argument("--iteration-ms", type=float, default=30.0, help="what a solver takes (default 30)")
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    arguments = parser.parse_args()
    if arguments.pairs < 1 or arguments.rounds < 1:
        parser.error("--pairs and --rounds have to be 1 or more")
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="chicle-bench-elastic-data-") as name:
        found = measure(Path(name), rounds=arguments.rounds, pairs=arguments.pairs, iteration_ms=arguments.iteration_ms)
    rows = list(rows_of(found))
    print_tables(found, rows)
    passed = not any("GATE MISSED" in row["verdicts"] for row in rows)
    result = {"machine": machine(), "load": os.getloadavg(), "rows": rows, "passed": passed}
    print(json.dumps(result))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
