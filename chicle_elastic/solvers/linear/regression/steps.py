"""How a regression goes on from the sums of a pass. Pure: no row is in sight, and of the loss only what it is.

The objective, with round corners where the loss has some, is minimised by Newton's method. Its directions are exact
where a message has room for all second derivatives, and else come from conjugate gradients, preconditioned by the
diagonal, one product and so one pass each. The next pass evaluates the end of the direction. Where the objective has
not fallen by a part of what was foretold, a pass along the direction finds the share of it that brings the objective
furthest down. A scale of the residuals is one more unknown of the equations; without a factor it takes a step of its
own.

With the slopes at w as duals the gap has two parts: |gradient|^2 / (2 alpha), and what the corners leave. A smooth loss
has no second part. Corners become narrower with every step, the more the less it foretells beside the second part,
and no narrower than `tol` needs. Each task remembers the duals that the last step has foretold for its rows, the slopes
and their change to first order: with these the first part is next to nothing after a whole step, and the gap is known
long before the gradient is small. They say how curved corners count in the next step, too (`curvatures_beside`). A task
that has got or lost rows begins with slopes. Of large
features the gradient at any w is mostly rounding of w; then w is as good as it gets, and the certificate has the duals
of w + step, which is more than a number has room for. D does not know of a scale: the duals are those of the largest D
so far, and the scale may go on to 0.

An intercept that is not penalised takes what it can of the gradient first (`_steepness`), and the duals of the sign
with more of them are made smaller until all add up to 0. A scale whose derivative is not 0 leaves that much, too.

The second derivatives of a parabola are summed up once. Conjugate gradients, preconditioned by their Cholesky factor
where there is room, go on until the residual of the equations says that the gap is small enough, and w goes along with
them: with a factor the first step is the solution but for rounding, or for float32. (Rifkin and Lippert 2007, "Notes on
regularized least-squares", have the duals.) A task that is alone has no need to multiply after that first step.

Where tasks found a step from a factor, they send it along and go on with its mean (see `agreement`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh, qr

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.certified import ROUNDING as ROUNDED
from chicle_elastic.solvers.linear.certified import TINY
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.products import cholesky_factor, cholesky_solve, pack, unpack
from chicle_elastic.solvers.linear.race import DENSE_VALUE, MULTIPLICATION, PASS_VALUES, ROW_VALUES
from chicle_elastic.solvers.linear.regression.losses import RegressionLoss
from chicle_elastic.solvers.linear.regression.state import (
    FIRST_SHARE,
    SHARES,
    Evaluation,
    RegressionPhase,
    RegressionState,
)

ENOUGH = 0.25
"""Share of slope times direction by which the objective has to fall; of a parabola it is a half."""
PER_FALL, NARROWER = 0.3, 0.1
"""Factor of the width of corners: the fall that a step foretells as a share of what corners add to the gap, times the
former, and at least the latter. Over 66 small tables 0.1 and 1 in place of the former take up to 6 % more passes, 0.01
and 0.3 in place of the latter up to 8 % more."""
JUST_NARROW = 0.4
"""Share of the gap to reach that corners take, once they are narrow enough; 0.1 and 0.8 take 2 to 5 % more passes."""
LEAST_THETA = 1e-12
"""As a share of the first one: rounding is as large."""
ETA, MOST_PRODUCTS = 0.1, 100
"""Share of the residual at which conjugate gradients end, and their products at most. With corners it is one of what
these add to the gap and what the step foretells; on six wide data sets 0.3 and 0.03 take 6 to 9 % more passes."""
LEAST_REACH, LEAST_FALL = 1e-5, 0.5
"""Of a direction; of |gradient|^2 in a step whose effect on the objective is rounding, else no more are taken."""
SMALLER, LARGER = 0.9, 10.0
"""Share of a scale that a step may take away, or add."""
EPSILON = 4.0 * float(np.finfo(np.float64).eps)
"""Times D the curvature of a scaled matrix that is rounding."""
ROUNDING, FEW = 1e-13, 1e-4
"""Relative change of the objective that is none: of rounding, and as a share of tol."""
LEAST_SHARE = 0.05
"""Share of tol that is aimed at, at least."""
LAST_WORD = 0.5
"""Share of `FIRST_SHARE` below which the w of a parabola stays: two certificates were refused, and it has no room."""
JITTER, ROUGH_JITTERS = 1e-12, (1e-6, 1e-4)
"""Added to a diagonal of ones where rounding has made a matrix indefinite, of float64 or of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is minimised.

    Attributes:
        loss: The loss.
        alpha: Factor of 1/2 |w|^2.
        is_mean: The losses count as their mean and not as their sum.
        has_free_intercept: The last weight is not penalised.
        tol: Relative gap to reach.
    """

    loss: RegressionLoss
    alpha: float
    is_mean: bool
    has_free_intercept: bool
    tol: float

    def strength(self, state: RegressionState) -> float:
        """Alpha beside the sum of losses."""
        return self.alpha * (state.total if self.is_mean else 1.0)

    def ridge(self, state: RegressionState) -> Array:
        """Second derivatives of the penalty, shape (D,)."""
        ridge = np.full(len(state.direction), self.strength(state))
        ridge[-1] *= not self.has_free_intercept
        return ridge

    def penalised(self, w: Array) -> Array:
        """w with 0 for a weight that is not penalised."""
        return np.append(w[:-1], 0.0) if self.has_free_intercept else w


def reopen(state: RegressionState) -> None:
    """Begin anew at the present w: a certificate was not good enough, or other rows are there."""
    state.share, state.is_refused = max(0.5 * state.share, LEAST_SHARE), True
    _restart(state)


def _restart(state: RegressionState) -> None:
    state.phase, state.gap, state.reach, state.is_blind = RegressionPhase.LOOK, np.inf, 1.0, False
    state.direction, state.change, state.dual = np.zeros_like(state.direction), 0.0, -np.inf
    state.has_products = False


def advance(state: RegressionState, problem: Problem, model: Array, sums: Array, weight: float) -> Array:
    """Go on from the sums of a pass.

    Args:
        state: Of the pass; changed in place.
        problem: What is minimised.
        model: w, shape (D,).
        sums: See `RegressionState.sums_size`.
        weight: Tasks that have summed something up.

    Returns:
        The new w, of the same shape.
    """
    num_interrupted, num_rows, num_alone = sums[:HEAD].tolist()
    if num_interrupted > 0 or state.phase is RegressionPhase.REST:  # the pass is made again
        return model
    sums = sums[HEAD:]
    if state.phase is RegressionPhase.LOOK:
        state.num_rows = num_rows
        state.passes = _passes_at_once(state) if num_alone else 1
        return _looked(state, problem, model, sums)
    if num_rows != state.num_rows:  # rows were lost or have come back: another objective
        _restart(state)
        return model
    if state.phase is RegressionPhase.EVALUATE:
        w = _evaluated(state, problem, model, state.evaluation(sums), weight)
        is_exact = state.is_parabola and state.has_factor and not state.is_rough and not state.is_refused
        if num_alone and is_exact and state.phase is RegressionPhase.MULTIPLY:
            # The step is 1, and a certificate follows in place of a product; if it refuses, products are safer.
            state.phase = RegressionPhase.REST
            return w + state.conjugate
        return w
    if state.phase is RegressionPhase.MULTIPLY:
        return _multiplied(state, problem, model, sums, weight)
    return _searched(state, problem, model, sums, weight)


def _passes_at_once(state: RegressionState) -> int:
    """Say how many passes an only task makes in an iteration: as many as cost about what is between two iterations."""
    D = len(state.direction)
    of_row = DENSE_VALUE * D + 0.5 * MULTIPLICATION * D * D * state.has_factor + ROW_VALUES
    return 1 if state.is_parabola else max(int(PASS_VALUES // max(state.num_rows * of_row, 1.0)), 1)


def _looked(state: RegressionState, problem: Problem, model: Array, sums: Array) -> Array:
    """How wide corners are, or large a scale is, at first; a model of zeros begins with the best constant."""
    loss = problem.loss
    total, size, total_y, squares = sums.tolist()
    state.total = max(total, TINY)
    state.typical = size / state.total or 1.0
    share = ROUNDED * (state.typical if loss.is_quadratic else math.sqrt(1.0 / ROUNDED))
    state.floor = max(share * state.typical * state.total, TINY)
    mean = total_y / state.total if problem.has_free_intercept else 0.0
    deviation = math.sqrt(max(squares / state.total - mean * mean, 0.0))
    if loss.has_corners or not model.any():
        state.theta = (loss.has_scale and deviation) or state.typical
    state.phase = RegressionPhase.EVALUATE
    if state.is_parabola:  # what the last certificate had beside w
        model, state.shift = model + state.shift, np.zeros_like(state.shift)
    if not problem.has_free_intercept or model.any():
        return model
    return np.append(model[:-1], loss.start(mean))


def _evaluated(state: RegressionState, problem: Problem, w: Array, found: Evaluation, weight: float) -> Array:
    """Take the step if it is good enough, and find the next one."""
    loss, alpha = problem.loss, problem.strength(state)
    round_loss, sharp_loss, corners, plus, minus, by_scale, _, loss_before, of_slopes = found.scalars.tolist()
    direction = _agreed(state, found.step / weight)
    there = w + direction
    ridge, penalised = problem.ridge(state), problem.penalised(there)
    half = 0.5 * alpha * squared(penalised)
    if (direction.any() or state.change) and not state.is_chosen:
        fall = state.value - half - (loss_before if state.has_corners else round_loss)
        rounding = max(ROUNDING, FEW * problem.tol) * abs(state.value)
        if abs(fall) <= rounding:  # the gradient tells, if it is one of the same corners
            state.is_blind = not (state.has_corners and state.change)
        elif not fall >= -ENOUGH * state.slope:
            state.phase, state.direction, state.is_wary = RegressionPhase.SEARCH, direction, True
            state.is_best = False
            return w
    if direction.any():
        state.is_refused = False
    w, state.theta, state.is_chosen = there, state.theta + state.change, False
    if not state.has_corners:  # whose duals tasks keep themselves
        state.shift = state.shift - direction
    gradient = alpha * penalised - found.v
    state.value = half + round_loss
    if not _keep_products(state, found, ridge):  # float32 has no room for them
        state.direction, state.change = np.zeros(len(w)), 0.0
        return w
    steepness, before = _steepness(state, gradient, alpha), state.steepness
    corners += state.theta * abs(by_scale)
    value = half + sharp_loss
    primal = max(value, state.floor)
    lead = _steepness(state, alpha * penalised - found.of_duals, alpha) if state.has_corners else steepness
    _keep_best_duals(state, value - corners - lead, plus, minus)
    left = value - state.dual
    state.gap = left / primal
    is_at_rest = state.is_blind and not steepness < LEAST_FALL * before
    state.steepness, state.is_blind, state.change = steepness, False, 0.0
    state.direction = np.zeros(len(w))
    enough = state.share * problem.tol * primal
    state.corners, state.enough = of_slopes, enough
    # Of a large alpha w = 0 is within tol, and says nothing of the targets.
    has_begun = not state.is_parabola or penalised.any() or not gradient.any() or value <= enough
    if has_begun and left <= enough and not (state.is_refused and steepness > 0):
        state.phase = RegressionPhase.REST
    elif is_at_rest and of_slopes <= enough and state.has_factor and not (state.has_scale or state.is_parabola):
        state.phase, state.shift = RegressionPhase.REST, _newton_direction(state, w, gradient, found, ridge)
        state.change = 0.0
    elif is_at_rest and state.has_scale and state.theta > LEAST_THETA * state.typical:  # w has followed
        state.change, state.slope = -SMALLER * state.theta, -SMALLER * state.theta * by_scale
    elif is_at_rest:
        _narrow(state, loss)
    elif state.has_factor and not state.is_parabola:
        state.direction = _newton_direction(state, w, gradient, found, ridge)
        state.slope = dot(gradient, state.direction) + by_scale * state.change
        _narrow_along(state)
        state.phase = RegressionPhase.SEARCH if state.is_wary else RegressionPhase.EVALUATE
    else:
        state.change = _of_scale(state, by_scale, float(found.scalars[6])) if state.has_scale else 0.0
        state.residual, state.num_products = -gradient, 0
        state.conjugate = _preconditioned(state, state.residual)
        state.goal = ETA * ETA * dot(state.residual, state.conjugate)
        state.phase, state.slope = RegressionPhase.MULTIPLY, by_scale * state.change
    return w


def _keep_products(state: RegressionState, found: Evaluation, ridge: Array) -> bool:
    """Keep of the second derivatives what conjugate gradients and a free intercept need.

    Returns:
        False if they have to be summed up again, with more digits.
    """
    D = len(ridge)
    if not state.needs_products:
        return True
    if not state.has_factor:
        second = found.second
        if state.has_free_intercept:
            state.beside = found.beside
            means = found.beside / max(float(found.beside[-1]), TINY)
            second = np.append(np.maximum(second - means * found.beside, 0.0)[:-1], second[-1])
        diagonal = ridge + second
        state.scale, state.has_products = 1.0 / np.where(diagonal > 0, diagonal, 1.0), True
        return True
    state.beside = found.second[-D:]
    if not state.is_parabola:
        return True
    if state.is_rough and state.has_free_intercept and not state.beside[-1] > 0:  # weights are too small for float32
        state.is_rough = False
        return False
    # Whether there is a factor differs from one processor to another, so it decides on nothing but the factor.
    matrix, state.scale = _scaled(found.second, ridge)
    factor = cholesky_factor(matrix, *(ROUGH_JITTERS if state.is_rough else (JITTER,)))
    state.factor, state.has_products = np.zeros(len(found.second)), True
    pack(np.eye(D) if factor is None else factor, state.factor)
    return True


def _preconditioned(state: RegressionState, residual: Array) -> Array:
    """An estimate of the solution for this right-hand side: by the factor, or by the diagonal.

    A free intercept is eliminated first: the diagonal is that of columns less their means (by curvature).
    """
    if state.is_parabola and state.has_factor:
        return state.scale * cholesky_solve(unpack(state.factor, len(residual)), state.scale * residual)
    if not state.has_free_intercept:
        return state.scale * residual
    top = max(float(state.beside[-1]), TINY)
    means = state.beside[:-1] / top
    inner = state.scale[:-1] * (residual[:-1] - means * residual[-1])
    return np.append(inner, residual[-1] / top - dot(means, inner))


def _keep_best_duals(state: RegressionState, dual: float, plus: float, minus: float) -> None:
    """Take the slopes at w as duals, if D is larger with them than it has been.

    A scale goes on to 0 where rows are fitted exactly, and slopes at small ones are rounding of w. With corners tasks
    keep the duals themselves.
    """
    state.is_best = dual > state.dual or state.is_parabola
    if not state.is_best:
        return
    state.dual, state.dual_theta, state.shift = dual, state.theta, np.zeros_like(state.shift)
    if state.has_free_intercept and not state.is_parabola:
        least = min(plus, minus)
        state.plus, state.minus = least / max(plus, TINY), least / max(minus, TINY)


def _agreed(state: RegressionState, step: Array) -> Array:
    """Go on with the mean of the steps of all tasks, which differ in their last digits; return the direction."""
    state.change, state.slope = step[-2:].tolist()
    return step[:-2]


def _steepness(state: RegressionState, gradient: Array, alpha: float) -> float:
    """Return what the gradient adds to the gap, once a free intercept has taken what it can take.

    With h the second derivatives by the intercept b, a step of b alone changes the gradient g of the weights to
    g - g_b h / h_b, and is worth g_b^2 / (2 h_b).
    """
    if not state.has_free_intercept:
        return 0.5 * squared(gradient) / alpha
    share = float(gradient[-1]) / max(float(state.beside[-1]), TINY)
    return 0.5 * (squared((gradient - share * state.beside)[:-1]) / alpha + share * float(gradient[-1]))


def _narrow(state: RegressionState, loss: RegressionLoss) -> None:
    """Make the corners narrower, or rest where there are none, or rounding would be all that is gained."""
    state.phase, state.reach = RegressionPhase.EVALUATE, 1.0
    state.direction, state.change = np.zeros_like(state.direction), 0.0
    if loss.has_corners:
        state.theta *= NARROWER
    if not loss.has_corners or state.theta < LEAST_THETA * state.typical:
        state.phase, state.is_refused = RegressionPhase.REST, False


def _narrow_along(state: RegressionState) -> None:
    """Have corners be narrower at the end of the direction: the more, the less it foretells beside what they cost."""
    if state.has_corners:
        corners = max(state.corners, TINY)
        just_narrow = math.sqrt(JUST_NARROW * state.enough / corners)
        share = max(NARROWER, just_narrow, -0.5 * PER_FALL * state.slope / corners)
        state.change = (min(share, 1.0) - 1.0) * state.theta


def _newton_direction(state: RegressionState, w: Array, gradient: Array, found: Evaluation, ridge: Array) -> Array:
    """-H^-1 gradient, with H the second derivatives; with a scale those by it, too, and `state.change` is set.

    Where columns hang together H is singular but for rounding, and its null space is that of the penalty alone: there
    the step leads to the least |w|.
    """
    matrix, scale = _scaled(found.second, ridge)
    least = len(gradient) * EPSILON
    factor = cholesky_factor(matrix)
    if factor is not None and factor.diagonal().min() ** 2 > least:
        return _with_scale(state, gradient, found, lambda g: scale * cholesky_solve(factor, scale * g))
    curvatures, vectors = eigh(matrix, check_finite=False)
    is_null = curvatures <= least * curvatures[-1]
    steep = vectors[:, ~is_null]
    step = _with_scale(
        state, gradient, found, lambda g: scale * (steep @ (steep.T @ (scale * g) / curvatures[~is_null]))
    )
    null, _ = qr(scale[:, None] * vectors[:, is_null], mode="economic", check_finite=False)
    counts = ridge > 0  # a free intercept has no part in |w|
    shares, *_ = np.linalg.lstsq(null[counts], (w + step)[counts], rcond=None)
    return np.asarray(step - null @ shares)


def _scaled(packed: Array, ridge: Array) -> tuple[Array, Array]:
    """The second derivatives, those of the penalty included, as a matrix with a diagonal of ones; and its scale."""
    D = len(ridge)
    matrix = unpack(packed, D)
    diagonal = ridge + np.diagonal(matrix)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    matrix *= scale
    matrix *= scale[:, None]
    matrix.ravel()[:: D + 1] = 1.0
    return matrix, scale


def _with_scale(state: RegressionState, gradient: Array, found: Evaluation, solve: Callable[[Array], Array]) -> Array:
    """The step for w of the equations of w and the scale together."""
    step = -solve(gradient)
    if not state.has_scale:
        return np.asarray(step)
    coupled = solve(found.mixed)
    by_scale, curvature = found.scalars[5:7].tolist()
    bend = max(curvature - float(found.mixed @ coupled), 0.0)
    state.change = _of_scale(state, by_scale + float(found.mixed @ step), bend)
    return np.asarray(step - state.change * coupled)


def _of_scale(state: RegressionState, slope: float, bend: float) -> float:
    """The change of a scale, which leaves it above 0.

    Rows that are fitted exactly have no second derivative by it, and it goes to 0, one tenth after the other; w has to
    follow first.
    """
    change = -slope / max(bend, TINY)
    if change < -SMALLER * state.theta and state.steepness > state.theta * abs(slope):
        return 0.0
    return min(max(change, -SMALLER * state.theta), LARGER * state.theta)


def _multiplied(state: RegressionState, problem: Problem, w: Array, sums: Array, weight: float) -> Array:
    D = len(state.direction)
    p = sums[D:] / weight
    product = sums[:D] + problem.ridge(state) * p
    curvature, before = dot(p, product), dot(p, state.residual)
    state.phase = RegressionPhase.SEARCH if state.is_wary else RegressionPhase.EVALUATE
    if not (curvature > 0 and before > 0):  # rounding is all that is left
        state.phase = RegressionPhase.REST if state.is_parabola else state.phase
        return w
    step = before / curvature
    state.residual = state.residual - step * product
    state.num_products += 1
    z = _preconditioned(state, state.residual)
    if state.is_parabola:
        if state.share < LAST_WORD * FIRST_SHARE:
            state.shift = state.shift + step * p
        else:
            w = w + step * p
        state.value -= 0.5 * step * before
        left, primal = _steepness(state, -state.residual, problem.strength(state)), max(state.value, state.floor)
        state.gap = left / primal
        if left <= state.share * problem.tol * primal:
            state.phase = RegressionPhase.REST
            return w
    else:
        state.direction = state.direction + step * p
        state.slope -= step * before  # directions are conjugate: this is the gradient times the step
        if _leaves_little(state, problem) if state.has_corners else dot(state.residual, z) <= state.goal:
            _narrow_along(state)
            return w
    if state.num_products < MOST_PRODUCTS:
        state.conjugate = z - (dot(z, product) / curvature) * p
        state.phase = RegressionPhase.MULTIPLY
    elif not state.is_parabola:
        _narrow_along(state)
    else:
        w, state.shift = w + state.shift, np.zeros(D)
    return w


def _leaves_little(state: RegressionState, problem: Problem) -> bool:
    """Say whether the residual of conjugate gradients is a small part of the gap with the duals that they foretell."""
    left = 0.5 * squared(problem.penalised(state.residual)) / problem.strength(state)
    return left <= max(ETA * (state.corners - 0.5 * state.slope), 0.5 * state.enough)


def _searched(state: RegressionState, problem: Problem, w: Array, sums: Array, weight: float) -> Array:
    count = len(SHARES)
    direction, shares = _agreed(state, sums[count:] / weight), state.reach * np.array(SHARES)
    at_w, along = problem.penalised(w), problem.penalised(direction)
    half_norms = 0.5 * squared(at_w) + shares * dot(at_w, along) + 0.5 * shares * shares * squared(along)
    values = problem.strength(state) * half_norms + sums[:count]
    values[~np.isfinite(values)] = np.inf
    best, rounding = int(np.argmin(values)), max(ROUNDING, FEW * problem.tol) * abs(state.value)
    is_lower = values[best] < state.value - rounding
    if is_lower or (abs(values[0] - state.value) <= rounding and state.reach == 1.0):  # then the gradient tells
        best = best if is_lower else 0
        state.is_wary, state.is_blind, share = best > 0, not is_lower, float(shares[best])
        state.is_wary = state.is_wary and not state.has_corners
        state.phase, state.reach, state.is_chosen = RegressionPhase.EVALUATE, 1.0, True
        change = state.change * (share == 1.0 if state.has_corners else share)
        state.direction, state.change = share * direction, change
    elif state.reach > LEAST_REACH:
        state.direction, state.reach = direction, state.reach * SHARES[-1]
    else:
        _narrow(state, problem.loss)
    return w
