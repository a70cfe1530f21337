"""The local part of a ridge regression: the sums of a pass over the rows of one task."""

import numpy as np

from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.pass_solver import PassSolver
from chicle_elastic.solvers.linear.products import add_dense_products
from chicle_elastic.solvers.linear.ridge.state import ALONE, HEAD, RidgePhase, RidgeState
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
        bounds = Bounds(C=1.0, class_weights=None)  # so that C_i is the weight of the sample
        notes: dict[ChunkId, Notes] = {}
        self.tables: LocalTables = build_tables(chunks, notes, bounds)
        self.rows: NewtonRows = newton_rows(self.tables, intercept)
        self.targets: Array = np.concatenate([block.targets for block in self.tables.keep_alive], dtype=np.float64)
        self.weights: Array = upper_of_rows(self.tables, notes, 1.0)

    def residuals(self, model: Array) -> Array:
        """r_i at w and b, shape (num_rows,)."""
        if not model[:-1].any():  # the first ones
            return self.targets - model[-1]
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


class RidgeSolver(PassSolver[RidgeState, LocalRows]):
    """One per uni-task.

    Args:
        ctx: Of the task.
        has_intercept: Whether b is anything but 0.
    """

    state_type = RidgeState

    def __init__(self, ctx: Context, *, has_intercept: bool) -> None:
        super().__init__(ctx)
        self._has_intercept = has_intercept

    def read_chunks(self) -> LocalRows:
        """Make tables of them."""
        return LocalRows(self.chunks, intercept=1.0 if self._has_intercept else 0.0)

    def run_pass(self, state: RidgeState, model: Array, sums: Array, budget: Budget) -> None:
        """See `RidgeState.sums_size`."""
        sums[ALONE] = budget.num_ranks == 1
        if state.phase is RidgePhase.LOOK:
            self._look(state, sums[HEAD:])
        elif state.phase is RidgePhase.EVALUATE:
            self._evaluate(state, model, sums[HEAD:])
        elif state.phase is RidgePhase.MULTIPLY:
            self._multiply(state, sums[HEAD:])

    def _look(self, state: RidgeState, sums: Array) -> None:
        local, d = self.local, state.d
        s, y = local.weights, local.targets
        sums[0], sums[1], sums[2] = s.sum(), s @ y, s @ (y * y)
        sums[3 : 3 + d] = local.weighted_sum()[:d]
        if not state.has_factor:
            sums[3 + d :] = local.rows.squares_sum(s)[:d]

    def _evaluate(self, state: RidgeState, model: Array, sums: Array) -> None:
        local, d = self.local, state.d
        r = local.residuals(model)
        weighted = local.weights * r
        sums[0], sums[1] = weighted.sum(), weighted @ r
        sums[2 : 2 + d] = local.rows.weighted_sum(weighted)[:d]
        if state.needs_products:
            local.add_products(state.means, sums[2 + d :], is_rough=state.is_rough)

    def _multiply(self, state: RidgeState, sums: Array) -> None:
        local, d, p = self.local, state.d, state.direction
        product = local.rows.curved_product(local.weights, self._centring(state, p))
        sums[0] = product[d]  # the column of ones centres the rows, and its sum is that of s u; 0 without
        sums[1 : 1 + d] = product[:d]
        sums[1 + d :] = p

    def _centring(self, state: RidgeState, p: Array) -> Array:
        """Return the vector whose product with a row is that of the centred row with p; shape (d + 1,)."""
        return np.append(p, -(state.means @ p))  # means are 0 without an intercept

    def evaluate(self, model: Array, progress: Array) -> Update:
        """As delta sum_i s_i r_i x_i and sum_i s_i r_i, of the duals; as metrics the sum of s_i r_i^2, that of s_i, and
        that of s_i times the squared difference of the two kinds of residuals.
        """
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local, state = self.local, RidgeState.decode(progress)
        r = local.residuals(model)
        u = local.rows.times(self._centring(state, state.change)) if state.change.any() else np.zeros(len(r))
        weighted = local.weights * (r - u)
        delta = local.rows.weighted_sum(weighted)
        delta[-1] = weighted.sum()
        metrics = {
            "loss": float((local.weights * r) @ r),
            "weight": float(local.weights.sum()),
            "changes": float((local.weights * u) @ u),
        }
        return Update(delta=delta, samples=0, weight=1.0, metrics=metrics)
