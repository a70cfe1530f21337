"""Few wide rows: steps that are exact by products of rows, taken by each task alone over the rows of all.

They are the steps of `newton.steps`, of sums over one task; a step has as many equations as rows, and the curvatures of
rows are the sums that it is made of. All tasks take them, and go on with the mean of what they found (see `agreement`).
"""

from dataclasses import replace

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.linear.certified import MOST_REPEATS
from chicle_elastic.solvers.linear.newton.directions import RowProducts
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, OutputState, Problem
from chicle_elastic.solvers.linear.newton.steps import advance
from chicle_elastic.solvers.linear.progress import NOTHING, Head
from chicle_elastic.solvers.linear.rows import NewtonRows


def solved(
    state: NewtonState, output: OutputState, problem: Problem, w: Array, intercept: float, budget: Budget
) -> Array:
    """Take steps from w, shape (D,), until the gap is small enough, or the budget is spent.

    Returns:
        The sums of `NewtonPhase.SOLVE`.
    """
    n, num_values = state.few_rows, int(state.lengths.sum())
    upper, targets, columns, values = np.split(state.gathered, np.cumsum([n, n, num_values]))
    ends = np.concatenate([[0], np.cumsum(state.lengths)])
    rows = RowProducts(scipy.sparse.csr_array((values, columns.astype(np.int64), ends), shape=(n, state.D)))
    none, own = np.zeros(state.D), replace(problem, rows=rows)
    inner = OutputState(
        phase=NewtonPhase.EVALUATE, theta=output.theta, direction=none, shift=none, beside=none, is_wary=output.is_wary
    )
    inner.plus, inner.minus = output.plus, output.minus
    alone = replace(state, is_exact=True, gathered=NOTHING, outputs=[inner])
    passes = NewtonPasses(own, NewtonRows(rows.rows), upper, targets[None], intercept)
    there = w
    for _ in range(MOST_REPEATS):
        sums = np.zeros(alone.sums_size(own))
        sums[[Head.ROWS, Head.ALONE]] = state.num_rows, 1.0
        passes.run(alone, 0, there, *alone.parts(sums, own))
        there = advance(alone, own, there, sums, 1.0)
        if alone.is_at_rest or budget.is_spent():
            break
    [inner] = alone.outputs
    return np.concatenate([there - w, [inner.theta, inner.gap], passes.duals(inner, 0, there)[1]])
