"""Losses of the linear models and their duals, in plain NumPy.

This is the reference: the kernels do the same arithmetic one sample at a time, and tests hold them against it.

Primal and dual of one output, as in LinearSVC (C multiplies the sum of losses; the intercept is one more column of
constant value `intercept_scaling` and is penalised like the rest), with C_i = C * weight_i:

    P(w)     = 1/2 |w|^2 + sum_i C_i * loss(m_i),        m_i = y_i <x_i, w>
    D(alpha) = sum_i dual_i(alpha_i) - 1/2 |w(alpha)|^2,  w(alpha) = sum_i alpha_i y_i x_i,
                                                          0 <= alpha_i <= C_i * most_slope

Legend: `margins` are m_i, `alpha` the dual variables, `upper` the C_i, `curvature` sigma' * |x_i|^2, where sigma' is
CoCoA's factor for the number of parallel parts (Jaggi et al. 2014; Ma et al. 2015, "Adding vs. averaging"). All are
ndarrays of shape (n,), float64.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from scipy.special import entr, xlog1py

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError

TINY = float(np.finfo(np.float64).tiny)  # in place of an objective of 0
EPSILON = float(np.finfo(np.float64).eps)
SLIGHT = 1e-9
"""Share that is next to nothing: of a sum or a diagonal for rounding, of the inverse of a smallest step; and relative
gap at which local Newton steps end, as rounding in their gradient is as large."""
ROWS_IN_CACHE = 1 << 13  # So many rows at a time, what is found on the way to losses and slopes stays in the cache
ROUNDING = 1e-20
"""Share of the squares of the targets below which what is left of them is rounding: a gap is not held against less. Of
500 odd tables, those whose optimum is below it have residuals of 1e-13 to 1e-11 of the targets."""


class Loss(IntEnum):
    """Losses that the kernels know; the numbers are part of the kernels' interface."""

    HINGE = 0
    SQUARED_HINGE = 1
    LOGISTIC = 2
    MODIFIED_HUBER = 3

    @property
    def most_slope(self) -> float:
        """Return the largest -loss'(m), which alpha_i / C_i is not above."""
        return (1.0, np.inf, 1.0, 4.0)[self]

    @property
    def most_curvature(self) -> float:
        """Return the largest loss''(m)."""
        return (np.inf, 2.0, 0.25, 2.0)[self]

    @property
    def has_kinks(self) -> bool:
        """Say whether second derivatives are either 0 or the largest one."""
        return self in (Loss.SQUARED_HINGE, Loss.MODIFIED_HUBER)

    @classmethod
    def named(cls, name: str) -> "Loss":
        """Return the loss called `name`; a UsageError where there is none."""
        try:
            return cls[name.upper()]
        except KeyError:
            names = ", ".join(repr(loss.name.lower()) for loss in cls)
            raise UsageError(f"there is no loss {name!r}; choose one of {names}") from None


def upper_bounds(C: float, codes: Array, weights: Array | None, class_weights: Sequence[float] | None) -> Array:
    """C_i = C * weight of the sample * weight of its class, shape (n,), float64; None is a weight of 1."""
    upper = np.full(len(codes), float(C))
    if weights is not None:
        upper *= weights
    if class_weights is not None:
        upper *= np.asarray(class_weights, dtype=np.float64)[codes]
    return upper


def dual_slopes(alpha: Array, upper: Array) -> Array:
    """alpha_i / C_i, which is -loss'(m_i) at the optimum, whatever C is; 0 where C_i = 0. Any shape that broadcasts."""
    positive = upper > 0
    return np.where(positive, alpha / np.where(positive, upper, 1.0), 0.0)


def duals_from_slopes(loss: Loss, slopes: Array, upper: Array) -> Array:
    """Feasible duals with the given slopes, to go on from when C, weights or loss have changed; as `dual_slopes`."""
    return np.clip(slopes, 0.0, loss.most_slope) * upper


def primal_losses(loss: Loss, margins: Array, upper: Array) -> Array:
    """C_i * loss(m_i) of each sample, shape (n,)."""
    if loss is Loss.HINGE:
        return upper * np.maximum(0.0, 1.0 - margins)
    if loss is Loss.SQUARED_HINGE:
        return upper * np.maximum(0.0, 1.0 - margins) ** 2
    if loss is Loss.MODIFIED_HUBER:
        return upper * np.where(margins < -1.0, -4.0 * margins, np.maximum(0.0, 1.0 - margins) ** 2)
    # A tenth of what logaddexp takes.
    return upper * (np.log1p(np.exp(-np.abs(margins))) - np.minimum(margins, 0.0))


def dual_values(loss: Loss, alpha: Array, upper: Array) -> Array:
    """dual_i(alpha_i) of each sample, shape (n,); samples with C_i = 0 give 0."""
    if loss is Loss.HINGE:
        return np.asarray(alpha, dtype=np.float64)
    share = dual_slopes(alpha, upper)
    if loss.has_kinks:
        return upper * share * (1.0 - 0.25 * share)
    return upper * (entr(share) - xlog1py(1.0 - share, -share))  # 1 - share has no digits of a small share


# Slopes -C_i loss'(m_i), which are dual variables, and curvatures C_i loss''(m_i), of a loss that is smooth.


def slopes_of(loss: Loss, margins: Array, upper: Array) -> tuple[Array, Array]:
    """Slopes and curvatures."""
    if loss.has_kinks:
        return _kinked_slopes(loss, np.maximum(1.0 - margins, 0.0), upper)
    return _logistic_slopes(margins, np.exp(-np.abs(margins)), upper)


def each_loss_and_slope(loss: Loss, margins: Array, upper: Array) -> tuple[Array, Array, Array]:
    """C_i loss(m_i) of each sample, shape (n,), and `slopes_of`: they have most of the work in common."""
    if loss.has_kinks:
        slack = np.maximum(1.0 - margins, 0.0)
        slopes, curvatures = _kinked_slopes(loss, slack, upper)
        return slopes * (slack - 0.5 * np.minimum(slack, 0.5 * loss.most_slope)), slopes, curvatures
    small = np.exp(-np.abs(margins))
    slopes, curvatures = _logistic_slopes(margins, small, upper)
    losses = np.log1p(small)  # a tenth of what logaddexp takes
    losses -= np.minimum(margins, 0.0)
    losses *= upper
    return losses, slopes, curvatures


def _kinked_slopes(loss: Loss, slack: Array, upper: Array) -> tuple[Array, Array]:
    """Find them from what margins lack to 1: twice that, but not above the largest one, where they are flat again."""
    twice = 2.0 * upper
    if loss is Loss.SQUARED_HINGE:
        return twice * slack, twice * (slack > 0.0)
    most = 0.5 * loss.most_slope
    return twice * np.minimum(slack, most), twice * ((slack > 0.0) & (slack < most))


def _logistic_slopes(margins: Array, small: Array, upper: Array) -> tuple[Array, Array]:
    """Find them from exp(-|m_i|)."""
    share = 1.0 / (1.0 + small)
    away = small * share  # of the larger share from 1, without loss of digits
    slopes = upper * np.where(margins >= 0, away, share)
    away *= share
    away *= upper
    return slopes, away
