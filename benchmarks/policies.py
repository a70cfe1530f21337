"""What policies bring: `Shuffle`, `Rebalance`, `Straggler` for one node that is slow, `Tune` and `Scale`.

    shuffle      in process: iterations to a certified gap with and without redraws; lambda = 0.01 n but for one row
    speeds       in process, with charged times: eight nodes are 1.5x slower than eight others; two at 2:1
    agents       four real agents: iterations and seconds with and without redraws
    rebalance    two real agents at 2:1, and one that becomes slower (the figures of `benchmarks.rebalance`)
    straggler    four real agents, one of them ten times slower for five seconds of sixty: rows lost
    tune         in process, with charged times: nodes that go where the gap stalls
    scale        in process, with charged times: nodes that become dear

    python -m benchmarks.policies [--quick] [--only NAMES] [--real DIR] [--json FILE]

CoCoA here is one pass of coordinate descent per iteration and never another method: what the estimators choose for
several tasks by themselves most often needs no redraws (docs/linear.md). Exit code 1 when a bar is missed.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import policy_nodes, rebalance
from benchmarks.bars import Bar, Row
from benchmarks.datasets import DataSet
from benchmarks.policy_jobs import charged, cocoa_gaps
from benchmarks.real import FOLDER, load_real, missing
from benchmarks.report import Report, names_of, parser
from benchmarks.shapes import higgs, higgs_shaped
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.evaluate.cocoa import Cocoa
from chicle_elastic.evaluate.throttled import Pace, ThrottledCocoa
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.policies.straggler import Straggler
from chicle_elastic.runtime.training.job import Job

ALL, QUARTER = Shuffle(share=1.0), Shuffle()
IDEAL = 1.2
"""Units of an iteration of eight nodes at 1.5x and eight others, split perfectly: 16 / (8 / 1.5 + 8)."""
SLOW_UNITS, NUM_SLOW, NUM_FAST = 1.5, 8, 8
SETTLED = 8
"""Iterations until the split has to be as good as it gets."""
ITERATION_S = 0.04
"""Of four tasks that are well, where one becomes slow."""
NOISE, UNREST, QUIET = 0.05, 60, 100
MOST = 1000


def shuffle_rows(arguments: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """CoCoA in process, by iterations."""
    num_rows = 20_000 if arguments.quick else 400_000
    strong = 100.0 / num_rows
    bars = ((ALL, Bar(gate=1 / 5, at_most=True)), (QUARTER, Bar(gate=1 / 4, at_most=True)))
    yield from compare(higgs(num_rows), C=strong, num_tasks=16, tol=1e-5, bars=bars)
    if missing("a9a", arguments.real):
        notes.append("a9a is left out: there is no file (say --real DIR)")
        return
    a9a = load_real("a9a", arguments.real, quick=arguments.quick)
    an_eighth = ((ALL, Bar(gate=1 / 8, at_most=True)),)
    yield from compare(a9a, C=100.0 / a9a.num_samples, num_tasks=16, tol=1e-4, bars=an_eighth)
    yield from compare(a9a, C=1.0, num_tasks=4, tol=1e-2, bars=((QUARTER, Bar(gate=1.05, at_most=True)),))


def compare(
    data: DataSet, *, C: float, num_tasks: int, tol: float, bars: Sequence[tuple[Shuffle, Bar]]
) -> Iterator[Row]:
    """Iterations with redraws over those without."""

    def iterations(*policies: Policy) -> tuple[int, bool]:
        gaps = cocoa_gaps(data.X, data.y, C=C, num_tasks=num_tasks, tol=tol, most=MOST, policies=policies)
        return len(gaps), bool(gaps[-1] <= tol)

    without, is_there = iterations()
    for policy, bar in bars:
        count, has_converged = iterations(policy)
        what = f"{data.title}, C = {C:.3g}, K = {num_tasks}: iterations, {policy.share:.0%} redrawn in each"
        against = f"without: {without}{'' if is_there else ' and not there'}"
        value = count / without if has_converged else float("inf")
        yield Row("shuffle", what, tol, str(count), against, value, bar, {"with": count, "without": without})


def speeds_rows(arguments: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """Rebalancing on a clock that only the samples move."""
    costs_s = (SLOW_UNITS * 1e-3,) * NUM_SLOW + (1e-3,) * NUM_FAST
    for num_chunks in (4_160, 500):
        history = charged(costs_s, num_chunks=num_chunks, iterations=2 * SETTLED, policies=(Rebalance(),))
        cut = sum(history[0].num_chunks.values())
        units = units_of(history)
        chunk_units = SLOW_UNITS * len(costs_s) / cut
        limit = 1.03 * IDEAL if num_chunks > 4_000 else IDEAL + chunk_units
        what = f"8 nodes at 1.5x and 8 at 1x, {cut} chunks: units of iteration {SETTLED}, 1.5 at the start"
        against, settled = f"ideal {IDEAL}; first below {limit:.3f}: {first_below(units, limit)}", units[SETTLED - 1]
        bar = Bar(gate=limit, at_most=True)
        yield Row("speeds", what, None, f"{settled:.3f}", against, settled, bar, {"units": units, "chunks": cut})
    yield quiet_row(costs_s)
    yield split_row()


def quiet_row(costs_s: Sequence[float]) -> Row:
    """Moves under noise, once the first moves are over."""
    history = charged(costs_s, num_chunks=4_160, iterations=UNREST + QUIET, policies=(Rebalance(),), noise=NOISE)
    moved = [record.iteration for record in history if any(" moves " in event for event in record.events)]
    late = sum(iteration > UNREST for iteration in moved)
    what = f"the same, {NOISE:.0%} noise: boundaries with moves in iterations {UNREST + 1} to {UNREST + QUIET}"
    against, bar = f"moves before iterations {', '.join(map(str, moved))}", Bar(gate=0, at_most=True)
    return Row("speeds", what, None, str(late), against, float(late), bar, {"moved": moved})


def split_row() -> Row:
    """Rebalance and Shuffle together at 2:1."""
    ends = []
    for policies in ((Rebalance(),), (Rebalance(), Shuffle()), (Rebalance(), ALL)):
        history = charged((2e-3, 1e-3), num_chunks=64, iterations=40, policies=policies)
        ends.append(history[-1].num_chunks["task-0"])
    alone, *both = ends
    worst = max(abs(end - alone) for end in both)
    what = "2:1, chunks of the slow node after 40 iterations, Rebalance and Shuffle (25 %, all): difference"
    shown, against, bar = ", ".join(map(str, both)), f"Rebalance alone: {alone}", Bar(gate=1, at_most=True)
    return Row("speeds", what, None, shown, against, float(worst), bar, {"alone": alone, "both": both})


def agents_rows(arguments: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """Four real agents; the median of some fits of each side, in turn."""
    num_rows, repeats = (20_000, 1) if arguments.quick else (100_000, 3)
    X, y = higgs_shaped(num_rows)
    sides: dict[str, tuple[Policy, ...]] = {"without": (), "all": (ALL,), "quarter": (QUARTER,)}
    found: dict[str, list[History]] = {name: [] for name in sides}
    with LocalCluster(4) as cluster:
        for number in range(repeats + 1):  # the first of each is not counted: kernels are compiled
            for name, policies in sides.items():
                source = ArraySource(X, y.astype(np.int32), max_tasks=4, seed=1)
                trainer = Cocoa(C=100.0 / num_rows, tol=1e-5)
                job = Job(trainer=trainer, source=source, max_iterations=MOST, seed=1, policies=policies)
                history = cluster.run(job).history
                if number:
                    found[name].append(history)
    counts = {name: statistics.median(len(history) for history in runs) for name, runs in found.items()}
    seconds = {name: statistics.median(history[-1].time_s for history in runs) for name, runs in found.items()}
    redraws = {
        name: statistics.median(sum("Shuffle redraws" in event for r in h for event in r.events) for h in runs)
        for name, runs in found.items()
    }
    for name, share, bar in (("all", 1.0, Bar(gate=1 / 5, at_most=True)), ("quarter", 0.25, None)):
        what = f"four agents, HIGGS-shaped, {num_rows} rows, {share:.0%} redrawn"
        for unit, values, limit in (
            ("iterations", counts, bar),
            ("seconds", seconds, None if bar is None else Bar(gate=1, at_most=True)),
        ):
            shown, against = f"{values[name]:.3g} ({redraws[name]:.0f} redraws)", f"without: {values['without']:.3g}"
            details = {"iterations": counts, "seconds": seconds, "redraws": redraws, "repeats": repeats}
            value = values[name] / values["without"]
            yield Row("agents", f"{what}: {unit}", 1e-5, shown, against, value, limit, details)


def rebalance_rows(arguments: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """Two real agents, one run."""
    figures = rebalance.measure()
    for what, key, against, bar in (
        ("two agents, 2:1: throughput after ten iterations", "share", "a perfect split", Bar(gate=0.95)),
        ("two agents, 5 % noise: boundaries with moves", "moves_in_noise", "", Bar(gate=0, at_most=True)),
        ("one becomes 1.5x slower: throughput later", "share_followed", "a perfect split", Bar(gate=0.95)),
    ):
        yield Row("rebalance", what, None, f"{figures[key]:.3g}", against, figures[key], bar, dict(figures))


def is_over(end_s: float, record: IterationRecord) -> bool:
    """Whether a job has lasted so long."""
    return record.time_s >= end_s


def straggler_rows(arguments: argparse.Namespace, notes: list[str]) -> Iterator[Row]:
    """Four real agents whose passes are real and take as long as they are told.

    What is lost is against the same run before one of them becomes slow: runs differ by more on a busy machine.
    """
    length_s, slow_s = (12.0, 3.0) if arguments.quick else (60.0, 5.0)
    num_rows, factor = 8_000, 10.0
    X, y = higgs_shaped(num_rows)
    both, alone = (Straggler(), Rebalance()), (Rebalance(),)
    lost: dict[str, float] = {}
    gaps: dict[str, float] = {}
    drift: dict[str, float] = {}
    with LocalCluster(4) as cluster:
        for name, policies, is_slow in (
            ("warm", both, False),
            ("well", both, False),
            ("straggler", both, True),
            ("rebalance", alone, True),
            ("nothing", (), True),
        ):
            pace = Pace(
                row_s=4 * ITERATION_S / num_rows,
                slow=("n1",),
                factor=factor,
                slow_from_s=length_s / 3 if is_slow else math.inf,
                slow_to_s=length_s / 3 + slow_s,
            )
            trainer = ThrottledCocoa(C=100.0 / num_rows, tol=0.0, pace=pace)
            end_s = 2.0 if name == "warm" else length_s
            job = Job(
                trainer=trainer,
                source=ArraySource(X, y.astype(np.int32), max_tasks=4, chunk_bytes=4096, seed=1),
                max_iterations=10**6,
                seed=1,
                policies=policies,
                keep_state=True,
                on_iteration=partial(is_over, end_s),
            )
            outcome = cluster.run(job)
            if name == "warm":
                continue
            lost[name] = rows_lost(outcome.history, length_s / 3)
            assert outcome.certificate is not None
            assert outcome.state is not None
            gaps[name] = trainer.relative_gap(outcome.model, outcome.certificate)
            Z = np.column_stack([X, np.ones(num_rows)])
            w = Z.T @ (outcome.state[:, 0, 0] * np.where(y == 1, 1.0, -1.0))
            drift[name] = float(np.abs(w - outcome.model).max() / np.abs(w).max())
    own = (1 - 1 / factor) / 4 * slow_s / (0.9 * length_s)
    details = {"lost": lost, "gaps": gaps, "drift": drift, "own_share": own}
    what = f"four agents, one at a tenth for {slow_s:.0f} of {length_s:.0f} s"
    for name, title, bar in (
        ("straggler", "Straggler and Rebalance", Bar(gate=0.03, at_most=True)),
        ("rebalance", "Rebalance alone", None),
        ("nothing", "no policy", None),
    ):
        against = f"its own share: {own:.1%}; none is slow: {lost['well']:.1%}"
        shown = (f"{what}: rows lost, {title}", None, f"{lost[name]:.1%}", against)
        yield Row("straggler", *shown, lost[name] - own, bar, details)
    for title, figures, most in (("gap at the end", gaps, 1e-6), ("distance of w from w(alpha)", drift, 1e-9)):
        found, against = figures["straggler"], f"all tasks well: {figures['well']:.1e}"
        bar = Bar(gate=most, at_most=True)
        yield Row("straggler", f"{what}: {title}", None, f"{found:.1e}", against, abs(found), bar, details)


def rows_lost(history: History, slow_from_s: float) -> float:
    """Part of the rows of a run, but for its first tenth, that were not processed at the rate before `slow_from_s`."""
    time_s, epochs = history.column("time_s"), history.column("epochs")
    first, last = np.searchsorted(time_s, [0.3 * slow_from_s, slow_from_s]) - 1
    rate = (epochs[last] - epochs[first]) / (time_s[last] - time_s[first])
    return float(1 - (epochs[-1] - epochs[first]) / (rate * (time_s[-1] - time_s[first])))


def units_of(history: History) -> list[float]:
    """Time of each iteration, where that of a fast node with its even share is 1."""
    times_s = [max(record.seconds.values()) for record in history]
    return [SLOW_UNITS * time_s / times_s[0] for time_s in times_s]


def first_below(values: Sequence[float], limit: float) -> str:
    """Number of the first one, from 1."""
    return next((f"iteration {number}" for number, value in enumerate(values, 1) if value <= limit), "never")


PARTS: dict[str, Callable[[argparse.Namespace, list[str]], Iterable[Row]]] = {
    "shuffle": shuffle_rows,
    "speeds": speeds_rows,
    "agents": agents_rows,
    "rebalance": rebalance_rows,
    "straggler": straggler_rows,
    "tune": policy_nodes.tune_rows,
    "scale": policy_nodes.scale_rows,
}


def main() -> int:
    """Measure, print a table and one line of JSON, compare with the bars."""
    options = parser("What policies bring.")
    options.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    options.add_argument("--real", type=Path, default=FOLDER, help="folder with real data (a9a/a9a.gz)")
    arguments = options.parse_args()
    report = Report(arguments)
    for name in names_of(arguments.only, PARTS, "--only"):
        report.add(PARTS[name](arguments, report.notes))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
