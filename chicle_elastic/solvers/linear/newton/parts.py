"""Threads of a pass of Newton's method: each has a run of chunks, as a task has a part of all rows.

Their sums are added up in the order of the chunks, so that the result does not depend on which thread ends first.
"""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.linear.local import LocalData, LocalPart
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.state import NewtonState, Problem
from chicle_elastic.solvers.linear.pass_solver import Head


class NewtonParts:
    """Over the local rows of one task, as long as they stay.

    There are no more parts than leave all of their blocks of second derivatives as small as the rows, or small at all:
    with many outputs or columns, each part would need the memory of another task.
    """

    def __init__(self, problem: Problem, state: NewtonState, local: LocalData) -> None:
        self._problem, self._local, self.row_step = problem, local, state.row_step
        room, h = max(local.tables.num_values, MOST_BLOCK_VALUES), min(state.block_columns, state.D)
        parts = local.parts(max(1, 2 * room // max(len(state.outputs) * h * (h + 1), 1)))
        self._parts = [(part, self._passes(part)) for part in parts]

    def _passes(self, part: LocalPart) -> NewtonPasses:
        rows = part.rows, part.upper, part.signs, part.intercept
        return NewtonPasses(self._problem, *rows, lambda: part.row_ids, self.row_step)

    def raise_bounds(self, ratio: float) -> None:
        """All C_i have become `ratio` times as large, and the next pass is a first one."""
        for part, passes in self._parts:
            passes.raise_bounds(part.upper, ratio)

    def run(self, state: NewtonState, w: Array, budget: Budget, sums: Array) -> None:
        """Make a pass at w, (num_outputs, D), adding to `sums` (OUT), whose first one says that it ended early; a
        DataError names one that has a NaN or an infinity.
        """
        local = self._local
        local.check_all_rows([part for part, _ in self._parts])
        local.forget("dual_sums")  # those of a loss with corners are written
        pairs = [(*part, np.zeros_like(sums) if k else sums) for k, part in enumerate(self._parts)]
        local.run_parts(
            lambda part: self._run_part(state, w, budget, *part, is_first=part[2] is sums), pairs, budget.stop
        )
        for *_, more in pairs[1:]:
            sums += more

    def _run_part(
        self,
        state: NewtonState,
        w: Array,
        budget: Budget,
        local: LocalPart,
        passes: NewtonPasses,
        sums: Array,  # OUT
        *,
        is_first: bool,
    ) -> None:
        """Add up the sums of one thread, output by output; the first part adds what is added once per task."""
        for k, (output, part) in enumerate(zip(state.outputs, state.parts(sums, self._problem), strict=True)):
            if not len(part):
                continue
            if budget.is_spent():
                sums[Head.INTERRUPTED] = 1.0
                break
            alpha = local.duals(k) if passes.needs_duals(output) else None
            passes.run(state, k, w[k], part, alpha, is_first=is_first)
            if alpha is not None and self._problem.loss.has_corners:
                local.write_duals(k, alpha)

    def settle(self, state: NewtonState, w: Array) -> None:
        """Write the duals that are certified together with the model, w of shape (num_outputs, D)."""

        def write(part: tuple[LocalPart, NewtonPasses]) -> None:
            local, passes = part
            for k, output in enumerate(state.outputs):
                if not output.keeps_duals:
                    slopes = passes.duals(output, k, w[k], local.duals(k))[1]
                    local.write_duals(k, local.upper * local.signs[k] * slopes)

        self._local.run_parts(write, self._parts)
        self._local.forget("dual_sums")
