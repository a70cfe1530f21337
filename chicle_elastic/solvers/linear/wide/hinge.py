"""The Newton finish of the hinge on wide sparse data: the proximal steps of `newton_finish`, with tau_i = tau C_i.

The centers move as soon as the part of the gap that comes from w not being the minimum of phi is a small part of it, at
most 1/2 |gradient|^2, because phi is 1-strongly convex; tau grows the more the easier the last centers were.
"""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.wide.finish import WideFinish
from chicle_elastic.solvers.linear.wide.rows import WideRows

FREE_TAU, LEAST_FIRST_TAU, MOST_FIRST_TAU = 30.0, 0.2, 64.0
"""The first tau is the first of these over C_i |x_i|^2 of a usual row: several times what would move its dual to where
its margin is 1, did it stand alone. In any case it is between the other two."""
MOST_TAU = 1e9
GROWTH = 4.0
"""Factor of tau where one step was enough for the centers; half of it where it took two, 1 where it took more."""
INNER_SHARE = 0.3
"""Share of the gap that may come from w not being the minimum of phi when the centers move."""
ETA = 1e-2
"""Residual of conjugate gradients as a share of the gradient, in the norm of the preconditioner."""
MOST_FRUITLESS = 60


def first_tau(norms: Array, upper: Array) -> float:
    """Where steps begin on rows of these |x_i|^2 and C_i, each of shape (num_rows,)."""
    weighed = (norms * upper)[upper > 0]
    usual = float(np.median(weighed)) if len(weighed) else 0.0  # rows without weight must not matter
    return min(max(FREE_TAU / usual if usual > 0 else 0.0, LEAST_FIRST_TAU), MOST_FIRST_TAU)


class WideHinge(WideFinish):
    """See `WideFinish`; `tau` is the first one.

    Attributes:
        tau: Of the next step.
    """

    def __init__(
        self,
        rows: WideRows,
        signs: Array,
        upper: Array,
        alpha: Array,
        *,
        outside: Array | float = 0.0,
        tol: float = 0.0,
        tau: float,
    ) -> None:
        self.tau = tau
        super().__init__(rows, signs, upper, alpha, outside=outside, tol=tol, most_fruitless=MOST_FRUITLESS)
        self._centers = alpha
        self._num_inner = 0
        self._shift = np.broadcast_to(outside, rows.num_columns)

    def _duals(self, margins: Array) -> Array:
        free = 1.0 - margins
        free *= self.tau * self._upper
        free += self._centers
        return self._clipped(free)

    def _curvatures(self, margins: Array, duals: Array) -> Array:
        return np.where((duals > 0) & (duals < self._upper), self.tau * self._upper, 0.0)

    def _losses(self, margins: Array) -> float:
        return float(self._upper @ np.maximum(0.0, 1.0 - margins))

    def _dual_value(self, alpha: Array) -> float:
        return float(alpha.sum())

    def _room(self, alpha: Array) -> Array:
        return np.minimum(alpha, self._upper - alpha)

    def _clipped(self, alpha: Array) -> Array:
        return np.minimum(np.maximum(alpha, 0.0), self._upper)

    def _eta(self, gradient: Array) -> float:
        return ETA

    def _move_duals(self, duals: Array) -> None:
        """Move the centers, too, to the duals of w if w is near enough to the minimum of phi."""
        super()._move_duals(duals)
        # Of the problem in w - outside, whose losses look at margins shifted by those of `outside`.
        inner, inner_of_a = self._point - self._outside, self._w_of_duals - self._outside
        left = inner - inner_of_a
        primal = 0.5 * float(inner @ inner) + self._losses(self._margins)
        dual = float(duals.sum()) - 0.5 * float(inner_of_a @ inner_of_a) - float(np.dot(inner_of_a, self._shift))
        self._num_inner += 1
        if 0.5 * float(left @ left) > INNER_SHARE * (primal - dual):
            return
        self._centers = duals
        growth = GROWTH if self._num_inner == 1 else 0.5 * GROWTH if self._num_inner == 2 else 1.0
        self.tau = min(self.tau * growth, MOST_TAU)
        self._num_inner = 0
        super()._move_duals(self._duals(self._margins))
