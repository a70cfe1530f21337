"""Dual coordinate descent with shrinking over rows that fit into a cache: many passes in one call.

Hsieh, Chang, Lin, Keerthi and Sundararajan 2008, "A dual coordinate descent method for large-scale linear SVM", section
3.2: a dual at a bound whose derivative says that it stays there, by more than any derivative of the pass before said of
the others, is left out until all others are done. `scd` is for large data, several threads and several tasks.
"""

import math

import numpy as np

from chicle_elastic.solvers.kernels.jit import kernel
from chicle_elastic.solvers.kernels.losses import is_settled, primal_loss, pull, step_and_values
from chicle_elastic.solvers.kernels.memory import REAL, address_of
from chicle_elastic.solvers.kernels.tables import row_add, row_at, row_cross, row_dot

ACTIVE, RANDOM, VISITS, NUM_COUNTS = 0, 1, 2, 3
MOST, LEAST, GAP, DUAL_SUM, NUM_FIGURES = 0, 1, 2, 3, 4
"""Places in `counts` and `figures`."""


@kernel
def descend(
    loss,
    rows,
    chunks,
    places,
    signs,
    upper,
    intercept,
    goal,
    most_visits,
    stop,
    norms,  # OUT
    alpha,  # OUT
    w,  # OUT
    order,  # OUT
    counts,  # OUT
    figures,  # OUT
):
    """Passes over the rows of `order` for one output, until the gap seems to be small enough.

    Args:
        loss: One of `losses.LOSSES`.
        rows: `tables.RowTable`.
        chunks, places: Chunk of each row, and its number there, shape (num_rows,), int32.
        signs: +1 or -1, shape (num_rows,), float64.
        upper: C_i, shape (num_rows,), float64; > 0 for the rows of `order`.
        intercept: Value of the intercept column; 0 for none.
        goal: Relative gap.
        most_visits: Visits of rows after which no pass begins.
        stop: uint8 of shape (1,); looked at between passes.
        norms: |x_i|^2 with the intercept column, float64; 0 until a row is first visited.
        alpha: Duals, shape (num_rows,), float64.
        w: Of these duals, shape (num_features + 1,), float64.
        order: Rows to visit, shape (n,), int32; those that are left out come to stand at its end.
        counts: int64: rows that are not left out, state of the generator (not 0), visits (added to).
        figures: float64: largest and least derivative of the last pass (infinite where nothing is to be left out),
            estimate of the gap, sum of dual values (carried along).
    """
    kind, last, vector = rows.kind, rows.num_features, address_of(w)
    active, random, num_visits = counts[ACTIVE], np.uint64(counts[RANDOM]), 0
    while True:
        for place in range(active - 1, 0, -1):
            random ^= random << np.uint64(13)  # xorshift (Marsaglia 2003)
            random ^= random >> np.uint64(7)
            random ^= random << np.uint64(17)
            other = np.int64(random % np.uint64(place + 1))
            order[place], order[other] = order[other], order[place]
        most, least, gap, change, place = -math.inf, math.inf, 0.0, 0.0, 0
        while place < active:
            row = order[place]
            at = row_at(rows, np.uintp(chunks[row]), np.uintp(places[row]))
            if norms[row] == 0.0:
                norms[row] = row_cross(kind, at, at) + intercept * intercept
            old, sign, bound = alpha[row], signs[row], upper[row]
            margin = sign * (row_dot(kind, at, vector, REAL) + intercept * w[last])
            slope = pull(loss, margin, old, bound)
            if is_settled(loss, margin, old, bound):
                if slope > figures[MOST] if old == 0.0 else slope < figures[LEAST]:
                    active -= 1
                    order[place], order[active] = order[active], row
                    continue
            else:
                most = slope if slope > most else most
                least = slope if slope < least else least
            new, old_value, new_value = step_and_values(loss, margin, old, norms[row], bound)
            gap += primal_loss(loss, margin, bound) - old_value + old * margin
            if new != old:
                alpha[row] = new
                factor = (new - old) * sign
                row_add(kind, factor, at, vector, REAL)
                w[last] += factor * intercept
                change += new_value - old_value
            place += 1
        num_visits += active
        figures[DUAL_SUM] += change
        squared = 0.0
        for column in range(last + 1):
            squared += w[column] * w[column]
        figures[GAP] = gap
        is_done = gap <= goal * (figures[DUAL_SUM] - 0.5 * squared + gap) or not most > least
        is_end = num_visits >= most_visits or stop[0] != 0 or (is_done and active == len(order))
        figures[MOST] = most if most > 0.0 and not is_done else math.inf
        figures[LEAST] = least if least < 0.0 and not is_done else -math.inf
        if is_done:
            active = len(order)
        if is_end:
            counts[ACTIVE], counts[RANDOM] = active, np.int64(random)
            counts[VISITS] += num_visits
            return
