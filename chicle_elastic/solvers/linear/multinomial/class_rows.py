"""The rows of all local chunks in products with one vector per class, a block of rows at a time.

BLAS multiplies dense rows, SciPy sparse ones, so that nothing has to be compiled. A block stays in the cache from the
product with the weights of all classes to the sum that its result goes into, and is converted to another dtype there.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack

from chicle_elastic.chunks.rows import MOST_ROWS, as_floats, matrix_of
from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.linear.methods import SMALL_VALUES
from chicle_elastic.solvers.linear.objectives import ROWS_IN_CACHE
from chicle_elastic.solvers.linear.pass_solver import require_finite
from chicle_elastic.solvers.linear.products import ALL, add_dense_products
from chicle_elastic.solvers.local_chunk import RowBlock


class ClassRows:
    """The local rows; the intercept is no column of them.

    `is_counted` says which rows of the blocks there are, None for all. Others are left out a block at a time, so that
    no fold of a search has a copy of its rows.
    """

    def __init__(self, blocks: dict[ChunkId, RowBlock], is_counted: Array | None = None) -> None:
        self._blocks = blocks
        self._parts: list[Any] = [matrix_of(block.rows) for block in blocks.values()]
        self._is_sparse = issparse(self._parts[0])
        if sum(part.size for part in self._parts) <= SMALL_VALUES:
            self._parts = [
                vstack(self._parts, format="csr") if self._is_sparse else as_floats(np.concatenate(self._parts))
            ]
            if is_counted is not None:
                self._parts, is_counted = [self._parts[0][is_counted]], None
        ends = np.cumsum([part.shape[0] for part in self._parts])
        self._counted = None if is_counted is None else np.flatnonzero(is_counted)
        self._which: list[Array | None] = [None] * len(ends)
        if is_counted is not None:
            self._which = [np.flatnonzero(each) for each in np.split(is_counted, ends[:-1])]
        self._num_all = int(ends[-1])
        self.num_rows = self._num_all if self._counted is None else len(self._counted)
        self.num_features = int(self._parts[0].shape[1])

    def require_finite(self) -> None:
        """Look at all rows; a DataError names one that has a NaN or an infinity."""
        with np.errstate(over="ignore", invalid="ignore"):
            for chunk_id, block in self._blocks.items():
                rows = matrix_of(block.rows)
                products = (rows if self._is_sparse else as_floats(rows)) @ np.ones(self.num_features)
                require_finite(chunk_id, block, np.asarray(products))

    def sums(self, num_classes: int, weights: Callable[[slice], Array], *, are_squared: bool = False) -> Array:
        """sum_i weights_ki x_i of every class, or of x_i * x_i, shape (K, d); `weights` finds those of some rows."""
        total = np.zeros((num_classes, self.num_features))
        for part, rows in self._row_blocks():
            if are_squared:
                rows = rows.multiply(rows) if self._is_sparse else rows * rows
            total += weights(part) @ rows
        return total

    def curved(self, vectors: Array, curve: Callable[[slice, Array], Array], *, is_rough: bool = False) -> Array:
        """Return sum_i curve(scores)_ki x_i, shape (K, d), in one pass; `curve` finds weights of rows and scores."""
        total = np.zeros((len(vectors), self.num_features))
        dtype = np.float32 if is_rough else np.float64
        vectors = vectors.astype(dtype, copy=False)
        for part, rows in self._row_blocks(dtype):
            total += curve(part, vectors @ rows.T).astype(dtype, copy=False) @ rows
        return total

    def dense(self) -> Array:
        """A copy of all rows, shape (num_rows, d), float64."""
        blocks = [rows.toarray() if self._is_sparse else rows for _, rows in self._row_blocks()]
        return np.concatenate(blocks) if blocks else np.zeros((0, self.num_features))  # a fold may leave all out

    def add_products(self, weights: Array, intercept: float, outs: Array, *, is_rough: bool = False) -> None:
        """Add sum_i weights_ki x_i x_i^T, packed, of every class to `outs`; rows of weight 0 are not multiplied.

        One more column at the end has the value `intercept`. Where squares are beyond float32, a rough sum is exact.
        """
        if self._is_sparse:
            for which, rows in self._made_dense(np.any(weights, axis=0)):
                for each, out in zip(weights, outs, strict=True):
                    add_dense_products([rows], each[which], ALL, intercept, out)
            return
        for each, out in zip(weights, outs, strict=True):
            if self._counted is not None:
                spread = np.zeros(self._num_all)
                spread[self._counted] = each
                each = spread
            total = np.zeros(len(out))
            with np.errstate(over="ignore", invalid="ignore"):
                add_dense_products(self._parts, each, ALL, intercept, total, is_rough=is_rough)
            if is_rough and not np.isfinite(total).all():
                total[:] = 0.0
                add_dense_products(self._parts, each, ALL, intercept, total)
            out += total

    def _made_dense(self, is_needed: Array) -> Iterator[tuple[Array, Array]]:
        """Numbers of rows, and these as dense ones, some at a time."""
        for part, rows in self._row_blocks():
            wanted = np.flatnonzero(is_needed[part])
            for begin in range(0, len(wanted), ROWS_IN_CACHE // 2):
                which = wanted[begin : begin + ROWS_IN_CACHE // 2]
                yield part.start + which, rows[which].toarray()

    def _row_blocks(self, dtype: Any = np.float64) -> Iterator[tuple[slice, Any]]:
        """Rows in order, and which they are; dense ones in the dtype that is computed in."""
        start = 0
        # With 4 times as many and as few, products of 4,000 x 1,024 rows with 50 classes take 30 and 10 % longer.
        step = MOST_ROWS if self._is_sparse else min(max(SMALL_VALUES // self.num_features, 1), MOST_ROWS)
        for matrix, which in zip(self._parts, self._which, strict=True):
            size = matrix.shape[0] if which is None else len(which)
            for begin in range(0, size, step):
                chosen = slice(begin, begin + step) if which is None else which[begin : begin + step]
                rows = matrix if which is None and size <= step else matrix[chosen]
                if not self._is_sparse:
                    rows = _converted(rows, dtype)
                yield slice(start + begin, start + begin + rows.shape[0]), rows
            start += size


def _converted(rows: Array, dtype: Any) -> Array:
    """Return a block of dense rows in a dtype; a kernel converts values of 16 bits, in a third of NumPy's time."""
    if rows.dtype.itemsize != 2:
        return rows.astype(dtype, copy=False)
    from chicle_elastic.solvers.kernels.products import scale_rows

    converted = np.empty(rows.shape, dtype)
    scale_rows(rows, np.ones(len(rows), dtype), 0.0, 0, converted)
    return converted
