"""The Newton finish of the hinge on wide sparse data, where no matrix of second derivatives can be made.

The steps are those of `newton_finish` (see there for phi), with tau_i = tau C_i and three differences:

* Directions come from conjugate gradients over the rows with curvature (`wide_rows`), so they are not exact.
* The centers move as soon as the part of the gap that comes from w not being the minimum of phi is a small part of it,
  at most 1/2 |gradient|^2, because phi is 1-strongly convex; tau grows the more the easier the last centers were.
* What is certified is not w(a(w)): a_i moves tau_i times as far as the margin, so that what is left of the gradient is
  multiplied by tau |x|^2. The direction is X^T u - gradient for some u over the rows, however inexact, and so the step
  from w(b) leads to w((1 - t) b + t (a + u)). These *tracked* duals b, clipped into the box, are the candidates; the
  best one so far is in the chunks, and w(alpha) of it is the model. Tracked duals and centers are not: if chunks come
  or go, they begin anew.
"""

from collections.abc import Callable

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton_finish import SearchLine
from chicle_elastic.solvers.linear.wide_rows import WideRows

FIRST_TAU, MOST_TAU = 0.2, 1e9
GROWTH = 4.0
"""Factor of tau where one step was enough for the centers; half of it where it took two, 1 where it took more."""
TOO_SHORT = 0.02
"""A share of a direction that is so small says that the direction was not exact enough for tau."""
INNER_SHARE = 0.3
"""Share of the gap that may come from w not being the minimum of phi when the centers move."""
STEPS_PER_ITERATION = 8
"""Newton steps at most before the runtime is asked what next; fewer when the centers move or a candidate is better."""
MOST_FRUITLESS = 60
"""Newton steps in a row without a better candidate after which they are given up: rounding, most likely."""


class WideFinish:
    """Newton steps for one output, over all rows of the only task, or over some rows while all other duals stay.

    Args:
        rows: All local rows.
        signs: +1 or -1, shape (num_rows,).
        upper: C_i, shape (num_rows,).
        alpha: Duals to begin with, shape (num_rows,), float64.
        outside: What other rows contribute to w(alpha), shape (num_columns,); 0 where there are none.
        tau: The first one; by default `FIRST_TAU`.

    Attributes:
        alpha: The best duals so far.
        w: w(alpha), shape (num_columns,).
        gap: Sum of their gap contributions.
        tau: Of the next step.
        is_stuck: Whether steps have led nowhere for long.
    """

    def __init__(
        self,
        rows: WideRows,
        signs: Array,
        upper: Array,
        alpha: Array,
        *,
        outside: Array | float = 0.0,
        tau: float = FIRST_TAU,
    ) -> None:
        self._rows = rows
        self._signs = signs
        self._upper = upper
        self._outside = outside
        self._shift = np.broadcast_to(outside, rows.num_columns)
        self.tau = tau
        self._num_inner = 0
        self._num_fruitless = 0
        self._centers = self._tracked = self.alpha = alpha
        self._point = self.w = self._w_of(alpha)
        self._margins = signs * rows.times(self.w)
        self.gap = self._gap(self._margins, alpha, self.w)

    @property
    def is_stuck(self) -> bool:
        """See the class."""
        return self._num_fruitless >= MOST_FRUITLESS

    def run(self, is_spent: Callable[[], bool]) -> None:
        """Newton steps until there are better duals, or `STEPS_PER_ITERATION`; at least one."""
        before = self.gap
        for _ in range(STEPS_PER_ITERATION):
            self._step(is_spent)
            if self.gap < before or is_spent():
                return

    def _w_of(self, alpha: Array) -> Array:
        return self._outside + self._rows.weighted_sum(self._signs * alpha)

    def _gap(self, margins: Array, alpha: Array, w: Array) -> float:
        """Sum of gap contributions where w = w(alpha): of losses, duals, and duals times margins."""
        return self._loss(margins) - float(alpha.sum()) + float((w - self._outside) @ w)

    def _loss(self, margins: Array) -> float:
        return float(self._upper @ np.maximum(0.0, 1.0 - margins))

    def _duals(self, margins: Array) -> Array:
        """a(w) of samples with these margins, shape (num_rows,)."""
        free = self._centers + (self.tau * self._upper) * (1.0 - margins)
        return np.minimum(np.maximum(free, 0.0, out=free), self._upper, out=free)

    def _step(self, is_spent: Callable[[], bool]) -> None:
        rows, signs, w = self._rows, self._signs, self._point
        a = self._duals(self._margins)
        gradient = w - self._w_of(a)
        curved = np.flatnonzero((a > 0) & (a < self._upper))
        u = np.zeros(len(a))
        if len(curved):
            u[curved] = rows.solve(curved, 1.0 / (self.tau * self._upper[curved]), gradient, is_spent)
        direction = rows.weighted_sum(u) - gradient
        line = SearchLine(
            changes=signs * rows.times(direction),
            at_rest=float((w - self._outside) @ direction),
            squared=float(direction @ direction),
            margins=self._margins,
            duals_at=self._duals,
        )
        line.search(float(gradient @ direction))
        self._point = w + line.t * direction
        self._tracked = (1.0 - line.t) * self._tracked + line.t * (a + signs * u)
        self._margins = line.margins_there
        self._try_candidate()
        if line.t < TOO_SHORT:
            # What is left of the equations is multiplied by tau, and the direction is none of phi's any more.
            self.tau, self._num_inner = max(self.tau / GROWTH**2, FIRST_TAU), 0
        else:
            self._consider_centers(line.duals_there)

    def _try_candidate(self) -> None:
        candidate = np.clip(self._tracked, 0.0, self._upper)
        w = self._w_of(candidate)
        gap = self._gap(self._signs * self._rows.times(w), candidate, w)
        self._num_fruitless += 1
        if gap < self.gap:
            self.alpha, self.w, self.gap, self._num_fruitless = candidate, w, gap, 0

    def _consider_centers(self, a: Array) -> None:
        """Move the centers to the duals `a` of w if w is near enough to the minimum of phi."""
        # Of the problem in w - outside, whose losses look at margins shifted by those of `outside`.
        inner, inner_of_a = self._point - self._outside, self._rows.weighted_sum(self._signs * a)
        left = inner - inner_of_a
        primal = 0.5 * float(inner @ inner) + self._loss(self._margins)
        dual = float(a.sum()) - 0.5 * float(inner_of_a @ inner_of_a) - float(np.dot(inner_of_a, self._shift))
        gap = primal - dual
        self._num_inner += 1
        if 0.5 * float(left @ left) > INNER_SHARE * gap:
            return
        self._centers = a
        growth = GROWTH if self._num_inner == 1 else 0.5 * GROWTH if self._num_inner == 2 else 1.0
        self.tau = min(self.tau * growth, MOST_TAU)
        self._num_inner = 0
