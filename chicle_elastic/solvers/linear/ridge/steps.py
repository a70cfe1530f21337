"""How a ridge regression goes on from the sums of a pass. Pure: no row is in sight.

The objective is that of scikit-learn's Ridge, with residuals r_i = y_i - <w, x_i> - b and weights s_i:

    P(w, b) = sum_i s_i r_i^2 + alpha |w|^2

The intercept is not penalised: at the optimum b = mean(y) - <mean(x), w>, so rows and targets are centred by weighted
means that the first pass finds. What is left are the equations (X_c^T s X_c + alpha I) w = X_c^T s y_c, which conjugate
gradients solve, one product and so one pass each. Their preconditioner is the matrix itself, as a Cholesky factor,
where it fits into a message: then the first step is the solution but for rounding, and a second one repairs that (of
dense float32 rows the matrix is summed up in float32, in half the time). Else it is the diagonal.

The gap. With residuals that add up to 0 by weight, duals a_i = 2 s_i r_i are feasible, and P - D of them is

    |X_c^T s r - alpha w|^2 / alpha                                                    = |residual|^2 / alpha

(Rifkin and Lippert 2007, "Notes on regularized least-squares", have the duals.) So every pass comes with a gap. Of
large features the residual is mostly rounding of w. Then steps go into a change of w that is kept beside it, with
digits of its own, and the duals are those of w + change; the gap is |residual|^2 / alpha of them, and |X_c change|^2 by
weight.

All tasks see the same sums, but a factor differs in its last digits from one kind of processor to another. So tasks
send along the direction that they found with it, and take its mean (see `agreement`). A task that is the only one has
no need to.
"""

import numpy as np
from scipy.linalg import solve_triangular

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.certified import ROUNDING, TINY
from chicle_elastic.solvers.linear.products import cholesky_factor, pack, unpack
from chicle_elastic.solvers.linear.ridge.state import FIRST_SHARE, HEAD, RidgePhase, RidgeState

PRODUCTS_BETWEEN = 100
"""Products after which the residual is evaluated afresh: by then rounding may have led it astray."""
LEAST_SHARE = 0.05
"""Share of tol that is aimed at, at least: a certificate that refuses that one sees rounding, or rows are missing."""
LAST_WORD = 0.5
"""Share of `FIRST_SHARE` below which w stays until the next look: two certificates were refused, and it has no room."""
JITTER = 1e-12
"""Added to a diagonal of ones where rounding has made a matrix indefinite."""


def reopen(state: RidgeState) -> None:
    """Begin anew at the present w: a certificate was not good enough, or other rows are there."""
    state.share = max(0.5 * state.share, LEAST_SHARE)
    _restart(state)


def _restart(state: RidgeState) -> None:
    state.phase, state.has_products = RidgePhase.LOOK, False
    state.gap = state.primal = np.inf


def advance(
    state: RidgeState, model: Array, sums: Array, weight: float, *, alpha: float, tol: float, has_intercept: bool
) -> Array:
    """Go on from the sums of a pass.

    Args:
        state: Of the pass; changed in place.
        model: w and b, shape (d + 1,).
        sums: See `RidgeState.sums_size`.
        weight: Tasks that have summed something up.
        alpha: Factor of |w|^2.
        tol: Relative gap to reach.
        has_intercept: Whether b is anything but 0.

    Returns:
        The new w and b, of the same shape.
    """
    num_interrupted, num_rows, num_alone = sums[:HEAD].tolist()
    if num_interrupted > 0 or state.phase is RidgePhase.REST:  # the pass is made again
        return model
    if state.phase is RidgePhase.LOOK:
        return _looked(state, model, sums[HEAD:], num_rows, alpha=alpha, has_intercept=has_intercept)
    if num_rows != state.num_rows:  # rows were lost or have come back: these are not their means
        _restart(state)
        return model
    w = model[:-1]
    if state.phase is RidgePhase.EVALUATE:
        _evaluated(state, w, sums[HEAD:], alpha)
        # Of a large alpha w = 0 is within tol, and says nothing of the targets: one step is made.
        has_begun = w.any() or not state.residual.any() or state.primal <= state.share * tol * floor(state)
        if has_begun and _is_good_enough(state, tol):
            return model
        state.direction = precondition(state, state.residual)
        state.phase = RidgePhase.MULTIPLY
        if num_alone and state.has_factor and not state.is_rough and state.share == FIRST_SHARE:
            # The step is 1, and a certificate follows in place of a product; if it refuses, products are safer.
            state.phase = RidgePhase.REST
            return with_intercept(state, w + state.direction)
        return model
    return _multiplied(state, w, sums[HEAD:], weight, alpha, tol)


def with_intercept(state: RidgeState, w: Array) -> Array:
    """w and the b that belongs to it, shape (d + 1,)."""
    return np.append(w, state.target_mean - dot(state.means, w))


def floor(state: RidgeState) -> float:
    """What P counts as at least: constant targets leave rounding."""
    return max(ROUNDING * state.total_weight * state.target_mean**2, TINY)


def centred(state: RidgeState, part: Array, total: float) -> Array:
    """sum_i c_i (x_i - means) of `part` = sum_i c_i x_i and `total` = sum_i c_i, shape (d,)."""
    return part - total * state.means


def _looked(
    state: RidgeState, model: Array, sums: Array, num_rows: float, *, alpha: float, has_intercept: bool
) -> Array:
    d = state.d
    state.num_rows, state.total_weight = num_rows, max(float(sums[0]), TINY)
    state.target_mean = float(sums[1]) / state.total_weight if has_intercept else 0.0
    state.means = sums[3 : 3 + d] / state.total_weight if has_intercept else np.zeros(d)
    squares = np.maximum(sums[3 + d :] - state.total_weight * state.means**2, 0.0)
    state.scale = 1.0 / np.sqrt(squares + alpha)
    state.phase = RidgePhase.EVALUATE
    w, state.change = model[:-1] + state.change, np.zeros(d)
    return with_intercept(state, w)


def _evaluated(state: RidgeState, w: Array, sums: Array, alpha: float) -> None:
    d = state.d
    state.residual = centred(state, sums[2 : 2 + d], float(sums[0])) - alpha * w
    state.primal = float(sums[1]) + alpha * squared(w)
    state.gap = squared(state.residual) / alpha
    state.num_products = 0
    if state.needs_products:
        _factorise(state, sums[2 + d :], alpha)


def _factorise(state: RidgeState, packed: Array, alpha: float) -> None:
    """Keep the Cholesky factor of the second derivatives, scaled to a diagonal of ones."""
    d = state.d
    matrix = unpack(packed, d)
    if state.is_sparse:
        for row in range(d):
            matrix[row, : row + 1] -= (state.total_weight * state.means[row]) * state.means[: row + 1]
    diagonal = np.maximum(np.diagonal(matrix), 0.0) + alpha
    state.scale = 1.0 / np.sqrt(diagonal)
    matrix *= state.scale
    matrix *= state.scale[:, None]
    matrix.reshape(-1)[:: d + 1] = 1.0
    factor = cholesky_factor(matrix, JITTER)
    state.factor = np.zeros(d * (d + 1) // 2)
    pack(np.eye(d) if factor is None else factor, state.factor)
    state.has_products = True


def precondition(state: RidgeState, residual: Array) -> Array:
    """An estimate of the solution for this right-hand side, shape (d,)."""
    if not state.has_factor:
        return state.scale * state.scale * residual
    factor = unpack(state.factor, state.d)
    half = solve_triangular(factor, state.scale * residual, lower=True, check_finite=False)
    return state.scale * solve_triangular(factor, half, lower=True, trans="T", check_finite=False)


def _multiplied(state: RidgeState, w: Array, sums: Array, weight: float, alpha: float, tol: float) -> Array:
    d = state.d
    p = sums[1 + d :] / weight
    product = centred(state, sums[1 : 1 + d], float(sums[0])) + alpha * p
    curvature, slope = dot(p, product), dot(p, state.residual)
    if not (curvature > 0 and slope > 0):  # rounding is all that is left
        state.phase = RidgePhase.REST
        return with_intercept(state, w)
    step = slope / curvature
    if state.share < LAST_WORD * FIRST_SHARE:
        state.change = state.change + step * p
    else:
        w = w + step * p
    state.residual = state.residual - step * product
    state.primal -= step * slope
    state.gap = squared(state.residual) / alpha
    state.num_products += 1
    if not _is_good_enough(state, tol):
        if state.num_products % PRODUCTS_BETWEEN == 0:
            state.phase = RidgePhase.EVALUATE
        else:
            z = precondition(state, state.residual)
            state.direction = z - (dot(z, product) / curvature) * p
    return with_intercept(state, w)


def _is_good_enough(state: RidgeState, tol: float) -> bool:
    """Whether the run rests here; then it does."""
    if state.gap <= state.share * tol * max(state.primal, floor(state)):
        state.phase = RidgePhase.REST
        return True
    return False


def relative_gap(state: RidgeState) -> float:
    """Gap as a share of the objective; infinite where it is not known."""
    return state.gap / max(state.primal, floor(state)) if np.isfinite(state.gap) else np.inf
