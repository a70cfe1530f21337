"""Coordinate descent before Newton's method, of a task that is alone with little data.

Its gap falls the faster the more duals are left out, so that the first passes say nothing of the end: it has as much
work as Newton's method takes, and no more. What is done in vain is at most that.
"""

import math

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels import tube
from chicle_elastic.solvers.kernels.descent import NUM_COUNTS
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.race import CACHED_ROW_VALUES, DENSE_VALUE, MULTIPLICATION, STEP_VALUES

NEWTON_PASSES = 8
"""Passes that Newton's method takes: median over 17 tables, of 5 to 11."""
LEAST_NORM = 1e-150
"""In place of |x|^2 of a row that is 0."""
SEED = 1
"""Of the order of rows: not 0."""


def descend(local: LocalData, upper: Array, epsilon: float, goal: float) -> tuple[Array, Array, float] | None:
    """Find w and its duals.

    Args:
        local: The data of the only task.
        upper: C_i over the factor of the penalty, shape (num_rows,).
        epsilon: Of the loss.
        goal: Relative gap to reach.

    Returns:
        w of shape (D,), duals of shape (num_rows,) and their relative gap; None where that takes too much work.
    """
    rows = local.rows.dense(np.arange(local.tables.num_rows))
    num_rows, D = rows.shape
    norms = np.maximum(np.einsum("nd,nd->n", rows, rows), LEAST_NORM)
    duals, w, found = np.zeros(num_rows), np.zeros(D), np.zeros(tube.NUM_FOUND)
    found[tube.WORST], found[tube.PER_GAP] = math.inf, tube.FIRST_PER_GAP
    order, counts = np.arange(num_rows, dtype=np.int32), np.zeros(NUM_COUNTS, dtype=np.int64)
    counts[:] = 0, num_rows, SEED
    newton_work = NEWTON_PASSES * (STEP_VALUES + num_rows * (DENSE_VALUE * D + 0.5 * MULTIPLICATION * D * D))
    most_visits = newton_work / (DENSE_VALUE * D + CACHED_ROW_VALUES)
    tube.descend(rows, local.targets, upper, norms, epsilon, goal, most_visits, order, counts, duals, w, found)
    gap, primal = found[: tube.VISITS].tolist()
    return (w, duals, gap / max(primal, TINY)) if gap <= goal * primal else None
