"""The rows of all local chunks as one matrix, for the Newton finish: products with a vector, from either side.

Small data is put together into one matrix of float64, so that each product is one call of NumPy. Large data stays where
it is, and kernels go through it at the speed of memory. D is num_features + 1, the intercept column included.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    is_rough_copy_cheaper,
    is_sparse_cheaper,
)
from chicle_elastic.solvers.local_chunk import RowBlock

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.tables import LocalTables

Curve: TypeAlias = Callable[[Any, Array], Array]  # finds the weights of some rows, from their numbers and scores


class NewtonRows:
    """A matrix of shape (num_rows, D) in pieces, which are all dense or all CSR.

    With `tables`, whose rows these are, kernels go through them, and `num_parts` such matrices together copy
    `MOST_BLOCK_VALUES` at most; one more column at the end has the value `intercept`, and does not count where that is
    0. Without, there is one piece with all columns, of float64 or for rough products alone.
    """

    def __init__(
        self, *rows: Any, intercept: float = 0.0, tables: "LocalTables | None" = None, num_parts: int = 1
    ) -> None:
        self._rows, self._num_parts = rows, num_parts
        self._has_column, self._intercept = tables is not None, intercept
        self.is_sparse = not isinstance(rows[0], np.ndarray)
        self._starts = np.cumsum([0, *(piece.shape[0] for piece in rows)])
        self.num_rows, self._width = int(self._starts[-1]), int(rows[0].shape[1])
        self.num_columns = self._width + self._has_column
        self._in_float32: NewtonRows | None = None  # a copy for rough products, the intercept column included
        self._some: tuple[Array, NewtonRows] | None = None
        self._kernels: Any = None
        if tables is not None:
            from chicle_elastic.solvers.kernels import products

            self._kernels, self._where = products, (tables.rows, tables.lengths, self._intercept)

    @cached_property
    def _pieces(self) -> list[Any]:
        """Return arrays, or sparse matrices of SciPy, which takes a look at all indices to make one."""
        return [matrix_of(piece) for piece in self._rows]

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
        return cls(matrix)

    def times(self, vector: Array) -> Array:
        """<x_i, vector> of every row, shape (num_rows,), float64; (K, num_rows) for K vectors, shape (K, D)."""
        if self._kernels is None:
            return np.asarray(self._pieces[0] @ vector.T).T
        result = np.empty((*vector.shape[:-1], self.num_rows))
        for each, into in zip(_each(vector), _each(result), strict=True):
            self._kernels.row_products(*self._where, each, into)
        return result

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i, shape (D,), float64; (K, D) for K times weights, shape (K, num_rows)."""
        return self._sum(weights, are_squared=False)

    def squares_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i * x_i, shape (D,), float64; (K, D) for K times weights."""
        return self._sum(weights, are_squared=True)

    def _sum(self, weights: Array, *, are_squared: bool) -> Array:
        if self._kernels is None:
            matrix = self._pieces[0]
            if are_squared:
                matrix = matrix.multiply(matrix) if self.is_sparse else matrix * matrix
            return np.asarray(weights @ matrix)
        result = np.zeros((*weights.shape[:-1], self.num_columns))
        for each, into in zip(_each(weights), _each(result), strict=True):
            self._kernels.weighted_sum(*self._where, each, are_squared, into)
        return result

    def curved_product(self, weights: Array, vector: Array) -> Array:
        """sum_i weights_i <x_i, vector> x_i, shape (D,), float64."""
        # With more columns than stay in the cache rows are better read twice, for one vector at a time.
        is_wide = self.num_columns > CACHED_VALUES and 2 * np.count_nonzero(weights) > self.num_rows
        if self._kernels is None or is_wide:
            return self.weighted_sum(weights * self.times(vector))
        result, times = np.zeros(self.num_columns), np.empty(self.num_rows)
        self._kernels.curved_product(*self._where, weights, vector, times, result)
        return result

    def curved(self, vectors: Array, curve: Curve, which: Array | None = None, *, is_rough: bool = False) -> Array:
        """Return sum_i curve(scores)_ki x_i of K vectors, shape (K, D), float64, in one pass over blocks of rows.

        BLAS multiplies the vectors with a block that stays in the cache. `curve` finds the weights of its rows, shape
        (K, n), from their numbers and scores. Without `which` all rows count. Rough products may be in float32.
        """
        if self._kernels is None and which is not None:  # little data: rows that are chosen again are copied once
            if self._some is None or self._some[0] is not which:
                self._some = which, NewtonRows(self._pieces[0][which])
            return self._some[1].curved(vectors, lambda part, scores: curve(which[part], scores))
        dtype: Any = np.float32 if is_rough and not self.is_sparse and self._kernels is not None else np.float64
        total, sums, features = np.zeros(vectors.shape), np.zeros(len(vectors)), vectors[:, : self._width]
        has_scores = features.any()
        for part, rows in self._blocks(which, dtype):
            scores = np.zeros((len(vectors), rows.shape[0]))
            if has_scores:
                scores = (features.astype(dtype, copy=False) @ rows.T).astype(np.float64, copy=False)
            if self._has_column:
                scores += self._intercept * vectors[:, -1:]
            weights = curve(part, scores)
            total[:, : self._width] += weights.astype(dtype, copy=False) @ rows
            sums += weights.sum(axis=1)
        if self._has_column:
            total[:, -1] = self._intercept * sums  # with all digits
        return total

    def _blocks(self, which: Array | None, dtype: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield numbers of rows, and these rows without the intercept column, some at a time; dense ones in a dtype."""
        # With 4 times as many and as few, products of 4,000 x 1,024 rows with 50 classes take 30 and 10 % longer.
        step = MOST_ROWS if self.is_sparse else min(max(SMALL_VALUES // max(self._width, 1), 1), MOST_ROWS)
        cuts = None if which is None else np.searchsorted(which, self._starts)
        for number, matrix in enumerate(self._pieces):
            first = self._starts[number]
            own = None if which is None or cuts is None else which[cuts[number] : cuts[number + 1]]
            size = matrix.shape[0] if own is None else len(own)
            for begin in range(0, size, step):
                end = min(begin + step, size)
                part: Any = slice(begin, end) if own is None else own[begin:end] - first
                rows = matrix if own is None and end - begin == size else matrix[part]
                numbers = slice(first + begin, first + end) if own is None else own[begin:end]
                yield numbers, rows if self.is_sparse or dtype is None else _converted(rows, dtype)

    def lengths(self) -> Array:
        """Return how many values rows have, shape (num_rows,): dense ones all, sparse ones those that are stored."""
        if not self.is_sparse:
            return np.full(self.num_rows, self.num_columns)
        return np.concatenate([np.diff(piece.indptr) for piece in self._rows]) + (self._intercept != 0)

    def csr(self, which: Array | None = None) -> Any:
        """Copy the rows of these numbers, ascending, or all, as a CSR array of float64, with what `lengths` counts."""
        which = np.arange(self.num_rows) if which is None else which
        if self.is_sparse:
            return self.taken(which)
        columns, ends = np.tile(np.arange(self.num_columns), len(which)), np.arange(len(which) + 1) * self.num_columns
        return scipy.sparse.csr_array((self.dense(which).ravel(), columns, ends), shape=(len(which), self.num_columns))

    def taken(self, which: Array) -> Any:
        """Copy the rows of these numbers, ascending; dense or CSR, float64."""
        if not self.is_sparse:
            return self.dense(which)
        parts = [rows for _, rows in self._blocks(which)] if len(which) else [self._pieces[0][which]]
        rows = scipy.sparse.vstack(parts) if len(parts) > 1 else parts[0]
        if not self._has_column:
            return rows
        column = scipy.sparse.csr_array(np.full((len(which), 1), self._intercept))
        return scipy.sparse.hstack([rows, column], format="csr", dtype=np.float64)

    def _split(self, columns: Array) -> tuple[Array, bool]:
        """Tell the features among these columns (empty for all) from the intercept column; say whether it is there."""
        has_column = self._has_column and (not len(columns) or columns[-1] == self._width)
        return (columns[:-1] if has_column else columns), has_column

    def dense(self, which: Array, columns: Array = ALL, *, is_rough: bool = False) -> Array:
        """Copy rows and columns (none for all) of these numbers, both ascending; rough in float32, maybe infinite."""
        if is_rough and self._in_float32 is not None:
            return self._in_float32.dense(which, columns, is_rough=True)
        features, has_column = self._split(columns)
        dense = np.empty((len(which), len(columns) or self.num_columns), np.float32 if is_rough else np.float64)
        begin, into = 0, dense[:, :-1] if has_column else dense
        if has_column:
            dense[:, -1] = self._intercept
        if into.shape[1]:
            with np.errstate(over="ignore"):
                for _, rows in self._blocks(which):
                    end = begin + rows.shape[0]
                    into[begin:end] = _dense(rows, features)
                    begin = end
        return dense

    def add_products(self, weights: Array, columns: Array, out: Array, *, is_rough: bool = False) -> None:
        """Add the lower triangle of sum_i weights_i x_i x_i^T, packed by rows, to `out`; rows of weight 0 are not read.

        `columns` are ascending, empty for all. A rough sum may be in float32, in half the time, for a preconditioner.
        """
        (features, has_column), size = self._split(columns), len(columns) or self.num_columns
        intercept = self._intercept if has_column else None
        if has_column and size == 1:  # no feature is left, which would mean all
            out += self._intercept * self._intercept * weights.sum()
        elif not self.is_sparse:
            kernel = self._kernels.scale_rows if self._kernels is not None else None
            rough = self._rough_pieces if is_rough else None
            add_dense(self._pieces, weights, features, intercept, out, rough=rough, scale_rows=kernel)
        elif self._kernels is not None and is_rough and not len(columns) and self._is_copy_cheaper(self.num_rows):
            if self._in_float32 is None:
                self._in_float32 = NewtonRows(self.dense(np.arange(self.num_rows), is_rough=True))
            self._in_float32.add_products(weights, columns, out, is_rough=True)
        elif self._are_entries_cheaper(size):
            from chicle_elastic.solvers.kernels import products, tables

            if self._kernels is not None:
                table = self._where[0]
            else:
                piece = self._pieces[0]
                table = tables.csr_table([CsrRows(piece.indptr, piece.indices, piece.data, self._width)])
            # The kernel expects the place of an intercept column in any case.
            places = np.full(self._width + 1, -1)
            places[columns if len(columns) else slice(self.num_columns)] = np.arange(size)
            where = table, np.diff(self._starts), self._starts, self._intercept
            products.sparse_products(*where, weights, places, np.empty(size, np.uint64), np.empty(size), out)
        else:
            parts = _made_dense(self._pieces, weights, features)
            add_dense_products(parts, weights[weights != 0], ALL, intercept, out)

    @cached_property
    def _rough_pieces(self) -> list[Array]:
        """Return dense pieces for products in float32, of which kernels convert what they read."""
        if self._kernels is not None:
            return self._pieces
        with np.errstate(over="ignore"):
            return [piece.astype(np.float32, copy=False) for piece in self._pieces]

    @property
    def _mean_entries(self) -> float:
        """Return the number of stored entries of a sparse row."""
        return float(sum(piece.indptr[-1] - piece.indptr[0] for piece in self._rows) / max(self.num_rows, 1))

    def _are_entries_cheaper(self, size: int) -> bool:
        """Say whether products of so many columns of sparse rows take less time by their entries than made dense."""
        is_little = self._kernels is None and self.num_rows * size * size <= CHEAP_PRODUCTS
        return not is_little and is_sparse_cheaper(self._mean_entries, size)

    def _is_copy_cheaper(self, num_rows: int) -> bool:
        """Say whether rough products of so many rows take less time with a dense copy, and memory has room for it."""
        is_cheaper = not self.is_sparse or is_rough_copy_cheaper(self._mean_entries, self.num_columns)
        return is_cheaper and self._num_parts * num_rows * self.num_columns <= MOST_BLOCK_VALUES

    def rough_copy(self, which: Array) -> "NewtonRows | None":
        """Copy the rows of these numbers, ascending, in float32, where rough products then take less time."""
        if self._kernels is None or not self._is_copy_cheaper(len(which)):
            return None
        copy = self.dense(which, is_rough=True)
        return NewtonRows(copy) if np.isfinite(copy).all() else None


def newton_rows(tables: "LocalTables", intercept: float, num_parts: int = 1) -> NewtonRows:
    """Return the rows behind these tables, which must outlive the result; see `NewtonRows` for `num_parts`."""
    if tables.num_values <= SMALL_VALUES:
        return NewtonRows.of(tables.keep_alive, intercept)
    return in_place(tables, intercept, num_parts)


def in_place(tables: "LocalTables", intercept: float, num_parts: int = 1) -> NewtonRows:
    """Return the rows where they are, for kernels."""
    return NewtonRows(
        *(block.rows for block in tables.keep_alive), intercept=intercept, tables=tables, num_parts=num_parts
    )


def _each(array: Array) -> Array:
    """Return a view of one or several vectors as rows of a matrix."""
    return array.reshape(-1, array.shape[-1])


def add_dense(parts: list[Array], *where: Any, rough: list[Array] | None, **options: Any) -> None:
    """As `add_dense_products`: in float32 of the rows `rough` where these are given and no square is beyond float32."""
    if rough is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            if add_dense_products(rough, *where, is_rough=True, **options):
                return
    add_dense_products(parts, *where, **options)


def _converted(rows: Array, dtype: Any) -> Array:
    """Return a block of dense rows in a dtype; a kernel converts values of 16 bits, in a third of NumPy's time."""
    if rows.dtype.itemsize != 2:
        return rows.astype(dtype, copy=False)
    from chicle_elastic.solvers.kernels.products import scale_rows

    converted = np.empty(rows.shape, dtype)
    scale_rows(rows, np.ones(len(rows), dtype), 0.0, 0, converted)
    return converted


def _made_dense(matrices: Sequence[Any], weights: Array, columns: Array) -> Iterator[Array]:
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
