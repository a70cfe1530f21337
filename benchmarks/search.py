"""`ChicleSearchCV` against `GridSearchCV(n_jobs=2)`: 5 folds x 8 values of C, wall time and memory.

Data are a9a (32,561 x 123, sparse) and Fashion-MNIST (60,000 x 784, dense float32; tops or not). Each side runs in a
process of its own, which has imported all, compiled its kernels and started its workers on a part of the data before.
Sides take turns, and a ratio is the median over the turns of peer by ours, so what other processes of the machine do
meets both.

Memory is the proportional set size (pages that processes share are divided among them) of the process and all its
children, sampled every 50 ms: the most of it during the search, less what it was before, with one copy of the data
added, as a multiple of that copy. Interpreters, compiled kernels and idle workers are in none of the two.

    python -m benchmarks.search [--quick] [--data a9a fashion] [--losses ...] [--repeats N] [--folder FOLDER]
                                [--slow] [--json FILE]

At tol 1e-6 scores are compared: at the default of 1e-3, where times are, candidates that are as good as each other
differ by what a fit has not done yet. LinearSVC has its own default. Its searches are the longest, so it takes
part in the first turn only; with the hinge it takes an hour on Fashion-MNIST, so only --slow asks for that.

Two more searches are over data that is made: a probe, which is one softmax of rows like embeddings in float16 (20,000 x
1,024, 50 classes, 5 values of C, 3 folds) against `LogisticRegressionCV`, at a tol with which it comes as close to the
best objective; and ridge regression of 5,000 targets (20,000 x 2,000, 10 penalties, 5 folds) against `RidgeCV` and,
where it is installed, himalaya's (`pip install --no-deps himalaya`).

Exit code 1 if a gate is missed: less than 3 times as fast as `GridSearchCV` with LinearSVC, or 1.5 times as with
ChicleSVM; another best C than the latter, or a mean score that differs by more than 5 rows; or more than 1.5 copies of
data of 64 MiB and more.
"""

import argparse
import itertools
import statistics
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.bars import Bar, Row
from benchmarks.machine import Watch, processes
from benchmarks.real import FOLDER, QUICK_ROWS, missing
from benchmarks.report import Report, parser
from benchmarks.search_side import (
    CHICLE,
    FOLDS,
    HALVING,
    HIMALAYA,
    LBFGS,
    LINEAR_SVC,
    NEWTON_CG,
    OURS,
    RIDGE_CV,
    THREADS,
    excess,
    measure,
    prepare,
)
from benchmarks.worker import Worker

ROWS = {"a9a": 32_561, "fashion": 60_000}
SAMPLE_S, LIMIT_S = 0.05, 7200.0
TOL, TIGHT = 1e-3, 1e-6
"""The default of ChicleSVM, and where scores hardly depend on how a fit came there."""
FASTER = {
    CHICLE: Bar(gate=1.5),
    LINEAR_SVC: Bar(gate=3.0),
    LBFGS: Bar(gate=2.0, target=5.0),
    NEWTON_CG: Bar(gate=2.0, target=5.0),
    RIDGE_CV: Bar(gate=1.0, target=2.0),
    HIMALAYA: Bar(gate=1.0, target=2.0),
}
MADE = {"probe": ("softmax", [LBFGS, NEWTON_CG]), "targets": ("squares", [HIMALAYA, RIDGE_CV])}
"""What is made: the loss, and who takes part; RidgeCV, a fit per penalty and fold, in the first turn only."""
SHAPES = {"probe": (20_000, 1024, 50), "targets": (20_000, 2000, 5000)}
"""Rows, columns, classes or targets; with --quick a fifth of each."""
MOST_ROWS = 5
MOST_DIFFERENCE = 1e-6
MOST_COPIES = 1.5
LEAST_JUDGED_MIB = 64
"""Data below which memory is not judged: a thread and its first allocations take more."""
Run: TypeAlias = dict[str, Any]


def measured(spec: dict[str, Any]) -> Run:
    """One run of one side in a fresh process, with its memory."""
    with Worker("as typed", LIMIT_S) as worker:
        pid, num_bytes = worker.call(prepare, spec)
        with Watch(partial(processes, pid), SAMPLE_S) as watch:
            result = worker.call(measure, spec)
        if spec["loss"] == "softmax":
            result["excess"] = worker.call(excess, spec)
    data_mib = num_bytes / 2**20
    memory = {"before_mib": watch.first_mib, "most_mib": watch.most_mib, "data_mib": data_mib}
    copies = (watch.most_mib - watch.first_mib + data_mib) / data_mib
    return {**result, "cpu_s": watch.cpu_s, **memory, "copies": copies}


def compare(name: str, loss: str, tol: float, sides: list[str], arguments: argparse.Namespace) -> list[Row]:
    """All sides on one data set with one loss, in turns."""
    runs: dict[str, list[Run]] = {side: [] for side in sides}
    spec = {"data": name, "folder": str(arguments.folder), "quick": arguments.quick, "loss": loss, "tol": tol}
    if name in SHAPES:
        spec["shape"] = tuple(size // 5 if arguments.quick else size for size in SHAPES[name])
    for turn in range(arguments.repeats):
        for side in sides if turn == 0 else [side for side in sides if side not in (LINEAR_SVC, RIDGE_CV)]:
            runs[side].append(measured({**spec, "side": side}))
            last = runs[side][-1]
            print(
                f"  {name}, {loss}, tol {tol:g}, {side}: {last['wall_s']:.1f} s ({last['cpu_s']:.1f} s of processors), "
                f"best C {last['best_C']:.3g}, {last['most_mib']:.0f} MiB, {last['copies']:.2f} copies",
                file=sys.stderr,
                flush=True,
            )

    def row(what: str, key: str, value: float, bar: Bar | None, *, theirs: str = "", side: str = OURS) -> Row:
        found = [[run[key] for run in runs[each]] for each in (side, theirs) if each]
        middles = [f"{statistics.median(values):.4g}" for values in found]
        details = {"runs": {each: runs[each] for each in (side, theirs) if each}}
        against = middles[1] if theirs else ""
        return Row("search", f"{name}, {loss}: {what}", tol, middles[0], against, value, bar, details)

    def ratio(side: str, key: str) -> float:
        return statistics.median(t[key] / o[key] for t, o in zip(runs[side], runs[OURS], strict=False))

    rows: list[Row] = []
    bar: Bar | None
    for side in sides[1:]:
        rows.append(row(f"seconds, against {side}", "wall_s", ratio(side, "wall_s"), FASTER.get(side), theirs=side))
        rows.append(row(f"processor seconds, against {side}", "cpu_s", ratio(side, "cpu_s"), None, theirs=side))
        if loss == "squares":
            differences = [abs(t["best_score"] - o["best_score"]) for t, o in zip(runs[side], runs[OURS], strict=False)]
            most = Bar(gate=MOST_DIFFERENCE, at_most=True)
            rows.append(row("R^2 of the best alpha, difference", "best_score", max(differences), most, theirs=side))
    if loss == "softmax":
        for side in sides:
            bar = Bar(gate=tol, at_most=True) if side == OURS else None
            rows.append(row(f"objective above the best, {side}", "excess", runs[side][0]["excess"], bar, side=side))
    if tol == TIGHT:
        return rows + [row(*each, theirs=CHICLE) for each in _agreement(runs, name, arguments)]
    for side in sides:
        is_judged = side == OURS and name != "targets" and runs[OURS][0]["data_mib"] >= LEAST_JUDGED_MIB
        copies = statistics.median(run["copies"] for run in runs[side])
        bar = Bar(gate=MOST_COPIES, at_most=True) if is_judged else None
        rows.append(row(f"MiB in all, and copies of the data, {side}", "most_mib", copies, bar, side=side))
    return rows


def _agreement(
    runs: dict[str, list[Run]], name: str, arguments: argparse.Namespace
) -> list[tuple[str, str, float, Bar]]:
    """How far ours and the same estimator's come to the same scores."""
    num_rows = QUICK_ROWS[name] if arguments.quick else ROWS[name]
    pairs = list(zip(runs[OURS], runs[CHICLE], strict=True))
    worst = max(abs(a - b) for o, t in pairs for a, b in zip(o["scores"], t["scores"], strict=True))
    is_same = all(o["best_C"] == t["best_C"] for o, t in pairs)
    return [
        ("rows that mean scores differ by at most", "best_score", num_rows * worst, Bar(gate=MOST_ROWS, at_most=True)),
        ("the same best C (1: yes)", "best_C", float(is_same), Bar(gate=1.0)),
    ]


def main() -> int:
    """Run it; the exit code."""
    options = parser(__doc__)
    options.add_argument("--data", nargs="+", choices=(*ROWS, *MADE), default=(*ROWS, *MADE))
    options.add_argument("--losses", nargs="+", choices=("hinge", "squared_hinge"), default=("squared_hinge", "hinge"))
    options.add_argument("--repeats", type=int, default=3, help="turns of each side")
    options.add_argument("--slow", action="store_true", help="LinearSVC with the hinge on Fashion-MNIST, too")
    options.add_argument("--more", action="store_true", help="halving and GridSearchCV on threads, too")
    options.add_argument("--folder", type=Path, default=FOLDER, help="folder of the real data sets")
    arguments = options.parse_args()
    real = [name for name in arguments.data if name in ROWS]
    for name in real:
        if missing(name, arguments.folder):
            options.error(f"there is no {missing(name, arguments.folder)[0]}; pass --folder, or other --data")
    report = Report(arguments, packages=["scikit-learn"], repeats=arguments.repeats)
    print(f"{FOLDS} folds x 8 values of C")
    for name, loss, tol in itertools.product(real, arguments.losses, (TOL, TIGHT)):
        sides = [OURS, CHICLE]
        if tol == TOL and (arguments.slow or arguments.quick or (name, loss) != ("fashion", "hinge")):
            sides.append(LINEAR_SVC)
        if tol == TOL and arguments.more:
            sides += [HALVING, THREADS]
        report.add(compare(name, loss, tol, sides, arguments))
    for name in [name for name in arguments.data if name in MADE]:
        loss, peers = MADE[name]
        sides = [OURS, *(peer for peer in peers if peer != HIMALAYA or find_spec("himalaya"))]
        report.add(compare(name, loss, TOL, sides, arguments))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
