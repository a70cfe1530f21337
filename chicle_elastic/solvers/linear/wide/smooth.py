"""The Newton finish of smooth losses on wide sparse rows.

Directions are found to a residual that is the smaller the nearer the optimum is (Dembo, Eisenstat and Steihaug 1982,
"Inexact Newton methods"). It pays where coordinate descent crawls: rows with large values, whose duals all wait for
each other.
"""

import math

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import TINY, slopes_of
from chicle_elastic.solvers.linear.wide.finish import WideFinish

LEAST_ETA, MOST_ETA = 1e-2, 0.3
"""Residual of conjugate gradients as a share of the gradient, in the norm of the preconditioner."""
LANDING = 0.3
"""Share of `tol` that conjugate gradients may leave of the gap, nearly."""
MOST_FRUITLESS = 30


class WideSmooth(WideFinish):
    """See `WideFinish`; phi is P."""

    most_fruitless = MOST_FRUITLESS

    @property
    def relative_left(self) -> float:
        """The gap of the best duals and the w of the last step, which falls with every step."""
        dual = self.primal - self.gap
        gap = min(self.gap, max(self._primal_at(self._margins, self._point) - dual, 0.0))
        return float(gap / max(gap + dual, TINY))

    def _duals(self, margins: Array) -> Array:
        return slopes_of(self._loss, margins, self._upper)[0]

    def _curvatures(self, margins: Array, duals: Array) -> Array:
        return slopes_of(self._loss, margins, self._upper)[1]

    def _eta(self, gradient: Array) -> float:
        left = 0.5 * float(gradient @ gradient) / max(self.primal, TINY)
        landing = LANDING * self._tol * self.primal / max(self.gap, TINY)
        return min(max(math.sqrt(min(max(left, landing), 1.0)), LEAST_ETA), MOST_ETA)
