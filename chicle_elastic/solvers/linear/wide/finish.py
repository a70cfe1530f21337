"""Newton steps of one task: on problems on which coordinate descent crawls.

The whole problem is solved in w. A step minimises phi along a Newton direction: exact where a matrix of second
derivatives can be made, else found by conjugate gradients (`rows`). For smooth losses phi is P. The hinge is made
smooth by the proximal point method on the dual (`WideHinge`).

What is certified is not w at the end of a step: margins there are not yet those of the duals. It is w(alpha) of the
duals one Newton step on, a - c (change of the margin), clipped into their bounds. Clipping, and what conjugate
gradients have left, would spoil these duals where columns are heavy: a dual that is off by a little moves w there by
thousands of times as much. So duals inside of their bounds are moved once more, by the least that brings w(alpha) in
the heaviest columns to where the step leads. The best duals so far are in the chunks. Rows that other tasks have may
stay as they are (`outside`).
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.kernels.tables import DenseKind
from chicle_elastic.solvers.linear.certified import LEAST_FALL, MOST_INNER, MOST_LEFT
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES, MOST_COLUMNS
from chicle_elastic.solvers.linear.newton.steps import DAMPED
from chicle_elastic.solvers.linear.objectives import SLIGHT, TINY, Loss, dual_values, primal_losses, slopes_of
from chicle_elastic.solvers.linear.products import (
    ALL,
    add_dense_products,
    cholesky_factor,
    cholesky_solve,
    packed_diagonal,
    unpack,
)
from chicle_elastic.solvers.linear.race import DENSE_VALUE, MULTIPLICATION, PASS_VALUES
from chicle_elastic.solvers.linear.rows import NewtonRows
from chicle_elastic.solvers.linear.tables import LocalTables
from chicle_elastic.solvers.linear.wide.rows import MOST_COPIED_VALUES, WIDE_STEP, WideRows, with_columns

STEPS_PER_ITERATION = 16
"""Newton steps at most before the runtime is asked what next; with 8 fits take a quarter more iterations. And lengths
that a step tries at most."""
FAR = 10.0
"""Share of the gap of the best duals that 1/2 |gradient|^2 is, beyond which the duals one step on are not looked at. On
dense rows of 40 to 500 columns 6 of 133 were better there, by a factor of 1.5 at most; of those below it 26 of 99."""
GROWTH = 4.0
"""Factor of tau where one step was enough for the centers; half of it where it took two, 1 where it took more."""


def bytes_of_steps(num_rows: int, num_outputs: int) -> int:
    """Return what the steps take: per output duals and margins of the best w and of the last one and the centers, and
    once what a step has at work. Measured: 11M x 28, hinge, 15 values a row with C_i and signs.
    """
    return 8 * num_rows * (8 + 5 * num_outputs)


class WideFinish:
    """Newton steps for one output, over all rows of the only task, or over some rows while all other duals stay.

    Here phi is P, of a smooth loss. `alpha` are the best duals so far, `w` is theirs, `gap` the sum of their gap
    contributions, `primal` P of w and all rows.
    """

    # Newton steps in a row without better duals, nor a smaller gradient, after which they are given up: rounding, most
    # likely
    most_fruitless: ClassVar[int] = 30

    def __init__(
        self,
        rows: WideRows,  # all local rows
        loss: Loss,  # the loss
        signs: Array,  # +1 or -1, shape (num_rows,)
        upper: Array,  # C_i, shape (num_rows,)
        alpha: Array,  # duals to begin with, shape (num_rows,), float64
        *,
        outside: Array,  # what other rows contribute to w(alpha), shape (num_columns,)
        other_duals: float = 0.0,  # the dual values of these rows
        tol: float = 0.0,  # relative gap at which to come back, however few the steps were
    ) -> None:
        self._rows, self._loss, self._signs, self._tol = rows, loss, signs, tol
        self._upper, self._most = upper, None if loss.most_slope == np.inf else loss.most_slope * upper
        self._outside, self._other_duals = outside, other_duals
        self._num_fruitless, self._least_left = 0, math.inf
        self.gap = self.primal = math.inf
        self._keep(alpha, in_any_case=True)
        self._go_back()

    def offer(self, alpha: Array) -> None:
        """Keep these duals, shape (num_rows,), if they are better; go on from their w if its P is smaller."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number is not better
            primal = self._primal_at(self._margins, self._point)
            if self._keep(alpha) and self._primal_at(self._margins_of_w, self.w) < primal:
                self._go_back()

    def _keep(self, alpha: Array, *, in_any_case: bool = False) -> bool:
        """Take these duals if they are better."""
        w = self._outside + self._rows.weighted_sum(self._signs * alpha)
        margins = self._signs * self._rows.times(w)
        of_duals = float(dual_values(self._loss, alpha, self._upper).sum())
        gap = self._losses(margins) - of_duals + float((w - self._outside) @ w)
        if not (gap < self.gap or in_any_case):
            return False
        self.alpha, self.w, self.gap, self._margins_of_w, self._num_fruitless = alpha, w, gap, margins, 0
        self.primal = gap + of_duals + self._other_duals - 0.5 * float(w @ w)
        return True

    def _go_back(self) -> None:
        """To the w of the best duals."""
        self._point, self._margins = self.w, self._margins_of_w

    def _look(self) -> None:
        """Find the duals of phi, and their w, without the rounding of the steps before."""
        self._duals_there = self._duals(self._margins)
        self._w_of_duals = self._outside + self._rows.weighted_sum(self._signs * self._duals_there)

    @property
    def is_stuck(self) -> bool:
        """Whether steps have led nowhere for long."""
        return self._num_fruitless >= self.most_fruitless

    @property
    def relative_gap(self) -> float:
        """The gap as a share of P."""
        return float(self.gap / max(self.primal, TINY))

    @property
    def is_there(self) -> bool:
        """Say whether the gap is small enough."""
        return self.relative_gap <= self._tol

    @property
    def relative_left(self) -> float:
        """Return for the race the gap of the best duals and the w of the last step, which falls with every step."""
        dual = self.primal - self.gap
        gap = min(self.gap, max(self._primal_at(self._margins, self._point) - dual, 0.0))
        return float(gap / max(gap + dual, TINY))

    def run(self, is_spent: Callable[[], bool], *, is_over: Callable[[], bool] = lambda: False) -> None:
        """Take a step, and more until the gap is small, or `STEPS_PER_ITERATION`; `is_spent` also ends one amid it."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number is not taken
            self._look()
            for _ in range(STEPS_PER_ITERATION):
                self._step(is_spent)
                if self.is_there or self.is_stuck or is_spent() or is_over():
                    return

    def _duals(self, margins: Array) -> Array:
        """Find the duals that phi has at these margins, shape (num_rows,)."""
        return slopes_of(self._loss, margins, self._upper)[0]

    def _curvatures(self, margins: Array, duals: Array) -> Array:
        """c_i there, shape (num_rows,)."""
        return slopes_of(self._loss, margins, self._upper)[1]

    def _losses(self, margins: Array) -> float:
        return float(primal_losses(self._loss, margins, self._upper).sum())

    def _primal_at(self, margins: Array, w: Array) -> float:
        """P of these rows."""
        return self._losses(margins) + 0.5 * float(w @ w)

    def _clipped(self, alpha: Array) -> Array:
        """Duals within their bounds."""
        clipped = np.maximum(alpha, 0.0)
        return clipped if self._most is None else np.minimum(clipped, self._most, out=clipped)

    def _step(self, is_spent: Callable[[], bool]) -> None:
        rows, w = self._rows, self._point
        rows.work += PASS_VALUES
        curvatures = self._curvatures(self._margins, self._duals_there)
        gradient = w - self._w_of_duals
        direction = rows.direction(curvatures, gradient, is_spent)
        changes = self._signs * rows.times(direction)
        if not np.isfinite(changes).all():
            self._num_fruitless = self.most_fruitless
            return
        self._num_fruitless += 1
        left = 0.5 * float(gradient @ gradient)
        if left <= LEAST_FALL * self._least_left:
            self._least_left, self._num_fruitless = left, 0
        if left <= FAR * self.gap:
            self._keep(self._corrected(self._clipped(self._duals_there - curvatures * changes), w + direction))
        self._go_along(direction, changes, float(gradient @ direction))

    def _go_along(self, direction: Array, changes: Array, at_start: float) -> None:
        """Go where phi is nearly smallest: its slope rises from `at_start`, and finding it reads no row."""
        at_rest, squared = float((self._point - self._outside) @ direction), float(direction @ direction)
        low, at_low, high, at_high, t = 0.0, at_start, math.inf, math.inf, 1.0
        for trial in range(STEPS_PER_ITERATION + 1):
            t = low or t if trial == STEPS_PER_ITERATION else t
            margins = self._margins + t * changes
            duals = self._duals(margins)
            at_t = at_rest + t * squared - float(duals @ changes)
            if abs(at_t) <= MOST_LEFT * abs(at_start) or trial == STEPS_PER_ITERATION:
                break
            if at_t < 0:
                low, at_low = t, at_t
            else:
                high, at_high = t, at_t
            # Where a straight line between the two is 0, but not too near to either.
            share = min(max(at_low / (at_low - at_high), 0.1), 0.9) if at_low < at_high else 0.5
            t = 2.0 * low if high == math.inf else low + (high - low) * share
        self._point, self._margins = self._point + t * direction, margins
        self._move_duals(duals)

    def _move_duals(self, duals: Array) -> None:
        """phi has these duals now; rows whose dual stays are not read."""
        self._w_of_duals = self._w_of_duals + self._rows.weighted_sum(self._signs * (duals - self._duals_there))
        self._duals_there = duals

    def _corrected(self, alpha: Array, goal: Array) -> Array:
        """Move duals within their bounds, by the least that brings w(alpha) to `goal` in the heaviest columns.

        Least by their room, how far they are from their bounds: that of alpha_i is moved by room_i <x_i, b> for some b
        over these columns.
        """
        if self._rows.heavy is None:
            return alpha
        room = alpha if self._most is None else np.minimum(alpha, self._most - alpha)
        if not room.any():
            return alpha
        columns, values = self._rows.heavy
        error, size = self._outside[columns] + (self._signs * alpha) @ values - goal[columns], len(columns)
        packed = np.zeros(size * (size + 1) // 2)
        add_dense_products([values], room, ALL, None, packed)
        products, diagonal = unpack(packed, size), packed_diagonal(packed, size)
        products.ravel()[:: size + 1] += np.where(diagonal > 0, SLIGHT * diagonal, 1.0)  # columns may be alike
        factor = cholesky_factor(products)
        if factor is None:
            return alpha
        b = cholesky_solve(factor, error)
        return self._clipped(alpha - room * self._signs * (values @ b)) if np.isfinite(b).all() else alpha


class WideHinge(WideFinish):
    """Newton steps of the hinge, by the proximal point method on the dual (Rockafellar 1976; for SVMs: Yin and Li 2019,
    "A semismooth Newton method for support vector classification and regression").

    A step maximises D(a) - sum_i (a_i - alpha_i)^2 / (2 tau_i) over the box, tau_i = tau C_i, whose optimum is a(w) for
    the w that minimises

        phi(w) = 1/2 |w|^2 + sum_i max_{0 <= a <= C_i} a (1 - m_i) - (a - alpha_i)^2 / (2 tau_i)

    with gradient w - sum_i a_i(w) y_i x_i and second derivative I + sum_i c_i(w) x_i x_i^T, where c_i = tau_i while a_i
    is strictly between its bounds, else 0. tau grows, and the steps become exact.

    The centers move as soon as the part of the gap that comes from w not being the minimum of phi is a small part of
    it, at most 1/2 |gradient|^2, because phi is 1-strongly convex; tau grows the more the easier the last centers were.
    """

    most_fruitless = MOST_INNER  # digits at C=1e5 have up to 60 while centers move and tau grows

    def __init__(self, rows: WideRows, *of_rows: Any, **others: Any) -> None:
        self.tau, self._num_inner = rows.first_tau, 0
        super().__init__(rows, *of_rows, **others)

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


MAX_FEATURES = MOST_COLUMNS - 1  # Features up to which a matrix of second derivatives is made
MOST_VALUES = 4 * MOST_BLOCK_VALUES  # of rows, and of products of rows, up to which these products are made: 128 MiB


def step_work(tables: LocalTables) -> float:
    """Return what a Newton step of one output costs, at most where columns are few, roughly where they are many."""
    D, n = tables.rows.num_features + 1, tables.num_rows
    if D <= MAX_FEATURES + 1:
        return PASS_VALUES + MULTIPLICATION * (n / 2 + D / 3) * D * D
    if is_exact(tables):
        return PASS_VALUES + MULTIPLICATION * n**3 / 3 + 4 * DENSE_VALUE * tables.num_values
    return float(PASS_VALUES + WIDE_STEP * tables.num_values)


def is_exact(tables: LocalTables) -> bool:
    """Say whether a matrix of products of all columns, or of all dense rows, can be made."""
    if tables.rows.num_features <= MAX_FEATURES:
        return True
    return _is_dense(tables) and max(tables.num_rows**2, tables.num_values) <= MOST_VALUES


def has_steps(tables: LocalTables) -> bool:
    """Say whether there are Newton steps over such rows: over large dense wide ones they do not come to an end, and
    beside rows in files there is no memory for what they keep of each.
    """
    return not tables.are_in_files and (is_exact(tables) or not _is_dense(tables))


def _is_dense(tables: LocalTables) -> bool:
    return isinstance(tables.rows.kind, DenseKind)


class LocalNewton:
    """Begins at the duals of the only task, and ends the steps of an output at the relative gap `tol`."""

    def __init__(self, local: LocalData, tol: float) -> None:
        tables, loss, upper = local.tables, local.loss, local.upper
        num_features, num_outputs = tables.rows.num_features, tables.num_outputs
        is_kept = (loss is Loss.HINGE or loss.has_kinks) and num_outputs * num_features**2 // 2 <= MOST_BLOCK_VALUES
        whole: Any = local.rows
        self._local, self._outside = local, local.outside
        self._columns = np.arange(num_features + 1)
        if whole.is_sparse and num_features > MAX_FEATURES and tables.num_values <= MOST_COPIED_VALUES:
            matrix = whole.taken(np.arange(tables.num_rows))
            matrix, self._columns = with_columns(matrix, np.bincount(matrix.indices, minlength=num_features + 1) > 0)
            whole = NewtonRows(matrix)
        self._rows: list[WideRows] = []
        self.finishes: list[WideFinish] = []
        for k in range(num_outputs):
            if num_features <= MAX_FEATURES or not k:  # each has second derivatives of its own
                full = upper if is_kept else None
                rows = WideRows(whole, tables.num_values, is_exact=is_exact(tables), full=full)
                self._rows.append(rows)
            kind = WideHinge if loss is Loss.HINGE else WideFinish
            outside, others = self._outside[k, self._columns], float(local.other_duals[k])
            finish = kind(
                rows, loss, local.signs[k], upper, local.duals(k), outside=outside, other_duals=others, tol=tol
            )
            self.finishes.append(finish)

    @property
    def work(self) -> float:
        """Return what all steps have cost so far."""
        return sum(rows.work for rows in self._rows)

    @property
    def is_stuck(self) -> bool:
        """Say whether the steps of an output have led nowhere for long."""
        return any(finish.is_stuck for finish in self.finishes)

    @property
    def gaps(self) -> Array:
        """Return the gaps of the best duals and their w, shape (outputs,)."""
        return np.array([finish.gap for finish in self.finishes])

    @property
    def relative_gaps(self) -> Array:
        """The same, as shares of P."""
        return np.array([finish.relative_gap for finish in self.finishes])

    @property
    def relative_left(self) -> Array:
        """How far the steps of each output have got."""
        return np.array([finish.relative_left for finish in self.finishes])

    def w(self) -> Array:
        """w of these duals, shape (outputs, num_features + 1)."""
        found = self._outside.copy()
        for k, finish in enumerate(self.finishes):
            found[k, self._columns] = finish.w
        return found

    def offer(self, w: Array) -> None:
        """Go on from the duals in the chunks, whose w this is, where they are better."""
        for k, finish in enumerate(self.finishes):
            finish.offer(self._local.duals(k))

    def write_duals(self) -> None:
        """Leave the best duals in the chunks."""
        for k, finish in enumerate(self.finishes):
            self._local.write_duals(k, finish.alpha)

    def run(self, budget: Budget, is_over: Callable[[], bool]) -> None:
        """Take steps, at least one, until all outputs are at their goal, or as `WideFinish.run` says."""
        # At least one output, because an iteration that changes nothing would be repeated for ever.
        for finish in [finish for finish in self.finishes if not finish.is_there] or self.finishes:
            finish.run(budget.is_spent, is_over=is_over)
