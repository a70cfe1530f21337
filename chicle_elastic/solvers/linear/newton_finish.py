"""A Newton finish for problems on which coordinate descent crawls (weak regularisation, nearly collinear features).

Coordinate descent needs few passes while the duals are far from their bounds and very many when margins of many samples
are close to 1 at once. There w has few coordinates compared with the duals, so the whole problem is solved in w. For
the smooth losses that is Newton's method on P. The hinge is made smooth by the proximal point method on the dual
(Rockafellar 1976; for SVMs: Yin and Li 2019, "A semismooth Newton method for support vector classification"): a step
maximises D(a) - |a - alpha|^2 / (2 tau) over the box, whose optimum is a(w) for the w that minimises

    phi(w) = 1/2 |w|^2 + sum_i max_{0 <= a <= C_i} a (1 - m_i) - (a - alpha_i)^2 / (2 tau)

with gradient w - sum_i a_i(w) y_i x_i and second derivative I + sum_i c_i(w) x_i x_i^T, where c_i = tau while a_i is
strictly between its bounds, else 0. tau grows, and the steps become exact.

A step along the Newton direction d is as long as makes phi smallest on the line, nearly. Its slope there needs no row:
margins change by the products of the rows with d, which are found once.

Wide sparse data has a finish of its own (`wide.finish`). Either needs all samples in one task. When it pays is decided
by `Pace`, from counts of values and never from times, so that the same seed gives the same model.
"""

import math
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dposv

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.curved_sum import ROWS_PER_PRODUCT, CurvedSum
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, primal_losses
from chicle_elastic.solvers.linear.rows import NewtonRows
from chicle_elastic.solvers.linear.slopes import slopes_of

MAX_NEWTON_STEPS = 30
RELATIVE_GRADIENT = 1e-6
FLAT = 0.3
"""A point on the line is good when the slope there is this share of the slope at its beginning."""
MAX_TRIALS = 12
FAR = 0.5
"""A margin so far on the safe side of 1 is not expected to come back within a step."""
LOST, SHORTER = 1e-2, 0.04
"""A step after which w and w(alpha) differ by this share is not taken, and the next tau is so much smaller."""
ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""Share of the root of a sum of squares, of duals or of tau, that is rounding."""
MOST_KEPT_VALUES = 1 << 22
"""Values of the second derivatives of all outputs up to which they are kept from step to step: 32 MiB."""
MAX_FEATURES = 2047
"""Features up to which a matrix of second derivatives is made."""
FEWEST_PASSES, MOST_PASSES = 2, 5
"""Passes over which the pace is measured: the last half of all, within these bounds. Single passes say little, and old
ones little of the present pace."""
NEWTON_STEPS = 12
"""Newton steps over all rows that a finish takes, typically."""
SLACKENING = 2.0
"""Passes that are needed, as a multiple of those at the present pace: it falls until few duals are left that move."""
SLACK = 0.6
"""Share of the gap that a pass leaves, from which on gaps may fall as a power of the number of passes."""
ROW_VALUES = 32
"""What a visit costs besides the values of the row, as a number of values: the step waits for the margin."""
LOOK_VALUES = 8
"""What it costs not to visit a row."""
BLAS_ADVANTAGE = 8
"""Multiplications of a matrix product in the time of one value of a pass, which waits for the value before it."""
CALL_VALUES = 1 << 17
"""What it costs to begin a pass or a step at all, as a number of values."""
FAST_STEPS = 6
"""After so few Newton steps the proximal step was easy, and the next one may be longer."""


class Pace:
    """How fast coordinate descent gets on, and whether a Newton finish would be cheaper."""

    def __init__(self) -> None:
        self._gaps: list[float] = []
        self._visits: list[int] = []

    def add(self, relative_gap: float, visited: int) -> None:
        """Learn the relative gap that a pass estimated, and how many rows it visited (over all outputs)."""
        self._gaps.append(relative_gap)
        self._visits.append(visited)

    @property
    def _window(self) -> int:
        return min(max(FEWEST_PASSES, len(self._gaps) // 2), MOST_PASSES)

    def visited(self) -> float:
        """Rows that a pass visits at present: all of them in the rare pass after a certificate only."""
        return statistics.median(self._visits[-self._window :])

    def passes_to(self, tol: float) -> float:
        """Passes still needed at the present pace; 0 while there were too few to tell, infinity without progress."""
        window = self._window
        if len(self._gaps) <= window or self._gaps[-1] <= tol:
            return 0.0
        before, now = self._gaps[-1 - window], self._gaps[-1]
        return window * math.log(now / max(tol, 1e-16)) / math.log(before / now) if now < before else math.inf

    def passes_by_power(self, tol: float) -> float:
        """The same where gaps fall as a power of the number of passes, as they do where some columns are heavy.

        It counts only once a pass leaves so much of the gap that this may be so (`SLACK`).
        """
        window = self._window
        if self.passes_to(tol) in (0.0, math.inf) or self._gaps[-1] < SLACK * self._gaps[-2]:
            return self.passes_to(tol)
        count = len(self._gaps)
        power = math.log(self._gaps[-1 - window] / self._gaps[-1]) / math.log(count / (count - window))
        exponent = math.log(self._gaps[-1] / max(tol, 1e-16)) / power
        return count * math.expm1(min(exponent, 100.0))

    def _in_passes_of_now(self, passes: float) -> float:
        """What so many passes cost, as a number of passes like the last ones: screening leaves more and more rows out.

        By the last two passes, or by medians of three, because the pass after a certificate visits all rows.
        """
        if len(self._visits) < 4:
            return passes
        before, now = statistics.median(self._visits[-6:-3]), statistics.median(self._visits[-3:])
        share = min((now / max(before, 1)) ** (1 / 3), self._visits[-1] / max(self._visits[-2], 1))
        return passes if share >= 1.0 else (1.0 - share**passes) / (1.0 - share)

    def is_slow(
        self,
        tol: float,
        *,
        num_duals: int,
        row_values: float,
        hessian_values: int,
        num_steps: int = NEWTON_STEPS,
        is_wide: bool = False,
    ) -> bool:
        """Whether the passes to come cost more than `num_steps` Newton steps.

        Args:
            tol: Relative gap to reach.
            num_duals: Duals of all outputs.
            row_values: Feature values of a row.
            hessian_values: What solving with the second derivatives costs in a Newton step, as a number of values.
            num_steps: That a finish takes, typically.
            is_wide: Whether gaps may fall as a power of the number of passes, and passes come to visit ever fewer rows.
        """
        passes = SLACKENING * self.passes_to(tol)
        if is_wide:
            passes = self._in_passes_of_now(max(passes, self.passes_by_power(tol)))
        a_pass = self.visited() * (row_values + ROW_VALUES) + LOOK_VALUES * num_duals + CALL_VALUES
        a_step = 1.5 * num_duals * row_values + hessian_values + CALL_VALUES
        return passes * a_pass > num_steps * a_step


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
            share = min(max(at_low / (at_low - at_high), 0.1), 0.9)
            t = 2.0 * low if high == math.inf else low + (high - low) * share
        self.slope(low if low > 0 else t)


class NewtonFinish:
    """Proximal Newton steps over the local samples of the only task.

    Args:
        loss: The loss.
        taus: First tau per output, shape (outputs,).
        most_steps: Newton steps of a proximal step, at most.
    """

    def __init__(self, loss: Loss, taus: Array, *, most_steps: int = MAX_NEWTON_STEPS) -> None:
        self.loss = loss
        self.taus = taus
        self.most_steps = most_steps
        self._sums = [CurvedSum() for _ in taus]

    def raise_bounds(self, taus: Array) -> None:
        """All C_i have grown: go on from the same duals.

        Args:
            taus: Next tau per output, shape (outputs,).
        """
        self.taus = taus

    def step(
        self,
        rows: NewtonRows,
        signs: Array,
        upper: Array,
        alpha: Array,  # OUT
        w: Array,
        k: int,
        is_spent: Callable[[], bool],
    ) -> tuple[Array, float]:
        """One proximal step of output `k`.

        Args:
            rows: All local rows.
            signs: +1 or -1, shape (num_rows,).
            upper: C_i, shape (num_rows,).
            alpha: Duals, shape (num_rows,), float64; overwritten by the new ones.
            w: Present w of this output, shape (D,).
            k: The output.
            is_spent: Whether to end with what there is.

        Returns:
            w(alpha) of the new duals, or w where that is much better, shape (D,), and the sum of gap contributions.
        """
        old, tau, start = alpha.copy(), float(self.taus[k]), w
        margins = signs * rows.times(w)
        is_near = self._is_near(margins, old, upper)
        num_steps = 0
        is_kept = self.loss is Loss.HINGE and len(self.taus) * rows.num_columns**2 <= MOST_KEPT_VALUES
        while True:
            near = np.flatnonzero(is_near)
            base = rows.weighted_sum(np.where(is_near, 0.0, signs * old))
            w, steps = self._minimise(
                rows.subset(near), signs[near], upper[near], old[near], margins[near], base, w, tau, is_spent,
                partial(self._sum_over, k, rows, near) if is_kept else None,
            )  # fmt: skip
            num_steps += steps
            margins = signs * rows.times(w)
            alpha[:] = self._duals(margins, old, upper, tau)
            is_near |= alpha != old
            if len(near) == np.count_nonzero(is_near) or is_spent():
                break
        rebuilt = rows.weighted_sum(signs * alpha)
        if steps == self.most_steps and np.linalg.norm(w - rebuilt) > LOST * np.linalg.norm(rebuilt):
            # Too long a step to be found: nothing has happened, and the next one is shorter.
            self.taus[k] *= SHORTER
            alpha[:], w = old, start
            rebuilt, margins = rows.weighted_sum(signs * old), signs * rows.times(start)
        else:
            self.taus[k] *= 5.0 if num_steps <= FAST_STEPS else 2.0
        gap = self.gap(rows, signs, upper, alpha, rebuilt)
        change = w - rebuilt
        gap_of_w = self._gap(margins, alpha, upper) + 0.5 * float(change @ change)
        # A long step makes rounding of margins one of tau times that in free duals; then w itself is the model.
        sizes = alpha + np.where((alpha > 0) & (alpha < upper), tau, 0.0)
        if gap_of_w < LOST * gap and change @ change < ROUNDING**2 * rows.squares_sum(sizes * sizes).sum():
            return w, gap_of_w
        return rebuilt, gap

    def gap(self, rows: NewtonRows, signs: Array, upper: Array, alpha: Array, w: Array) -> float:
        """Sum of gap contributions where w = w(alpha); arguments as in `step`."""
        return self._gap(signs * rows.times(w), alpha, upper)

    def _gap(self, margins: Array, alpha: Array, upper: Array) -> float:
        gap = primal_losses(self.loss, margins, upper) - dual_values(self.loss, alpha, upper) + alpha * margins
        return float(gap.sum())

    def _is_near(self, margins: Array, old: Array, upper: Array) -> Array:
        """Samples whose duals may well change; that of the others did not is checked afterwards. Shape (n,), bool."""
        if self.loss is Loss.LOGISTIC:
            return np.ones(len(margins), dtype=bool)
        is_far = (old == 0) & (margins > 1.0 + FAR)
        if self.loss is Loss.HINGE:
            is_far |= (old == upper) & (margins < 1.0 - FAR)
        return np.asarray(~is_far)

    def _minimise(
        self,
        rows: NewtonRows,
        signs: Array,
        upper: Array,
        old: Array,
        margins: Array,
        base: Array,
        w: Array,
        tau: float,
        is_spent: Callable[[], bool],
        sum_over: Callable[[Array], Array] | None,
    ) -> tuple[Array, int]:
        """w that minimises phi, where the samples that are not given contribute `base` to w(alpha); and steps taken."""
        num_steps = 0
        alpha = self._duals(margins, old, upper, tau)
        while True:
            rest = w - base
            gradient = rest - rows.weighted_sum(signs * alpha)
            # The new w is w(alpha), so the two must be one for practical purposes.
            is_there = gradient @ gradient <= RELATIVE_GRADIENT**2 * (w @ w)
            if is_there or num_steps == self.most_steps or is_spent():
                return w, num_steps
            direction = self._direction(rows, gradient, alpha, margins, upper, tau, sum_over)
            line = SearchLine(
                changes=signs * rows.times(direction),
                at_rest=float(rest @ direction),
                squared=float(direction @ direction),
                margins=margins,
                duals_at=lambda margins: self._duals(margins, old, upper, tau),
            )
            line.search(float(gradient @ direction))
            w = w + line.t * direction
            margins, alpha = line.margins_there, line.duals_there
            num_steps += 1

    def _duals(self, margins: Array, old: Array, upper: Array, tau: float) -> Array:
        """a(w) of samples with these margins, shape (n,)."""
        if self.loss is Loss.HINGE:
            free = old + tau * (1.0 - margins)
            return np.minimum(np.maximum(free, 0.0, out=free), upper, out=free)
        return slopes_of(self.loss, margins, upper)[0]

    def _sum_over(self, k: int, rows: NewtonRows, near: Array, curved: Array) -> Array:
        """Sum of x_i x_i^T over the rows `near[curved]`, see `CurvedSum`."""
        chosen = np.zeros(rows.num_rows, dtype=bool)
        chosen[near[curved]] = True
        return self._sums[k].over(rows, chosen)

    def _direction(
        self,
        rows: NewtonRows,
        gradient: Array,
        alpha: Array,
        margins: Array,
        upper: Array,
        tau: float,
        sum_over: Callable[[Array], Array] | None = None,
    ) -> Array:
        """The Newton direction -H^-1 g, H = I + sum_i c_i x_i x_i^T at these margins and duals, shape (D,).

        With `sum_over` the sum of the hinge is one that is kept.
        """
        if self.loss is Loss.HINGE:
            curved = np.flatnonzero((alpha > 0) & (alpha < upper))
            scales: Array | float = math.sqrt(tau)  # the same for all
        else:
            curvatures = slopes_of(self.loss, margins, upper)[1]
            curved = np.flatnonzero(curvatures)
            scales = np.sqrt(curvatures[curved])[:, None]
        if not len(curved):
            return -gradient
        if len(curved) < rows.num_columns:
            # H is I plus few rows z_i = sqrt(c_i) x_i, so that H^-1 = I - Z^T (I + Z Z^T)^-1 Z (Woodbury).
            z_FD = rows.dense(curved)
            z_FD *= scales
            _, solution, fault = dposv(_plus_identity(z_FD @ z_FD.T), z_FD @ gradient, overwrite_a=1)
            direction = solution @ z_FD - gradient
        elif sum_over is not None:
            _, direction, fault = dposv(_plus_identity(tau * sum_over(curved)), -gradient, overwrite_a=1)
        else:
            hessian = _plus_identity(np.zeros((rows.num_columns, rows.num_columns), order="F"))
            for start in range(0, len(curved), ROWS_PER_PRODUCT):
                part = slice(start, start + ROWS_PER_PRODUCT)
                z_FD = rows.dense(curved[part])
                z_FD *= scales if isinstance(scales, float) else scales[part]
                hessian = dsyrk(1.0, z_FD.T, beta=1.0, c=hessian, overwrite_c=1)
            _, direction, fault = dposv(hessian, -gradient, overwrite_a=1)
        return -gradient if fault else direction  # a fault: more digits than float64 has


def _plus_identity(matrix: Array) -> Array:
    """The square matrix itself, with 1 added to its diagonal."""
    matrix.ravel(order="K")[:: len(matrix) + 1] += 1.0
    return matrix
