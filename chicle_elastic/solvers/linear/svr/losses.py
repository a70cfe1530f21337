"""The losses of support vector regression, rounded off, and their duals, in plain NumPy.

With residuals r_i = y_i - <w, x_i> (the intercept is one more column, and is penalised like the rest), excess
t_i = |r_i| - epsilon and C_i = C * weight_i, primal and dual are

    P(w) = 1/2 |w|^2 + sum_i C_i loss(t_i),     loss = max(0, t), or max(0, t)^2 of the squared loss
    D(a) = sum_i (a_i y_i - epsilon |a_i|) - 1/2 |sum_i a_i x_i|^2,      |a_i| <= C_i
           and of the squared loss less a_i^2 / (4 C_i), without that bound

The corner of the loss at t = 0 is rounded off over a width: t^2 / (2 width) up to it, and t - width / 2 beyond. Slopes
of the round loss are feasible duals of the sharp one, so every w comes with a gap. The squared loss has no corner.
All arguments are ndarrays of shape (n,), float64.
"""

from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Insensitive:
    """A loss.

    Attributes:
        epsilon: Residuals up to this cost nothing, >= 0.
        is_squared: Whether it is the squared one.
    """

    epsilon: float
    is_squared: bool

    def losses(self, residuals: Array, upper: Array, width: float = 0.0) -> Array:
        """C_i times the loss of each sample; with a width its corner is round."""
        excess = np.maximum(np.abs(residuals) - self.epsilon, 0.0)
        if self.is_squared:
            return np.asarray(upper * excess * excess)
        if width == 0.0:
            return np.asarray(upper * excess)
        inside = np.minimum(excess, width)
        return np.asarray(upper * (inside * inside / (2.0 * width) + (excess - inside)))

    def duals(self, residuals: Array, upper: Array, width: float) -> Array:
        """a_i: the slopes of the round loss."""
        excess = np.maximum(np.abs(residuals) - self.epsilon, 0.0)
        slopes = 2.0 * excess if self.is_squared else np.minimum(excess, width) / width
        return np.asarray(np.sign(residuals) * upper * slopes)

    def curvatures(self, residuals: Array, upper: Array, width: float) -> Array:
        """Second derivatives of the round loss, times C_i."""
        excess = np.abs(residuals) - self.epsilon
        if self.is_squared:
            return np.where(excess > 0, 2.0 * upper, 0.0)
        return np.where((excess >= 0) & (excess < width), upper / width, 0.0)

    def dual_values(self, duals: Array, targets: Array, upper: Array) -> Array:
        """What each sample adds to D; samples with C_i = 0 add 0."""
        values = duals * targets - self.epsilon * np.abs(duals)
        if self.is_squared:
            values -= duals * duals / (4.0 * np.where(upper > 0, upper, 1.0))
        return np.asarray(values)
