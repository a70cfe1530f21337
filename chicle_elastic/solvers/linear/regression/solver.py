"""The local part of a regression: the sums of a pass over the rows of one task."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState
from chicle_elastic.solvers.linear.objectives import dual_slopes
from chicle_elastic.solvers.linear.pass_solver import ALONE, HEAD, ROWS, PassSolver, count_all
from chicle_elastic.solvers.linear.regression.descent import descend
from chicle_elastic.solvers.linear.regression.losses import EpsilonInsensitive
from chicle_elastic.solvers.linear.tables import Bounds


class RegressionSolver(PassSolver):
    """One per uni-task.

    Args:
        ctx: Of the task.
        trainer: The `RegressionTrainer`, which says what is minimised.
    """

    state_type = NewtonState

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx)
        self._problem = trainer.problem
        bounds, intercept = Bounds(float(trainer.C)), float(trainer.intercept_scaling)
        self.local = LocalData(self.chunks, bounds=bounds, intercept=intercept)
        self._passes: NewtonPasses | None = None

    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget the scores, and duals: slopes will do."""
        self.local.change(added, removed)
        self._passes = None

    def sums_size(self, state: NewtonState) -> int:
        """See `newton.state`."""
        return state.sums_size(self._problem)

    @property
    def passes(self) -> NewtonPasses:
        """Over the present chunks.

        Raises:
            DataError: The loss does not have such targets.
        """
        if self._passes is None:
            local, counts = self.local, self.local.upper > 0
            self._problem.loss.require(local.targets[counts])
            targets = np.where(counts, local.targets, 0.0)[None]
            self._passes = NewtonPasses(
                self._problem, local.rows, local.upper, targets, local.intercept, lambda: local.row_ids
            )
        return self._passes

    def solve(self, model: Array, budget: Budget) -> Update:
        """Make a pass over the local rows, or with little data and no other task several.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        state, room = NewtonState.look(budget.progress), np.zeros(0)
        if state.passes > 1:
            room = np.zeros(len(model) + state.room)
        is_alone = bool(self.chunks) and budget.num_ranks == 1 and not budget.is_spent()
        reached = self._descended(budget) if len(room) and is_alone and state.outputs[0].is_first else None
        if reached is not None:
            sums = np.zeros(self.sums_size(state))
            update = Update(delta=sums, samples=count_all(self.chunks), weight=1.0)
        else:
            update = super().solve(model, budget)
            if len(room) and budget.num_ranks == 1 and update.samples:
                reached = self._go_on(NewtonState.decode(budget.progress), model, update.delta, budget)
        if reached is not None:
            room[: len(reached)] = reached
        return replace(update, delta=np.concatenate([update.delta, room]))

    def _descended(self, budget: Budget) -> Array | None:
        """Return w and the state at rest, if coordinate descent has got there."""
        problem, state = self._problem, NewtonState.decode(budget.progress)
        output = state.outputs[0]
        if not isinstance(problem.loss, EpsilonInsensitive) or problem.has_free_intercept:
            return None
        upper = self.local.upper / problem.strength(state)
        found = descend(self.local, upper, problem.loss.epsilon, state.share * problem.tol)
        if found is None:
            return None
        w, duals, gap = found
        self.passes.know(0, w, dual_slopes(duals, upper))
        output.phase, output.gap, output.is_best, output.is_first = NewtonPhase.REST, gap, True, False
        return np.concatenate([w, state.encode()])

    def _go_on(self, state: NewtonState, model: Array, sums: Array, budget: Budget) -> Array:
        """Go on from a pass of the only task; returns w and the state, as the trainer would have them."""
        num_rows, ends = sums[ROWS], (NewtonPhase.LOOK, NewtonPhase.REST)
        with np.errstate(over="ignore", invalid="ignore"):  # as in the trainer
            model = steps.advance(state, self._problem, model, sums, 1.0)
            for _ in range(state.passes - 1):
                if state.outputs[0].phase in ends or budget.is_spent():
                    break
                sums = np.zeros(self.sums_size(state))
                sums[ROWS], sums[ALONE] = num_rows, 1.0
                self.run_pass(state, model, sums, budget)
                model = steps.advance(state, self._problem, model, sums, 1.0)
        return np.concatenate([model, state.encode()])

    def run_pass(self, state: NewtonState, model: Array, sums: Array, budget: Budget) -> None:
        """See `newton.state`."""
        local, part = self.local, sums[HEAD:]
        with np.errstate(over="ignore", invalid="ignore"):  # of steps that lead far beyond; they are not taken
            if state.outputs[0].phase is not NewtonPhase.LOOK:
                self.passes.run(state, 0, model, part)
                return
            local.weighted_sum()
            y, upper = local.targets, local.upper
            part[:] = [upper @ values for values in (np.ones_like(y), np.abs(y), y, y * y)]

    def evaluate(self, model: Array, progress: Array) -> Update:
        """Return as delta sum_i c_i a_i x_i of the duals; as metrics losses, these less dual values, sum c a^2, c
        and scores, and rows.

        The duals are the slopes at w + shift, and not at w; with corners those that the last step has foretold.
        """
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local, state, loss = self.local, NewtonState.look(progress), self._problem.loss
        output, upper = state.outputs[0], local.upper
        y = np.where(upper > 0, 0.0 if loss.is_of_residuals else local.targets, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            scores, duals = self.passes.duals(output, 0, model)
            losses = loss.values(scores, y, 0.0 if loss.has_corners else output.theta)
            metrics = {
                "loss": float(upper @ losses),
                "lack": float(upper @ (losses - loss.dual_values(duals, scores, y))),
                "squares": float(upper @ (duals * duals)),
                "total": float(upper.sum()),
                "scores": float(upper @ scores),
                "rows": float(len(scores)),
            }
        return Update(delta=local.rows.weighted_sum(upper * duals), samples=0, weight=1.0, metrics=metrics)
