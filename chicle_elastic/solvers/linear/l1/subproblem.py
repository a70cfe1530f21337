"""The solution over some columns, from their second derivatives: coordinate descent, and exact steps between sweeps.

With w0 where the gradient is known, H the second derivatives and q the negative gradient at w0, it minimises

    f(w) = 1/2 (w - w0)^T H (w - w0) - <q, w - w0> + l1 |w|_1 + l2/2 |w|^2

Sweeps of coordinate descent (Friedman, Hastie and Tibshirani 2010, "Regularization paths for generalized linear models
via coordinate descent") find which weights are 0 and the signs of the others. With signs fixed f is smooth, and a
Cholesky factor leads to its minimum at once, or until the first weight becomes 0 on the way (as in the
feature-sign search of Lee et al. 2007, "Efficient sparse coding algorithms"). Where a sweep after such a step changes
no sign, the solution is found, to rounding.

With more columns than rows H is singular, and signs may never settle. Then weights enter one by one, each until it or
another one crosses 0 or all slopes are as they should be (the active set method of Osborne, Presnell and Turlach 2000,
"A new approach to variable selection in least squares problems"; it is what LARS does with one alpha).
"""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.certified import MOST_INNER, MOST_REPEATS, PATIENCE
from chicle_elastic.solvers.linear.newton.directions import JITTERS
from chicle_elastic.solvers.linear.products import cholesky_factor, cholesky_solve

ROUNDS = 10
"""Rounds after which a solution will do whose signs still change, for rounding; entries of each weight, one by one."""


def minimise(
    H: Array,  # shape (h, h), float64, symmetric
    q: Array,  # shape (h,), float64
    start: Array,  # w0, shape (h,), float64
    *,
    l1: float,  # l1, l2: Factors of the penalties, >= 0
    l2: float,
    enough: float,  # slopes that are off by at most this end it at once; 0 for a solution to rounding
    accuracy: float,  # the same where signs do not come to rest
    most_rounds: int = MOST_REPEATS,  # Rounds of sweeps and an exact step
) -> tuple[Array, bool]:
    """Minimise f; returns w, shape (h,), and whether it is the solution."""
    from chicle_elastic.solvers.kernels.penalised import descend

    is_singular, settled = False, np.full(len(q), np.nan)
    w, slopes = start.copy(), q.copy()
    everything = np.arange(len(w))
    few = JITTERS[0] ** 2 * float(
        np.abs(q @ start) + np.max(q * q / np.maximum(H.diagonal() + l2, 1e-300), initial=0.0)
    )
    for number in range(most_rounds):
        descend(H, everything, l1, l2, 1, 0.0, slopes, w)
        if not is_singular and np.array_equal(np.sign(w), settled):
            return w, True
        if worst_slope(slopes, w, l1, l2) <= (enough if number < ROUNDS else max(enough, accuracy)):
            return w, True
        if is_singular and number >= ROUNDS:
            return _one_by_one(H, q, start, l1=l1, l2=l2, accuracy=max(enough, accuracy))
        # While the signs of the weights that are not 0 change much, sweeps are what helps.
        descend(H, np.flatnonzero(w), l1, l2, MOST_INNER, few, slopes, w)
        settled = np.sign(w)
        steps = (_go(H, l1, l2, settled, slopes, w) for _ in range(PATIENCE))
        is_singular = not next((is_exact for is_exact in steps if is_exact is not None), False)
        slopes = q - (w - start) @ H
    return w, False


def _one_by_one(H: Array, q: Array, start: Array, *, l1: float, l2: float, accuracy: float) -> tuple[Array, bool]:
    """Minimise f from w0 over weights that enter one by one."""
    w, signs, slopes = start.copy(), np.sign(start), q.copy()
    enough = max(accuracy, JITTERS[0] * float(np.max(np.abs(q), initial=0.0)))
    for _ in range(ROUNDS * len(w)):
        while (is_exact := _go(H, l1, l2, signs, slopes, w)) is None and signs.any():
            pass
        slopes = q - H @ (w - start)
        excess = np.where(signs != 0, -np.inf, np.abs(slopes) - l1)
        entering = int(np.argmax(excess))
        if not excess[entering] > enough:
            return w, worst_slope(slopes, w, l1, l2) <= 2 * enough
        if is_exact is None:
            break
        signs[entering] = np.sign(slopes[entering])
    return w, False


def worst_slope(slopes: Array, w: Array, l1: float, l2: float) -> float:
    """How far a slope is from where it is optimal, at most."""
    distances = np.where(w != 0, np.abs(slopes - l2 * w - l1 * np.sign(w)), np.abs(slopes) - l1)
    return float(np.max(distances, initial=0.0))


def _go(H: Array, l1: float, l2: float, signs: Array, slopes: Array, w: Array) -> bool | None:
    """Go toward the minimum over the weights that have signs, until one of them becomes 0, which loses its sign.

    Up to there f falls all the way. Returns whether the minimum was found without an addition to the diagonal of H;
    None where a weight became 0.
    """
    active = np.flatnonzero(signs)
    if not len(active):
        return True
    rows, old = H[active], w[active]
    step, is_exact = _solved(rows[:, active], l2, slopes[active] - l2 * old - l1 * signs[active])
    if step is None:
        return False
    has_crossed = (old + step) * signs[active] <= 0
    shares = np.where(has_crossed, np.abs(old), np.inf) / np.maximum(np.abs(step), 1e-300)
    first = int(np.argmin(shares))
    new = old + min(shares[first], 1.0) * step
    if has_crossed.any():
        new[first] = 0.0
        new[np.sign(new) != signs[active]] = 0.0
        signs[active] = np.sign(new)
    slopes -= (new - old) @ rows
    w[active] = new
    return None if has_crossed.any() else is_exact


def step_with_signs(H: Array, q: Array, w: Array, *, l1: float, l2: float) -> Array:
    """Return the step from w to the minimum over the weights that are not 0, with their signs, shape (h,)."""
    step, active = np.zeros(len(w)), np.flatnonzero(w)
    if len(active):
        found, _ = _solved(H[np.ix_(active, active)], l2, q[active] - l2 * w[active] - l1 * np.sign(w[active]))
        step[active] = 0.0 if found is None else found
    return step


def _solved(matrix: Array, l2: float, right: Array) -> tuple[Array | None, bool]:
    """Solve (matrix + l2 I) x = right, or return None; and say whether nothing was added to the diagonal."""
    diagonal = matrix.diagonal() + l2
    if not np.isfinite(right).all() or not (diagonal > 0).all():
        return None, False
    scale = 1.0 / np.sqrt(diagonal)
    scaled = matrix * scale * scale[:, None]
    for jitter in (0.0, JITTERS[0]):
        np.fill_diagonal(scaled, 1.0 + jitter)
        factor = cholesky_factor(scaled)
        if factor is not None:
            return scale * cholesky_solve(factor, scale * right), jitter == 0.0
    return None, False
