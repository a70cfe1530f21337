"""The direction of a task that has all rows, from their columns, where there are too many for products.

Coordinate descent finds which weights of the second order model are 0, and the signs of the others (Yuan, Ho and Lin
2012, "An improved GLMNET for l1-regularized logistic regression"). With signs fixed the model is smooth: on that face
conjugate gradients come much further than sweeps where columns hang together. Both in turns, as the lasso has it with a
Cholesky factor (`subproblem`).

They are given up for a working set's products where they have been as much work as those would be: what is found takes
at most twice the work of the better of the two, whatever the columns are like. Work is multiply-adds: two for each
value in a sweep, four in a step of conjugate gradients.
"""

from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, cg

from chicle_elastic.chunks.rows import matrix_of
from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.kernels.penalised import descend_columns
from chicle_elastic.solvers.linear.certified import MOST_INNER
from chicle_elastic.solvers.linear.l1.problem import L1Penalty
from chicle_elastic.solvers.linear.l1.subproblem import ROUNDS
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.tables import LocalTables


class Columns:
    """The columns of all local rows, which are sparse, the intercept's at the end; as much memory as the rows take."""

    def __init__(self, tables: LocalTables, intercept: float, penalty: L1Penalty, *, has_free_intercept: bool) -> None:
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
        self._l1, self._l2 = np.full(d + 1, penalty.l1), np.full(d + 1, penalty.l2)
        if has_free_intercept:
            self._l1[-1] = self._l2[-1] = 0.0

    def direction(
        self,
        slopes: Array,  # a_i at the start, shape (num_rows,), float64
        curvatures: Array,  # shape (num_rows,), float64
        v: Array,  # Their sums, sum_i a_i x_i, shape (D,), float64
        start: Array,  # w, shape (D,), float64
        damping: Array,  # added to the second derivatives of the model along each weight, shape (D,), float64
        accuracy: float,  # share of what slopes are off, all together, that may be left
        limit: float,  # work after which to give up
        budget: Budget,  # says when to stop at the next chance
    ) -> tuple[Array, bool]:
        """Find the step to where the second order model with the penalties is least, and whether it was given up."""
        gradients, l1, w = v - self._l2 * start, self._l1, start.copy()
        off = np.where(w != 0, np.abs(gradients - l1 * np.sign(w)), np.maximum(np.abs(gradients) - l1, 0.0))
        goal = accuracy * float(off.sum())
        if not np.isfinite(goal):
            return np.zeros(len(w)), False
        # Weights that are 0 may change where their slopes are off, or would be if they changed by what may be left.
        places = np.flatnonzero((w != 0) | (np.abs(gradients) > (1.0 - accuracy) * l1))
        squares = np.zeros(len(w))
        squares[places] = self._of(places).power(2).T @ curvatures
        # Damping is an l2 penalty on the way from the start.
        l2, offsets, residuals = self._l2 + damping, damping * start, slopes.copy()
        of_sweep = 2.0 * max(int((self._starts[places + 1] - self._starts[places]).sum()), 1)
        for number in range(ROUNDS):
            if number:
                limit -= self._go_along_face(curvatures, squares + l2, l2, offsets, goal, limit, w, residuals)
            num_sweeps = int(max(1, min(ROUNDS, limit / of_sweep)))
            matrix = self._starts, self._rows, self._values
            model = curvatures, squares, l1, l2, offsets
            left = descend_columns(*matrix, *model, num_sweeps, goal, places.copy(), residuals, w)
            limit -= num_sweeps * of_sweep
            if left <= goal or budget.is_spent():
                break
            if limit <= 0:
                return w - start, True
        return w - start, False

    def work_of_products(self, columns: Array, num_weights: int) -> float:
        """Multiply-adds of the products of these columns, and of a solution from them (`subproblem`)."""
        places = np.concatenate([self._rows[self._starts[j] : self._starts[j + 1]] for j in columns])
        entries = np.bincount(places).astype(np.float64)
        return 0.5 * float(entries @ entries) + ROUNDS * float(len(columns)) ** 2 + num_weights**3 / 3.0

    def _of(self, places: Array) -> Any:
        """A copy of these columns in float64, CSC."""
        return self._matrix[:, places].astype(np.float64)

    def _go_along_face(
        self, curvatures: Array, diagonal: Array, l2: Array, offsets: Array, goal: float, limit: float, *out: Array
    ) -> float:
        """Go to where the model is least with the signs of w, or until one is 0; w and residuals are OUT.

        Returns the work at most.
        """
        w, residuals = out
        places = np.flatnonzero((w != 0) & (diagonal > 0))
        start, l1, l2, diagonal = w[places], self._l1[places], l2[places], diagonal[places]
        signs, columns, shape = np.sign(start), self._of(places), (len(places), len(places))
        gradients = columns.T @ residuals + offsets[places] - l2 * start
        right = gradients - l1 * signs
        enough = goal / np.sqrt(max(len(places), 1))
        second = LinearOperator(shape, lambda p: columns.T @ (curvatures * (columns @ p)) + l2 * p, dtype=np.float64)
        inverse = LinearOperator(shape, lambda p: p / diagonal, dtype=np.float64)
        of_step = 4.0 * max(columns.nnz, 1)
        num_steps = int(max(1, min(MOST_INNER, limit / of_step)))
        step, _ = cg(second, right, atol=enough, maxiter=num_steps, M=inverse)
        if not np.isfinite(step).all():
            return num_steps * of_step
        has_crossed = (np.sign(start + step) != signs) & (l1 > 0)
        cut = np.where(has_crossed, -start, step)
        fall = gradients @ cut - l1 @ (np.abs(start + cut) - np.abs(start))
        if has_crossed.any() and fall > 0.5 * cut @ second.matvec(cut):
            step = cut
        elif has_crossed.any():  # until the first one is 0 the model falls all the way
            shares = np.where(has_crossed, np.abs(start), np.inf) / np.maximum(np.abs(step), TINY)
            first = int(np.argmin(shares))
            step *= shares[first]
            step[first] = -start[first]
        w[places] = start + step
        residuals -= curvatures * (columns @ step)
        return num_steps * of_step
