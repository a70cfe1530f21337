"""The rows of all local chunks as one matrix, for the Newton finish: products with a vector, from either side.

Small data is put together into one matrix of float64, so that each product is one call. Large data stays where it is,
and kernels go through it at the speed of memory. D is num_features + 1, the intercept column included.
"""

from typing import Any, Protocol

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.solvers.cocoa_tables import SMALL_VALUES, LocalTables

MAX_COPIED_VALUES = 1 << 22
"""Values of a subset of the rows up to which it is copied, in float64: 32 MiB."""


class NewtonRows(Protocol):
    """A matrix of shape (num_rows, D).

    Attributes:
        num_columns: D.
    """

    num_columns: int

    def times(self, vector: Array) -> Array:
        """<x_i, vector> of every row, shape (num_rows,), float64."""
        ...

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i, shape (D,), float64."""
        ...

    def dense(self, which: Array) -> Array:
        """A copy of the rows of these numbers, ascending, shape (len(which), D), float64."""
        ...

    def subset(self, which: Array) -> "NewtonRows":
        """A matrix of the rows of these numbers, ascending."""
        ...


def newton_rows(tables: LocalTables, intercept: float) -> NewtonRows:
    """The rows behind these tables, which must outlive the result."""
    return MergedRows.of(tables, intercept) if tables.num_values <= SMALL_VALUES else ChunkedRows(tables, intercept)


class MergedRows:
    """A copy in one piece."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self.num_columns = int(matrix.shape[1])

    @classmethod
    def of(cls, tables: LocalTables, intercept: float) -> "MergedRows":
        """Of all local rows."""
        parts: list[Any] = [_matrix(block.rows) for block in tables.keep_alive]
        column = np.full((tables.num_rows, 1), intercept)
        if scipy.sparse.issparse(parts[0]):
            return cls(scipy.sparse.hstack([scipy.sparse.vstack(parts), column], format="csr"))
        return cls(np.hstack([np.concatenate(parts), column], dtype=np.float64))

    def times(self, vector: Array) -> Array:
        """See `NewtonRows`."""
        return np.asarray(self._matrix @ vector)

    def weighted_sum(self, weights: Array) -> Array:
        """See `NewtonRows`."""
        return np.asarray(weights @ self._matrix)

    def dense(self, which: Array) -> Array:
        """See `NewtonRows`."""
        if scipy.sparse.issparse(self._matrix):
            return np.asarray(self._matrix[which].toarray())
        return np.asarray(self._matrix.take(which, axis=0))

    def subset(self, which: Array) -> NewtonRows:
        """See `NewtonRows`."""
        return self if len(which) == self._matrix.shape[0] else MergedRows(self._matrix[which])


class ChunkedRows:
    """The rows where they are."""

    def __init__(self, tables: LocalTables, intercept: float) -> None:
        from chicle_elastic.solvers.kernels import products

        self._products = products
        self._tables = tables
        self._intercept = intercept
        self._starts = np.concatenate([[0], np.cumsum(tables.samples.lengths)])
        self.num_rows = tables.num_rows
        self.num_columns = tables.rows.num_features + 1

    def times(self, vector: Array) -> Array:
        """See `NewtonRows`."""
        result = np.empty(self._tables.num_rows)
        self._products.row_products(self._tables.rows, self._tables.samples.lengths, self._intercept, vector, result)
        return result

    def weighted_sum(self, weights: Array) -> Array:
        """See `NewtonRows`."""
        result = np.zeros(self.num_columns)
        self._products.weighted_sum(self._tables.rows, self._tables.samples.lengths, self._intercept, weights, result)
        return result

    def dense(self, which: Array) -> Array:
        """See `NewtonRows`."""
        dense = np.empty((len(which), self.num_columns))
        dense[:, -1] = self._intercept
        cuts = np.searchsorted(which, self._starts)
        for number, block in enumerate(self._tables.keep_alive):
            begin, end = int(cuts[number]), int(cuts[number + 1])
            if begin < end:
                part = _matrix(block.rows)[which[begin:end] - self._starts[number]]
                dense[begin:end, :-1] = part.toarray() if scipy.sparse.issparse(part) else part
        return dense

    def subset(self, which: Array) -> NewtonRows:
        """See `NewtonRows`; a copy where the rows are few, else those rows among all."""
        if len(which) * self.num_columns <= MAX_COPIED_VALUES:
            return MergedRows(self.dense(which))
        return self if len(which) == self._tables.num_rows else SomeRows(self, which)


class SomeRows:
    """Rows of a large matrix, which is read whole where weights do not say that a row is left out."""

    def __init__(self, rows: ChunkedRows, which: Array) -> None:
        self._rows = rows
        self._which = which
        self.num_columns = rows.num_columns

    def times(self, vector: Array) -> Array:
        """See `NewtonRows`."""
        return self._rows.times(vector)[self._which]

    def weighted_sum(self, weights: Array) -> Array:
        """See `NewtonRows`."""
        spread = np.zeros(self._rows.num_rows)
        spread[self._which] = weights
        return self._rows.weighted_sum(spread)

    def dense(self, which: Array) -> Array:
        """See `NewtonRows`."""
        return self._rows.dense(self._which[which])

    def subset(self, which: Array) -> NewtonRows:
        """See `NewtonRows`."""
        return self._rows.subset(self._which[which])


def _matrix(rows: Any) -> Any:
    return rows.to_scipy() if isinstance(rows, CsrRows) else rows
