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
from chicle_elastic.solvers.linear.pass_solver import HEAD, Head, PassSolver
from chicle_elastic.solvers.linear.tables import Bounds


class RegressionSolver(PassSolver):
    """One per uni-task."""

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx, trainer)
        self._problem = trainer.problem
        bounds, intercept = Bounds(float(trainer.C)), float(trainer.intercept_scaling)
        self.local = LocalData(self.chunks, bounds=bounds, intercept=intercept)
        self._passes: NewtonPasses | None = None

    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget the scores, and duals: slopes will do."""
        self.local.change(added, removed)
        self._passes = None

    @property
    def passes(self) -> NewtonPasses:
        """Over the present chunks; a DataError where the loss does not have such targets."""
        if self._passes is None:
            local, counts = self.local, self.local.upper > 0
            self._problem.loss.require(local.targets[counts])
            targets = np.where(counts, local.targets, 0.0)[None]
            self._passes = NewtonPasses(
                self._problem, local.rows, local.upper, targets, local.intercept, lambda: local.row_ids
            )
        return self._passes

    def solve(self, model: Array, budget: Budget) -> Update:
        """Make a pass over the local rows, or several of little data on one task; a DataError names one that has a NaN
        or an infinity.
        """
        update, state = super().solve(model, budget), NewtonState.look(budget.progress)
        if state.passes == 1:
            return update
        room = np.zeros(len(model) + state.room)
        if budget.num_ranks == 1 and update.samples:
            reached = self._go_on(NewtonState.decode(budget.progress), model, update.delta, budget)
            room[: len(reached)] = reached
        return replace(update, delta=np.concatenate([update.delta, room]))

    def _go_on(self, state: NewtonState, model: Array, sums: Array, budget: Budget) -> Array:
        """Go on from a pass of the only task; returns w and the state, as the trainer would have them."""
        num_rows, ends = sums[Head.ROWS], (NewtonPhase.LOOK, NewtonPhase.REST)
        with np.errstate(over="ignore", invalid="ignore"):  # as in the trainer
            model = steps.advance(state, self._problem, model, sums, 1.0)
            for _ in range(state.passes - 1):
                if state.outputs[0].phase in ends or budget.is_spent():
                    break
                sums = np.zeros(state.sums_size(self._problem))
                sums[Head.ROWS], sums[Head.ALONE] = num_rows, 1.0
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

    def evaluate_rows(self, model: Array, progress: Array) -> Update:
        """Return sum_i c_i a_i x_i of the duals; as metrics losses, these less dual values, sum c a^2, c and scores,
        and rows.

        The duals are the slopes at w + shift; with corners those that the last step has foretold.
        """
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
