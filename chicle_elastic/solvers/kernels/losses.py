"""One sample at a time: the scalar forms of `objectives`, inlined into the kernels.

Arguments as there: `margin` m_i, `alpha`, `curvature` sigma' |x_i|^2, `upper` C_i; all float64. `loss` is the number
of an `objectives.Loss`.
"""

import math

from numba.extending import register_jitable

from chicle_elastic.solvers.kernels.jit import INLINE

LAST_CHANGE = 1e-4
"""Change of a logit after which there is no other: what is left is of the order of its cube."""
HINGE, SQUARED_HINGE, LOGISTIC = 0, 1, 2  # as in objectives.Loss; logistic is the rest


@register_jitable(**INLINE)
def primal_loss(loss, margin, upper):
    """C_i * loss(m_i); equals `objectives.primal_losses`."""
    if loss == HINGE:
        return upper * max(0.0, 1.0 - margin)
    if loss == SQUARED_HINGE:
        slack = max(0.0, 1.0 - margin)
        return upper * slack * slack
    if margin > 0.0:
        return upper * math.log1p(math.exp(-margin))
    return upper * (math.log1p(math.exp(margin)) - margin)


@register_jitable(**INLINE)
def dual_value(loss, alpha, upper):
    """dual_i(alpha_i); equals `objectives.dual_values`."""
    if loss == HINGE:
        return alpha
    if upper <= 0.0:
        return 0.0
    if loss == SQUARED_HINGE:
        return alpha - alpha * alpha / (4.0 * upper)
    share = alpha / upper
    value = 0.0
    if share > 0.0:
        value -= share * math.log(share)
    if share < 1.0:
        value -= (1.0 - share) * math.log(1.0 - share)
    return upper * value


@register_jitable(**INLINE)
def step_and_values(loss, margin, alpha, curvature, upper):
    """The dual variable after an exact step along its coordinate, and `dual_value` before and after it.

    The step equals `coordinate_steps` in tests/solvers/reference.py.
    """
    if upper <= 0.0:
        return 0.0, 0.0, 0.0
    if loss == HINGE:
        if curvature <= 0.0:  # a row of zeros: it cannot move w, so its dual goes to its bound at once
            following = upper if margin < 1.0 else 0.0
            return following, alpha, following
        inverse = 1.0 / curvature  # found while the margin is still being summed
        following = min(max((alpha + inverse) - inverse * margin, 0.0), upper)
        return following, alpha, following
    if loss == SQUARED_HINGE:
        diagonal = 0.5 / upper
        following = max(0.0, alpha + (1.0 - margin - alpha * diagonal) / (curvature + diagonal))
        return following, dual_value(loss, alpha, upper), dual_value(loss, following, upper)
    return _logistic_step(margin, alpha, curvature, upper)


@register_jitable(**INLINE)
def _logistic_step(margin, alpha, curvature, upper):
    """Halley's method for the logit u of alpha / C, kept inside its bracket: f(u) = u + m + curvature (C s(u) - alpha).

    f rises with slope between 1 and 1 + curvature C / 4, so the root is unique and the bracket shrinks at every step.
    Each step leaves about the cube of what the one before has left, and the last one moves s(u) by its Taylor series.
    With s the smaller share of C, the entropy is |u| s - log(1 - s): a logarithm less than in `dual_value`.
    """
    if curvature == math.inf:  # features beyond float32: no dual can move w by so little
        old = dual_value(LOGISTIC, alpha, upper)
        return alpha, old, old
    low = -margin - curvature * (upper - alpha)
    high = -margin + curvature * alpha
    old = 0.0
    if 0.0 < alpha < upper:
        other = upper - alpha
        start = math.log(alpha / other)
        old = abs(start) * min(alpha, other) - upper * math.log(max(alpha, other) / upper)
        u = min(max(start, low), high)
    else:
        u = 0.5 * (low + high)
    sigmoid = 0.5
    for _ in range(50):
        small = math.exp(-abs(u))
        inverse = 1.0 / (1.0 + small)
        sigmoid = inverse if u >= 0.0 else small * inverse
        slope = small * inverse * inverse
        value = u + margin + curvature * (upper * sigmoid - alpha)
        if value > 0.0:
            high = u
        else:
            low = u
        bend = curvature * upper * slope
        newton = value / (1.0 + bend)
        lean = 1.0 - 2.0 * sigmoid
        change = -newton / max(1.0 - 0.5 * newton * bend * lean / (1.0 + bend), 0.5)
        if abs(change) <= LAST_CHANGE:  # before the bracket is asked, which rounding may leave
            u += change
            sigmoid += slope * change * (1.0 + 0.5 * lean * change)
            break
        u += change
        if u <= low or u >= high:
            u = 0.5 * (low + high)
    sigmoid = min(max(sigmoid, 0.0), 1.0)
    return (
        upper * sigmoid,
        old,
        upper * (abs(u) * min(sigmoid, 1.0 - sigmoid) - math.log(max(sigmoid, 1.0 - sigmoid))),
    )


@register_jitable(**INLINE)
def is_settled(loss, margin, alpha, upper):
    """Whether the dual sits at a bound with the margin on the safe side of 1, so that it stays while w stays near."""
    if loss == HINGE:
        return (alpha == 0.0 and margin > 1.0) or (alpha == upper and margin < 1.0)
    return loss == SQUARED_HINGE and alpha == 0.0 and margin > 1.0
