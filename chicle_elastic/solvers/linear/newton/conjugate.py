"""Conjugate gradients: how an output finds its direction by products with its second derivatives. See `steps`.

Each product of a run shows by how much the gradient changes along a vector. A preconditioner that is kept for the next
run agrees with the last few of these changes, and with its factor elsewhere (Nocedal 1980, "Updating quasi-Newton
matrices with limited storage"). Pairs are one flat vector: changes of w and of the gradient in turn, the oldest first,
two values of float32 in the place of one. A preconditioner needs no more digits, and of many classes pairs are most of
what is sent to a task that joins, and copied in every step.
"""

import math
from collections.abc import Callable

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.certified import MOST_INNER, MOST_LEFT, TINY
from chicle_elastic.solvers.linear.methods import FEW_VALUES, MOST_BLOCK_VALUES
from chicle_elastic.solvers.linear.newton.state import (
    KEPT_PRODUCTS,
    Block,
    NewtonPhase,
    NewtonState,
    OutputState,
    Problem,
)
from chicle_elastic.solvers.linear.progress import NO_NUMBERS
from chicle_elastic.solvers.linear.race import DENSE_VALUE, ITERATION_VALUES, ROW_VALUES

ETA = 0.1
"""Share of the gradient that conjugate gradients leave at most where they never have a block; with corners it is one of
what these add to the gap and the step foretells. On six wide data sets 0.3 and 0.03 take 6 to 9 % more passes."""
NARROWER, FAR = 0.2, 0.1
"""Factor of the width of corners at least, which is squared where the relative gap is below the second; else it is
`MOST_LEFT` times the fall that a step foretells, as a share of what corners add to the gap. Over 106 tables on four
tasks the hinge takes 3 % fewer passes with 0.1 for both factors, and 3 % more with 0.3 and 0.03; 68 of regressions 2 %
more and fewer. On four tables of two tasks it takes 5 % more with 0.1, and on one of a regression 20 %."""
LEAST_ETA = ETA * ETA  # share of the gradient that conjugate gradients leave of a smooth loss at least


def appended(pairs: Array, change: Array, of_gradient: Array, room: int = MOST_BLOCK_VALUES // 2) -> Array:
    """Append a pair, and drop the oldest if that were too many values; of very wide data there are none."""
    size = len(change)
    most = min(KEPT_PRODUCTS, room // size)
    pair = np.concatenate([change, of_gradient]).astype(np.float32)
    # Of a convex function anything else is rounding, or beyond float32.
    if most == 0 or not 0.0 < dot(*pair.astype(np.float64).reshape(2, size)) < math.inf:
        return pairs
    return np.concatenate([pairs[max(len(pairs) - (most - 1) * size, 0) :], pair.view(np.float64)])


def solve(pairs: Array, vector: Array, solve_block: Callable[[Array], Array]) -> Array:
    """Multiply with the inverse second derivatives, `solve_block` with that of the factored block: two loops."""
    if not len(pairs):
        return solve_block(vector)
    known = pairs.view(np.float32).reshape(-1, 2, len(vector))
    rest, shares = vector.copy(), []
    for pair in known[::-1]:
        change, of_gradient = pair.astype(np.float64)
        share = float(change @ rest) / float(change @ of_gradient)
        rest -= share * of_gradient
        shares.append(share)
    found = solve_block(rest)
    for pair, share in zip(known, reversed(shares), strict=True):
        change, of_gradient = pair.astype(np.float64)
        found += (share - float(of_gradient @ found) / float(change @ of_gradient)) * change
    return found


def begin(state: NewtonState, output: OutputState, problem: Problem, residual: Array) -> None:
    """Solve for the direction, from the next pass on."""
    output.phase, output.residual, output.num_products, output.met = NewtonPhase.MULTIPLY, residual, 0, np.zeros(0)
    output.conjugate = solve(output.pairs, residual, problem.preconditioner(state, output))
    landing = MOST_LEFT * state.share * problem.tol / max(output.gap, TINY)
    may_be_last = landing >= MOST_LEFT * output.gap
    eta = min(max(math.sqrt(landing if may_be_last else min(output.gap, 1.0)), LEAST_ETA), MOST_LEFT)
    if not (len(output.factor) or problem.has_duals):  # steps are dear, for their products are many
        eta = min(eta, ETA)
    output.goal = eta * eta * _scaled_square(output, residual)


def _scaled_square(output: OutputState, residual: Array) -> float:
    """Return the squared residual in the norm of the diagonal."""
    return dot(residual, residual / np.where(output.diagonal > 0, output.diagonal, 1.0))


def multiplied(
    state: NewtonState, output: OutputState, problem: Problem, w: Array, sums: Array, weight: float
) -> Array:
    """Make a step of conjugate gradients; returns w, which goes along with those of a parabola."""
    D, loss = state.D, problem.loss
    p = sums[D:] / weight
    product = sums[:D] + problem.ridge(state) * p
    curvature, before = dot(p, product), dot(p, output.residual)
    if not (curvature > 0 and before > 0):  # rounding is all that is left
        output.phase = NewtonPhase.REST
        return w if loss.is_parabola else _end_products(state, output, problem, w)
    step = before / curvature
    output.residual = output.residual - step * product
    output.num_products += 1
    if loss.is_parabola:
        if state.num_refused > 1:  # w has no room for its digits
            output.shift = output.shift + step * p
        else:
            w = w + step * p
        output.value -= 0.5 * step * before
        left = problem.steepness_of(output, -output.residual, problem.strength(state))
        primal = max(output.value, state.floor)
        output.gap = left / primal
        if left <= state.share * problem.tol * primal:
            output.phase = NewtonPhase.REST
            return w
    else:
        if len(output.factor):
            # Of many classes pairs are larger than a block. A probe of 50 has 2, which take 2 % more products than 8.
            room = max(len(output.factor) // 2, D) if problem.num_classes > 1 else MOST_BLOCK_VALUES // 2
            output.met = appended(output.met, p, product, room)
        output.direction = output.direction + step * p
        output.slope -= step * before  # directions are conjugate: this is the gradient times the step
        if _leaves_little(state, output, problem):
            return _end_products(state, output, problem, w)
    if output.num_products < MOST_INNER:
        z = solve(output.pairs, output.residual, problem.preconditioner(state, output))
        output.conjugate = z - (dot(z, product) / curvature) * p
        return w
    if not loss.is_parabola:
        return _end_products(state, output, problem, w)
    output.phase = NewtonPhase.EVALUATE
    w, output.shift = w + output.shift, np.zeros(D)
    return w


def _leaves_little(state: NewtonState, output: OutputState, problem: Problem) -> bool:
    """Say whether Newton's method can use no better direction by now; with corners, beside the gap it foretells."""
    if not problem.loss.has_theta:
        return _scaled_square(output, output.residual) <= output.goal
    left = 0.5 * squared(problem.penalised(output.residual)) / problem.strength(state)
    return left <= max(ETA * (output.corners - 0.5 * output.slope), 0.5 * output.enough)


def _end_products(state: NewtonState, output: OutputState, problem: Problem, w: Array) -> Array:
    """Look at the end of the direction, with a new block if this one has cost many products."""
    output.phase = NewtonPhase.EVALUATE
    output.num_spared -= output.num_products
    is_kept = len(output.factor) > 0 and (output.num_products <= state.kept_products or output.num_spared >= 0)
    output.block = Block.KEPT if is_kept else state.first_block
    if len(output.met):
        output.pairs = output.met
    if not output.direction.any():
        output.direction = output.residual / np.where(output.diagonal > 0, output.diagonal, 1.0)
    narrow_along(output, problem)
    return w


def narrow_along(output: OutputState, problem: Problem) -> None:
    """Have corners be narrower at the end of the direction: the more, the less it foretells beside what they cost.

    Once they are narrow enough they take `MOST_LEFT` of the gap to reach; with 0.1 and 0.8 of it passes are 2 to 5 %
    more.
    """
    if problem.loss.has_corners:
        corners = max(output.corners, TINY)
        just_narrow = math.sqrt(MOST_LEFT * output.enough / corners)
        least = NARROWER if output.gap > FAR else NARROWER * NARROWER
        share = max(least, just_narrow, -0.5 * MOST_LEFT * output.slope / corners)
        output.change = (min(share, 1.0) - 1.0) * output.theta


def pass_work(state: NewtonState) -> float:
    """Return what a pass over few rows costs, see `race`."""
    num_rows, num_values = float(state.few_rows), float(state.lengths.sum())
    is_dense = num_values >= num_rows * (state.D - 1)
    return num_rows * ROW_VALUES + 2.0 * num_values * (DENSE_VALUE if is_dense else 1.0)


def count_pass(state: NewtonState) -> None:
    """Count what a pass over few rows has cost, and have the next one gather them once that is what sending costs."""
    num_values = float(state.few_rows + state.lengths.sum())  # each with its column, or its target
    if num_values > FEW_VALUES:
        state.few_rows, state.lengths = 0, NO_NUMBERS
        return
    state.work += ITERATION_VALUES + pass_work(state)
    for output in state.outputs:
        if output.phase is NewtonPhase.MULTIPLY and state.work >= 2.0 * (num_values + ITERATION_VALUES):
            output.phase = NewtonPhase.GATHER
