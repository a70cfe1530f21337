"""The local rows with their targets and weights, for as long as the chunks stay."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.linear.rows import NewtonRows, add_dense, newton_rows
from chicle_elastic.solvers.linear.tables import (
    Bounds,
    LocalTables,
    Notes,
    build_tables,
    require_finite_values,
    upper_of_rows,
)
from chicle_elastic.solvers.local_chunk import LocalChunk

OF_SAMPLES = Bounds(C=1.0, class_weights=None)
"""Bounds with which C_i is the weight of the sample."""


class LocalRows:
    """Rows, targets and weights of all local chunks (at least one), for as long as these stay.

    Attributes:
        tables: For the kernels.
        rows: The rows, with a last column of the value `intercept`.
        targets: y_i or class codes, shape (num_rows,), float64.
        weights: The C_i of the bounds, shape (num_rows,), float64.
    """

    def __init__(self, chunks: dict[ChunkId, LocalChunk], *, intercept: float, bounds: Bounds = OF_SAMPLES) -> None:
        self._intercept = intercept
        notes: dict[ChunkId, Notes] = {}
        self.tables: LocalTables = build_tables(chunks, notes, bounds)
        self.rows: NewtonRows = newton_rows(self.tables, intercept)
        self.targets: Array = np.concatenate([block.targets for block in self.tables.keep_alive], dtype=np.float64)
        self.weights: Array = upper_of_rows(self.tables, notes, bounds.C)

    def signs(self, k: int, num_outputs: int) -> Array:
        """Return +1 where the class is that of output `k`, else -1, shape (num_rows,), float64."""
        return np.where(self.targets == (1 if num_outputs == 1 else k), 1.0, -1.0)

    def scores(self, model: Array) -> Array:
        """<w, x_i> + b, shape (num_rows,)."""
        if not model[:-1].any():  # the first ones
            return np.full(len(self.targets), self._intercept * model[-1])
        return self.rows.times(model)

    @property
    def row_ids(self) -> Array:
        """Numbers of all rows in the data set, shape (num_rows,), int64."""
        return np.concatenate([block.row_ids for block in self.tables.keep_alive])

    def residuals(self, model: Array) -> Array:
        """r_i at w and b, shape (num_rows,)."""
        return self.targets - self.scores(model)

    def weighted_sum(self) -> Array:
        """sum_i C_i x_i, shape (num_features + 1,).

        Raises:
            DataError: A feature is NaN or infinite.
        """
        total = self.rows.weighted_sum(self.weights)
        # Values near the largest number may add up to infinity; rows of weight 0 may not have been read.
        if not np.isfinite(total).all() or not self.weights.all():
            with np.errstate(invalid="ignore"):
                values = self.rows.times(np.zeros(len(total)))
            require_finite_values(self.tables, values)
        return total

    def add_centred_products(
        self,
        weights: Array,
        columns: Array,
        means: Array,
        out: Array,  # OUT
        *,
        is_rough: bool,
    ) -> None:
        """Add sum_i weights_i x_i x_i^T, packed, of dense rows less `means`: centring afterwards would cost digits.

        With `columns` (ascending, int64) it has only these, and `means` are theirs; empty means all features.
        """
        blocks = [np.asarray(block.rows) for block in self.tables.keep_alive]
        add_dense(blocks, weights, columns, None, out, rough=blocks if is_rough else None, shift=means)
