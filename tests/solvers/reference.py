"""What only tests compute, in plain NumPy: coordinate steps, P and D from decision values. Names as in `objectives`."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, primal_losses


def coordinate_steps(loss: Loss, margins: Array, alpha: Array, curvature: Array, upper: Array) -> Array:
    """Dual variables after an exact step along their own coordinate, shape (n,).

    Maximises dual(a) - (a - alpha) m - curvature/2 (a - alpha)^2 over the box. Hinge and squared hinge have a closed
    form; logistic has the root of `u + m + curvature * (C s(u) - alpha)`, a = C s(u), s the sigmoid, found by
    bisection.
    """
    if loss is Loss.HINGE:
        gradient = 1.0 - margins
        flat = np.where(gradient > 0, upper, 0.0)
        safe = np.where(curvature > 0, curvature, 1.0)
        return np.where(curvature > 0, np.clip(alpha + gradient / safe, 0.0, upper), flat)
    positive = upper > 0
    safe_upper = np.where(positive, upper, 1.0)
    if loss in (Loss.SQUARED_HINGE, Loss.MODIFIED_HUBER):
        diagonal = 1.0 / (2.0 * safe_upper)
        gradient = 1.0 - margins - alpha * diagonal
        most = np.inf if loss is Loss.SQUARED_HINGE else 4.0 * safe_upper
        return np.where(positive, np.clip(alpha + gradient / (curvature + diagonal), 0.0, most), 0.0)
    low, high = -margins - curvature * (upper - alpha), -margins + curvature * alpha
    for _ in range(200):
        middle = 0.5 * (low + high)
        is_above = middle + margins + curvature * (upper * _sigmoid(middle) - alpha) > 0
        high, low = np.where(is_above, middle, high), np.where(is_above, low, middle)
    return upper * _sigmoid(0.5 * (low + high))


def _sigmoid(u: Array) -> Array:
    """1 / (1 + exp(-u)) without overflow."""
    small = np.exp(-np.abs(u))
    return np.where(u >= 0, 1.0, small) / (1.0 + small)


def primal_and_dual(
    loss: Loss, decision: Array, signs: Array, alpha: Array, upper: Array, squared_norm: float
) -> tuple[float, float]:
    """P and D of one output from its decision values <x_i, w>, where w = w(alpha) and `squared_norm` = |w|^2."""
    primal = 0.5 * squared_norm + float(primal_losses(loss, signs * decision, upper).sum())
    dual = float(dual_values(loss, alpha, upper).sum()) - 0.5 * squared_norm
    return primal, dual
