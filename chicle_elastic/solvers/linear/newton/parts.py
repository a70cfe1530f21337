"""Threads of a pass of Newton's method: each has a part of the local rows, as a task has a part of all rows.

A part is a run of chunks. The sums of the parts are added up in the order of the chunks, so that the result does not
depend on which thread ends first.
"""

import functools
from collections.abc import Sequence

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.linear.local import LocalData, LocalPart
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.plan import NewtonPlan
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.objectives import dual_values, primal_losses
from chicle_elastic.solvers.linear.rows import MAX_COPIED_VALUES

VALUES_AT_ONCE = 1 << 22
"""Rows x outputs whose margins and the like a pass of Newton's method finds at once: 32 MiB each."""


class NewtonParts:
    """Over the local rows of one task, as long as they stay.

    There are no more parts than leave all of their blocks of second derivatives as small as the rows, or small at all:
    with many outputs or columns, each part would need the memory of another task.

    Args:
        plan: The same in every task.
        local: The rows; at least one chunk.
    """

    def __init__(self, plan: NewtonPlan, local: LocalData) -> None:
        self.plan = plan
        self._local = local
        room = max(local.tables.num_values, MAX_COPIED_VALUES)
        parts = local.parts(max(1, room // max(plan.most_block_values, 1)))
        self._parts = [_Part(plan, part, is_first=part is parts[0]) for part in parts]

    def raise_bounds(self, ratio: float) -> None:
        """All C_i have become `ratio` times as large, and the next pass is a first one."""
        for part in self._parts:
            part.passes.raise_bounds(part.local.upper, ratio)

    def run(self, state: NewtonState, w: Array, budget: Budget) -> Array:
        """Make a pass.

        Args:
            state: Of all outputs.
            w: Shape (num_outputs, D).
            budget: Says when to end early.

        Returns:
            Sums, shape (state.sums_size,); the first one is not 0 where a thread was interrupted.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        local = self._local
        local.check_all_rows([part.local for part in self._parts])
        size = max(1, VALUES_AT_ONCE // local.tables.num_rows)
        run = functools.partial(_Part.run, state=state, w=w, size=size, budget=budget)
        local.set_dual_sums(None)  # the centers of the hinge may move
        return _total(local.run_parts(run, self._parts, budget.stop))

    def settle(self, state: NewtonState, w: Array) -> Array:
        """Write the duals that are certified together with the model, and learn the sums of their values.

        Returns:
            w of these duals, shape (num_outputs, D).
        """
        found = self._local.run_parts(functools.partial(_Part.settle, state=state, w=w), self._parts)
        self._local.set_dual_sums(_total([sums for _, sums in found]))
        return _total([rebuilt for rebuilt, _ in found])

    def losses(self, w: Array) -> Array:
        """Sums of losses at w, shape (num_outputs,)."""
        return _total(self._local.run_parts(functools.partial(_Part.losses, w=w), self._parts))


class _Part:
    """The rows of one thread; the first one adds what is added once per task."""

    def __init__(self, plan: NewtonPlan, local: LocalPart, *, is_first: bool) -> None:
        self.local = local
        self._is_first = is_first
        self.passes = NewtonPasses(plan, local.rows, local.upper, local.signs, lambda: local.row_ids)

    def run(self, state: NewtonState, w: Array, size: int, budget: Budget) -> Array:
        """Add up sums, of so many outputs at a time; the first one is 1 where the budget ended before."""
        passes, sums = self.passes, np.zeros(state.sums_size)
        for group in (part for whole in passes.plan.groups(state.outputs, sums) for part in whole.split(size)):
            if budget.is_spent():
                sums[0] = 1.0
                break
            duals = {k: self.local.duals(k) for k in group.numbers if passes.needs_duals(state.outputs[k])}
            passes.run(group, state.outputs, w, duals)
            if self._is_first:
                group.add_directions(state.outputs)
            for k in group.numbers:
                if state.outputs[k].old_tau:
                    self.local.write_duals(k, duals[k])
        return sums

    def settle(self, state: NewtonState, w: Array) -> tuple[Array, Array]:
        """Write duals; returns w of all duals, and sums of dual values."""
        rebuilt, sums = np.zeros_like(w), np.zeros(len(w))
        for k, output in enumerate(state.outputs):
            alpha = self.local.duals(k)
            if self.passes.settle(k, output, w[k], alpha):
                self.local.write_duals(k, alpha)
            sums[k] = self.passes.sum_of(dual_values, alpha)
            rebuilt[k] = self.local.rows.weighted_sum(self.local.signs[k] * alpha)
        return rebuilt, sums

    def losses(self, w: Array) -> Array:
        """Sums of losses at w, shape (num_outputs,)."""
        signs, rows = self.local.signs, self.local.rows
        return np.array([self.passes.sum_of(primal_losses, signs[k] * rows.times(w[k])) for k in range(len(w))])


def _total(parts: Sequence[Array]) -> Array:
    """Sum in order, in place of the first one."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
