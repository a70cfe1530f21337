"""The best possible objective of a problem as an interval that holds whatever anybody's solver believes.

Both ends are evaluated in `benchmarks.problems`: the upper end is the objective of the best model that was seen, the
lower end the dual objective of the best dual variables. They come from a fit of ours and, where that is not tight
enough, from `benchmarks.newton`.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from benchmarks.datasets import replace_text
from benchmarks.newton import Newton
from benchmarks.ours import fit_ours
from benchmarks.problems import Problem, dual, primal

LIMIT_S = 600.0
SHARE_OF_OURS = 0.1
"""Of the limit: where ours needs more, Newton's method is quicker, except on much sparse data with the hinge."""


@dataclass(slots=True)
class Reference:
    """The best possible objective of each output lies in [lower, upper].

    Attributes:
        lower: ndarray of shape (outputs,).
        upper: ndarray of shape (outputs,).
    """

    lower: np.ndarray
    upper: np.ndarray

    @property
    def width(self) -> float:
        """Relative width of the widest interval; rounding may turn it round."""
        return max(0.0, float(np.max((self.upper - self.lower) / self.upper)))

    def suboptimality(self, objective: np.ndarray) -> float:
        """(P - P*) / P* of the worst output, with the upper end as P*: a peer gains from the doubt."""
        return float(np.max((objective - self.upper) / self.upper))

    def note(self, problem: Problem, objective: np.ndarray) -> None:
        """Lower the upper end where a solver did better.

        Raises:
            SystemExit: It would be below the lower end, so one of the two is wrong.
        """
        below = float(np.max((self.lower - objective) / self.upper))
        if below > 1e-9:
            raise SystemExit(f"{problem.title}: better than the best possible by {below:.1e}; empty --data-dir")
        self.upper = np.minimum(self.upper, objective)

    def text(self) -> str:
        """The interval of the first output, and the width of the widest."""
        return f"P* in [{self.lower[0]:.9g}, {self.upper[0]:.9g}] (width {self.width:.1e})"


def reference(problem: Problem, tol: float, folder: Path, limit_s: float = LIMIT_S) -> Reference:
    """The interval, from the cache when it is there.

    It is at most `tol` wide, unless `limit_s` of processor time are too short for Newton's method, and for ours.
    """
    path = folder / f"{problem.key}-reference.json"
    if path.exists():
        cached = json.loads(path.read_text(encoding="utf-8"))
        known = Reference(np.array(cached["lower"]), np.array(cached["upper"]))
        if known.width <= tol or cached["limit_s"] >= limit_s:
            return known
    best = by_ours(problem, tol, SHARE_OF_OURS * limit_s)
    for source in (by_newton, by_ours):
        if not best.width <= tol:
            other = source(problem, tol, limit_s)
            best = Reference(np.maximum(best.lower, other.lower), np.minimum(best.upper, other.upper))
    ends = {"lower": best.lower.tolist(), "upper": best.upper.tolist(), "limit_s": limit_s}
    replace_text(path, json.dumps(ends))
    return best


def by_ours(problem: Problem, tol: float, limit_s: float) -> Reference:
    """From a fit of ours; the duals are read from it, and everything else is computed here."""
    model = fit_ours(problem, tol, limit_s=limit_s, store_duals=True).model
    return Reference(dual(problem, model.duals_), primal(problem, model.coef_))


def by_newton(problem: Problem, tol: float, limit_s: float) -> Reference:
    """From the benchmark's own solver, output by output."""
    data = problem.data
    classes = np.unique(data.y)
    positive = classes[1:] if len(classes) == 2 else classes
    X = data.X.astype(np.float64)
    deadline = time.process_time() + limit_s
    lower, coef = [], []
    for label in positive:
        signs = np.where(data.y == label, 1.0, -1.0)
        A = sp.csr_matrix(sp.diags(signs) @ X) if data.is_sparse else X * signs[:, None]
        newton = Newton(A, problem.loss, problem.C, deadline, np.zeros(data.num_features))
        newton.solve(tol)
        lower.append(newton.lower)
        coef.append(newton.w)
    return Reference(np.array(lower), primal(problem, np.array(coef)))
