"""Newton steps of one task that has all rows: on problems on which coordinate descent crawls.

There w has few coordinates compared with the duals, or rows are sparse, so the whole problem is solved in w. A step
minimises phi along a Newton direction: exact where a matrix of second derivatives can be made (`exact`), else found by
conjugate gradients (`rows`). For smooth losses phi is P. The hinge is made smooth by the proximal point method on the
dual (`hinge`).

What is certified is not w at the end of a step: margins there are not yet those of the duals. It is w(alpha) of the
duals one Newton step on, a - c (change of the margin), clipped into their bounds.

Clipping, and what conjugate gradients have left, would spoil these duals where columns are heavy: a dual that is off by
a little moves w there by thousands of times as much. So duals inside of their bounds are moved once more, by the least
that brings w(alpha) in the heaviest columns to where the step leads. The best duals so far are in the chunks, and
w(alpha) of them is the model. If chunks come or go, the steps begin anew.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import TINY, Loss, dual_values, most_duals, primal_losses
from chicle_elastic.solvers.linear.products import cholesky_factor, cholesky_solve
from chicle_elastic.solvers.linear.race import STEP_VALUES
from chicle_elastic.solvers.linear.wide.rows import WideRows

FLAT = 0.3
"""A point on the line is good when the slope there is this share of the slope at its beginning."""
MAX_TRIALS = 12
STEPS_PER_ITERATION = 16
"""Newton steps at most before the runtime is asked what next; with 8 fits take a quarter more iterations."""
FAR = 10.0
"""Share of the gap of the best duals that 1/2 |gradient|^2 is, beyond which the duals one step on are not looked at. On
dense rows of 40 to 500 columns 6 of 133 were better there, by a factor of 1.5 at most; of those below it 26 of 99."""
SMALLER = 0.9
"""Share of the least |gradient|^2 so far that is progress."""
RIDGE = 1e-9
"""Added to products of heavy columns, as a share of their diagonal: columns may be alike."""


class SearchLine:
    """phi along w + t * direction. Its slope rises with t, and finding it needs no row.

    Args:
        changes: By how much the margins change with t, shape (n,).
        at_rest: <w - base, direction>.
        squared: |direction|^2.
        margins: At t = 0, shape (n,).
        duals_at: a(w) as a function of the margins.

    Attributes:
        t: Where the slope was looked at last.
        margins_there, duals_there: Margins and duals there, shape (n,).
    """

    def __init__(
        self, *, changes: Array, at_rest: float, squared: float, margins: Array, duals_at: Callable[[Array], Array]
    ) -> None:
        self._changes = changes
        self._at_rest = at_rest
        self._squared = squared
        self._margins = margins
        self._duals_at = duals_at
        self.t = 0.0
        self.margins_there = self.duals_there = margins

    def slope(self, t: float) -> float:
        """d phi / dt at t."""
        self.t = t
        self.margins_there = self._margins + t * self._changes
        self.duals_there = self._duals_at(self.margins_there)
        return self._at_rest + t * self._squared - float(self.duals_there @ self._changes)

    def search(self, at_start: float) -> None:
        """Go where phi is nearly smallest; `at_start` is its slope at 0."""
        low, at_low, high, at_high = 0.0, at_start, math.inf, math.inf
        goal, t = FLAT * abs(at_low), 1.0
        for _ in range(MAX_TRIALS):
            at_t = self.slope(t)
            if abs(at_t) <= goal:
                return
            if at_t < 0:
                low, at_low = t, at_t
            else:
                high, at_high = t, at_t
            # Where a straight line between the two is 0, but not too near to either.
            share = min(max(at_low / (at_low - at_high), 0.1), 0.9) if at_low < at_high else 0.5
            t = 2.0 * low if high == math.inf else low + (high - low) * share
        self.slope(low if low > 0 else t)


class WideFinish(ABC):
    """Newton steps for one output, over all rows of the only task, or over some rows while all other duals stay.

    Args:
        rows: All local rows.
        loss: The loss.
        signs: +1 or -1, shape (num_rows,).
        upper: C_i, shape (num_rows,).
        alpha: Duals to begin with, shape (num_rows,), float64.
        outside: What other rows contribute to w(alpha), shape (num_columns,); 0 where there are none.
        tol: Relative gap at which to come back, however few the steps were.
        most_fruitless: Newton steps in a row without better duals, nor a smaller gradient, after which they are given
            up: rounding, most likely.

    Attributes:
        alpha: The best duals so far.
        w: w(alpha), shape (num_columns,).
        gap: Sum of their gap contributions.
    """

    def __init__(
        self,
        rows: WideRows,
        loss: Loss,
        signs: Array,
        upper: Array,
        alpha: Array,
        *,
        outside: Array | float = 0.0,
        tol: float = 0.0,
        most_fruitless: int,
    ) -> None:
        self._rows, self._loss = rows, loss
        self._signs = signs
        self._upper, self._most = upper, most_duals(loss, upper)
        self._outside = outside
        self._tol = tol
        self._most_fruitless, self._num_fruitless = most_fruitless, 0
        self._least_left = math.inf
        self.alpha = alpha
        self._point = self.w = self._w_of(alpha)
        self._margins = signs * rows.times(self.w)
        self.gap, self._primal = self._gap(self._margins, alpha, self.w)
        self._duals_there, self._w_of_duals = alpha, self.w

    def offer(self, alpha: Array) -> None:
        """Keep these duals, shape (num_rows,), if they are better; go on from their w if its P is smaller."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number is not better
            w = self._w_of(alpha)
            gap, primal = self._gap(self._signs * self._rows.times(w), alpha, w)
            if gap < self.gap:
                self.alpha, self.w, self.gap, self._primal, self._num_fruitless = alpha, w, gap, primal, 0
                if primal < self._primal_at_point():
                    self._go_back()

    def _go_back(self) -> None:
        """To the best duals, and their w."""
        self._point = self.w
        self._margins = self._signs * self._rows.times(self.w)
        self._duals_there = self._duals(self._margins)
        self._w_of_duals = self._w_of(self._duals_there)

    @property
    def is_stuck(self) -> bool:
        """Whether steps have led nowhere for long."""
        return self._num_fruitless >= self._most_fruitless

    @property
    def is_there(self) -> bool:
        """Say whether the gap is at most `tol` times P of these rows alone."""
        return self.gap <= self._tol * self._primal

    @property
    def relative_gap(self) -> float:
        """The gap as a share of P of these rows alone."""
        return float(self.gap / max(self._primal, TINY))

    @property
    def relative_left(self) -> float:
        """How far the steps have got, for the race: the gap, as a share of P."""
        return self.relative_gap

    def _primal_at_point(self) -> float:
        """P of the w of the last step, which is not that of the best duals."""
        return self._losses(self._margins) + 0.5 * float(self._point @ self._point)

    def run(
        self, is_spent: Callable[[], bool], goal: float | None = None, *, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Newton steps until the gap is small enough, or `STEPS_PER_ITERATION`; at least one.

        Args:
            is_spent: Whether to end with what there is, in the middle of a step, too.
            is_over: Whether to begin no further step.
            goal: Gap that is small enough; by default `tol` times P of these rows alone.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number is not taken
            self._duals_there = self._duals(self._margins)
            self._w_of_duals = self._w_of(self._duals_there)
            for _ in range(STEPS_PER_ITERATION):
                self._step(is_spent)
                is_there = self.is_there if goal is None else self.gap <= goal
                if is_there or self.is_stuck or is_spent() or is_over():
                    return

    @abstractmethod
    def _duals(self, margins: Array) -> Array:
        """The duals that phi has at these margins, shape (num_rows,)."""

    @abstractmethod
    def _curvatures(self, margins: Array, duals: Array) -> Array:
        """c_i there, shape (num_rows,)."""

    def _losses(self, margins: Array) -> float:
        return float(primal_losses(self._loss, margins, self._upper).sum())

    def _dual_value(self, alpha: Array) -> float:
        return float(dual_values(self._loss, alpha, self._upper).sum())

    def _room(self, alpha: Array) -> Array:
        """How far duals are from their bounds, shape (num_rows,)."""
        return alpha if self._most is None else np.minimum(alpha, self._most - alpha)

    def _clipped(self, alpha: Array) -> Array:
        """Duals within their bounds."""
        clipped = np.maximum(alpha, 0.0)
        return clipped if self._most is None else np.minimum(clipped, self._most, out=clipped)

    @abstractmethod
    def _eta(self, gradient: Array) -> float:
        """Residual of conjugate gradients, as a share of the gradient."""

    def _w_of(self, alpha: Array) -> Array:
        return self._outside + self._rows.weighted_sum(self._signs * alpha)

    def _gap(self, margins: Array, alpha: Array, w: Array) -> tuple[float, float]:
        """Sum of gap contributions where w = w(alpha): of losses, duals, and duals times margins; and P."""
        losses = self._losses(margins)
        gap = losses - self._dual_value(alpha) + float((w - self._outside) @ w)
        return gap, losses + 0.5 * float(w @ w)

    def _step(self, is_spent: Callable[[], bool]) -> None:
        rows, w = self._rows, self._point
        rows.work.add(STEP_VALUES)
        duals, w_of_duals = self._duals_there, self._w_of_duals
        curvatures = self._curvatures(self._margins, duals)
        gradient = w - w_of_duals
        direction = rows.direction(curvatures, gradient, self._eta(gradient), is_spent)
        changes = self._signs * rows.times(direction)
        if not np.isfinite(changes).all():
            self._num_fruitless = self._most_fruitless
            return
        self._num_fruitless += 1
        left = 0.5 * float(gradient @ gradient)
        if left <= SMALLER * self._least_left:
            self._least_left, self._num_fruitless = left, 0
        if left <= FAR * self.gap:
            self._try(curvatures * changes, w + direction)
        line = SearchLine(
            changes=changes,
            at_rest=float((w - self._outside) @ direction),
            squared=float(direction @ direction),
            margins=self._margins,
            duals_at=self._duals,
        )
        line.search(float(gradient @ direction))
        self._point = w + line.t * direction
        self._margins = line.margins_there
        self._move_duals(line.duals_there)

    def _move_duals(self, duals: Array) -> None:
        """phi has these duals now; rows whose dual stays are not read."""
        self._w_of_duals = self._w_of_duals + self._rows.weighted_sum(self._signs * (duals - self._duals_there))
        self._duals_there = duals

    def _try(self, change: Array, goal: Array) -> None:
        """Keep the duals of phi less `change`, made feasible and corrected, if they are better.

        Args:
            change: Shape (num_rows,).
            goal: Where the step leads, shape (num_columns,).
        """
        candidate = self._corrected(self._clipped(self._duals_there - change), goal)
        w = self._w_of(candidate)
        gap, primal = self._gap(self._signs * self._rows.times(w), candidate, w)
        if gap < self.gap:
            self.alpha, self.w, self.gap, self._primal, self._num_fruitless = candidate, w, gap, primal, 0

    def _corrected(self, alpha: Array, goal: Array) -> Array:
        """Duals moved within their bounds, by the least that brings w(alpha) to `goal` in the heaviest columns.

        Least by their room: that of alpha_i is moved by room_i <x_i, b> for some b over these columns.
        """
        heavy = self._rows.heavy
        if heavy is None:
            return alpha
        outside = np.broadcast_to(self._outside, len(goal))[heavy.columns]
        error = outside + heavy.weighted_sum(self._signs * alpha) - goal[heavy.columns]
        room = self._room(alpha)
        inside = np.flatnonzero(room)
        products = heavy.products_of(inside, room[inside])
        diagonal = np.diag(products)
        products = products + np.diag(np.where(diagonal > 0, RIDGE * diagonal, 1.0))
        factor = cholesky_factor(products)
        if factor is None:
            return alpha
        b = cholesky_solve(factor, error)
        moved = alpha - room * self._signs * heavy.times(b)
        return self._clipped(moved) if np.isfinite(b).all() else alpha
