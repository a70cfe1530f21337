"""Few values of wide rows: what each task does alone over the rows of all, once they are sent.

The steps are those of `newton.steps`, of sums over one task: by conjugate gradients, and where the rows are few, too,
exact by products of rows once passes have cost as much as these. An exact step is one of the duals: it has as many
equations as rows, and w and duals are as exact as targets and rows are, however small the penalty or the corners. All
tasks take the same steps, and go on with the mean of what they found (see `agreement`).
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.linear.certified import MOST_REPEATS
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from chicle_elastic.solvers.linear.newton.conjugate import pass_work
from chicle_elastic.solvers.linear.newton.directions import RowProducts
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, NewtonState, OutputState, Problem
from chicle_elastic.solvers.linear.newton.steps import advance
from chicle_elastic.solvers.linear.progress import NO_NUMBERS, NOTHING, Head
from chicle_elastic.solvers.linear.race import MULTIPLICATION
from chicle_elastic.solvers.linear.rows import NewtonRows


class _OwnPasses(NewtonPasses):
    """Passes over all rows, which remember the duals that the last exact step leads to."""

    def __init__(self, problem: Problem, rows: Any, upper: Array, targets: Array, intercept: float) -> None:
        is_dense = rows.nnz >= rows.shape[0] * (rows.shape[1] - 1)
        rows = rows.toarray() if is_dense else rows
        super().__init__(problem, NewtonRows(rows), upper, targets[None], intercept)
        self._sent = rows
        self._found: tuple[Array, Array] | None = None

    @cached_property
    def products(self) -> RowProducts:
        """Return what solves for exact steps, which many rows never take."""
        return RowProducts(self._sent)

    def steps(self, output: OutputState, w: Array, ridge: Array, penalty: Array) -> tuple[Array, Array, Array]:
        """See `Problem.steps`; the ridge may have more than the penalty has."""
        point, loss, y = self._point(0, w), self._loss, self.targets[0]
        curvatures = self.curvatures(output, 0, w)
        slopes = loss.slopes(point.scores, y, output.theta) if point.slopes is None else point.slopes
        scores = point.scores if self._offsets is None else point.scores + self._offsets[0]
        solve = self.products.solver(curvatures, ridge)
        there, duals = solve((ridge - penalty) * w, self._upper * slopes + curvatures * scores, float(w[-1]))
        coupled, of_scale = NOTHING, np.zeros(len(duals))
        if loss.has_scale:
            mixed = self._upper * loss.by_scale(point.scores, y, output.theta)[2]
            coupled, of_scale = solve(np.zeros(len(w)), mixed)
        self._found = duals, of_scale
        return there - w, coupled, np.zeros((len(w), 0))

    def _foretold(self, k: int, output: OutputState, point: Any, scores: Array) -> Array:
        is_step = output.reach == 1.0 and (output.direction.any() or output.shift.any())
        if self._found is None or not is_step:
            return super()._foretold(k, output, point, scores)
        duals, of_scale = self._found
        upper = self._upper
        duals = np.divide(duals - output.foreseen * of_scale, upper, out=np.zeros(len(upper)), where=upper > 0)
        return self._loss.clipped(duals, self.targets[k])


def solved(
    state: NewtonState, output: OutputState, problem: Problem, w: Array, intercept: float, budget: Budget
) -> Array:
    """Take steps from w until the gap is small, the budget spent, or a task should tell others; see `NewtonPhase`."""
    n, num_values = state.few_rows, int(state.lengths.sum())
    upper, targets, columns, values = np.split(state.gathered, np.cumsum([n, n, num_values]))
    ends = np.concatenate([[0], np.cumsum(state.lengths)])
    rows = scipy.sparse.csr_array((values, columns.astype(np.int64), ends), shape=(n, state.D))
    none = np.zeros(state.D)
    inner = OutputState(
        phase=NewtonPhase.EVALUATE, theta=output.theta, direction=none, shift=none, beside=none, is_wary=output.is_wary
    )
    inner.plus, inner.minus = output.plus, output.minus
    alone = replace(state, few_rows=0, lengths=NO_NUMBERS, gathered=NOTHING, outputs=[inner])
    passes = _OwnPasses(problem, rows, upper, targets, intercept)
    there, work, of_pass = w, state.work_alone, pass_work(state)
    of_products = MULTIPLICATION * n * (num_values / 2.0 + n * n / 3.0) if n * n <= MOST_BLOCK_VALUES else np.inf
    for number in range(2 * MOST_REPEATS):
        sums = np.zeros(alone.sums_size(problem))
        sums[[Head.ROWS, Head.ALONE]] = state.num_rows, 1.0
        passes.run(alone, 0, there, *alone.parts(sums, problem))
        there, work = advance(alone, problem, there, sums, 1.0), work + of_pass
        is_long = number >= MOST_REPEATS and inner.phase is NewtonPhase.MULTIPLY and not inner.num_products
        if alone.is_at_rest or budget.is_spent() or is_long:
            break
        if inner.phase is NewtonPhase.MULTIPLY and work >= of_products:
            problem, alone.is_exact = replace(problem, steps_of_rows=passes.steps), True
            inner.phase, inner.block, inner.direction, inner.change = NewtonPhase.EVALUATE, Block.EXACT, none, 0.0
            inner.dual = -np.inf
    scalars = inner.theta, inner.gap, float(alone.is_at_rest), work
    return np.concatenate([there - w, scalars, passes.duals(inner, 0, there)[1]])
