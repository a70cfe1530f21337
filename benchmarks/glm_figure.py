"""Draw how many iterations K tasks take: coordinate descent alone beside what Chicle does by itself.

    python -m benchmarks.glm_figure                 docs/images/passes.png, and a table on stdout
    python -m benchmarks.glm_figure somewhere.png   the same, to another place

The data is that of `shapes.few_binary`, the loss the hinge. Tasks take turns in this process, so iterations are
counted and not seconds: on a cluster an iteration is one pass of each task over its rows, and one message. A task that
is alone may make several passes in an iteration, as no other task waits for it.

What is drawn is the distance to the optimum, (P(w) - D*) / D*, of the best model so far, where D* is a dual objective
within 1e-10 of the optimum. A run ends with the first model that is within `GOAL`, the default `tol` of the estimators.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from benchmarks.shapes import few_binary
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.evaluate.cocoa import Cocoa
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Report, Verdict
from chicle_elastic.solvers.linear.trainer import LinearTrainer

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "passes.png"
NUM_ROWS, C = 20_000, 1.0
NUM_TASKS = (1, 4, 16)
GOAL, REFERENCE_TOL = 1e-3, 1e-10
MOST_ITERATIONS = 10_000
COLORS = {1: "#0072B2", 4: "#E69F00", 16: "#009E73"}  # Okabe and Ito's, as in `monitoring.swimlane`
LINE_WIDTH = 1.8
WIDTHS = {1: LINE_WIDTH, 4: 5.0, 16: LINE_WIDTH}
"""Where curves are the same, the widest lies below."""
INK, FAINT = "#333333", "#DDDDDD"

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCoCoA(Cocoa):
    """CoCoA as in the paper."""

    def verdict(self, model: Array, report: Report) -> Verdict:
        """The caller ends the job."""
        return LinearTrainer.verdict(self, model, replace(report, is_complete=False))  # slots: no super() here


def main(arguments: Sequence[str]) -> int:
    """Measure, print and draw; 0 when all runs came to the goal."""
    X, y = few_binary(NUM_ROWS)
    lower = dual_objective(X, y)
    runs = {
        (trainer.__name__, num_tasks): distances(trainer, X, y, num_tasks, lower)
        for trainer in (PlainCoCoA, LinearTrainer)
        for num_tasks in NUM_TASKS
    }
    print(f"{NUM_ROWS} rows of few_binary, hinge, C = {C:g}: iterations to (P - D*) / D* <= {GOAL:g}")
    for (name, num_tasks), values in runs.items():
        is_there = "" if values[-1] <= GOAL else f" and not there yet, at {values[-1]:.1e}"
        print(f"  {name:<14} K = {num_tasks:<3} {len(values)} iterations{is_there}")
    path = Path(arguments[0]) if arguments else PICTURE
    draw(runs, path)
    print(f"drawn: {path.name}")
    return 0 if all(values[-1] <= GOAL for values in runs.values()) else 1


def dual_objective(X: sp.csr_matrix, y: np.ndarray) -> float:
    """D of a fit of one task with a much smaller gap."""
    trainer = LinearTrainer(C=C, tol=REFERENCE_TOL)
    source = ArraySource(X, y.astype(np.int32), max_tasks=1)
    outcome = InProcess().run(Job(trainer=trainer, source=source, max_iterations=1000))
    if outcome.certificate is None or trainer.relative_gap(outcome.model, outcome.certificate) > REFERENCE_TOL:
        raise SystemExit("the reference did not converge")
    return float(trainer.primal_and_dual(outcome.model, outcome.certificate)[1][0])


def distances(kind: type[LinearTrainer], X: sp.csr_matrix, y: np.ndarray, num_tasks: int, lower: float) -> np.ndarray:
    """Distance to the optimum after each iteration, shape (iterations,)."""
    Z, signs = sp.hstack([X, np.ones((len(y), 1))], format="csr"), np.where(y == 1, 1.0, -1.0)
    found: list[float] = []

    def look(record: IterationRecord, w: Array) -> bool:
        primal = 0.5 * w @ w + C * np.maximum(0.0, 1.0 - signs * (Z @ w)).sum()
        found.append(max(float(primal / lower - 1.0), 0.0))
        return found[-1] <= GOAL

    source = ArraySource(X, y.astype(np.int32), max_tasks=max(NUM_TASKS), seed=1)
    trainer = kind(C=C, tol=GOAL)
    job = Job(trainer=trainer, source=source, max_iterations=MOST_ITERATIONS, seed=1, on_model=look)
    InProcess(num_tasks=num_tasks).run(job)
    return np.array(found)


def draw(runs: dict[tuple[str, int], np.ndarray], path: Path) -> None:
    """Two panels with the same axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = {"PlainCoCoA": "Coordinate descent (CoCoA) alone", "LinearTrainer": "What Chicle does by itself"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        widths = WIDTHS if name == "LinearTrainer" else dict.fromkeys(WIDTHS, LINE_WIDTH)
        draw_panel(axes, {K: runs[name, K] for K in NUM_TASKS}, widths)
        axes.set_title(title, color=INK, fontsize=11)
    panels[0].set_ylabel("distance to the optimum\n(P - P*) / P*, best so far", color=INK)
    panels[0].legend(loc="upper right", frameon=False, fontsize=9, labelcolor=INK)
    panels[1].legend(loc="upper right", frameon=False, fontsize=9, labelcolor=INK)
    panels[1].text(2500, 1.12 * GOAL, "default tol", color=INK, fontsize=9, ha="center")
    panels[0].set_xscale("log")
    panels[0].set_yscale("log")
    panels[0].set_xlim(0.9, 2.0 * max(len(values) for values in runs.values()))
    panels[0].set_ylim(0.5 * GOAL, 2.0 * max(float(values.max()) for values in runs.values()))
    panels[0].set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    figure.savefig(path, dpi=110)


def draw_panel(axes: "Axes", curves: dict[int, np.ndarray], widths: dict[int, float]) -> None:
    """A curve per number of tasks; its number of iterations is in the legend."""
    axes.axhline(GOAL, color=FAINT, linewidth=1.2, zorder=0)
    for K, values in curves.items():
        best = np.maximum(np.minimum.accumulate(values), 0.6 * GOAL)
        label = f"K = {K}: {len(values):,} iterations"
        axes.plot(np.arange(1, len(best) + 1), best, color=COLORS[K], linewidth=widths[K], label=label)
        axes.plot(len(best), best[-1], "o", color=COLORS[K], markersize=3 + widths[K])
    axes.set_xlabel("iterations (K > 1: one pass each)", color=INK)
    axes.tick_params(colors=INK, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
