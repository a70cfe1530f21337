"""The rows of sparse data with more columns than second derivatives can be made of, for the Newton finish.

The Newton equations (I + X^T c X) direction = -gradient are solved by conjugate gradients in w, preconditioned by the
diagonal and by a dense block of the heaviest columns: those are what makes such rows slow, counts of thousands beside
hashed categories. Only rows with curvature matter there; where they are a minority they are gathered first.

Small data is copied, in float64 and without the columns that no row has: on hashed data most are empty, and vectors of
all columns would cost more than the rows. Large data stays where it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.solvers.linear.newton.directions import Preconditioner
from chicle_elastic.solvers.linear.objectives import ROWS_IN_CACHE
from chicle_elastic.solvers.linear.products import cholesky_factor, cholesky_solve
from chicle_elastic.solvers.linear.race import MULTIPLICATION, Work
from chicle_elastic.solvers.linear.rows import ChunkedRows, MergedRows, NewtonRows
from chicle_elastic.solvers.linear.tables import LocalTables

HEAVY = 64
"""Columns of the dense block at most."""
HEAVY_SHARE = 0.5
"""Values of the block at most, as a share of those of all rows."""
LEAST_HEAVY = 8
"""Columns of the block that it has in any case."""
FIRST_PRODUCTS = 2
"""Products that the first direction is expected to take, see `Directions`."""
FACTOR_SHARE = 0.25
"""What the factor of the preconditioner's block may cost, as a share of the products of the last direction."""
MOST_COLUMNS = 2048
"""Columns of the preconditioner's block at most: 32 MiB."""
ROWS_PER_COLUMN = 100
"""Rows per column of that block: a sample of them is as good, where rows are many."""
GATHERED_SHARE = 0.5
"""Share of rows with curvature up to which they are gathered."""
MOST_GATHERED_VALUES = 1 << 23
"""Values of large data that are gathered at most: 96 MiB, and for a moment three times as much."""
MOST_EXACT = 256
"""Rows with curvature up to which the equations are solved exactly, over the rows."""
MOST_PRODUCTS = 1000
SPLIT = 10
"""What it costs to copy rows, or to tell their columns apart, per value, in values of a product."""
LEAST_TAU = 0.2
"""Least first tau of the hinge: with 1 conjugate gradients take so long on click logs that no step comes to an end."""


class WideRows(ABC):
    """A matrix of shape (num_rows, num_columns), which tells what it costs.

    Args:
        rows: The matrix.
        product: What a product with a vector costs.
        work: What all products and directions have cost so far.

    Attributes:
        num_columns: Length of w here.
        heavy: The heaviest columns; None where directions are exact, and duals need no correction for these columns.
        least_tau: Least first tau of the hinge: where directions are exact a step may be longer.
    """

    heavy: "HeavyColumns | None" = None
    least_tau: ClassVar[float]

    def __init__(self, rows: NewtonRows, product: float, work: Work) -> None:
        self._rows, self._product, self.work = rows, product, work
        self.num_columns = rows.num_columns

    def times(self, vector: Array) -> Array:
        """<x_i, vector> of every row, shape (num_rows,), float64."""
        self.work.add(self._product)
        return self._rows.times(vector)

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i, shape (num_columns,), float64."""
        self.work.add(self._product)
        return self._rows.weighted_sum(weights)

    @abstractmethod
    def direction(self, curvatures: Array, gradient: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        """The direction of a Newton step: (I + X^T c X) direction = -gradient, nearly.

        Args:
            curvatures: c_i >= 0, shape (num_rows,), float64.
            gradient: Shape (num_columns,), float64.
            eta: Residual at which to end, as a share of the gradient in the norm of the preconditioner.
            is_spent: Whether to end with what there is.

        Returns:
            Shape (num_columns,). However few the products were, it leads downwards.
        """


class HeavyColumns:
    """The columns with the largest sums of squares, once more as a dense block.

    Args:
        columns: Which, ascending, shape (h,), int64.
        values: Shape (num_rows, h), float32 or float64.
    """

    def __init__(self, columns: Array, values: Array) -> None:
        self.columns = columns
        self._values = values

    def times(self, coefficients: Array) -> Array:
        """Products of every row with coefficients of these columns, shape (num_rows,)."""
        return np.asarray(self._values @ coefficients.astype(self._values.dtype))

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i in these columns, shape (h,), float64."""
        total = np.zeros(len(self.columns))
        for begin in range(0, len(weights), ROWS_IN_CACHE):
            part = slice(begin, begin + ROWS_IN_CACHE)
            total += weights[part] @ self._values[part]
        return total

    def products_of(self, which: Array, weights: Array) -> Array:
        """sum_i weights_i x_i x_i^T of the rows of these numbers, in these columns; shape (h, h), float64."""
        total = np.zeros((len(self.columns), len(self.columns)))
        for begin in range(0, len(which), ROWS_IN_CACHE):
            part = slice(begin, begin + ROWS_IN_CACHE)
            values = self._values[which[part]].astype(np.float64, copy=False)
            total += (values * weights[part, None]).T @ values
        return total


class Directions(Work):
    """The work of all directions, and how many products conjugate gradients took for the last of them.

    The factor of the preconditioner's block costs a share of what these did, so it is large where it may pay.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last_products = FIRST_PRODUCTS

    def block_columns(self, squares: Array, num_values: float) -> Array:
        """Return the columns of the next block: those with the largest sums of squares, ascending, int64.

        Args:
            squares: Sums of squares of all columns.
            num_values: Of the rows.
        """
        size = int((6 * FACTOR_SHARE * self.last_products * num_values / MULTIPLICATION) ** (1 / 3))
        count = min(max(size, LEAST_HEAVY), MOST_COLUMNS, len(squares))
        return np.sort(np.argpartition(-squares, count - 1)[:count])


class CurvedRows:
    """I + X^T c X in some columns, to solve with.

    Args:
        rows: X.
        curvatures: c, shape (num_rows,).
        num_values: Of X.
        directions: Says how large the preconditioner's block is, and learns what it has cost.
    """

    def __init__(self, rows: NewtonRows, curvatures: Array, num_values: float, directions: Directions) -> None:
        self._rows, self._curvatures = rows, curvatures
        self._directions, self._num_values = directions, num_values
        diagonal = rows.squares_sum(curvatures)
        columns = directions.block_columns(diagonal, num_values)
        size = len(columns)
        step = max(1, len(curvatures) // (ROWS_PER_COLUMN * size))
        packed, sample = np.zeros(size * (size + 1) // 2), curvatures
        if step > 1:
            sample = np.zeros(len(curvatures))
            sample[::step] = step * curvatures[::step]
        rows.add_products(sample, columns, packed)
        directions.add(num_values * num_values / (2 * step * len(curvatures)) + MULTIPLICATION * size**3 / 3)
        self._block = Preconditioner.of(packed, diagonal, columns, np.zeros(0), np.ones(len(diagonal)))

    def solve(self, rhs: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        """The solution, by conjugate gradients; however few the products were, it has a positive product with rhs.

        Args:
            rhs: Shape (n,), float64.
            eta: Residual at which to end, as a share of `rhs` in the norm of the preconditioner.
            is_spent: Whether to end with what there is.
        """
        x, r = np.zeros_like(rhs), rhs
        z = self._block.solve(r)
        p, rz = z, float(r @ z)
        goal = eta * eta * rz
        for number in range(MOST_PRODUCTS):
            self._directions.last_products = max(number + 1, FIRST_PRODUCTS)
            self._directions.add(2 * self._num_values + MULTIPLICATION * len(self._block.factor))
            product = self._rows.curved_product(self._curvatures, p)
            product += p
            bend = float(p @ product)
            if not (bend > 0 and rz > 0):
                break
            length = rz / bend
            x += length * p
            r = r - length * product
            z = self._block.solve(r)
            rz, before = float(r @ z), rz
            if rz <= goal or is_spent():
                break
            p = z + (rz / before) * p
        return x


class SplitRows:
    """Rows whose columns that one row alone has are told apart.

    These columns are eliminated: to row i they do no more than divide c_i by 1 + c_i (sum of squares there). That is
    what keeps conjugate gradients short where c_i is large and rows have little in common.

    Args:
        matrix: CSR, float64.
        directions: As of `CurvedRows`.
    """

    def __init__(self, matrix: Any, directions: Directions) -> None:
        num_rows, num_columns = matrix.shape
        self._directions, self._num_values = directions, matrix.nnz
        directions.add(SPLIT * matrix.nnz)
        counts = np.bincount(matrix.indices, minlength=num_columns)
        is_shared = counts > 1
        row_of = np.repeat(np.arange(num_rows), np.diff(matrix.indptr))
        is_light = is_shared[matrix.indices]
        single = np.flatnonzero(~is_light)
        self._single_rows, self._single_columns = row_of[single], matrix.indices[single]
        self._single_values = matrix.data[single]
        squares = self._single_values * self._single_values
        self._single_squares = np.bincount(self._single_rows, weights=squares, minlength=num_rows)
        self._columns = np.flatnonzero(is_shared)
        places = np.cumsum(is_shared, dtype=matrix.indices.dtype) - 1
        indptr = np.concatenate([[0], np.cumsum(is_light)])[matrix.indptr].astype(matrix.indptr.dtype)
        indices, data = places[matrix.indices[is_light]], matrix.data[is_light]
        shape = (num_rows, len(self._columns))
        self._shared = scipy.sparse.csr_array((data, indices, indptr), shape=shape)

    def direction(self, curvatures: Array, gradient: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        """See `WideRows`; `curvatures` are of these rows."""
        shared, rows, columns = self._shared, self._single_rows, self._single_columns
        self._directions.add(3 * self._num_values)
        shrink = 1.0 + curvatures * self._single_squares
        c = curvatures / shrink
        from_single = np.bincount(rows, weights=self._single_values * gradient[columns], minlength=len(c))
        direction = -gradient
        rhs = direction[self._columns] + shared.T @ (c * from_single)
        found = self._exact(c, rhs)
        if found is None and not len(rhs):  # rows have nothing in common
            found = rhs
        if found is None:
            system = CurvedRows(MergedRows(shared), c, shared.nnz, self._directions)
            found = system.solve(rhs, eta, is_spent)
        direction[self._columns] = found
        changes = c * (shared @ found - from_single)
        direction[columns] -= changes[rows] * self._single_values
        return direction

    def _exact(self, c: Array, rhs: Array) -> Array | None:
        """The solution over few rows, as many unknowns as there are rows (Woodbury); None where it cannot be had."""
        which = np.flatnonzero(c)
        if not 0 < len(which) <= MOST_EXACT:
            return None
        rows = self._shared[which]
        products = (rows @ rows.T).toarray()
        products.reshape(-1)[:: len(which) + 1] += 1.0 / c[which]
        self._directions.add(MULTIPLICATION * len(which) ** 3)
        factor = cholesky_factor(products)
        if factor is None:  # not enough digits, or values that are none
            return None
        return np.asarray(rhs - rows.T @ cholesky_solve(factor, rows @ rhs))


class _SparseRows(WideRows):
    """Rows that are gathered where those with curvature are a minority."""

    least_tau = LEAST_TAU
    most_gathered: ClassVar[float] = np.inf
    """Values that are gathered at most."""

    def __init__(self, rows: NewtonRows, num_values: int) -> None:
        self._directions, self._num_values = Directions(), num_values
        super().__init__(rows, num_values, self._directions)

    def direction(self, curvatures: Array, gradient: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        """See `WideRows`."""
        which, num_rows = np.flatnonzero(curvatures), len(curvatures)
        if not len(which):
            return -gradient
        if len(which) > GATHERED_SHARE * num_rows or len(which) * self._num_values / num_rows > self.most_gathered:
            return self._direction_of_all(curvatures, gradient, eta, is_spent)
        split = SplitRows(self._gathered(which), self._directions)
        return split.direction(curvatures[which], gradient, eta, is_spent)

    @abstractmethod
    def _direction_of_all(self, curvatures: Array, gradient: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        """See `WideRows`."""

    @abstractmethod
    def _gathered(self, which: Array) -> Any:
        """A CSR copy of the rows of these numbers, ascending, in float64, the intercept column included."""


class CopiedRows(_SparseRows):
    """A copy without the columns that no row has.

    Args:
        matrix: CSR, float64.
    """

    def __init__(self, matrix: Any) -> None:
        super().__init__(MergedRows(matrix), matrix.nnz)
        self._matrix = matrix
        self.work.add(SPLIT * matrix.nnz)
        self._split: SplitRows | None = None
        with np.errstate(over="ignore"):  # no step with such squares is taken
            squares = matrix.data * matrix.data
        weights = np.bincount(matrix.indices, weights=squares, minlength=self.num_columns)
        columns = _heaviest(weights, matrix.nnz / max(matrix.shape[0], 1))
        self.heavy = HeavyColumns(columns, _block(matrix, columns))

    @classmethod
    def of(cls, tables: LocalTables, intercept: float) -> tuple["CopiedRows", Array]:
        """Of all local rows, and which columns it has, ascending, int64; num_features is the intercept column."""
        parts = [block.rows.to_scipy() for block in tables.keep_alive if isinstance(block.rows, CsrRows)]
        return cls.of_matrix(scipy.sparse.vstack(parts, format="csr", dtype=np.float64), intercept)

    @classmethod
    def of_matrix(cls, whole: Any, intercept: float) -> tuple["CopiedRows", Array]:
        """Of a CSR matrix of float64, without intercept column; as `of`."""
        if intercept:
            column = scipy.sparse.csr_array(np.full((whole.shape[0], 1), intercept))
            whole = scipy.sparse.hstack([whole, column], format="csr")
        matrix, columns = _without_empty_columns(whole)
        return cls(matrix), columns

    def _direction_of_all(self, curvatures: Array, gradient: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        if self._split is None:
            self._split = SplitRows(self._matrix, self._directions)
        return self._split.direction(curvatures, gradient, eta, is_spent)

    def _gathered(self, which: Array) -> Any:
        return self._matrix[which]


class RowsInChunks(_SparseRows):
    """Large data, where it is.

    Args:
        rows: All local rows, which are sparse.
        tables: The same.
        intercept: Value of the intercept column; 0 for none.
    """

    most_gathered = MOST_GATHERED_VALUES

    def __init__(self, rows: ChunkedRows, tables: LocalTables, intercept: float) -> None:
        super().__init__(rows, tables.num_values)
        self._intercept = intercept
        self._parts = [block.rows for block in tables.keep_alive if isinstance(block.rows, CsrRows)]
        self._starts = np.cumsum([0, *(len(part.indptr) - 1 for part in self._parts)])
        columns = _heaviest(rows.squares_sum(np.ones(rows.num_rows)), tables.num_values / tables.num_rows)
        self.heavy = HeavyColumns(columns, rows.column_values(columns))

    def _direction_of_all(self, curvatures: Array, gradient: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        system = CurvedRows(self._rows, curvatures, self._num_values, self._directions)
        return system.solve(-gradient, eta, is_spent)

    def _gathered(self, which: Array) -> Any:
        cuts = np.searchsorted(which, self._starts)
        chosen = [
            part.to_scipy()[which[begin:end] - start]
            for part, start, begin, end in zip(self._parts, self._starts, cuts, cuts[1:], strict=False)
            if begin < end
        ]
        matrix = scipy.sparse.vstack(chosen, format="csr", dtype=np.float64)
        column = np.full((len(which), 1 if self._intercept else 0), self._intercept)
        empty = scipy.sparse.csr_array((len(which), 0 if self._intercept else 1))
        return scipy.sparse.hstack([matrix, column, empty], format="csr")


def _heaviest(weights: Array, row_values: float) -> Array:
    """The columns with the largest sums of squares, so many that the block does not cost more than the rows."""
    count = int(min(max(HEAVY_SHARE * row_values, LEAST_HEAVY), HEAVY))
    if count >= len(weights):
        return np.arange(len(weights))
    return np.sort(np.argpartition(-weights, count)[:count])


def _block(matrix: Any, columns: Array) -> Array:
    """These columns of a CSR matrix as an array, shape (num_rows, len(columns))."""
    places = np.full(matrix.shape[1], -1)
    places[columns] = np.arange(len(columns))
    found = places[matrix.indices]
    is_there = found >= 0
    values = np.zeros((matrix.shape[0], len(columns)))
    row_of = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    values[row_of[is_there], found[is_there]] = matrix.data[is_there]
    return values


def _without_empty_columns(whole: Any) -> tuple[Any, Array]:
    """A CSR array without the columns that no row has.

    Returns:
        The array, and the numbers that its columns had, ascending, int64.
    """
    is_there = np.zeros(whole.shape[1], dtype=bool)
    is_there[whole.indices] = True
    columns = np.flatnonzero(is_there)
    # Renumbering keeps the order, and takes less time than what SciPy does to choose columns.
    places = np.cumsum(is_there, dtype=whole.indices.dtype) - 1
    shape = (whole.shape[0], len(columns))
    return scipy.sparse.csr_array((whole.data, places[whole.indices], whole.indptr), shape=shape), columns
