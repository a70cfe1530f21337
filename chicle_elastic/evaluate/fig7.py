"""Figure 7 of the paper: how much the partition matters, with rows in the order of their labels, CoCoA on 16 tasks.

even         micro-tasks of rows that were drawn at random
contiguous   micro-tasks of consecutive rows: all but one have rows of one class only
dealt        uni-tasks: chunks of consecutive rows, which the scheduler deals at random
redrawn      the same with `Shuffle`, which redraws the owners of a quarter of the chunks after each iteration
"""

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean

import numpy as np
import scipy.sparse as sp

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.evaluate.bars import Bar, Row
from chicle_elastic.evaluate.cocoa import CertifiedCocoa
from chicle_elastic.evaluate.projection import time_to
from chicle_elastic.evaluate.runs import Problem, Settings, by_seed, problems
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job

TASKS = 16
MOST_GAPS = 2
LABELS = {
    "even": "micro-tasks, random rows",
    "contiguous": "micro-tasks, consecutive rows",
    "dealt": "uni-tasks, chunks dealt at random",
    "redrawn": "uni-tasks with Shuffle",
}
EVEN = 1.0
"""Epochs of uni-tasks with `Shuffle` on ordered rows, at most, over those of micro-tasks on rows in random order."""


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """One line for each data set and gap."""
    found = []
    for problem in problems(settings, notes):
        gaps = problem.gaps[:MOST_GAPS]
        suffix = f"{problem.data.key}_{gaps[-1]:.0e}"
        runs = {
            name: by_seed(settings, f"ordered_{name}_{suffix}", run) for name, run in _runs(problem, gaps[-1]).items()
        }
        for gap in gaps:
            epochs = {name: fmean(time_to(gap, run, range(1, len(run) + 1)) for run in of) for name, of in runs.items()}
            what = f"{problem.data.title}, ordered by label, redrawn uni-tasks: epochs"
            others = ", ".join(f"{name}: {value:.4g}" for name, value in epochs.items() if name != "redrawn")
            value = epochs["redrawn"] / epochs["even"] if math.isfinite(epochs["even"]) else math.nan
            shown, bar = (f"{epochs['redrawn']:.4g}", others), Bar(gate=EVEN, at_most=True)
            curves = {
                LABELS[name]: [[(n, n, value) for n, value in enumerate(run, 1)] for run in of]
                for name, of in runs.items()
            }
            details = {"panel": f"CoCoA, {problem.data.title}, ordered by label", "curves": curves}
            found.append(Row("fig7", what, gap, *shown, value, bar, details))
    return found


def by_label(X: Array | sp.csr_matrix, y: Array) -> tuple[Array | sp.csr_matrix, Array]:
    """Rows and labels in the order of the labels; rows of one label stay in their order."""
    order = np.argsort(y, kind="stable")
    return X[order], y[order]


def contiguous(X: Array | sp.csr_matrix, y: Array, num_parts: int) -> ArraySource:
    """Consecutive rows, as so many chunks or, where that cannot be cut, the next smaller number of them.

    Args:
        X: Dense or CSR, shape (num_rows, num_features).
        y: Class codes, shape (num_rows,), int32.
        num_parts: Chunks at most.
    """
    num_bytes = X.nbytes if isinstance(X, np.ndarray) else X.data.nbytes + X.indices.nbytes
    chunk_bytes = num_bytes // num_parts
    while True:
        source = ArraySource(X, y, max_tasks=num_parts, shuffle=False, chunk_bytes=chunk_bytes)
        if source.num_chunks <= num_parts:
            return source
        chunk_bytes += 1 + chunk_bytes // 100


def _runs(problem: Problem, gap: float) -> dict[str, Callable[[int], list[float]]]:
    """Return a function of the seed for each kind of run."""
    y: Array = problem.data.y.astype(np.int32)
    ordered = by_label(problem.data.X, y)
    dealt = partial(ArraySource, *ordered, max_tasks=64, shuffle=False)
    kinds: dict[str, tuple[Callable[[int], ArraySource], tuple[Policy, ...]]] = {
        "even": (lambda seed: ArraySource(problem.data.X, y, max_tasks=64, seed=seed), ()),
        "contiguous": (lambda seed: contiguous(*ordered, TASKS), ()),
        "dealt": (lambda seed: dealt(seed=seed), ()),
        "redrawn": (lambda seed: dealt(seed=seed), (Shuffle(),)),
    }
    return {name: partial(_gaps, problem, gap, make, policies) for name, (make, policies) in kinds.items()}


def _gaps(
    problem: Problem, gap: float, make: Callable[[int], ArraySource], policies: tuple[Policy, ...], seed: int
) -> list[float]:
    """Certified relative duality gap after each iteration."""
    trainer = CertifiedCocoa(C=problem.penalty, tol=gap)
    job = Job(trainer=trainer, source=make(seed), max_iterations=problem.most, seed=seed, policies=policies)
    found: list[float] = InProcess(num_tasks=TASKS).run(job).history.column("duality_gap").tolist()
    return found
