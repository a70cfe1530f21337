"""The local part of a support vector regression: the sums of a pass over the rows of one task."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.pass_solver import PassSolver
from chicle_elastic.solvers.linear.ridge.solver import LocalRows
from chicle_elastic.solvers.linear.rows import ALL
from chicle_elastic.solvers.linear.svr.losses import Insensitive
from chicle_elastic.solvers.linear.svr.state import HEAD, SHARES, SvrPhase, SvrState


class SvrSolver(PassSolver[SvrState, LocalRows]):
    """One per uni-task.

    Args:
        ctx: Of the task.
        loss: The loss.
        C: Factor of the losses.
        intercept: Value of the intercept column; 0 for none.
    """

    state_type = SvrState

    def __init__(self, ctx: Context, *, loss: Insensitive, C: float, intercept: float) -> None:
        super().__init__(ctx)
        self._loss = loss
        self._C = C
        self._intercept = intercept
        self._upper = np.zeros(0)
        self._known: tuple[Array, Array] | None = None

    def read_chunks(self) -> LocalRows:
        """Make tables of them."""
        local = LocalRows(self.chunks, intercept=self._intercept)
        self._upper = self._C * local.weights
        return local

    def forget(self) -> None:
        """Forget the residuals."""
        self._known = None

    def _residuals(self, model: Array) -> Array:
        """r_i at w, shape (num_rows,): one product of the rows per w."""
        if self._known is None or not np.array_equal(self._known[0], model):
            self._known = model.copy(), self.local.residuals(model)
        return self._known[1]

    def run_pass(self, state: SvrState, model: Array, sums: Array, budget: Budget) -> None:
        """See `SvrState.sums_size`."""
        local, part = self.local, sums[HEAD:]
        if state.phase is SvrPhase.LOOK:
            local.weighted_sum()
            part[0], part[1] = self._upper @ np.abs(local.targets), self._upper.sum()
        elif state.phase is SvrPhase.EVALUATE:
            self._evaluate(state, model, part)
        elif state.phase is SvrPhase.MULTIPLY:
            curvatures = self._loss.curvatures(self._residuals(model), self._upper, state.width)
            part[: len(model)] = local.rows.curved_product(curvatures, state.conjugate)
            part[len(model) :] = state.conjugate
        elif state.phase is SvrPhase.SEARCH:
            residuals, changes = self._residuals(model), local.rows.times(state.direction)
            for k, share in enumerate(SHARES):
                part[k] = self._loss.losses(residuals - state.reach * share * changes, self._upper, state.width).sum()
            part[len(SHARES) :] = state.direction

    def _evaluate(self, state: SvrState, model: Array, sums: Array) -> None:
        local, loss, upper, D = self.local, self._loss, self._upper, len(model)
        residuals = self._residuals(model)
        duals = loss.duals(residuals, upper, state.width)
        sums[0] = loss.losses(residuals, upper, state.width).sum()
        sums[1] = loss.losses(residuals, upper).sum()
        sums[2] = loss.dual_values(duals, residuals, upper).sum()
        sums[3 : 3 + D] = local.rows.weighted_sum(duals)
        curvatures = loss.curvatures(residuals, upper, state.width)
        if state.has_factor:
            local.rows.add_products(curvatures, ALL, sums[3 + D :])
        else:
            sums[3 + D :] = local.rows.squares_sum(curvatures)

    def evaluate(self, model: Array, progress: Array) -> Update:
        """As delta sum_i a_i x_i; as metrics the sums of losses and of dual values with residuals as targets.

        The a_i are those of w and the last Newton step, where w has no room for the digits of that.
        """
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local, state = self.local, SvrState.decode(progress)
        residuals = local.residuals(model)
        after = residuals - local.rows.times(state.direction) if state.direction.any() else residuals
        duals = self._loss.duals(after, self._upper, state.width)
        metrics = {
            "loss": float(self._loss.losses(residuals, self._upper).sum()),
            "dual": float(self._loss.dual_values(duals, residuals, self._upper).sum()),
        }
        return Update(delta=local.rows.weighted_sum(duals), samples=0, weight=1.0, metrics=metrics)
