"""The rows of one task, for Newton steps of its own: products, directions, and what these cost.

The Newton equations (I + X^T c X) direction = -gradient are solved exactly over few columns, or over few rows that have
curvature. Else they are solved by conjugate gradients in w, preconditioned by the diagonal and by a dense block of the
heaviest columns: those are what makes such rows slow, counts of thousands beside hashed categories. Rows with curvature
are copied first, in float64 and without the columns that none of them has, unless they are too large.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.certified import MOST_REPEATS
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES, MOST_COLUMNS, ROWS_PER_SPARSE_COLUMN
from chicle_elastic.solvers.linear.newton.blocks import Blocks
from chicle_elastic.solvers.linear.newton.conjugate import LEAST_ETA
from chicle_elastic.solvers.linear.newton.directions import Preconditioner, RowProducts
from chicle_elastic.solvers.linear.newton.state import Block
from chicle_elastic.solvers.linear.products import MOST_EXACT, cholesky_factor, cholesky_solve, unpack
from chicle_elastic.solvers.linear.progress import NOTHING, no_numbers
from chicle_elastic.solvers.linear.race import DENSE_VALUE, MULTIPLICATION
from chicle_elastic.solvers.linear.rows import ALL, NewtonRows

WIDE_STEP = 12
"""Products with a vector that conjugate gradients take in a step over wide rows, roughly; to copy rows, and tell their
columns apart, costs as much."""
FACTOR_SHARE = 0.25
"""What the factor of the preconditioner's block may cost, as a share of the products of the last direction. With 1 wide
sparse rows take 1.2 to 2 times the work."""
MOST_COPIED_VALUES = 2 * MOST_BLOCK_VALUES
"""Feature values up to which sparse rows are copied: 96 MiB a copy, and for a moment three times as much."""
FIRST_TAU, FIRST_WIDE_TAU = 5.0, 0.2
"""First tau of the hinge. With 0.2 dense rows take a third more Newton steps, with 50 as many as with 5. Over
wide rows conjugate gradients with 1 take so long on click logs that no step comes to an end."""


class WideRows:
    """A matrix of shape (num_rows, num_columns), which counts in `work` what its products and directions cost.

    It `is_exact` with so few columns, or dense and with so few rows, that a matrix of their products can be made. Where
    curvatures are one multiple of `full` or 0, sums of second derivatives are found from those of the step before.
    `heavy` has the columns with the largest sums of squares, ascending, and their values, shape (num_rows, columns);
    None where duals need no correction there, which costs as much as reading the rows once. A sparse wide matrix copies
    rows (`taken`).
    """

    def __init__(self, rows: Any, num_values: int, *, is_exact: bool, full: Array | None = None) -> None:
        self._rows, self._num_values, self._is_exact, self._full = rows, num_values, is_exact, full
        self._product = num_values if rows.is_sparse else DENSE_VALUE * num_values
        self.num_columns = rows.num_columns
        self.work = 0.0
        self.first_tau = FIRST_TAU if is_exact else FIRST_WIDE_TAU
        self.heavy: tuple[Array, Array] | None = None
        self._last_products = 2  # that the first direction is expected to take
        self._products: RowProducts | None = None
        if is_exact:
            self._blocks = Blocks(rows, no_numbers, 1, full)
            return
        count = math.isqrt(int(num_values / (MULTIPLICATION * rows.num_rows))) + 1
        with np.errstate(over="ignore"):  # no step with such squares is taken
            columns = _largest(rows.squares_sum(np.ones(rows.num_rows)), count)
        self.heavy = columns, rows.dense(np.arange(rows.num_rows), columns)

    def times(self, vector: Array) -> Array:
        """<x_i, vector> of every row, shape (num_rows,), float64."""
        self.work += self._product
        return np.asarray(self._rows.times(vector))

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i, shape (num_columns,), float64."""
        self.work += self._product
        return np.asarray(self._rows.weighted_sum(weights))

    def direction(self, curvatures: Array, gradient: Array, is_spent: Callable[[], bool]) -> Array:
        """Solve (I + X^T c X) direction = -gradient, exactly or nearly; however short, it leads downwards."""
        which = np.flatnonzero(curvatures)
        if not len(which):
            return -gradient
        if len(which) < (self.num_columns if self._is_exact else MOST_EXACT + 1):
            return self._over_rows(which, curvatures, gradient)
        if self._is_exact:
            return self._over_columns(curvatures, which, gradient)
        if len(which) * self._num_values > MOST_COPIED_VALUES * len(curvatures):
            return self._conjugate(self._rows, self._num_values, curvatures, -gradient, is_spent)
        split, c = SplitRows(self._rows.taken(which)), curvatures[which]
        self.work += WIDE_STEP * split.num_values
        shrunk, rhs, from_single = split.reduced(c, gradient)
        shared = split.shared
        found = self._conjugate(NewtonRows(shared), shared.nnz, shrunk, rhs, is_spent) if shared.nnz else rhs
        return split.expanded(found, shrunk, from_single, gradient)

    def _over_rows(self, which: Array, curvatures: Array, gradient: Array) -> Array:
        """Find the exact direction where the rows `which` have curvature."""
        rows, products, c = self._rows, self._products, curvatures
        if products is None and self._is_exact and rows.num_rows < self.num_columns:
            products = self._products = RowProducts(rows.dense(np.arange(rows.num_rows)))
        elif products is None:
            products = RowProducts(rows.dense(which) if self._is_exact else rows.taken(which))
            c = curvatures[which]
        before = products.work
        direction, _ = products.solver(c, np.ones(self.num_columns))(-gradient, np.zeros(len(c)))
        self.work += products.work - before
        return direction

    def _over_columns(self, curvatures: Array, which: Array, gradient: Array) -> Array:
        """Find the exact direction over narrow rows; without enough digits the gradient leads downwards."""
        D, ratio, before = self.num_columns, 1.0, self._blocks.num_added
        packed = np.zeros(D * (D + 1) // 2)
        if self._full is not None:
            ratio = float(curvatures[which[0]] / self._full[which[0]])
            curvatures = np.where(curvatures != 0, self._full, 0.0)
        self._blocks.add(0, Block.EXACT, curvatures, ALL, packed)
        packed *= ratio
        matrix = unpack(packed, D)
        matrix.reshape(-1)[:: D + 1] += 1.0
        self.work += MULTIPLICATION * D * D * ((self._blocks.num_added - before) / 2 + D / 3)
        factor = cholesky_factor(matrix)
        return -gradient if factor is None else -cholesky_solve(factor, gradient)

    def _conjugate(
        self, rows: Any, num_values: float, curvatures: Array, rhs: Array, is_spent: Callable[[], bool]
    ) -> Array:
        """Solve (I + X^T c X) x = rhs over some rows and columns, nearly; <x, rhs> > 0 in any case."""
        block = self._preconditioner(rows, num_values, curvatures)
        x, r = np.zeros_like(rhs), rhs
        z = block.solve(r)
        p, rz = z, float(r @ z)
        goal = LEAST_ETA * LEAST_ETA * rz
        for number in range(MOST_REPEATS):
            self._last_products = number + 1
            self.work += 2 * num_values + MULTIPLICATION * len(block.factor)
            product = rows.curved_product(curvatures, p)
            product += p
            bend = float(p @ product)
            if not (bend > 0 and rz > 0):
                break
            length = rz / bend
            x += length * p
            r = r - length * product
            z = block.solve(r)
            rz, before = float(r @ z), rz
            if rz <= goal or is_spent():
                break
            p = z + (rz / before) * p
        return x

    def _preconditioner(self, rows: Any, num_values: float, curvatures: Array) -> Preconditioner:
        """A block of the heaviest columns, whose factor costs a share of what the last direction did."""
        diagonal = rows.squares_sum(curvatures)
        size = int((6 * FACTOR_SHARE * self._last_products * num_values / MULTIPLICATION) ** (1 / 3))
        columns = _largest(diagonal, min(size + 1, MOST_COLUMNS))
        size = len(columns)
        step = max(1, len(curvatures) // (ROWS_PER_SPARSE_COLUMN * size))
        packed, sample = np.zeros(size * (size + 1) // 2), np.zeros(len(curvatures))
        sample[::step] = step * curvatures[::step]
        rows.add_products(sample, columns, packed)
        self.work += num_values * num_values / (2 * step * len(curvatures)) + MULTIPLICATION * size**3 / 3
        return Preconditioner.of(packed, diagonal, columns, NOTHING, np.ones(len(diagonal)))


class SplitRows:
    """Rows, CSR of float64, whose columns that one row alone has are told apart; `shared` is without these.

    They are eliminated: to row i they do no more than divide c_i by 1 + c_i (sum of squares there). That is what keeps
    conjugate gradients short where c_i is large and rows have little in common.
    """

    def __init__(self, matrix: Any) -> None:
        counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
        self.num_values = matrix.nnz
        self.shared, self._columns = with_columns(matrix, counts > 1)
        self._single, self._single_columns = with_columns(matrix, counts == 1)
        with np.errstate(over="ignore"):
            self._squares = self._single.power(2) @ np.ones(len(self._single_columns))

    def reduced(self, c: Array, gradient: Array) -> tuple[Array, Array, Array]:
        """Return curvatures and right-hand side of the equations that are left, and what `expanded` needs."""
        shrunk = c / (1.0 + c * self._squares)
        from_single = self._single @ gradient[self._single_columns]
        return shrunk, self.shared.T @ (shrunk * from_single) - gradient[self._columns], from_single

    def expanded(self, found: Array, shrunk: Array, from_single: Array, gradient: Array) -> Array:
        """Return the direction in all columns, of what was found in those that rows share."""
        direction = -gradient
        direction[self._columns] = found
        direction[self._single_columns] -= self._single.T @ (shrunk * (self.shared @ found - from_single))
        return direction


def with_columns(matrix: Any, is_there: Array) -> tuple[Any, Array]:
    """Copy these columns of a CSR array, in less time than SciPy's choice takes; returns their numbers, too."""
    columns, is_kept = np.flatnonzero(is_there), is_there[matrix.indices]
    places = np.cumsum(is_there, dtype=matrix.indices.dtype) - 1
    indptr = np.concatenate([[0], np.cumsum(is_kept)])[matrix.indptr].astype(matrix.indptr.dtype)
    values = matrix.data[is_kept], places[matrix.indices[is_kept]], indptr
    return scipy.sparse.csr_array(values, shape=(matrix.shape[0], len(columns))), columns


def _largest(weights: Array, count: int) -> Array:
    """Return the numbers of the largest weights, ascending, int64; all if there are no more."""
    if count >= len(weights):
        return np.arange(len(weights))
    return np.sort(np.argpartition(-weights, count - 1)[:count])
