"""The rows of all local chunks as one matrix, for the Newton finish: products with a vector, from either side.

Small data is put together into one matrix of float64, so that each product is one call. Large data stays where it is,
and kernels go through it at the speed of memory. D is num_features + 1, the intercept column included.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.rows import MOST_ROWS, as_floats, matrix_of
from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.solvers.linear.methods import CHEAP_PRODUCTS, MOST_BLOCK_VALUES, SMALL_VALUES
from chicle_elastic.solvers.linear.products import ALL as ALL
from chicle_elastic.solvers.linear.products import (
    CACHED_VALUES,
    LEAST_ROWS,
    add_dense_products,
    column_places,
    is_rough_copy_cheaper,
    is_sparse_cheaper,
)
from chicle_elastic.solvers.local_chunk import RowBlock

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.tables import LocalTables

Curve: TypeAlias = Callable[[Any, Array], Array]  # finds the weights of some rows, from their numbers and scores


class NewtonRows:
    """A matrix of shape (num_rows, D), the intercept column included: a copy in one piece, dense or CSR, float64.

    The last column has the value `intercept`, and does not count where that is 0.
    """

    converts = False  # whether blocks of rows are converted to the dtype that is computed in

    def __init__(self, matrix: Any, intercept: float = 1.0) -> None:
        self._matrix, self._intercept = matrix, intercept
        self.num_rows, self.num_columns = (int(size) for size in matrix.shape)
        self.is_sparse = scipy.sparse.issparse(matrix)
        self._rough: Array | None = None
        self._some: tuple[Array | None, Any] | None = None

    @classmethod
    def of(cls, blocks: Iterable[RowBlock], intercept: float) -> "NewtonRows":
        """Copy the rows of these blocks."""
        parts: list[Any] = [matrix_of(block.rows) for block in blocks]
        num_rows = sum(part.shape[0] for part in parts)
        if scipy.sparse.issparse(parts[0]):
            column = np.full((num_rows, 1), intercept)
            matrix = scipy.sparse.hstack([scipy.sparse.vstack(parts), column], format="csr", dtype=np.float64)
        else:
            matrix = np.empty((num_rows, parts[0].shape[1] + 1))
            np.concatenate([as_floats(part) for part in parts], out=matrix[:, :-1])
            matrix[:, -1] = intercept
        return cls(matrix, intercept)

    def times(self, vector: Array) -> Array:
        """<x_i, vector> of every row, shape (num_rows,), float64; (K, num_rows) for K vectors, shape (K, D)."""
        return np.asarray(self._matrix @ vector.T).T

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i, shape (D,), float64; (K, D) for K times weights, shape (K, num_rows)."""
        return np.asarray(weights @ self._matrix)

    def curved_product(self, weights: Array, vector: Array) -> Array:
        """sum_i weights_i <x_i, vector> x_i, shape (D,), float64."""
        return self.weighted_sum(weights * self.times(vector))

    def curved(self, vectors: Array, curve: Curve, which: Array | None = None, *, is_rough: bool = False) -> Array:
        """Return sum_i curve(scores)_ki x_i of K vectors, shape (K, D), float64, in one pass over blocks of rows.

        BLAS multiplies the vectors with a block that stays in the cache. `curve` finds the weights of its rows, shape
        (K, n), from their numbers and scores. Without `which` all rows count. Rough products may be in float32.
        """
        total, sums, dtype = np.zeros(vectors.shape), np.zeros(len(vectors)), _dtype(is_rough and self.converts)
        has_scores = vectors[:, :-1].any()
        for part, rows in self._blocks(which, dtype):
            width = rows.shape[1]
            scores = np.zeros((len(vectors), rows.shape[0]))
            if has_scores:
                scores = (vectors[:, :width].astype(dtype, copy=False) @ rows.T).astype(np.float64, copy=False)
            if width < self.num_columns or not has_scores:
                scores += self._intercept * vectors[:, -1:]
            weights = curve(part, scores)
            total[:, :width] += weights.astype(dtype, copy=False) @ rows
            sums += weights.sum(axis=1)
        total[:, -1] = self._intercept * sums  # with all digits
        return total

    def _blocks(self, which: Array | None, dtype: Any) -> Iterator[tuple[Any, Any]]:
        """Yield numbers of rows, and these rows with or without the intercept column, some at a time."""
        if self._some is None or self._some[0] is not which:
            some = self._matrix if which is None else self._matrix[which]
            self._some = which, some[:, :-1] if self.is_sparse else some
        matrix = self._some[1]
        for begin in range(0, matrix.shape[0], MOST_ROWS):
            part = slice(begin, begin + MOST_ROWS)
            yield (
                part if which is None else which[part],
                matrix[part] if begin or matrix.shape[0] > MOST_ROWS else matrix,
            )

    def lengths(self) -> Array:
        """Return how many values rows have, shape (num_rows,): dense ones all, sparse ones those that are stored."""
        if not self.is_sparse:
            return np.full(self.num_rows, self.num_columns)
        entries = [np.diff(rows.indptr) for _, rows in self._blocks(None, None)]
        return np.concatenate(entries) + (self._intercept != 0)

    def csr(self, which: Array | None = None) -> Any:
        """Copy the rows of these numbers, ascending, or all, as a CSR array of float64, with what `lengths` counts."""
        which = np.arange(self.num_rows) if which is None else which
        if self.is_sparse:
            return self.taken(which)
        columns, ends = np.tile(np.arange(self.num_columns), len(which)), np.arange(len(which) + 1) * self.num_columns
        return scipy.sparse.csr_array((self.dense(which).ravel(), columns, ends), shape=(len(which), self.num_columns))

    def squares_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i * x_i, shape (D,), float64."""
        matrix = self._matrix
        return np.asarray(weights @ (matrix.multiply(matrix) if scipy.sparse.issparse(matrix) else matrix * matrix))

    def add_products(self, weights: Array, columns: Array, out: Array, *, is_rough: bool = False) -> None:
        """Add the lower triangle of sum_i weights_i x_i x_i^T, packed by rows, to `out`; rows of weight 0 are not read.

        `columns` are ascending, empty for all. A rough sum may be in float32, in half the time, for a preconditioner.
        """
        matrix = self._matrix
        if not scipy.sparse.issparse(matrix):
            last = -1 if not len(columns) and not self._intercept else None
            rough = [self._in_float32()[:, :last]] if is_rough else None
            add_dense([matrix[:, :last]], weights, columns, None, out, rough=rough)
            return
        size = len(columns) or self.num_columns
        if matrix.shape[0] * size * size <= CHEAP_PRODUCTS or not is_sparse_cheaper(_mean_entries(matrix), size):
            parts = _made_dense([matrix], weights, columns)
            add_dense_products(parts, weights[weights != 0], ALL, None, out)
            return
        from chicle_elastic.solvers.kernels import products, tables

        table = tables.csr_table([CsrRows(matrix.indptr, matrix.indices, matrix.data, self.num_columns)])
        starts, lengths = np.zeros(1, dtype=np.int64), np.array([matrix.shape[0]], dtype=np.int64)
        # The matrix has the intercept column; one more that has no place stands where the kernel expects it.
        places = np.append(column_places(columns, self.num_columns), -1)
        products.sparse_products(table, lengths, starts, 0.0, weights, places, *_room(size), out)

    def _in_float32(self) -> Array:
        if self._rough is None:
            with np.errstate(over="ignore"):
                self._rough = self._matrix.astype(np.float32, copy=False)
        return self._rough

    def dense(self, which: Array, columns: Array = ALL, *, is_rough: bool = False) -> Array:
        """Copy rows and columns of these numbers, both ascending (no columns for all); rough in float32, maybe
        infinite.
        """
        matrix = self._in_float32() if is_rough and not self.is_sparse else self._matrix
        return _dense(matrix[which], columns).astype(_dtype(is_rough), copy=False)

    def taken(self, which: Array) -> Any:
        """Copy the rows of these numbers, ascending; dense or CSR, float64."""
        return self._matrix[which]

    def rough_copy(self, which: Array) -> "NewtonRows | None":
        """Copy the rows of these numbers, ascending, in float32, where rough products then take less time."""
        return None


def newton_rows(tables: "LocalTables", intercept: float, num_parts: int = 1) -> NewtonRows:
    """The rows behind these tables, which must outlive the result; see `ChunkedRows` for `num_parts`."""
    is_small = tables.num_values <= SMALL_VALUES
    return NewtonRows.of(tables.keep_alive, intercept) if is_small else ChunkedRows(tables, intercept, num_parts)


class ChunkedRows(NewtonRows):
    """The rows where they are; all of `num_parts` such matrices together copy `MOST_BLOCK_VALUES` at most."""

    def __init__(self, tables: "LocalTables", intercept: float, num_parts: int = 1) -> None:
        from chicle_elastic.solvers.kernels import products

        self._products = products
        self._tables = tables
        self._num_parts = num_parts
        self.is_sparse = isinstance(tables.keep_alive[0].rows, CsrRows)
        self.converts = not self.is_sparse
        self._intercept = intercept
        self._where = tables.rows, tables.lengths, intercept
        self._starts = np.concatenate([[0], np.cumsum(tables.lengths)])
        self.num_rows = tables.num_rows
        self.num_columns = tables.rows.num_features + 1
        self._copy_in_float32: NewtonRows | None = None

    @cached_property
    def _matrices(self) -> list[Any]:
        """Return the rows of each chunk, dense or CSR."""
        return [matrix_of(block.rows) for block in self._tables.keep_alive]

    def times(self, vector: Array) -> Array:
        """See `NewtonRows`."""
        if vector.ndim > 1:
            return np.stack([self.times(each) for each in vector])
        result = np.empty(self._tables.num_rows)
        self._products.row_products(*self._where, vector, result)
        return result

    def weighted_sum(self, weights: Array) -> Array:
        """See `NewtonRows`."""
        return self._sum(weights, are_squared=False)

    def squares_sum(self, weights: Array) -> Array:
        """See `NewtonRows`."""
        return self._sum(weights, are_squared=True)

    def _sum(self, weights: Array, *, are_squared: bool) -> Array:
        if weights.ndim > 1:
            return np.stack([self._sum(each, are_squared=are_squared) for each in weights])
        result = np.zeros(self.num_columns)
        self._products.weighted_sum(*self._where, weights, are_squared, result)
        return result

    def curved_product(self, weights: Array, vector: Array) -> Array:
        """See `NewtonRows`."""
        result, times = np.zeros(self.num_columns), np.empty(self.num_rows)
        # With more columns than stay in the cache rows are better read twice, for one vector at a time.
        if self.num_columns > CACHED_VALUES and 2 * np.count_nonzero(weights) > self.num_rows:
            self._products.row_products(*self._where, vector, times)
            self._products.weighted_sum(*self._where, weights * times, False, result)
            return result
        self._products.curved_product(*self._where, weights, vector, times, result)
        return result

    def add_products(self, weights: Array, columns: Array, out: Array, *, is_rough: bool = False) -> None:
        """See `NewtonRows`."""
        blocks = self._tables.keep_alive
        has_column = not len(columns) or columns[-1] == self.num_columns - 1
        intercept = self._intercept if has_column else None
        features = columns[:-1] if len(columns) and has_column else columns
        size = len(columns) or self.num_columns
        if len(columns) == 1 and has_column:  # no feature is left, which would mean all
            out += self._intercept * self._intercept * weights.sum()
            return
        dense = [block.rows for block in blocks if not isinstance(block.rows, CsrRows)]
        if not dense and not len(columns) and is_rough and self._is_copy_cheaper(self.num_rows):
            self._rough_copy().add_products(weights, columns, out, is_rough=True)
        elif dense:
            rough, kernel = dense if is_rough else None, self._products.scale_rows
            add_dense(dense, weights, features, intercept, out, rough=rough, scale_rows=kernel)
        elif is_sparse_cheaper(self._tables.num_values / self.num_rows, size):
            places = column_places(columns, self.num_columns)
            lengths = self._tables.lengths
            self._products.sparse_products(
                self._tables.rows, lengths, self._starts, self._intercept, weights, places, *_room(size), out
            )
        else:
            parts = _made_dense(self._matrices, weights, features)
            add_dense_products(parts, weights[weights != 0], ALL, intercept, out)

    def _is_copy_cheaper(self, num_rows: int) -> bool:
        """Say whether rough products of so many rows take less time with a dense copy, and memory has room for it."""
        mean_entries = self._tables.num_values / self.num_rows
        is_cheaper = not self.is_sparse or is_rough_copy_cheaper(mean_entries, self.num_columns)
        return is_cheaper and self._num_parts * num_rows * self.num_columns <= MOST_BLOCK_VALUES

    def _rough_copy(self) -> NewtonRows:
        """Copy sparse rows."""
        if self._copy_in_float32 is None:
            copy = self.dense(np.arange(self.num_rows), is_rough=True)
            self._copy_in_float32 = NewtonRows(copy, self._intercept)
        return self._copy_in_float32

    def dense(self, which: Array, columns: Array = ALL, *, is_rough: bool = False) -> Array:
        """See `NewtonRows`."""
        if is_rough and self._copy_in_float32 is not None:
            return self._copy_in_float32.dense(which, columns, is_rough=True)
        has_intercept = not len(columns) or columns[-1] == self.num_columns - 1
        features = columns[:-1] if len(columns) and has_intercept else columns
        dense = np.empty((len(which), len(columns) or self.num_columns), _dtype(is_rough))
        if has_intercept:
            dense[:, -1] = self._intercept
        if len(features) or not len(columns):
            begin, into = 0, dense[:, :-1] if has_intercept else dense
            with np.errstate(over="ignore"):
                for _, rows in self._blocks(which):
                    end = begin + rows.shape[0]
                    into[begin:end] = _dense(rows, features)
                    begin = end
        return dense

    def _blocks(self, which: Array | None, dtype: Any = None) -> Iterator[tuple[Any, Any]]:
        """See `NewtonRows`: chunk by chunk, without the intercept; in the dtype that they have without another one."""
        # With 4 times as many and as few, products of 4,000 x 1,024 rows with 50 classes take 30 and 10 % longer.
        step = MOST_ROWS if self.is_sparse else min(max(SMALL_VALUES // self.num_columns, 1), MOST_ROWS)
        cuts = None if which is None else np.searchsorted(which, self._starts)
        for number, matrix in enumerate(self._matrices):
            first = self._starts[number]
            own = None if which is None or cuts is None else which[cuts[number] : cuts[number + 1]]
            size = matrix.shape[0] if own is None else len(own)
            for begin in range(0, size, step):
                end = min(begin + step, size)
                part: Any = slice(begin, end) if own is None else own[begin:end] - first
                rows = matrix if own is None and end - begin == size else matrix[part]
                numbers = slice(first + begin, first + end) if own is None else own[begin:end]
                yield numbers, rows if self.is_sparse or dtype is None else _converted(rows, dtype)

    def taken(self, which: Array) -> Any:
        """Copy the rows of these numbers, ascending, which are sparse: CSR, float64."""
        column = scipy.sparse.csr_array(np.full((len(which), 1), self._intercept))
        rows = scipy.sparse.vstack([rows for _, rows in self._blocks(which)])
        return scipy.sparse.hstack([rows, column], format="csr", dtype=np.float64)

    def rough_copy(self, which: Array) -> NewtonRows | None:
        """See `NewtonRows`."""
        if not self._is_copy_cheaper(len(which)):
            return None
        copy = self.dense(which, is_rough=True)
        return NewtonRows(copy, self._intercept) if np.isfinite(copy).all() else None


def _room(size: int) -> tuple[Array, Array]:
    """For `sparse_products`."""
    return np.empty(size, np.uint64), np.empty(size)


def _dtype(is_rough: bool) -> type[np.floating[Any]]:
    return np.float32 if is_rough else np.float64


def add_dense(
    parts: list[Array],
    weights: Array,
    features: Array,
    intercept: float | None,
    out: Array,  # OUT
    *,
    rough: list[Array] | None,
    **options: Any,
) -> None:
    """As `add_dense_products`: in float32 of the rows `rough` where these are given and no square is beyond float32."""
    if rough is not None:
        total = np.zeros(len(out))
        with np.errstate(over="ignore", invalid="ignore"):
            add_dense_products(rough, weights, features, intercept, total, is_rough=True, **options)
        if np.isfinite(total).all():
            out += total
            return
    add_dense_products(parts, weights, features, intercept, out, **options)


def _converted(rows: Array, dtype: Any) -> Array:
    """Return a block of dense rows in a dtype; a kernel converts values of 16 bits, in a third of NumPy's time."""
    if rows.dtype.itemsize != 2:
        return rows.astype(dtype, copy=False)
    from chicle_elastic.solvers.kernels.products import scale_rows

    converted = np.empty(rows.shape, dtype)
    scale_rows(rows, np.ones(len(rows), dtype), 0.0, 0, converted)
    return converted


def _mean_entries(matrix: Any) -> float:
    """Stored entries of a row of a sparse matrix."""
    return float(matrix.nnz / max(matrix.shape[0], 1))


def _made_dense(matrices: list[Any], weights: Array, columns: Array) -> Iterator[Array]:
    """Yield the rows that have a weight, some at a time, of CSR matrices in order; `columns` of them."""
    first = 0
    for matrix in matrices:
        which = np.flatnonzero(weights[first : first + matrix.shape[0]])
        first += matrix.shape[0]
        step = max(CACHED_VALUES // (len(columns) or matrix.shape[1]), LEAST_ROWS)
        for begin in range(0, len(which), step):
            yield _dense(matrix[which[begin : begin + step]], columns)


def _dense(rows: Any, columns: Array) -> Array:
    """Return a matrix, dense or CSR, as an array, or these columns of it."""
    if not scipy.sparse.issparse(rows):
        return as_floats(rows[:, columns] if len(columns) else rows)
    return np.asarray((rows[:, columns] if len(columns) else rows).toarray())
