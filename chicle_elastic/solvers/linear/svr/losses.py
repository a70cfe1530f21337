"""The losses of support vector regression, rounded off, and their duals, in plain NumPy.

With residuals r_i = y_i - <w, x_i> (the intercept is one more column, and is penalised like the rest), excess
t_i = |r_i| - epsilon and C_i = C * weight_i, primal and dual are

    P(w) = 1/2 |w|^2 + sum_i C_i loss(t_i),     loss = max(0, t), or max(0, t)^2 of the squared loss
    D(a) = sum_i (a_i y_i - epsilon |a_i|) - 1/2 |sum_i a_i x_i|^2,      |a_i| <= C_i
           and of the squared loss less a_i^2 / (4 C_i), without that bound

The corner of max(0, t) is rounded off over a width: h(t) = (t + sqrt(t^2 + width^2)) / 2, and the loss of r is h(r -
epsilon) + h(-r - epsilon) - width (Chen and Mangasarian 1996, "A class of smoothing functions for nonlinear and mixed
complementarity problems"). It is curved everywhere, so that a Newton step also knows of the rows that are not in the
corner: with parabolas in it, steps lead nowhere once few rows are there. Slopes of the round loss are feasible duals of
the sharp one, so every w comes with a gap. The squared loss has no corner.
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
        above, below = self._roots(residuals, width)
        t = residuals - self.epsilon, residuals + self.epsilon
        return np.asarray(upper * (0.5 * (t[0] ** 2 / (above + width) + t[1] ** 2 / (below + width)) - self.epsilon))

    def duals(self, residuals: Array, upper: Array, width: float) -> Array:
        """a_i: the slopes of the round loss."""
        if self.is_squared:
            return np.asarray(np.sign(residuals) * upper * 2.0 * np.maximum(np.abs(residuals) - self.epsilon, 0.0))
        above, below = self._roots(residuals, width)
        return np.asarray(upper * 0.5 * ((residuals - self.epsilon) / above + (residuals + self.epsilon) / below))

    def curvatures(self, residuals: Array, upper: Array, width: float) -> Array:
        """Second derivatives of the round loss, times C_i."""
        if self.is_squared:
            return np.where(np.abs(residuals) >= self.epsilon, 2.0 * upper, 0.0)
        above, below = (width / root for root in self._roots(residuals, width))
        return np.asarray(upper * (0.5 / width) * (above**3 + below**3))

    def _roots(self, residuals: Array, width: float) -> tuple[Array, Array]:
        """sqrt(t^2 + width^2) of t = r - epsilon and of t = -r - epsilon."""
        above, below = residuals - self.epsilon, residuals + self.epsilon
        return np.sqrt(above * above + width * width), np.sqrt(below * below + width * width)

    def dual_values(self, duals: Array, targets: Array, upper: Array) -> Array:
        """What each sample adds to D; samples with C_i = 0 add 0."""
        values = duals * targets - self.epsilon * np.abs(duals)
        if self.is_squared:
            values -= duals * duals / (4.0 * np.where(upper > 0, upper, 1.0))
        return np.asarray(values)
