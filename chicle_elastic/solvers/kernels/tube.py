"""Dual coordinate descent of the epsilon-insensitive loss, with shrinking, over a matrix that stays in the cache.

Ho and Lin 2012, "Large-scale linear support vector regression", section 3.2. The dual of row i is within its bounds
[-C_i, C_i], and w = sum_i a_i x_i. A dual is left out where it stays put by more than any other was drawn in the pass
before. As in `descent`, passes end with one that moves no dual, whose gap is that of w.
"""

import math

from chicle_elastic.solvers.kernels.descent import ACTIVE, FIRST_PER_GAP, LEAST_PER_GAP, shuffle
from chicle_elastic.solvers.kernels.jit import kernel

GAP, PRIMAL, VISITS, WORST, PER_GAP, NUM_FOUND = 0, 1, 2, 3, 4, 5
"""Places in what is found: see `descend`."""


@kernel
def descend(
    rows,
    targets,
    upper,
    norms,
    epsilon,
    goal,
    most_visits,
    order,  # OUT
    counts,  # OUT
    duals,  # OUT
    w,  # OUT
    found,  # OUT
):
    """Make passes until the relative gap is `goal`, or so many duals were visited.

    Args:
        rows: Shape (n, D), float64, the intercept column included.
        targets: y_i, shape (n,), float64.
        upper: C_i, shape (n,), float64.
        norms: |x_i|^2, shape (n,), float64, above 0.
        epsilon: Of the loss.
        goal: Relative gap that ends it.
        most_visits: Visits after which no further pass begins.
        order, counts: See `descent.shuffle`; rows that are left out are below 0.
        duals: a_i, shape (n,), float64.
        w: Shape (D,), float64.
        found: Shape (5,), float64: gap and objective (those of w and the duals where the gap is at the goal, else
            estimates), visits so far, largest derivative of the pass before, and what an estimate is of the gap that is
            found after it.

    NumPy equivalent of the steps of a pass::

        for i in visited:
            r = targets[i] - rows[i] @ w
            a = duals[i] + r / norms[i]
            a = np.sign(a) * max(abs(a) - epsilon / norms[i], 0.0)
            a = min(max(a, -upper[i]), upper[i])
            w += (a - duals[i]) * rows[i]
            duals[i] = a
    """
    size, is_fixed, estimate = len(w), False, 0.0
    while True:
        shuffle(order, counts)
        gap, primal, worst, above = 0.0, 0.0, -math.inf, found[WORST]
        for position in range(counts[ACTIVE]):
            i = order[position]
            row, a, c, r = rows[i], duals[i], upper[i], targets[i]
            for j in range(size):
                r -= row[j] * w[j]
            loss = c * max(abs(r) - epsilon, 0.0)
            primal += loss
            gap += loss - a * r + epsilon * abs(a)
            # By how much D rises with a dual that grows, and with one that falls.
            grows = (r - epsilon if a >= 0.0 else r + epsilon) if a < c else -math.inf
            falls = (epsilon - r if a > 0.0 else -epsilon - r) if a > -c else -math.inf
            drawn = max(grows, falls)
            if drawn < -above:
                order[position] = ~i
                continue
            worst = max(worst, drawn)
            if is_fixed:
                continue
            new, least = a + r / norms[i], epsilon / norms[i]
            new = new - least if new > least else new + least if new < -least else 0.0
            new = min(max(new, -c), c)
            if new != a:
                duals[i] = new
                for j in range(size):
                    w[j] += (new - a) * row[j]
        for j in range(size):
            primal += 0.5 * w[j] * w[j]
        found[GAP], found[PRIMAL] = gap, primal
        found[VISITS] += counts[ACTIVE]
        is_done = gap <= (1.0 if is_fixed else found[PER_GAP]) * goal * primal
        if is_fixed and is_done:
            return
        if is_fixed:
            found[PER_GAP] = min(max(estimate / gap, LEAST_PER_GAP), FIRST_PER_GAP)
        if not is_done and not found[VISITS] < most_visits:
            return
        found[WORST] = worst if worst > 0.0 else math.inf
        is_fixed, estimate = is_done, gap
        if is_fixed:  # those that were left out have a part in the gap
            for position in range(len(order)):
                if order[position] < 0:
                    order[position] = ~order[position]
            counts[ACTIVE], found[WORST] = len(order), math.inf
