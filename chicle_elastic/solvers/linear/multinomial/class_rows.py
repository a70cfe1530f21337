"""The rows of all local chunks in products with one vector per class, a block of rows at a time.

BLAS multiplies dense rows, SciPy sparse ones, so that nothing has to be compiled. A block stays in the cache from the
product with the weights of all classes to the sum that its result goes into. Rows of another dtype than the one that
is computed in are converted block by block, never all at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from chicle_elastic.chunks.rows import matrix_of
from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.linear.finite import require_finite
from chicle_elastic.solvers.linear.products import add_dense_products
from chicle_elastic.solvers.local_chunk import RowBlock

VALUES_PER_BLOCK, MOST_ROWS = 1 << 20, 1 << 13
"""Values and rows of a block of dense rows."""
FEW_VALUES = 1 << 20
"""Values of all chunks up to which they are put together, so that a product is one call."""
SPARSE_ROWS = 1 << 16
"""Rows of a block of sparse rows, whose products with all classes are what takes memory."""
ROWS_MADE_DENSE = 1 << 12
"""Sparse rows that are made dense at a time."""
ALL: Array = np.zeros(0, dtype=np.int64)
"""All columns."""


class ClassRows:
    """The local rows; the intercept is no column of them.

    Args:
        blocks: Of the chunks by their ids, at least one, in order.

    Attributes:
        num_rows: Of all chunks.
        is_rough_possible: Whether there is less work in float32: the rows are dense, and no float64.
    """

    def __init__(self, blocks: dict[ChunkId, RowBlock]) -> None:
        self._blocks = blocks
        first = next(iter(blocks.values())).rows
        self.is_sparse = isinstance(first, CsrRows)
        self.is_rough_possible = not self.is_sparse and first.dtype != np.float64
        self._parts: list[Any] = [matrix_of(block.rows) for block in blocks.values()]
        if len(self._parts) > 1 and sum(num_values(part) for part in self._parts) <= FEW_VALUES:
            self._parts = [_joined(self._parts)]
        self.num_rows = sum(part.shape[0] for part in self._parts)
        self.num_features = int(self._parts[0].shape[1])

    def require_finite(self) -> None:
        """Look for the row that has made a sum NaN or infinite.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            for chunk_id, block in self._blocks.items():
                rows = matrix_of(block.rows)
                require_finite(chunk_id, block, np.asarray(rows @ np.ones((self.num_features, 1)))[:, 0])

    def times(self, vectors: Array) -> Array:
        """Scores of all rows without intercepts, shape (K, num_rows), float64; `vectors` has the shape (K, d)."""
        scores = np.empty((len(vectors), self.num_rows))
        factor = self._factor(vectors, is_rough=False)
        for part, rows in self._row_blocks(is_rough=False):
            scores[:, part] = _times(rows, factor)
        return scores

    def sums(self, weights: Array) -> Array:
        """sum_i weights_ki x_i of every class, shape (K, d), float64; `weights` has the shape (K, num_rows)."""
        total = np.zeros((len(weights), self.num_features))
        for part, rows in self._row_blocks(is_rough=False):
            total += _sums(rows, weights[:, part])
        return total

    def curved(self, vectors: Array, curve: Callable[[slice, Array], Array], *, is_rough: bool = False) -> Array:
        """Both of these in one look at the rows: sum_i curve(scores)_ki x_i, shape (K, d), float64.

        Args:
            vectors: Shape (K, d), float64.
            curve: From which rows and their scores, shape (K, n), to weights of that shape.
            is_rough: Whether float32 will do.
        """
        total = np.zeros((len(vectors), self.num_features))
        factor = self._factor(vectors, is_rough)
        for part, rows in self._row_blocks(is_rough):
            total += _sums(rows, curve(part, _times(rows, factor)))
        return total

    def squares(self, weights: Array) -> Array:
        """sum_i weights_ki x_i * x_i of every class, shape (K, d), float64."""
        total = np.zeros((len(weights), self.num_features))
        for part, rows in self._row_blocks(is_rough=False):
            total += _sums(_squared(rows), weights[:, part])
        return total

    def dense(self) -> Array:
        """A copy of all rows, shape (num_rows, d), float64."""
        parts = [part.toarray() if self.is_sparse else part for part in self._parts]
        return np.concatenate(parts).astype(np.float64)

    def add_products(
        self,
        weights: Sequence[Array],
        intercept: float | None,
        outs: Sequence[Array],
        *,
        is_rough: bool = False,
    ) -> None:
        """Add sum_i weights_i x_i x_i^T, packed, for several weights; rows of weight 0 are not multiplied.

        Args:
            weights: Of all rows, >= 0, each of shape (num_rows,).
            intercept: Value of one more column at the end; None for none.
            outs: Packed triangles; added to.
            is_rough: Whether float32 will do.
        """
        if not self.is_sparse:
            for each, out in zip(weights, outs, strict=True):
                self._add_dense(each, intercept, out, is_rough=is_rough and self.is_rough_possible)
            return
        is_needed = np.zeros(self.num_rows, dtype=bool)
        for each in weights:
            is_needed |= each != 0
        for which, dense in self._made_dense(is_needed):
            for each, out in zip(weights, outs, strict=True):
                add_dense_products([dense], each[which], ALL, intercept, out)

    def _add_dense(self, weights: Array, intercept: float | None, out: Array, *, is_rough: bool) -> None:
        if is_rough:
            total = np.zeros(len(out))
            with np.errstate(over="ignore", invalid="ignore"):
                add_dense_products(self._parts, weights, ALL, intercept, total, is_rough=True)
            if np.isfinite(total).all():  # else squares are beyond float32
                out += total
                return
        add_dense_products(self._parts, weights, ALL, intercept, out)

    def _made_dense(self, is_needed: Array) -> Iterator[tuple[Array, Array]]:
        """Numbers of rows, and these as dense ones, some at a time."""
        start = 0
        for matrix in self._parts:
            wanted = np.flatnonzero(is_needed[start : start + matrix.shape[0]])
            for begin in range(0, len(wanted), ROWS_MADE_DENSE):
                which = wanted[begin : begin + ROWS_MADE_DENSE]
                yield start + which, matrix[which].toarray()
            start += matrix.shape[0]

    def _factor(self, vectors: Array, is_rough: bool) -> Array:
        """The vectors as products want them: SciPy's run along the classes of each column."""
        if self.is_sparse:
            return np.ascontiguousarray(vectors.T)
        return vectors.astype(self._dtype(is_rough), copy=False)

    def _dtype(self, is_rough: bool) -> Any:
        return np.float32 if is_rough and self.is_rough_possible else np.float64

    def _row_blocks(self, is_rough: bool) -> Iterator[tuple[slice, Any]]:
        """Rows in order, and which they are; dense ones in the dtype that is computed in."""
        dtype, start = self._dtype(is_rough), 0
        step = SPARSE_ROWS if self.is_sparse else min(max(VALUES_PER_BLOCK // self.num_features, 1), MOST_ROWS)
        for matrix in self._parts:
            size = matrix.shape[0]
            for begin in range(0, size, step):
                rows = matrix if size <= step else matrix[begin : begin + step]
                if not self.is_sparse:
                    rows = rows.astype(dtype, copy=False)
                yield slice(start + begin, start + begin + rows.shape[0]), rows
            start += size


def _joined(parts: list[Any]) -> Any:
    """Chunks as one matrix."""
    from scipy.sparse import vstack

    return vstack(parts, format="csr") if isinstance(parts[0], csr_matrix) else np.concatenate(parts)


def num_values(part: Any) -> int:
    """Stored values of dense or CSR rows."""
    return int(part.nnz if isinstance(part, csr_matrix) else part.size)


def _squared(rows: Any) -> Any:
    """x_i * x_i, dense or CSR as the rows are."""
    if isinstance(rows, csr_matrix):
        return csr_matrix((rows.data * rows.data, rows.indices, rows.indptr), shape=rows.shape)
    return rows * rows


def _times(rows: Any, factor: Array) -> Array:
    """Scores, shape (K, n)."""
    return np.asarray((rows @ factor).T) if isinstance(rows, csr_matrix) else factor @ rows.T


def _sums(rows: Any, weights: Array) -> Array:
    """sum_i weights_ki x_i, shape (K, d)."""
    if isinstance(rows, csr_matrix):
        return np.asarray((rows.T @ np.ascontiguousarray(weights.T)).T)
    return weights.astype(rows.dtype, copy=False) @ rows
