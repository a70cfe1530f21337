"""The sums of a pass of Newton's method over the rows of one task, and what a certificate needs.

Threads have a run of chunks each, as a task has a part of all rows. Their sums are added up in the order of the chunks,
so that the result does not depend on which thread ends first.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget, Update
from chicle_elastic.solvers.linear.l1.problem import L1Problem, accuracy
from chicle_elastic.solvers.linear.local import LocalData, LocalPart
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from chicle_elastic.solvers.linear.newton.few_rows import solved
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses, certificate_sums
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, NewtonState, OutputState, Problem
from chicle_elastic.solvers.linear.progress import Head

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.l1.columns import Columns


class NewtonParts:
    """Over the local rows of one task, as long as they stay.

    There is one part where chunks have no duals. Else there are no more than leave all of their blocks of second
    derivatives as small as the rows, or small at all: with many outputs or columns, each part would need the memory of
    another task.
    """

    def __init__(self, problem: Problem, state: NewtonState, local: LocalData, *, is_of_classes: bool) -> None:
        self._problem, self._local, self.row_step = problem, local, state.row_step
        self._is_of_classes = is_of_classes
        room, h = max(local.tables.num_values, MOST_BLOCK_VALUES), min(state.block_columns, state.D)
        most = max(1, 2 * room // max(len(state.outputs) * h * (h + 1), 1)) if problem.has_duals else 1
        self._parts = [(part, self._passes(part, len(state.outputs))) for part in local.parts(most)]
        self._columns: Columns | None = None

    def _targets(self, part: LocalPart, num_outputs: int) -> Array:
        """Return real targets, or +1 and -1 for the class of each output and the others, shape (outputs, num_rows); a
        DataError where the loss does not have such targets.
        """
        if self._is_of_classes:
            return part.signs if self._problem.has_duals else part.signs_of(num_outputs)
        counts, targets = part.upper > 0, part.targets.astype(np.float64)
        self._problem.loss.require(targets[counts])
        return np.where(counts, targets, 0.0)[np.newaxis]

    def _passes(self, part: LocalPart, num_outputs: int) -> NewtonPasses:
        problem = self._problem
        rows = part.rows, part.upper, self._targets(part, num_outputs), part.intercept
        is_centred = problem.takes_steps and problem.loss.is_parabola and not part.rows.is_sparse
        dense = [np.asarray(block.rows) for block in part.tables.keep_alive] if is_centred else []
        return NewtonPasses(problem, *rows, lambda: part.row_ids, self.row_step, dense)

    def raise_bounds(self, ratio: float) -> None:
        """All C_i have become `ratio` times as large, and the next pass is a first one."""
        for part, passes in self._parts:
            passes.raise_bounds(part.upper, ratio)

    def run(self, state: NewtonState, w: Array, budget: Budget, sums: Array) -> None:
        """Make a pass at w, (num_outputs, D), adding to `sums` (OUT), whose first one says that it ended early; a
        DataError names one that has a NaN or an infinity.
        """
        local = self._local
        if state.is_looking:
            self._look(state, sums)
            return
        if self._problem.has_duals:  # else there was a look
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
            if output.phase is NewtonPhase.COLUMNS:
                part[:] = self._from_columns(state, output, k, w[k], budget)
                continue
            if output.phase is NewtonPhase.SOLVE:
                part[:] = solved(state, output, self._problem, w[k], local.intercept, budget)
                continue
            alpha = local.duals(k) if self._problem.has_duals and passes.needs_duals(output) else None
            passes.run(state, k, w[k], part, alpha, is_first=is_first)
            if alpha is not None and self._problem.loss.has_corners:
                local.write_duals(k, alpha)

    def _look(self, state: NewtonState, sums: Array) -> None:
        """Add up how large targets are, and what else the problem asks for first."""
        [(local, passes)], problem, K = self._parts, self._problem, len(state.outputs)
        upper, of_columns, squares = local.upper, local.rows.weighted_sum(local.upper), np.zeros(state.D)
        # Values near the largest number may add up to infinity; rows of weight 0 may not have been read.
        if not np.isfinite(of_columns).all() or not upper.all():
            local.require_finite()
        if problem.takes_steps and not (state.is_exact and problem.loss.is_parabola):
            squares = local.rows.squares_sum(upper)
        for output, part, y in zip(state.outputs, state.parts(sums, problem), self._targets(local, K), strict=True):
            part[:4] = [upper @ values for values in (np.ones_like(y), np.abs(y), y, y * y)]
            if problem.takes_steps:
                sides = [upper @ (y > 0), upper @ (y < 0)]
                part[4:] = np.concatenate([sides, of_columns, squares, output.shift, [1.0]])
            elif state.few_rows:
                part[4:] = passes.lengths(state.few_rows)

    def _from_columns(self, state: NewtonState, output: OutputState, k: int, w: Array, budget: Budget) -> Array:
        """Find the direction of the task that has all rows, shape (D,)."""
        from chicle_elastic.solvers.linear.l1.columns import Columns

        [(local, passes)], problem = self._parts, self._problem
        assert isinstance(problem, L1Problem)
        if self._columns is None:
            penalty, is_free = problem.penalty_of(state), problem.has_free_intercept
            self._columns = Columns(local.tables, local.intercept, penalty, has_free_intercept=is_free)
        chosen, curvatures = problem.chosen(state, output, w, output.residual), passes.curvatures(output, k, w)
        num_weights, num_held = int(np.count_nonzero(w)), int(np.count_nonzero(w[chosen]))
        direction, is_given_up = self._columns.direction(
            local.upper * passes.duals(replace(output, plus=1.0, minus=1.0), k, w)[1],
            curvatures,
            output.residual,
            w,
            damping=problem.damped(output),
            accuracy=accuracy(output),
            limit=self._columns.work_of_products(chosen, num_weights) if num_held == num_weights else np.inf,
            budget=budget,
        )
        if is_given_up:
            output = replace(output, columns=chosen, factor=np.zeros(len(chosen) * (len(chosen) + 1) // 2))
            passes.add_block(k, output, Block.EXACT, curvatures, output.factor)
            direction[:] = 0.0
            direction[chosen], _ = problem.solution(state, output, chosen, w[chosen])
        return direction

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

    def certify(self, state: NewtonState, w: Array) -> Update:
        """Return sum_i c_i a_i x_i of the duals; as metrics rows, sum c and, per output, `certificate_sums`.

        The duals are the slopes at w + shift; with corners those that the last step has foretold.
        """
        [(local, passes)], loss, delta = self._parts, self._problem.loss, []
        upper = local.upper
        metrics = {"rows": float(len(upper)), "total": float(upper.sum())}
        for k, (output, y) in enumerate(zip(state.outputs, passes.targets, strict=True)):
            scores, duals = passes.duals(output, k, w[k])
            metrics |= certificate_sums(loss, k, scores, duals, y, upper, output.theta)
            delta.append(local.rows.weighted_sum(upper * duals))
        return Update(delta=np.concatenate(delta), samples=0, weight=1.0, metrics=metrics)
