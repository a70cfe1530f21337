"""How a support vector regression goes on from the sums of a pass. Pure: no row is in sight.

The objective with round corners (`losses`) is minimised by Newton's method. Its directions are exact where a message
has room for all second derivatives, and else come from conjugate gradients, preconditioned by the diagonal, one product
and so one pass each. A pass along the direction finds the share of it that brings the objective furthest down.

With duals a(w) the gap has two parts: 1/2 |gradient|^2, because the gradient is w - sum_i a_i x_i, and what the corners
leave. Once the first is a small part of the whole, the corners become ten times as narrow. The squared loss has no
corners, and no second part. Of large features the gradient at any w is mostly rounding of w; then w is as good as it
gets, and the certificate has the duals of w + step, which is more than a number has room for.

Where tasks found a direction from a factor, they send it along and go on with its mean (see `agreement`).
"""

import math

import numpy as np
from scipy.linalg import eigh, qr

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.certified import ROUNDING as ROUNDED
from chicle_elastic.solvers.linear.certified import TINY
from chicle_elastic.solvers.linear.products import cholesky_factor, cholesky_solve, unpack
from chicle_elastic.solvers.linear.svr.state import HEAD, SHARES, SvrPhase, SvrState

INNER_SHARE = 0.3
"""Share of the gap that may come from the gradient when the corners become narrower."""
NARROWER = 0.1
"""Factor of the width of the corners. Of five ordinary data sets and 120 small odd ones, 0.03 and 0.3 take a tenth more
passes of the former; steps of 0.03 lead nowhere a little more often."""
LEAST_WIDTH = 1e-12
"""As a share of the first one: rounding is as large."""
ETA, MOST_PRODUCTS = 0.1, 100
"""Share of the residual at which conjugate gradients end, and their products at most."""
LEAST_REACH, LEAST_FALL = 1e-5, 0.5
"""Of a direction; of |gradient|^2 in a step whose effect on the objective is rounding, else no more are taken."""
EPSILON = 4.0 * float(np.finfo(np.float64).eps)
"""Times D the curvature of a scaled matrix that is rounding."""
ROUNDING, FEW = 1e-13, 1e-4
"""Relative change of the objective that is none: of rounding, and as a share of tol."""
LEAST_SHARE = 0.05
"""Share of tol that is aimed at, at least."""


def reopen(state: SvrState) -> None:
    """Begin anew at the present w: a certificate was not good enough, or other rows are there."""
    state.share = max(0.5 * state.share, LEAST_SHARE)
    _restart(state)


def _restart(state: SvrState) -> None:
    state.phase, state.gap, state.reach, state.is_blind = SvrPhase.LOOK, np.inf, 1.0, False


def advance(state: SvrState, model: Array, sums: Array, weight: float, *, tol: float, is_squared: bool) -> Array:
    """Go on from the sums of a pass.

    Args:
        state: Of the pass; changed in place.
        model: w, shape (D,).
        sums: See `SvrState.sums_size`.
        weight: Tasks that have summed something up.
        tol: Relative gap to reach.
        is_squared: Whether the loss has no corners.

    Returns:
        The new w, of the same shape.
    """
    num_interrupted, num_rows = sums[:HEAD].tolist()
    if num_interrupted > 0 or state.phase is SvrPhase.REST:  # the pass is made again
        return model
    sums = sums[HEAD:]
    if state.phase is SvrPhase.LOOK:
        state.num_rows = num_rows
        state.width = float(sums[0]) / max(float(sums[1]), TINY) or 1.0
        state.least_width = LEAST_WIDTH * state.width
        share = ROUNDED * (state.width if is_squared else math.sqrt(1.0 / ROUNDED))
        state.floor = max(share * float(sums[0]), TINY)
        state.phase = SvrPhase.EVALUATE
        return model
    if num_rows != state.num_rows:  # rows were lost or have come back: another objective
        _restart(state)
        return model
    if state.phase is SvrPhase.EVALUATE:
        _evaluated(state, model, sums, tol, is_squared=is_squared)
        return model
    if state.phase is SvrPhase.MULTIPLY:
        _multiplied(state, sums, weight)
        return model
    return _searched(state, model, sums, weight, tol, is_squared=is_squared)


def _evaluated(state: SvrState, w: Array, sums: Array, tol: float, *, is_squared: bool) -> None:
    D = len(w)
    round_loss, loss, dual_value = sums[:3].tolist()
    part, second = sums[3 : 3 + D], sums[3 + D :]
    gradient, half = w - part, 0.5 * squared(w)
    state.value = half + round_loss
    corners, steepness, before = loss - dual_value, 0.5 * squared(gradient), state.steepness
    primal = max(half + loss, state.floor)
    state.gap = (corners + steepness) / primal
    is_at_rest = state.is_blind and not steepness < LEAST_FALL * before
    state.steepness, state.is_blind = steepness, False
    enough = state.share * tol * primal
    if corners + steepness <= enough:
        state.phase, state.direction = SvrPhase.REST, np.zeros(D)
    elif is_at_rest and corners <= enough and state.has_factor:
        state.phase, state.direction = SvrPhase.REST, _newton_direction(w, gradient, second)
    elif is_at_rest or (not is_squared and steepness <= INNER_SHARE * (corners + steepness)):
        _narrow(state, is_squared=is_squared)
    elif state.has_factor:
        state.direction = _newton_direction(w, gradient, second)
        state.phase = SvrPhase.SEARCH
    else:
        state.scale, state.residual = 1.0 / (1.0 + second), -gradient
        state.conjugate, state.direction = state.scale * state.residual, np.zeros(D)
        state.goal, state.num_products = ETA * ETA * dot(state.residual, state.conjugate), 0
        state.phase = SvrPhase.MULTIPLY


def _narrow(state: SvrState, *, is_squared: bool) -> None:
    """Make the corners narrower, or rest where there are none, or rounding would be all that is gained."""
    state.phase, state.reach = SvrPhase.EVALUATE, 1.0
    state.width *= NARROWER
    if is_squared or state.width < state.least_width:
        state.phase, state.direction = SvrPhase.REST, np.zeros_like(state.direction)


def _newton_direction(w: Array, gradient: Array, packed: Array) -> Array:
    """-H^-1 gradient, with H = I + the second derivatives of the losses.

    Where columns hang together H is singular but for rounding, and its null space is that of the penalty alone: there
    the step leads to the least |w|.
    """
    D = len(gradient)
    matrix = unpack(packed, D)
    scale = 1.0 / np.sqrt(1.0 + np.diagonal(matrix))
    matrix *= scale
    matrix *= scale[:, None]
    matrix.ravel()[:: D + 1] = 1.0
    least = D * EPSILON
    factor = cholesky_factor(matrix)
    if factor is not None and factor.diagonal().min() ** 2 > least:
        return np.asarray(-scale * cholesky_solve(factor, scale * gradient))
    curvatures, vectors = eigh(matrix, check_finite=False)
    is_null = curvatures <= least * curvatures[-1]
    steep = vectors[:, ~is_null]
    step = -scale * (steep @ (steep.T @ (scale * gradient) / curvatures[~is_null]))
    null, _ = qr(scale[:, None] * vectors[:, is_null], mode="economic", check_finite=False)
    return np.asarray(step - null @ (null.T @ (w + step)))


def _multiplied(state: SvrState, sums: Array, weight: float) -> None:
    D = len(state.direction)
    p = sums[D:] / weight
    product = sums[:D] + p
    curvature, before = dot(p, product), dot(state.residual, state.scale * state.residual)
    state.phase = SvrPhase.SEARCH
    if not (curvature > 0 and before > 0):
        return
    step = before / curvature
    state.direction = state.direction + step * p
    state.residual = state.residual - step * product
    state.num_products += 1
    z = state.scale * state.residual
    after = dot(state.residual, z)
    if after > state.goal and state.num_products < MOST_PRODUCTS:
        state.conjugate = z + (after / before) * p
        state.phase = SvrPhase.MULTIPLY


def _searched(state: SvrState, w: Array, sums: Array, weight: float, tol: float, *, is_squared: bool) -> Array:
    count = len(SHARES)
    direction, shares = sums[count:] / weight, state.reach * np.array(SHARES)
    half_norms = 0.5 * squared(w) + shares * dot(w, direction) + 0.5 * shares * shares * squared(direction)
    values = half_norms + sums[:count]
    best = int(np.argmin(values))
    rounding = max(ROUNDING, FEW * tol) * abs(state.value)
    if not values[best] < state.value - rounding:
        if abs(values[0] - state.value) <= rounding and state.reach == 1.0:  # the gradient tells
            state.phase, state.is_blind = SvrPhase.EVALUATE, True
            return np.asarray(w + direction)
        if state.reach > LEAST_REACH:
            state.direction, state.reach = direction, state.reach * SHARES[-1]
        else:
            _narrow(state, is_squared=is_squared)
        return w
    state.phase, state.reach = SvrPhase.EVALUATE, 1.0
    return np.asarray(w + shares[best] * direction)
