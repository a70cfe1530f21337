"""The Newton finish of smooth losses on wide sparse rows: conjugate gradients in w, without the empty columns.

On hashed data most columns are empty and most of the others have one entry, so vectors in w are no longer than the
data. A step solves (I + X^T c X) direction = -gradient, preconditioned by the diagonal and by a dense block of the
heaviest columns, to a residual that is the smaller the nearer the optimum is (Dembo, Eisenstat and Steihaug 1982,
"Inexact Newton methods"). The duals that belong to the end of a direction are those of one Newton step on,
a - c (change of the margin), clipped into their bounds. They are what is kept, with their own w: so w = w(alpha) holds
after every step, and the gap of the two is known.

It pays where coordinate descent crawls: rows with large values, whose duals all wait for each other.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton_finish import SearchLine
from chicle_elastic.solvers.linear.objectives import TINY, Loss, dual_values, primal_losses
from chicle_elastic.solvers.linear.slopes import slopes_of
from chicle_elastic.solvers.linear.tables import LocalTables
from chicle_elastic.solvers.linear.wide_rows import whole_matrix, without_empty_columns

HEAVY = 64
"""Columns of the dense block."""
LEAST_ETA, MOST_ETA = 1e-2, 0.3
"""Residual of conjugate gradients as a share of the gradient, in the norm of the preconditioner."""
MOST_PRODUCTS = 1000
STEPS_PER_ITERATION = 8
"""Newton steps at most before the runtime is asked what next."""
MOST_FRUITLESS = 30
"""Newton steps in a row without better duals after which they are given up: rounding, most likely."""
USUAL_PRODUCTS = 10
"""Products of a Newton step, typically."""
PRODUCT_ADVANTAGE = 6
"""Values of a product in the time of one of a pass of coordinate descent, which waits for the value before it."""


def product_values(num_values: int) -> int:
    """What the products of a Newton step cost, as a number of values of a pass."""
    return 2 * USUAL_PRODUCTS * num_values // PRODUCT_ADVANTAGE


class SmoothRows:
    """A matrix of shape (num_rows, number of columns that are not empty), by rows and by columns.

    Args:
        matrix: CSR, float64.
    """

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self._transposed = matrix.T.tocsr()
        with np.errstate(over="ignore"):  # no step with such squares is taken
            squares = self._transposed.data * self._transposed.data
        parts = (squares, self._transposed.indices, self._transposed.indptr)
        self._squares = scipy.sparse.csr_array(parts, shape=self._transposed.shape)
        weights = np.asarray(self._squares.sum(axis=1)).reshape(-1)
        self._heavy = np.sort(np.argsort(-weights, kind="stable")[:HEAVY])
        self._dense = np.ascontiguousarray(self._transposed[self._heavy].toarray().T)
        self.num_columns = int(matrix.shape[1])

    @classmethod
    def of(cls, tables: LocalTables, intercept: float) -> tuple["SmoothRows", Array]:
        """Of all local rows, and which columns it has, ascending, int64; num_features is the intercept column."""
        matrix, columns = without_empty_columns(whole_matrix(tables), intercept)
        return cls(matrix), columns

    def times(self, vector: Array) -> Array:
        """<x_i, vector> of every row, shape (num_rows,)."""
        return np.asarray(self._matrix @ vector)

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i, shape (num_columns,)."""
        return np.asarray(self._transposed @ weights)

    def solve(self, curvatures: Array, gradient: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        """The direction of a Newton step.

        Args:
            curvatures: c_i, shape (num_rows,), float64.
            gradient: Shape (num_columns,), float64.
            eta: Residual at which to end, as a share of the gradient in the norm of the preconditioner.
            is_spent: Whether to end with what there is.

        Returns:
            Shape (num_columns,). However few the products were, it leads downwards.
        """
        precondition = self._preconditioner(curvatures)
        x, r = np.zeros(self.num_columns), -gradient
        z = precondition(r)
        p, rz = z, float(r @ z)
        goal = eta * eta * rz
        for _ in range(MOST_PRODUCTS):
            product = p + self.weighted_sum(curvatures * self.times(p))
            bend = float(p @ product)
            if not (bend > 0 and rz > 0):
                break
            length = rz / bend
            x += length * p
            r -= length * product
            z = precondition(r)
            rz, before = float(r @ z), rz
            if rz <= goal or is_spent():
                break
            p = z + (rz / before) * p
        return x

    def _preconditioner(self, curvatures: Array) -> Callable[[Array], Array]:
        """The inverse of I + X^T c X in the heaviest columns, and that of its diagonal elsewhere."""
        diagonal = 1.0 + np.asarray(self._squares @ curvatures)
        block = (self._dense * curvatures[:, None]).T @ self._dense
        block.reshape(-1)[:: len(block) + 1] += 1.0
        try:
            factor = cho_factor(block, overwrite_a=True, check_finite=False)
        except LinAlgError:  # more digits than float64 has
            return lambda r: r / diagonal

        def solve(r: Array) -> Array:
            z = r / diagonal
            z[self._heavy] = cho_solve(factor, r[self._heavy], check_finite=False)
            return z

        return solve


class WideSmoothFinish:
    """Newton steps for one output over all rows of the only task.

    Args:
        rows: All local rows.
        loss: The squared hinge, or logistic.
        signs: +1 or -1, shape (num_rows,).
        upper: C_i, shape (num_rows,).
        alpha: Duals to begin with, shape (num_rows,), float64.
        tol: Relative gap at which to come back, however few the steps were.

    Attributes:
        alpha: The best duals so far.
        w: w(alpha), shape (num_columns,).
        gap: P(w) - D(alpha).
        is_stuck: Whether steps have led nowhere for long.
    """

    def __init__(self, rows: SmoothRows, loss: Loss, signs: Array, upper: Array, alpha: Array, *, tol: float) -> None:
        self._rows = rows
        self._loss = loss
        self._signs = signs
        self._upper = upper
        self._tol = tol
        self._num_fruitless = 0
        self.alpha = alpha
        self._point = self.w = rows.weighted_sum(signs * alpha)
        self._margins = signs * rows.times(self.w)
        self.gap, self._primal = self._gap(self.w, self._margins, alpha)

    @property
    def is_stuck(self) -> bool:
        """See the class."""
        return self._num_fruitless >= MOST_FRUITLESS

    def run(self, is_spent: Callable[[], bool]) -> None:
        """Newton steps until the gap is small enough, or `STEPS_PER_ITERATION`; at least one."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number is not taken
            for _ in range(STEPS_PER_ITERATION):
                self._step(is_spent)
                if self.gap <= self._tol * self._primal or self.is_stuck or is_spent():
                    return

    def _gap(self, w: Array, margins: Array, alpha: Array) -> tuple[float, float]:
        """P - D where w = w(alpha), and P."""
        half_norm = 0.5 * float(w @ w)
        primal = half_norm + float(primal_losses(self._loss, margins, self._upper).sum())
        return primal - float(dual_values(self._loss, alpha, self._upper).sum()) + half_norm, primal

    def _slopes(self, margins: Array) -> Array:
        return slopes_of(self._loss, margins, self._upper)[0]

    def _step(self, is_spent: Callable[[], bool]) -> None:
        rows, signs, w = self._rows, self._signs, self._point
        slopes, curvatures = slopes_of(self._loss, self._margins, self._upper)
        gradient = w - rows.weighted_sum(signs * slopes)
        left = 0.5 * float(gradient @ gradient) / max(self._primal, TINY)
        eta = min(max(math.sqrt(min(left, 1.0)), LEAST_ETA), MOST_ETA)
        direction = rows.solve(curvatures, gradient, eta, is_spent)
        changes = signs * rows.times(direction)
        if not np.isfinite(changes).all():
            self._num_fruitless = MOST_FRUITLESS
            return
        self._try(slopes - curvatures * changes)
        line = SearchLine(
            changes=changes,
            at_rest=float(w @ direction),
            squared=float(direction @ direction),
            margins=self._margins,
            duals_at=self._slopes,
        )
        line.search(float(gradient @ direction))
        self._point = w + line.t * direction
        self._margins = line.margins_there

    def _try(self, duals: Array) -> None:
        """Keep these duals if they are better."""
        candidate = np.clip(duals, 0.0, self._upper if self._loss is Loss.LOGISTIC else None)
        w = self._rows.weighted_sum(self._signs * candidate)
        gap, primal = self._gap(w, self._signs * self._rows.times(w), candidate)
        self._num_fruitless += 1
        if gap < self.gap:
            self.alpha, self.w, self.gap, self._primal, self._num_fruitless = candidate, w, gap, primal, 0
