"""The local part of a model whose duals are slopes: the sums of a pass over the rows of one task, or a direction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.l1.problem import L1Problem, accuracy
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses, certificate_sums
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, NewtonState, OutputState
from chicle_elastic.solvers.linear.pass_solver import Head, PassSolver
from chicle_elastic.solvers.linear.tables import Bounds

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.l1.columns import Columns


class NewtonSolver(PassSolver):
    """One per uni-task."""

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx, trainer)
        self._problem = trainer.problem
        bounds, intercept = Bounds(float(trainer.C), trainer.class_weights), float(trainer.intercept_scaling)
        self.local = LocalData(self.chunks, bounds=bounds, intercept=intercept)
        self.forget((), ())

    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget the scores, columns and targets."""
        self.local.change(added, removed)
        self._passes: NewtonPasses | None = None
        self._targets: Array | None = None
        self._columns: Columns | None = None

    def targets(self, num_outputs: int) -> Array:
        """Real targets, or +1 and -1 for the class of each output and the others, shape (outputs, num_rows); a
        DataError where the loss does not have such targets.
        """
        if self._targets is None:
            local, counts = self.local, self.local.upper > 0
            self._problem.loss.require(local.targets[counts])
            is_of_classes = self.trainer.is_of_classes
            self._targets = local.signs_of(num_outputs) if is_of_classes else np.where(counts, local.targets, 0.0)[None]
        return self._targets

    def passes(self, num_outputs: int) -> NewtonPasses:
        """Over the present chunks."""
        if self._passes is None:
            local, problem = self.local, self._problem
            is_centred = problem.takes_steps and problem.loss.is_parabola and not local.rows.is_sparse
            dense = [np.asarray(block.rows) for block in local.tables.keep_alive] if is_centred else []
            rows = local.rows, local.upper, self.targets(num_outputs), local.intercept
            self._passes = NewtonPasses(problem, *rows, lambda: local.row_ids, dense=dense)
        return self._passes

    @np.errstate(over="ignore", invalid="ignore")  # of steps that lead far beyond; they are not taken
    def run_pass(self, state: NewtonState, model: Array, sums: Array, budget: Budget) -> None:
        """See `newton.state`."""
        parts, phases = state.parts(sums, self._problem), [output.phase for output in state.outputs]
        if NewtonPhase.LOOK in phases:
            self._look(state, parts)
            return
        passes = self.passes(len(parts))
        for k, (output, w, part) in enumerate(zip(state.outputs, model.reshape(-1, state.D), parts, strict=True)):
            if output.phase is NewtonPhase.COLUMNS:
                part[:] = self._from_columns(state, output, k, w, budget)
            elif k and budget.is_spent():
                sums[Head.INTERRUPTED] = 1.0
                return
            else:
                passes.run(state, k, w, part)

    def _look(self, state: NewtonState, parts: list[Array]) -> None:
        local, upper = self.local, self.local.upper
        of_columns, squares = local.weighted_sum(), np.zeros(state.D)
        if self._problem.takes_steps and not (state.is_exact and self._problem.loss.is_parabola):
            squares = local.rows.squares_sum(upper)
        for output, part, y in zip(state.outputs, parts, self.targets(len(parts)), strict=True):
            part[:4] = [upper @ values for values in (np.ones_like(y), np.abs(y), y, y * y)]
            if self._problem.takes_steps:
                sides = [upper @ (y > 0), upper @ (y < 0)]
                part[4:] = np.concatenate([sides, of_columns, squares, output.shift, [1.0]])
            elif state.few_rows:
                part[4:] = self.passes(1).lengths(state.few_rows)

    def _from_columns(self, state: NewtonState, output: OutputState, k: int, w: Array, budget: Budget) -> Array:
        """Find the direction of the task that has all rows, shape (D,)."""
        from chicle_elastic.solvers.linear.l1.columns import Columns

        local, problem, passes = self.local, self._problem, self.passes(len(state.outputs))
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

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate_rows(self, model: Array, progress: Array) -> Update:
        """Return sum_i c_i a_i x_i of the duals; as metrics rows, sum c and, per output, `certificate_sums`.

        The duals are the slopes at w + shift; with corners those that the last step has foretold.
        """
        state, local, loss, delta = NewtonState.look(progress), self.local, self._problem.loss, []
        upper, passes = local.upper, self.passes(len(state.outputs))
        metrics = {"rows": float(len(upper)), "total": float(upper.sum())}
        outputs = zip(state.outputs, model.reshape(-1, state.D), passes.targets, strict=True)
        for k, (output, w, y) in enumerate(outputs):
            scores, duals = passes.duals(output, k, w)
            metrics |= certificate_sums(loss, k, scores, duals, y, upper, output.theta)
            delta.append(local.rows.weighted_sum(upper * duals))
        return Update(delta=np.concatenate(delta), samples=0, weight=1.0, metrics=metrics)
