"""Smooth classification losses with their first and second derivatives, in blocks that stay in the cache.

`objectives` is the reference for the losses. Slopes are -C_i loss'(m_i), which are dual variables, and curvatures
C_i loss''(m_i). Margins m_i, C_i (`upper`) and results are ndarrays of shape (n,), float64.
"""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import Loss

ROWS_IN_CACHE = 1 << 13
"""So many rows at a time, what is found on the way to losses and slopes stays in the cache."""


def slopes_of(loss: Loss, margins: Array, upper: Array) -> tuple[Array, Array]:
    """Slopes and curvatures of a loss that is smooth."""
    if loss.has_kinks:
        return kinked_slopes(loss, np.maximum(1.0 - margins, 0.0), upper)
    return logistic_slopes(margins, np.exp(-np.abs(margins)), upper)


def losses_and_slopes(loss: Loss, margins: Array, upper: Array) -> tuple[float, Array, Array]:
    """Sum of C_i loss(m_i), and `slopes_of`: they have most of the work in common."""
    slopes, curvatures, losses = np.empty(len(margins)), np.empty(len(margins)), 0.0
    for begin in range(0, len(margins), ROWS_IN_CACHE):
        part = slice(begin, begin + ROWS_IN_CACHE)
        slopes[part], curvatures[part], a, b = _in_cache(loss, margins[part], upper[part])
        losses += float(a @ b)
    return losses, slopes, curvatures


def each_loss_and_slope(loss: Loss, margins: Array, upper: Array) -> tuple[Array, Array, Array]:
    """C_i loss(m_i) of each sample, shape (n,), and `slopes_of`."""
    losses, slopes, curvatures = np.empty((3, len(margins)))
    for begin in range(0, len(margins), ROWS_IN_CACHE):
        part = slice(begin, begin + ROWS_IN_CACHE)
        slopes[part], curvatures[part], a, b = _in_cache(loss, margins[part], upper[part])
        np.multiply(a, b, out=losses[part])
    return losses, slopes, curvatures


def _in_cache(loss: Loss, margins: Array, upper: Array) -> tuple[Array, Array, Array, Array]:
    """Slopes, curvatures, and two vectors whose product has the losses; each of shape (n,)."""
    if loss.has_kinks:
        slack = np.maximum(1.0 - margins, 0.0)
        slopes, curvatures = kinked_slopes(loss, slack, upper)
        return slopes, curvatures, slopes, slack - 0.5 * np.minimum(slack, 0.5 * loss.most_slope)
    small = np.exp(-np.abs(margins))
    slopes, curvatures = logistic_slopes(margins, small, upper)
    losses = np.log1p(small, out=small)  # a tenth of what logaddexp takes
    losses -= np.minimum(margins, 0.0)
    return slopes, curvatures, upper, losses


def kinked_slopes(loss: Loss, slack: Array, upper: Array) -> tuple[Array, Array]:
    """`slopes_of`, given what margins lack to 1; margins of any shape whose last axis is that of C_i.

    The slope is twice that, but not above the largest one, where the curvature is 0 again.
    """
    twice = 2.0 * upper
    if loss is Loss.SQUARED_HINGE:
        return twice * slack, twice * (slack > 0.0)
    most = 0.5 * loss.most_slope
    return twice * np.minimum(slack, most), twice * ((slack > 0.0) & (slack < most))


def logistic_slopes(margins: Array, small: Array, upper: Array) -> tuple[Array, Array]:
    """The same, given exp(-|m_i|)."""
    share = 1.0 / (1.0 + small)
    away = small * share  # of the larger share from 1, without loss of digits
    slopes = upper * np.where(margins >= 0, away, share)
    away *= share
    away *= upper
    return slopes, away
