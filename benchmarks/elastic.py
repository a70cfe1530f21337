"""What a change of the membership costs those who stay: four nodes of Chicle against stock torchrun, tuned.

Both sides run on this host, one after the other, with iterations of the same length, and see the same changes: a node
is given notice, another one joins in its place, one is killed, another one joins; some fall silent. Who is hit goes
round, so the lead is among them. See `elastic_laps` for what a stall is and `elastic_nodes` for what stock is given.

    python -m benchmarks.elastic [--changes N] [--silences N] [--stock-changes N] [--iteration-ms MS] [--quick]
                                 [--json FILE]

The last line is the whole result as JSON. Exit code 1 when a bar is missed or the job has come to something wrong.
"""

import itertools
import json
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Row
from benchmarks.elastic_laps import NUM_AROUND, NUM_BEFORE, first_after, stall_s
from benchmarks.elastic_nodes import NUM_NODES, Chicle, Side, Stock
from benchmarks.report import Report, parser
from chicle_elastic.cluster.net.event_file import read_events

JOIN, NOTICE, SIGKILL, SILENCE = "join", "notice", "SIGKILL", "silent host (SIGSTOP)"
STALL_MS = {
    JOIN: Bar(120, at_most=True),
    NOTICE: Bar(150, at_most=True),
    SIGKILL: Bar(300, at_most=True),
    SILENCE: Bar(3000, at_most=True),
}
RATIO = {JOIN: Bar(20), NOTICE: Bar(20), SIGKILL: Bar(20)}
"""Stall of stock over ours; how long silence is tolerated is a choice, so nothing is asked there."""
PHASES = ("ahead_ms", "pause_ms", "rendezvous_ms", "move_ms", "group_ms", "first_ms", "stall_ms")
END_AFTER = 60
"""Iterations from the moment when the end is named to the end: every task has to read it before."""

Stalls = dict[str, list[float]]
"""Milliseconds by kind of change."""
Phases = dict[str, dict[str, float]]
"""Median milliseconds of each phase by kind of change."""


def play(side: Side, changes: int, silences: int) -> Stalls:
    """All changes of one side; milliseconds of stall by kind."""
    stalls: Stalls = defaultdict(list)
    for _ in range(NUM_NODES):
        side.start()
    settle(side, 0.0)
    kinds = itertools.chain.from_iterable((NOTICE, SIGKILL) for _ in range(changes))
    for number, kind in enumerate([*kinds, *[SILENCE] * silences]):
        stalls[kind].append(take_one(side, kind, number // 2 % NUM_NODES))
        stalls[JOIN].append(add_one(side))
        print(f"  {side.name}: {kind} {stalls[kind][-1]:.0f} ms, join {stalls[JOIN][-1]:.0f} ms", flush=True)
    return stalls


def take_one(side: Side, kind: str, which: int) -> float:
    """Take a node away, the oldest one at `which` = 0; the stall in milliseconds."""
    victim = side.nodes.pop(which)
    start_s = time.perf_counter()
    if kind == NOTICE:
        victim.send(signal.SIGTERM)
    else:
        victim.send(signal.SIGKILL if kind == SIGKILL else signal.SIGSTOP, to_task=True)
    settle(side, start_s)
    stall_ms = 1e3 * max(stall_s(node.laps(), start_s, len(side.nodes)) for node in side.nodes)
    if kind == SILENCE:
        victim.end()
    return stall_ms


def add_one(side: Side) -> float:
    """Start another node; the stall in milliseconds."""
    others = list(side.nodes)
    start_s = time.perf_counter()
    side.start()
    settle(side, start_s)
    return 1e3 * max(stall_s(node.laps(), start_s, len(side.nodes), is_join=True) for node in others)


def settle(side: Side, start_s: float) -> None:
    """Wait until all nodes iterate together for long enough to be compared with."""
    members = len(side.nodes)

    def is_settled() -> bool:
        for node in side.nodes:
            laps = node.laps()
            first = first_after(laps, start_s, members)
            enough = NUM_AROUND if start_s else NUM_BEFORE
            if first is None or len(laps) - first <= enough or laps[-1].members != members:
                return False
        return True

    side.wait_for(f"iterations of {members} nodes", is_settled)


def end_job(side: Chicle) -> list[tuple[str, bool]]:
    """End the job of our side, and look at what it has come to."""
    last = json.dumps(max(event["iteration"] for event in iterations_of(side)) + END_AFTER)
    partial = side.folder / "end.partial"
    partial.write_text(last)
    partial.rename(side.folder / "end")
    codes = [node.wait() for node in side.nodes]
    results = [json.loads(path.read_text()) for path in side.folder.glob("*.result.json")]
    return [
        ("the nodes at the end ended with exit code 0", not any(codes)),
        ("they have the same model, with the same certificate", results == results[:1] * NUM_NODES),
        ("it is certified", bool(results) and results[0]["gap"] is not None),
        ("no task that stayed was restarted", all(len({lap.pid for lap in node.laps()}) == 1 for node in side.nodes)),
    ]


def iterations_of(side: Side) -> Iterator[dict[str, Any]]:
    """Iterations in the event file of the oldest node."""
    return (event for event in read_events(side.folder, side.nodes[0].name) if event["kind"] == "iteration")


def phases_of(side: Side) -> Phases:
    """Median milliseconds of each phase, by kind of change, as the agents wrote them."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    endings = {" joins": JOIN, " leaves": NOTICE, " is lost": "loss"}
    for event in read_events(side.folder):
        if event["kind"] == "transition" and event["stall_ms"]:
            kinds = {kind for end, kind in endings.items() for reason in event["reasons"] if reason.endswith(end)}
            if len(kinds) == 1:
                for phase in PHASES:
                    found[kinds.copy().pop()][phase].append(event[phase])
    return {kind: {name: statistics.median(ms) for name, ms in phases.items()} for kind, phases in found.items()}


def phase_rows(phases: Phases, where: str = "") -> Iterator[Row]:
    """A row per kind of change."""
    for kind, medians in phases.items():
        shown = ", ".join(f"{name.removesuffix('_ms')} {ms:.0f}" for name, ms in medians.items())
        yield Row("phases", f"{where}{kind}: phases, median ms", None, shown, "", None, None, dict(medians))


def rows_of(ours: Stalls, stock: Stalls) -> Iterator[Row]:
    """Two rows per kind of change: the stall, and that of stock over it."""
    for kind, bar in STALL_MS.items():
        ours_ms, theirs = statistics.median(ours[kind]), stock.get(kind, [])
        shown, details = (summary(ours[kind]), summary(theirs)), {"ours_ms": ours[kind], "stock_ms": theirs}
        yield Row("stall", f"stall on {kind}, ms", None, *shown, ours_ms, bar, details)
        if theirs:
            ratio = statistics.median(theirs) / ours_ms
            yield Row("ratio", f"stall of stock torchrun over ours, {kind}", None, *shown, ratio, RATIO.get(kind), {})


def summary(values: Sequence[float], unit: str = "ms") -> str:
    """Median, least and most, and how many."""
    if not values:
        return "not measured"
    digits = 0 if unit == "ms" else 2
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} {unit} ({low} to {high}; {len(values)})".replace("  ", " ")


def main() -> int:
    """Measure, print a table and one line of JSON, compare with the bars."""
    line = parser("The stall of each change of the membership, against stock torchrun.")
    line.add_argument("--changes", type=int, default=10, help="notices, and kills (default 10); twice as many joins")
    line.add_argument("--silences", type=int, default=3, help="hosts that fall silent (default 3)")
    line.add_argument("--stock-changes", type=int, default=4, help="the same for stock, 0 leaves it out (default 4)")
    line.add_argument("--stock-silences", type=int, default=2, help="the same for stock (default 2)")
    line.add_argument("--iteration-ms", type=float, default=30.0, help="what a solver takes (default 30)")
    arguments = line.parse_args()
    if arguments.quick:
        arguments.changes = arguments.silences = 1
        arguments.stock_changes = arguments.stock_silences = min(1, arguments.stock_changes)
    if arguments.changes < 1 or arguments.silences < 1:
        line.error("--changes and --silences have to be 1 or more")
    report = Report(arguments, packages=["torch"])
    with tempfile.TemporaryDirectory(prefix="chicle-bench-elastic-") as name:
        with Chicle(Path(name) / "chicle", arguments.iteration_ms) as side:
            ours = play(side, arguments.changes, arguments.silences)
            checks = end_job(side)
            phases = phases_of(side)
        stock: Stalls = {}
        if arguments.stock_changes:
            with Stock(Path(name) / "stock", arguments.iteration_ms) as peer:
                stock = play(peer, arguments.stock_changes, arguments.stock_silences)
    report.add(rows_of(ours, stock))
    report.add(phase_rows(phases))
    report.add(Row("check", text, None, str(is_true), "", float(is_true), Bar(1.0), {}) for text, is_true in checks)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
