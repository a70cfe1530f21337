"""Newton steps of the hinge, by the proximal point method on the dual (Rockafellar 1976; for SVMs: Yin and Li 2019, "A
semismooth Newton method for support vector classification and regression").

A step maximises D(a) - sum_i (a_i - alpha_i)^2 / (2 tau_i) over the box, tau_i = tau C_i, whose optimum is a(w) for the
w that minimises

    phi(w) = 1/2 |w|^2 + sum_i max_{0 <= a <= C_i} a (1 - m_i) - (a - alpha_i)^2 / (2 tau_i)

with gradient w - sum_i a_i(w) y_i x_i and second derivative I + sum_i c_i(w) x_i x_i^T, where c_i = tau_i while a_i is
strictly between its bounds, else 0. tau grows, and the steps become exact.

The centers move as soon as the part of the gap that comes from w not being the minimum of phi is a small part of it, at
most 1/2 |gradient|^2, because phi is 1-strongly convex; tau grows the more the easier the last centers were.
"""

from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.certified import MOST_INNER, MOST_LEFT
from chicle_elastic.solvers.linear.newton.steps import DAMPED
from chicle_elastic.solvers.linear.objectives import SLIGHT, Loss
from chicle_elastic.solvers.linear.wide.finish import STEPS_PER_ITERATION, WideFinish
from chicle_elastic.solvers.linear.wide.rows import WideRows

GROWTH = 4.0
"""Factor of tau where one step was enough for the centers; half of it where it took two, 1 where it took more."""


class WideHinge(WideFinish):
    """See `WideFinish`; `tau` is that of the next step."""

    most_fruitless = MOST_INNER  # digits at C=1e5 have up to 60 while centers move and tau grows

    def __init__(self, rows: WideRows, loss: Loss, signs: Array, upper: Array, alpha: Array, **others: Any) -> None:
        self.tau, self._num_inner = rows.first_tau, 0
        super().__init__(rows, loss, signs, upper, alpha, **others)

    @property
    def relative_left(self) -> float:
        """The gap, as P of the last step is not that of phi."""
        return self.relative_gap

    def _duals(self, margins: Array) -> Array:
        free = 1.0 - margins
        free *= self.tau * self._upper
        free += self._centers
        return self._clipped(free)

    def _curvatures(self, margins: Array, duals: Array) -> Array:
        return np.where((duals > 0) & (duals < self._upper), self.tau * self._upper, 0.0)

    def _move_duals(self, duals: Array) -> None:
        """Move the centers, too, to the duals of w if w is near enough to the minimum of phi."""
        super()._move_duals(duals)
        # Of the problem in w - outside, whose losses look at margins shifted by those of `outside`.
        inner, inner_of_a = self._point - self._outside, self._w_of_duals - self._outside
        left = inner - inner_of_a
        primal = 0.5 * float(inner @ inner) + self._losses(self._margins)
        dual = float(duals.sum()) - 0.5 * float(inner_of_a @ inner_of_a) - float(inner_of_a @ self._outside)
        self._num_inner += 1
        if 0.5 * float(left @ left) > MOST_LEFT * (primal - dual):
            # Else a tau that is 25 times too large leaves click logs at C=100, and stages of a path, without an end.
            if self._num_inner >= STEPS_PER_ITERATION:
                self._begin_anew()
            return
        self._centers = duals
        growth = GROWTH if self._num_inner == 1 else 0.5 * GROWTH if self._num_inner == 2 else 1.0
        self.tau = min(self.tau * growth, 1.0 / SLIGHT)
        self._num_inner = 0
        super()._move_duals(self._duals(self._margins))

    def _begin_anew(self) -> None:
        """Go on from the best duals with shorter steps: the minimum of phi was too far away."""
        self.tau /= DAMPED
        self._num_inner = self._num_fruitless = 0  # else digits do not end at C=1e5: a smaller tau is worth a try
        self._go_back()
        self._look()

    def _go_back(self) -> None:
        self._centers = self.alpha
        super()._go_back()
