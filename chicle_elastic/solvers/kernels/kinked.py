"""Newton steps for losses whose second derivatives are 0 or one number: the squared hinge, also with a straight end.

With s_i = min(max(0, 1 - m_i), most), a loss is C_i s_i (2 (1 - m_i) - s_i), its dual is 2 C_i s_i, and its curvature
2 C_i where s_i is neither 0 nor `most`. Each step solves (I + sum_i c_i x_i x_i^T) d = -g by Cholesky's factor, and
goes along d to where the slope of the objective has nearly vanished. With the duals of w, w(alpha) = w - g; the steps
end where the gap of these duals and w(alpha) is small.
"""

import math

import numpy as np
from numba.extending import register_jitable

from chicle_elastic.solvers.kernels.jit import LEAN, kernel
from chicle_elastic.solvers.kernels.memory import REAL, address_of
from chicle_elastic.solvers.kernels.tables import row_add, row_at, row_dot

GAP, PRIMAL, DUAL, LEFT, STEPS, FAULTS, NUM_STATS = range(7)
"""Places in the statistics of an output: gap, P and sum of dual values of its duals and their w, a bound of the gap at
its point, steps so far, and those of them that found no direction."""
ROW, GRADIENT, DIRECTION, NUM_VECTORS = range(4)
"""Places in the vectors of the scratch."""


@kernel
def newton_steps(
    rows,  # `tables.RowTable`
    lengths,  # rows per chunk, shape (num_chunks,), int64
    intercept,  # value of the intercept column; 0 for none
    signs,  # +1 where the class is that of the output, else -1, shape (outputs, num_rows), float64
    upper,  # C_i, shape (num_rows,), float64
    most,  # largest s_i
    goal,  # relative gap that ends the steps of an output
    most_left,  # share of the slope at its beginning that a search along a direction may leave
    most_steps,  # steps of an output at most, and points that a search looks at
    stop,  # uint8 of shape (1,); looked at between steps
    matrix,  # OUT: room for second derivatives, shape (D, D), float64
    scratch,  # OUT: room for vectors, shape (`NUM_VECTORS`, D), float64
    of_rows,  # OUT: room for two numbers of each row, shape (2, num_rows), float64
    points,  # OUT: where the steps of each output are, shape (outputs, D), float64
    vectors,  # OUT: w of the duals, shape (outputs, D), float64
    duals,  # OUT: written where their gap is smaller than before, shape (outputs, num_rows), float64
    stats,  # OUT: see `GAP`, shape (outputs, `NUM_STATS`), float64
):
    """Make Newton steps for each output that is not at its goal."""
    kind, last = rows.kind, rows.num_features
    row, gradient, direction = scratch[ROW], scratch[GRADIENT], scratch[DIRECTION]
    margins, changes = of_rows[0], of_rows[1]
    for k in range(len(signs)):
        own, point, sign = stats[k], points[k], signs[k]
        if own[GAP] <= goal * own[PRIMAL] < math.inf:
            continue
        _products(rows, lengths, sign, intercept, point, margins)
        for step in range(most_steps + 1):
            for j in range(last + 1):
                gradient[j] = point[j]
                for other in range(j):
                    matrix[j, other] = 0.0
                matrix[j, j] = 1.0
            losses, dual, i = 0.0, 0.0, 0
            for chunk in range(len(lengths)):
                for number in range(np.uintp(lengths[chunk])):
                    slack = 1.0 - margins[i]
                    share = min(max(slack, 0.0), most)
                    factor = upper[i] * share
                    curvature = 2.0 * upper[i] if share < most else 0.0
                    slope = 2.0 * factor * sign[i]
                    i += 1
                    if factor == 0.0:
                        continue
                    losses += factor * (2.0 * slack - share)
                    dual += factor * (2.0 - share)
                    for j in range(last):
                        row[j] = 0.0
                    row_add(kind, 1.0, row_at(rows, chunk, number), address_of(row), REAL)
                    row[last] = intercept
                    for j in range(last + 1):
                        gradient[j] -= slope * row[j]
                        scaled = curvature * row[j]
                        for other in range(j + 1):
                            matrix[j, other] += scaled * row[other]
            own[LEFT] = 0.5 * _dot(gradient, gradient)
            primal = losses + 0.5 * _dot(point, point)
            is_over = step == most_steps or stop[0] != 0
            if own[LEFT] <= goal * primal or is_over:
                for j in range(last + 1):
                    direction[j] = point[j] - gradient[j]
                _products(rows, lengths, sign, intercept, direction, changes)
                squared, losses = _dot(direction, direction), 0.0
                for i in range(len(upper)):
                    slack = 1.0 - changes[i]
                    share = min(max(slack, 0.0), most)
                    losses += upper[i] * share * (2.0 * slack - share)
                gap = losses - dual + squared
                if gap < own[GAP]:
                    own[GAP], own[PRIMAL], own[DUAL] = gap, losses + 0.5 * squared, dual
                    for j in range(last + 1):
                        vectors[k, j] = direction[j]
                    for i in range(len(upper)):
                        duals[k, i] = 2.0 * upper[i] * min(max(1.0 - margins[i], 0.0), most)
                if is_over or own[GAP] <= goal * own[PRIMAL]:
                    break
            own[STEPS] += 1.0
            if not _solve(matrix, gradient, direction):
                own[FAULTS] += 1.0
                break
            _products(rows, lengths, sign, intercept, direction, changes)
            _go_along(upper, most, most_left, most_steps, direction, gradient, changes, point, margins)


@register_jitable(**LEAN)
def _dot(one, other):
    total = 0.0
    for j in range(len(one)):
        total += one[j] * other[j]
    return total


@register_jitable(**LEAN)
def _products(rows, lengths, sign, intercept, vector, products):
    """Find y_i <x_i, vector> of each row."""
    i = 0
    for chunk in range(len(lengths)):
        for number in range(np.uintp(lengths[chunk])):
            product = row_dot(rows.kind, row_at(rows, chunk, number), address_of(vector), REAL)
            products[i] = sign[i] * (product + intercept * vector[rows.num_features])
            i += 1


@register_jitable(**LEAN)
def _solve(matrix, gradient, direction):
    """Solve matrix @ direction = -gradient by Cholesky's factor, in the matrix' place; say whether it is one."""
    size = len(gradient)
    for j in range(size):
        for other in range(j):
            matrix[j, other] = (matrix[j, other] - _dot(matrix[j, :other], matrix[other, :other])) / matrix[
                other, other
            ]
        pivot = matrix[j, j] - _dot(matrix[j, :j], matrix[j, :j])
        if not 0.0 < pivot < math.inf:
            return False
        matrix[j, j] = math.sqrt(pivot)
        direction[j] = (-gradient[j] - _dot(matrix[j, :j], direction[:j])) / matrix[j, j]
    for j in range(size - 1, -1, -1):
        direction[j] /= matrix[j, j]
        for other in range(j):
            direction[other] -= matrix[j, other] * direction[j]
    return True


@register_jitable(**LEAN)
def _go_along(upper, most, most_left, most_trials, direction, gradient, changes, point, margins):
    """Move point and margins to where the slope of the objective along the direction has nearly vanished."""
    at_start, at_rest, squared = _dot(gradient, direction), _dot(point, direction), _dot(direction, direction)
    low, at_low, high, at_high, t = 0.0, at_start, math.inf, math.inf, 1.0
    for _ in range(most_trials):
        slope = at_rest + t * squared
        for i in range(len(margins)):
            share = min(max(1.0 - margins[i] - t * changes[i], 0.0), most)
            slope -= 2.0 * upper[i] * share * changes[i]
        if abs(slope) <= most_left * abs(at_start):
            break
        if slope < 0.0:
            low, at_low = t, slope
        else:
            high, at_high = t, slope
        # Where a straight line between the two is 0, but not too near to either.
        share = min(max(at_low / (at_low - at_high), 0.1), 0.9) if at_low < at_high else 0.5
        t = 2.0 * low if high == math.inf else low + (high - low) * share
    for j in range(len(point)):
        point[j] += t * direction[j]
    for i in range(len(margins)):
        margins[i] += t * changes[i]
