"""Threads of a pass of Newton's method: each has a part of the local rows, as a task has a part of all rows.

A part is a run of chunks. The sums of the parts are added up in the order of the chunks, so that the result does not
depend on which thread ends first.
"""

import functools

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.linear.local import LocalData, LocalPart
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.state import NewtonState, Problem
from chicle_elastic.solvers.linear.pass_solver import INTERRUPTED
from chicle_elastic.solvers.linear.rows import MAX_COPIED_VALUES


class NewtonParts:
    """Over the local rows of one task, as long as they stay.

    There are no more parts than leave all of their blocks of second derivatives as small as the rows, or small at all:
    with many outputs or columns, each part would need the memory of another task.

    Args:
        problem: The same in every task.
        state: Says how large blocks are.
        local: The rows; at least one chunk.
    """

    def __init__(self, problem: Problem, state: NewtonState, local: LocalData) -> None:
        self._local = local
        self.row_step = state.row_step
        room, h = max(local.tables.num_values, MAX_COPIED_VALUES), min(state.block_columns, state.D)
        parts = local.parts(max(1, 2 * room // max(len(state.outputs) * h * (h + 1), 1)))
        self._parts = [_Part(problem, part, state.row_step, is_first=part is parts[0]) for part in parts]

    def raise_bounds(self, ratio: float) -> None:
        """All C_i have become `ratio` times as large, and the next pass is a first one."""
        for part in self._parts:
            part.passes.raise_bounds(part.local.upper, ratio)

    def run(
        self,
        state: NewtonState,  # of all outputs
        w: Array,  # shape (num_outputs, D)
        budget: Budget,  # says when to end early
        sums: Array,  # OUT: Get what is added up; the first one is not 0 where a thread was interrupted
    ) -> None:
        """Make a pass.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        local = self._local
        local.check_all_rows([part.local for part in self._parts])
        local.forget("dual_sums")  # those of a loss with corners are written
        pairs = [(part, np.zeros_like(sums) if k else sums) for k, part in enumerate(self._parts)]
        local.run_parts(lambda pair: pair[0].run(state, w, budget, pair[1]), pairs, budget.stop)
        for _, more in pairs[1:]:
            sums += more

    def settle(self, state: NewtonState, w: Array) -> None:
        """Write the duals that are certified together with the model, w of shape (num_outputs, D)."""
        self._local.run_parts(functools.partial(_Part.settle, state=state, w=w), self._parts)
        self._local.forget("dual_sums")


class _Part:
    """The rows of one thread; the first one adds what is added once per task."""

    def __init__(self, problem: Problem, local: LocalPart, row_step: int, *, is_first: bool) -> None:
        self.local = local
        self._is_first = is_first
        self._problem = problem
        self.passes = NewtonPasses(
            problem, local.rows, local.upper, local.signs, local.intercept, lambda: local.row_ids, row_step
        )

    def run(
        self,
        state: NewtonState,
        w: Array,
        budget: Budget,
        sums: Array,  # OUT
    ) -> None:
        """Add up sums, output by output; the first one is 1 where the budget ended before."""
        for k, (output, part) in enumerate(zip(state.outputs, state.parts(sums, self._problem), strict=True)):
            if not len(part):
                continue
            if budget.is_spent():
                sums[INTERRUPTED] = 1.0
                break
            alpha = self.local.duals(k) if self.passes.needs_duals(output) else None
            self.passes.run(state, k, w[k], part, alpha, is_first=self._is_first)
            if alpha is not None and self._problem.loss.has_corners:
                self.local.write_duals(k, alpha)

    def settle(self, state: NewtonState, w: Array) -> None:
        """Write the duals of w."""
        local = self.local
        for k, output in enumerate(state.outputs):
            if not output.keeps_duals:
                slopes = self.passes.duals(output, k, w[k], local.duals(k))[1]
                local.write_duals(k, local.upper * local.signs[k] * slopes)
