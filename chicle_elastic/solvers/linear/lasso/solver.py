"""The local part of a lasso or elastic net: the sums of a pass over the rows of one task, or the solution of one."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.lasso import steps
from chicle_elastic.solvers.linear.lasso.state import LassoPhase, LassoState
from chicle_elastic.solvers.linear.lasso.steps import Penalty
from chicle_elastic.solvers.linear.pass_solver import HEAD, PassSolver
from chicle_elastic.solvers.linear.rows import ALL
from chicle_elastic.solvers.linear.target_rows import LocalRows


class LassoSolver(PassSolver[LassoState, LocalRows]):
    """One per uni-task.

    Args:
        ctx: Of the task.
        penalty: Of the weights.
        tol: Relative gap to reach.
        has_intercept: Whether b is anything but 0.
    """

    state_type = LassoState

    def __init__(self, ctx: Context, *, penalty: Penalty, tol: float, has_intercept: bool) -> None:
        super().__init__(ctx)
        self._penalty = penalty
        self._tol = tol
        self._has_intercept = has_intercept

    def read_chunks(self) -> LocalRows:
        """Make tables of them."""
        return LocalRows(self.chunks, intercept=1.0 if self._has_intercept else 0.0)

    def run_without_rows(self, state: LassoState, model: Array, sums: Array, budget: Budget) -> bool:
        """Solve in the phase SOLVE, if it is this task's turn."""
        if state.phase is LassoPhase.SOLVE and budget.rank == state.turn % budget.num_ranks:
            sums[HEAD:] = steps.solution(state, model, self._penalty, tol=self._tol, is_spent=budget.is_spent)
        return state.phase is LassoPhase.SOLVE

    def run_pass(self, state: LassoState, model: Array, sums: Array, budget: Budget) -> None:
        """See `LassoState.sums_size`."""
        part = sums[HEAD:]
        if state.phase is LassoPhase.LOOK:
            self._look(state, part)
        elif state.phase is LassoPhase.EVALUATE:
            part[:3], part[3 : 3 + state.d] = self._residuals(state, model)
            if state.needs_products:
                self._multiply(state, part[3 + state.d :])
        elif state.phase is LassoPhase.MULTIPLY:
            self._multiply(state, part)

    def _look(self, state: LassoState, sums: Array) -> None:
        local, d, s = self.local, state.d, self.local.weights
        sums[0], sums[1] = s.sum(), s @ local.targets
        sums[2 : 2 + d] = local.weighted_sum()[:d]
        if not state.is_narrow:
            sums[2 + d :] = local.rows.squares_sum(s)[:d]

    def _residuals(self, state: LassoState, model: Array, change: Array | None = None) -> tuple[Array, Array]:
        """Sums of s r, s r^2 and s r y_c, shape (3,), and of s r x, shape (d,); at w + change, if there is one."""
        local = self.local
        r = local.residuals(model)
        if change is not None:
            r = r - local.rows.times(np.append(change, -(state.means @ change)))
        weighted = local.weights * r
        sums = np.array([weighted.sum(), weighted @ r, weighted @ (local.targets - state.target_mean)])
        return sums, local.rows.weighted_sum(weighted)[: state.d]

    def _multiply(self, state: LassoState, sums: Array) -> None:
        columns = state.columns
        means = state.means[columns]
        self.local.add_products(means, sums, is_rough=state.is_rough, columns=ALL if state.is_narrow else columns)

    def evaluate(self, model: Array, progress: Array) -> Update:
        """As delta sum_i s_i r_i x_i and sum_i s_i r_i; as metrics the other sums of `steps.Residuals`, and rows."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        state = LassoState.look(progress)
        sums, part = self._residuals(state, model)
        metrics = {"losses": float(sums[1])}
        if state.change.any():
            sums, part = self._residuals(state, model, state.change)
        metrics |= {"squares": float(sums[1]), "products": float(sums[2]), "rows": float(self.local.tables.num_rows)}
        return Update(delta=np.append(part, sums[0]), samples=0, weight=1.0, metrics=metrics)
