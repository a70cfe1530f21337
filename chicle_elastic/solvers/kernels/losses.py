"""One sample at a time: the scalar forms of `objectives`, inlined into the kernels.

Arguments as there: `margin` m_i, `alpha`, `curvature` sigma' |x_i|^2, `upper` C_i; all float64. `loss` is one of
`LOSSES`: each has a type of its own, so that a kernel is compiled for the loss of a fit and for no other.
"""

import math
from functools import wraps
from typing import NamedTuple

import numpy as np
from numba.extending import overload, register_jitable

from chicle_elastic.solvers.kernels.jit import INLINE
from chicle_elastic.solvers.kernels.memory import CODE, REAL, load

LAST_CHANGE = float(np.finfo(np.float64).eps) ** 0.25
"""Change of a logit after which there is no other: 1e-4, and what is left is of the order of its cube."""


class Hinge(NamedTuple):
    """Stands for max(0, 1 - m)."""


class SquaredHinge(NamedTuple):
    """Stands for s (2 (1 - m) - s) with s = min(max(0, 1 - m), most): a square, and straight where it is large."""

    most: float = math.inf


class Logistic(NamedTuple):
    """Stands for log(1 + exp(-m))."""


class EpsilonInsensitive(NamedTuple):
    """Stands for max(0, |m| - epsilon), where m is <x, w> less the target."""

    epsilon: float = 0.0


LOSSES = (Hinge(), SquaredHinge(), Logistic(), SquaredHinge(most=2.0), EpsilonInsensitive())
"""By the numbers of `objectives.Loss`; and one of real targets, whose margins are residuals z - y, and whose duals have
either sign."""
KINDS = [Hinge, SquaredHinge, Logistic, EpsilonInsensitive]


def by_loss(function):
    """Make a function for kernels and Python of one that takes arguments, or numba's types, to bodies for `KINDS`."""

    def in_python(*arguments):
        return function(*arguments)[KINDS.index(type(arguments[0]))](*arguments)

    @wraps(function)
    def body(*arguments):
        return function(*arguments)[KINDS.index(arguments[0].instance_class)]

    overload(in_python, jit_options=INLINE)(body)
    return in_python


@by_loss
def sign_and_target(loss, targets, row, positive):
    """What makes a margin of <x, w>: its factor, and what is taken from it."""

    def of_classes(loss, targets, row, positive):
        return (1.0 if load(targets, row, CODE) == positive else -1.0), 0.0

    def of_numbers(loss, targets, row, positive):
        return 1.0, load(targets, row, REAL)

    return of_classes, of_classes, of_classes, of_numbers


@by_loss
def primal_loss(loss, margin, upper):
    """C_i * loss(m_i); equals `objectives.primal_losses`."""

    def hinge(loss, margin, upper):
        return upper * (1.0 - margin) if margin < 1.0 else 0.0

    def squared_hinge(loss, margin, upper):
        slack = 1.0 - margin if margin < 1.0 else 0.0
        share = slack if slack < loss.most else loss.most
        return upper * share * (2.0 * slack - share)

    def logistic(loss, margin, upper):
        if margin > 0.0:
            return upper * math.log1p(math.exp(-margin))
        return upper * (math.log1p(math.exp(margin)) - margin)

    def insensitive(loss, margin, upper):
        return upper * max(abs(margin) - loss.epsilon, 0.0)

    return hinge, squared_hinge, logistic, insensitive


@by_loss
def step_and_values(loss, margin, alpha, curvature, upper):
    """Return the dual after an exact step along its coordinate (as in tests/solvers/reference.py), and its values."""

    def hinge(loss, margin, alpha, curvature, upper):
        if curvature <= 0.0:  # a row of zeros: it cannot move w, so its dual goes to its bound at once
            following = upper if margin < 1.0 else 0.0
            return following, alpha, following
        inverse = 1.0 / curvature  # found while the margin is still being summed
        following = (alpha + inverse) - inverse * margin
        following = following if following > 0.0 else 0.0
        following = following if following < upper else upper
        return following, alpha, following

    def squared_hinge(loss, margin, alpha, curvature, upper):
        if upper <= 0.0:
            return 0.0, 0.0, 0.0
        diagonal, most = 0.5 / upper, 2.0 * upper * loss.most
        inverse = 1.0 / (curvature + diagonal)  # found while the margin is still being summed
        following = alpha + (1.0 - alpha * diagonal) * inverse - margin * inverse
        following = following if following > 0.0 else 0.0
        following = following if following < most else most
        quarter = 0.5 * diagonal
        return following, alpha - quarter * alpha * alpha, following - quarter * following * following

    def logistic(loss, margin, alpha, curvature, upper):
        return _logistic_step(margin, alpha, curvature, upper) if upper > 0.0 else (0.0, 0.0, 0.0)

    def insensitive(loss, margin, alpha, curvature, upper):
        lead = curvature * alpha - margin
        excess = max(abs(lead) - loss.epsilon, 0.0)
        most = upper * curvature
        following = math.copysign(excess / curvature if excess < most else upper, lead) if excess > 0.0 else 0.0
        return following, -loss.epsilon * abs(alpha), -loss.epsilon * abs(following)

    return hinge, squared_hinge, logistic, insensitive


@register_jitable(**INLINE)
def _logistic_step(margin, alpha, curvature, upper):
    """Take Halley's method for the logit u of alpha / C inside its bracket: f(u) = u + m + curvature (C s(u) - alpha).

    f rises with slope between 1 and 1 + curvature C / 4. Each step leaves about the cube of what the one before has
    left, and the last one moves s(u) by its Taylor series. With s the smaller share of C, the entropy is |u| s - log(1
    - s).
    """
    low = -margin - curvature * (upper - alpha)
    high = -margin + curvature * alpha
    old = 0.0
    if 0.0 < alpha < upper:
        other = upper - alpha
        start = math.log(alpha / other)
        less, more = (alpha, other) if alpha < other else (other, alpha)
        old = abs(start) * less - upper * math.log(more / upper)
        u = start if start > low else low
        u = u if u < high else high
    else:
        u = 0.5 * (low + high)
    if curvature == math.inf:  # features beyond float32: no dual can move w by so little
        return alpha, old, old
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
        divisor = 1.0 - 0.5 * newton * bend * lean / (1.0 + bend)
        change = -newton / (divisor if divisor > 0.5 else 0.5)
        if abs(change) <= LAST_CHANGE:  # before the bracket is asked, which rounding may leave
            u += change
            sigmoid += slope * change * (1.0 + 0.5 * lean * change)
            break
        u += change
        if u <= low or u >= high:
            u = 0.5 * (low + high)
    sigmoid = sigmoid if sigmoid > 0.0 else 0.0
    sigmoid = sigmoid if sigmoid < 1.0 else 1.0
    less, more = (sigmoid, 1.0 - sigmoid) if sigmoid < 0.5 else (1.0 - sigmoid, sigmoid)
    return upper * sigmoid, old, upper * (abs(u) * less - math.log(more))


@by_loss
def is_settled(loss, margin, alpha, upper):
    """Whether the dual sits at a bound with the margin on the safe side of 1, so that it stays while w stays near."""

    def hinge(loss, margin, alpha, upper):
        return margin > 1.0 if alpha == 0.0 else alpha == upper and margin < 1.0

    def squared_hinge(loss, margin, alpha, upper):
        return margin > 1.0 if alpha == 0.0 else alpha == 2.0 * upper * loss.most and margin < 1.0 - loss.most

    def insensitive(loss, margin, alpha, upper):
        if alpha == 0.0:
            return abs(margin) < loss.epsilon
        return margin < -loss.epsilon if alpha == upper else alpha == -upper and margin > loss.epsilon

    def logistic(loss, margin, alpha, upper):
        return False

    return hinge, squared_hinge, logistic, insensitive


@by_loss
def pull(loss, margin, alpha, upper):
    """Return the slope of -D by the size of a dual: above 0 a dual of 0 stays, below 0 one at its bound; 0 without."""

    def squared_hinge(loss, margin, alpha, upper):
        return margin - 1.0 + 0.5 * alpha / upper

    def hinge(loss, margin, alpha, upper):
        return margin - 1.0

    def logistic(loss, margin, alpha, upper):
        return 0.0

    def insensitive(loss, margin, alpha, upper):
        if alpha == 0.0:
            return loss.epsilon - abs(margin)
        return loss.epsilon + (margin if alpha > 0.0 else -margin)

    return hinge, squared_hinge, logistic, insensitive
