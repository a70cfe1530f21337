"""The direction of a task that has all rows, from their columns, where there are too many for products.

Coordinate descent finds which weights of the second order model are 0, and the signs of the others (Yuan, Ho and Lin
2012, "An improved GLMNET for l1-regularized logistic regression"). With signs fixed the model is smooth: on that face
conjugate gradients come much further than sweeps where columns hang together. Both in turns, as the lasso has it with a
Cholesky factor (`subproblem`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.rows import matrix_of
from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels.columns import descend_columns
from chicle_elastic.solvers.linear.l1.objective import Objective
from chicle_elastic.solvers.linear.tables import LocalTables

SWEEPS, MOST_ROUNDS = 10, 6
"""Sweeps before conjugate gradients, and rounds of both."""
MOST_PRODUCTS, ENOUGH = 100, 0.3
"""Products of conjugate gradients, and share of the slopes on the face that they leave."""
NEARLY_STEEP = 0.9
"""Share of l1 from which the slope of a weight that is 0 makes it one that may change."""


@dataclass(slots=True)
class _Model:
    """The second order model, and a point of it.

    Attributes:
        curvatures: Of the rows, shape (num_rows,).
        squares: Its second derivatives along each weight that may change, shape (D,).
        l2: Factors of the squared weights, damping included, shape (D,).
        offsets: Of the slopes along each weight, for damping, shape (D,).
        w: The point, shape (D,).
        residuals: Slopes of the rows there, shape (num_rows,).
    """

    curvatures: Array
    squares: Array
    l2: Array
    offsets: Array
    w: Array
    residuals: Array


class Columns:
    """The columns of all local rows, the intercept's at the end; as much memory as the rows take.

    Args:
        tables: Of sparse rows.
        intercept: Value of the intercept column; 0 for none.
        objective: Of each output.
    """

    def __init__(self, tables: LocalTables, intercept: float, objective: Objective) -> None:
        parts = [matrix_of(block.rows) for block in tables.keep_alive]
        matrix = (scipy.sparse.vstack(parts) if len(parts) > 1 else parts[0]).tocsc()
        num_rows, d = matrix.shape
        last = num_rows if intercept else 0
        arrays = (
            np.concatenate([matrix.data, np.full(last, intercept, matrix.dtype)]),
            np.concatenate([matrix.indices, np.arange(last)], dtype=np.int32),
            np.append(matrix.indptr, matrix.nnz + last).astype(np.int64),
        )
        self._values, self._rows, self._starts = arrays
        self._matrix = scipy.sparse.csc_array(arrays, shape=(num_rows, d + 1))
        self._l1, self._l2 = np.full(d + 1, objective.l1), np.full(d + 1, objective.l2)
        if objective.has_free_intercept:
            self._l1[-1] = self._l2[-1] = 0.0

    def direction(
        self,
        slopes: Array,
        curvatures: Array,
        v: Array,
        w: Array,
        *,
        damping: Array,
        accuracy: float,
        is_spent: Callable[[], bool],
    ) -> Array:
        """Where the second order model with the penalties is least, less w.

        Args:
            slopes: a_i at w, shape (num_rows,), float64.
            curvatures: Shape (num_rows,), float64.
            v: Their sums, sum_i a_i x_i, shape (D,), float64.
            w: Shape (D,), float64.
            damping: Added to the second derivatives of the model along each weight, shape (D,), float64.
            accuracy: Share of what slopes are off, all together, that may be left.
            is_spent: Whether to stop at the next chance.

        Returns:
            Shape (D,), float64; zeros where slopes are beyond all numbers.
        """
        gradients, l1 = v - self._l2 * w, self._l1
        off = np.where(w != 0, np.abs(gradients - l1 * np.sign(w)), np.maximum(np.abs(gradients) - l1, 0.0))
        goal = accuracy * float(off.sum())
        if not np.isfinite(goal):
            return np.zeros(len(w))
        places = np.flatnonzero((w != 0) | (np.abs(gradients) > NEARLY_STEEP * l1))
        squares = np.zeros(len(w))
        squares[places] = self._of(places).power(2).T @ curvatures
        # Damping is an l2 penalty on the way from w.
        model = _Model(curvatures, squares, self._l2 + damping, damping * w, w.copy(), slopes.copy())
        for number in range(MOST_ROUNDS):
            if number:
                self._go_along_face(model, goal, is_spent)
            left = descend_columns(
                self._starts,
                self._rows,
                self._values,
                curvatures,
                squares,
                l1,
                model.l2,
                model.offsets,
                SWEEPS,
                goal,
                places.copy(),
                model.residuals,
                model.w,
            )
            if left <= goal or is_spent():
                break
        return model.w - w

    def _of(self, places: Array) -> Any:
        """A copy of these columns in float64, CSC."""
        return self._matrix[:, places].astype(np.float64)

    def _go_along_face(self, model: _Model, goal: float, is_spent: Callable[[], bool]) -> None:
        """Go to where the model is least with the signs that the weights have, or until one becomes 0 on the way."""
        places = np.flatnonzero(model.w)
        start, l1, l2 = model.w[places], self._l1[places], model.l2[places]
        signs, columns = np.sign(start), self._of(places)
        gradients = columns.T @ model.residuals + model.offsets[places] - l2 * start
        step, moved = _conjugate(model, places, columns, gradients - l1 * signs, goal, is_spent)
        there = start + step
        has_crossed = (np.sign(there) != signs) & (l1 > 0)
        if has_crossed.any():
            cut = np.where(has_crossed, 0.0, there) - start
            moved_cut = columns @ cut
            curvature = moved_cut @ (model.curvatures * moved_cut) + cut @ (l2 * cut)
            if gradients @ cut - 0.5 * curvature > l1 @ (np.abs(start + cut) - np.abs(start)):
                step, moved = cut, moved_cut
            else:  # until the first one is 0 the model falls all the way
                shares = np.where(has_crossed, np.abs(start), np.inf) / np.maximum(np.abs(step), 1e-300)
                first = int(np.argmin(shares))
                step, moved = shares[first] * step, shares[first] * moved
                step[first] = -start[first]
        model.w[places] = start + step
        model.residuals -= model.curvatures * moved


def _conjugate(
    model: _Model, places: Array, columns: Any, right: Array, goal: float, is_spent: Callable[[], bool]
) -> tuple[Array, Array]:
    """Conjugate gradients, preconditioned by the diagonal: a step along the face, and how it moves the rows."""
    l2, r = model.l2[places], right.copy()
    scale = 1.0 / np.maximum(model.squares[places] + l2, 1e-300)
    step, moved = np.zeros(len(places)), np.zeros(len(model.residuals))
    p, rz = np.zeros(len(places)), np.inf
    enough = min(ENOUGH * np.abs(r).sum(), goal)
    for _ in range(MOST_PRODUCTS):
        if np.abs(r).sum() <= enough or is_spent():
            break
        z = scale * r
        rz, before = r @ z, rz
        p = z + (rz / before) * p
        along = columns @ p
        product = columns.T @ (model.curvatures * along) + l2 * p
        curvature = p @ product
        if not curvature > 0:
            break
        length = rz / curvature
        step += length * p
        moved += length * along
        r -= length * product
    return step, moved
