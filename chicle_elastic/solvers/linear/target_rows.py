"""The local rows of a regression with their targets and weights, for as long as the chunks stay."""

import numpy as np

from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.linear.products import add_dense_products
from chicle_elastic.solvers.linear.rows import ALL, NewtonRows, newton_rows
from chicle_elastic.solvers.linear.tables import (
    Bounds,
    LocalTables,
    Notes,
    build_tables,
    require_finite_values,
    upper_of_rows,
)
from chicle_elastic.solvers.local_chunk import LocalChunk


class LocalRows:
    """Rows, targets and weights of all local chunks (at least one), for as long as these stay.

    Attributes:
        tables: For the kernels.
        rows: The rows, with a last column of the value `intercept`.
        targets: y_i, shape (num_rows,), float64.
        weights: s_i, shape (num_rows,), float64.
    """

    def __init__(self, chunks: dict[ChunkId, LocalChunk], *, intercept: float) -> None:
        self._intercept = intercept
        bounds = Bounds(C=1.0, class_weights=None)  # so that C_i is the weight of the sample
        notes: dict[ChunkId, Notes] = {}
        self.tables: LocalTables = build_tables(chunks, notes, bounds)
        self.rows: NewtonRows = newton_rows(self.tables, intercept)
        self.targets: Array = np.concatenate([block.targets for block in self.tables.keep_alive], dtype=np.float64)
        self.weights: Array = upper_of_rows(self.tables, notes, 1.0)

    @property
    def row_ids(self) -> Array:
        """Numbers of all rows in the data set, shape (num_rows,), int64."""
        return np.concatenate([block.row_ids for block in self.tables.keep_alive])

    def residuals(self, model: Array) -> Array:
        """r_i at w and b, shape (num_rows,)."""
        if not model[:-1].any():  # the first ones
            return self.targets - self._intercept * model[-1]
        return self.targets - self.rows.times(model)

    def weighted_sum(self) -> Array:
        """sum_i s_i x_i, shape (num_features + 1,).

        Raises:
            DataError: A feature is NaN or infinite.
        """
        total = self.rows.weighted_sum(self.weights)
        if not np.isfinite(total).all():  # or of values near the largest number
            with np.errstate(invalid="ignore"):
                values = self.rows.times(np.zeros(len(total)))
            require_finite_values(self.tables, values)
        return total

    def add_products(self, means: Array, out: Array, *, is_rough: bool, columns: Array = ALL) -> None:
        """Add sum_i s_i x_i x_i^T, packed, of dense rows less `means`: centring afterwards would cost digits.

        With `columns` (ascending, int64) it has only these, and `means` are theirs; empty means all features.
        """
        blocks = [block.rows for block in self.tables.keep_alive]
        dense = [rows for rows in blocks if not isinstance(rows, CsrRows)]
        if dense and is_rough:
            total = np.zeros(len(out))
            with np.errstate(over="ignore", invalid="ignore"):
                add_dense_products(dense, self.weights, columns, None, total, is_rough=True, shift=means)
            if np.isfinite(total).all():  # else squares are beyond float32
                out += total
                return
        if dense:
            add_dense_products(dense, self.weights, columns, None, out, shift=means)
        else:
            self.rows.add_products(self.weights, columns if len(columns) else np.arange(len(means)), out)
