"""A task that is alone goes on by itself, where an iteration costs more than the pass that it is made for."""

from abc import abstractmethod
from dataclasses import replace

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget, Update
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, Problem
from chicle_elastic.solvers.linear.pass_solver import ALONE, ROWS, PassSolver, Rows


class NewtonSolver(PassSolver[NewtonState, Rows]):
    """Make passes of one output."""

    state_type = NewtonState

    @abstractmethod
    def problem_of(self, state: NewtonState) -> Problem:
        """Say what is minimised."""

    def sums_size(self, state: NewtonState) -> int:
        """See `newton.state`."""
        return state.sums_size(self.problem_of(state))

    def solve(self, model: Array, budget: Budget) -> Update:
        """Make a pass over the local rows, or with little data and no other task several.

        Raises:
            DataError: A feature is NaN or infinite.
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
        """Go on from a pass of the only task; return w and the state, as the trainer would have them."""
        num_rows, ends, problem = sums[ROWS], (NewtonPhase.LOOK, NewtonPhase.REST), self.problem_of(state)
        with np.errstate(over="ignore", invalid="ignore"):  # as in the trainer
            model = steps.advance(state, problem, model, sums, 1.0)
            for _ in range(state.passes - 1):
                if state.outputs[0].phase in ends or budget.is_spent():
                    break
                sums = np.zeros(state.sums_size(problem))
                sums[ROWS], sums[ALONE] = num_rows, 1.0
                self.run_pass(state, model, sums, budget)
                model = steps.advance(state, problem, model, sums, 1.0)
        return np.concatenate([model, state.encode()])
