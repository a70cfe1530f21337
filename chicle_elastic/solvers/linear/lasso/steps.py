"""How a lasso or elastic net goes on from the sums of a pass. Pure: no row is in sight.

The objective is that of scikit-learn's ElasticNet, with residuals r_i = y_i - <w, x_i> - b, weights s_i, their sum S,
l1 = alpha l1_ratio and l2 = alpha (1 - l1_ratio):

    P(w, b) = sum_i s_i r_i^2 / (2 S) + l1 |w|_1 + l2/2 |w|^2

The intercept is not penalised, so rows and targets are centred by weighted means, as in ridge regression. The rest goes
like this:

    EVALUATE   residuals at w, which give the gap and the gradient of all columns
    MULTIPLY   second derivatives of the working set, W
    SOLVE      One task minimises over the weights of W, from these sums alone (`subproblem`), and sends them. A task
               that has nobody to send them to does it at once.

Of narrow data W has all columns, and the first EVALUATE brings the second derivatives along: then one solution is all,
and sums do not depend on which task has a row. Of wide data W has the columns with a weight and those that are closest
to having one, as in Massias, Gramfort and Salmon 2018, "Celer: a fast solver for the lasso with dual extrapolation"; it
grows to twice the number of weights. More weights than W has room for are solved for in turns, the worst ones first.

The gradient is that of the rows and not of sums of products, so what these have lost to rounding (or to float32, of
dense float32 rows) is repaired by the next solution.

The gap. Duals a_i = c s_i r_i / S with residuals that add up to 0 by weight give, for any factor c,

    D = c <r, y_c>_s / S - c^2/2 <r, r>_s / S - sum_j max(|c v_j| - l1, 0)^2 / (2 l2)        v = X_c^T s r / S

and without l2 they have to be feasible: |c v_j| <= l1. Scaling the residual so is the dual point of Ndiaye et al. 2017,
"Gap safe screening rules for sparsity enforcing penalties". The best of a few factors is taken. Of large features the
residuals at any w are mostly rounding of w. Then the last solution is a change of w that is kept beside it, with digits
of its own, and the duals are those of w + change.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.certified import ROUNDING, TINY, has_progress
from chicle_elastic.solvers.linear.lasso.columns import working_set
from chicle_elastic.solvers.linear.lasso.state import LassoPhase, LassoState
from chicle_elastic.solvers.linear.lasso.subproblem import minimise, step_with_signs, worst_slope
from chicle_elastic.solvers.linear.methods import MOST_COLUMNS
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.products import symmetric

LEAST_SHARE = 0.05
"""Share of tol that is aimed at, at least."""
FIRST_COLUMNS = 256
"""Columns of the first working set."""
MOST_SET_COLUMNS = MOST_COLUMNS - 1
"""Columns of the working set at most."""
MOST_ABOVE = 1e-9
"""Share of P that D may be above it, for rounding."""
LEAST_FALL = 0.1
"""Share of the gap that a solution may leave where products are rough; if it leaves more, they are too rough."""

ROUGH_DIAGONAL = 1e-6
"""Share of the diagonal that is added to second derivatives of float32, which rounding may have made indefinite."""
SLOPE_SHARE = 0.05
"""Share of tol that slopes may be off at a solution, by l1."""
WIDE_SHARE = 0.01
"""Share of how far they were off that they may be where the working set may lack columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """Of the weights: l1 |w|_1 + l2/2 |w|^2."""

    l1: float
    l2: float

    def of(self, w: Array) -> float:
        """Its value."""
        return self.l1 * dot(np.abs(w), np.ones(len(w))) + 0.5 * self.l2 * squared(w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Sums over the residuals at w.

    Attributes:
        total: sum s r.
        losses: sum s r^2.
        squares: The same of the residuals of the duals, as everything below: those of w + change.
        products: sum s r (y - target_mean).
        part: sum s r x, shape (d,).
    """

    total: float
    losses: float
    squares: float
    products: float
    part: Array


def reopen(state: LassoState) -> None:
    """Begin anew at the present w: a certificate was not good enough, or other rows are there."""
    state.share = max(0.5 * state.share, LEAST_SHARE)
    state.num_refused += 1
    if state.num_refused > 1:  # solutions alone have not repaired it
        state.is_rough = False
        state.forget_products()
    _restart(state)


def _restart(state: LassoState) -> None:
    state.phase = LassoPhase.LOOK
    state.gap = state.primal = np.inf


def advance(
    state: LassoState, model: Array, sums: Array, *, penalty: Penalty, tol: float, has_intercept: bool
) -> Array:
    """Go on from the sums of a pass.

    Args:
        state: Of the pass; changed in place.
        model: w and b, shape (d + 1,).
        sums: See `LassoState.sums_size`.
        penalty: Of w.
        tol: Relative gap to reach.
        has_intercept: Whether b is anything but 0.

    Returns:
        The new w and b, of the same shape.
    """
    num_interrupted, num_rows, num_alone = sums[:HEAD].tolist()
    if num_interrupted > 0 or state.phase is LassoPhase.REST:  # the pass is made again
        return model
    if state.phase is LassoPhase.SOLVE:
        return _solved(state, model, sums[HEAD:])
    if state.phase is LassoPhase.LOOK:
        return _looked(state, model, sums[HEAD:], num_rows, has_intercept=has_intercept)
    if num_rows != state.num_rows:  # rows were lost or have come back: these are not their means
        state.forget_products()
        _restart(state)
    elif state.phase is LassoPhase.MULTIPLY:
        _multiplied(state, sums[HEAD:])
    else:
        _evaluated(state, model[:-1], sums[HEAD:], penalty, tol, has_intercept=has_intercept)
    if num_alone and state.phase is LassoPhase.SOLVE:
        return _solved(state, model, solution(state, model, penalty, tol=tol))
    return model


def with_intercept(state: LassoState, w: Array) -> Array:
    """w and the b that belongs to it, shape (d + 1,)."""
    return np.append(w, state.target_mean - dot(state.means, w))


def _looked(state: LassoState, model: Array, sums: Array, num_rows: float, *, has_intercept: bool) -> Array:
    d, weight = state.d, max(float(sums[0]), TINY)
    target_mean = float(sums[1]) / weight if has_intercept else 0.0
    means = sums[2 : 2 + d] / weight if has_intercept else np.zeros(d)
    old = (state.num_rows, state.total_weight, state.target_mean)
    if old != (num_rows, weight, target_mean) or not np.array_equal(means, state.means):
        state.forget_products()
    state.num_rows, state.total_weight, state.target_mean, state.means = num_rows, weight, target_mean, means
    if not state.is_narrow:
        state.norms = np.sqrt(np.maximum(sums[2 + d :] / weight - means * means, 0.0))
    state.phase = LassoPhase.EVALUATE
    w, state.change = model[:-1] + state.change, np.zeros(d)
    return with_intercept(state, w)


def bounds(
    state: LassoState, w: Array, sums: Residuals, penalty: Penalty, *, has_intercept: bool
) -> tuple[float, float, Array]:
    """P, the best D of some factors (0 where that of rounding is above P), and v, shape (d,), of the residuals at w."""
    S = state.total_weight
    primal = 0.5 * sums.losses / S + penalty.of(w)
    mean = sums.total / S if has_intercept else 0.0
    squares, products = (sums.squares - mean * sums.total) / S, sums.products / S
    v = (sums.part - (sums.total if has_intercept else 0.0) * state.means) / S
    slopes = np.abs(v)
    top = max(float(np.max(slopes, initial=0.0)), TINY)
    free, feasible = products / max(squares, TINY), penalty.l1 / top
    if penalty.l2 == 0:
        factor = min(max(free, -feasible), feasible)
        best = factor * products - 0.5 * factor * factor * squares
        return primal, _credible(best, primal), v
    steep = max(float(np.max(np.abs(v - penalty.l2 * w), initial=0.0)), TINY)
    best = 0.0
    for factor in (1.0, free, min(free, feasible), min(1.0, penalty.l1 / steep)):
        excess = np.maximum(abs(factor) * slopes - penalty.l1, 0.0)
        value = factor * products - 0.5 * factor * factor * squares - 0.5 * squared(excess) / penalty.l2
        best = max(best, value)
    return primal, _credible(best, primal), v


def _credible(dual: float, primal: float) -> float:
    """D, which is never above P; what is far above it was made from residuals that are rounding."""
    return dual if dual <= primal * (1.0 + MOST_ABOVE) else 0.0


def floor(state: LassoState) -> float:
    """What P counts as at least: constant targets leave rounding."""
    return max(ROUNDING * state.target_mean**2, TINY)


def _evaluated(state: LassoState, w: Array, sums: Array, penalty: Penalty, tol: float, *, has_intercept: bool) -> None:
    d = state.d
    total, squares, products = sums[:3].tolist()
    found = Residuals(total=total, losses=squares, squares=squares, products=products, part=sums[3 : 3 + d])
    before = relative_gap(state), state.primal
    old_gap = state.gap
    state.primal, dual, state.slopes = bounds(state, w, found, penalty, has_intercept=has_intercept)
    state.gap = state.primal - dual
    least = floor(state)
    # Where weights have slopes beyond l1, w = 0 may be within tol, and says nothing: one solution is made.
    top = float(np.max(np.abs(state.slopes), initial=0.0))
    has_begun = w.any() or top <= penalty.l1 or state.primal <= state.share * tol * least
    is_stuck = state.num_solved > 1 and not has_progress(relative_gap(state), state.primal, *before, tol=tol)
    if (has_begun and state.gap <= state.share * tol * max(state.primal, least)) or (is_stuck and not state.is_rough):
        state.phase = LassoPhase.REST
        return
    if state.needs_products:
        _multiplied(state, sums[3 + d :])
        return
    columns = state.columns if state.is_narrow else _chosen(state, w, penalty)
    if not np.isin(columns, state.columns).all():
        state.set_columns(columns)
    elif state.is_rough and state.num_solved and not state.gap <= LEAST_FALL * old_gap:
        state.is_rough = False
        state.forget_products()
    state.phase = LassoPhase.SOLVE if len(state.products) else LassoPhase.MULTIPLY


def _multiplied(state: LassoState, packed: Array) -> None:
    """Keep the second derivatives of W."""
    S, means = state.total_weight, state.means[state.columns]
    packed = packed / S
    if state.is_sparse:
        start = 0
        for row, mean in enumerate(means):
            packed[start : start + row + 1] -= mean * means[: row + 1]
            start += row + 1
    state.set_products(packed)
    state.phase = LassoPhase.SOLVE


def _chosen(state: LassoState, w: Array, penalty: Penalty) -> Array:
    """The columns of the next working set, ascending, int64."""
    slopes = state.slopes - penalty.l2 * w
    return working_set(slopes, w, state.norms, l1=penalty.l1, first=FIRST_COLUMNS, most=MOST_SET_COLUMNS)


def solution(
    state: LassoState, model: Array, penalty: Penalty, *, tol: float, is_spent: Callable[[], bool] = lambda: False
) -> Array:
    """Minimise over the weights of W; returns the sums of a pass in phase SOLVE, after HEAD."""
    places, H = state.columns, symmetric(state.products, len(state.columns))
    if state.is_rough:
        H.ravel()[:: len(H) + 1] *= 1.0 + ROUGH_DIAGONAL
    q, w, l1, l2 = state.slopes[places], model[places], penalty.l1, penalty.l2
    accuracy = SLOPE_SHARE * tol * l1
    with np.errstate(all="ignore"):  # of squares beyond all numbers; the gap is then NaN
        if state.has_last_word:
            found, is_found = step_with_signs(H, q, w, l1=l1, l2=l2), True
        else:
            enough = 0.0 if state.is_narrow else max(accuracy, WIDE_SHARE * worst_slope(q, w, l1, l2))
            found, is_found = minimise(H, q, w, l1=l1, l2=l2, enough=enough, accuracy=accuracy, is_spent=is_spent)
    return np.concatenate([[1.0, is_found], found])


def _solved(state: LassoState, model: Array, sums: Array) -> Array:
    if not sums[0]:  # the task whose turn it was has no chunks, and so no part in an iteration
        state.turn += 1
        return model
    if state.has_last_word:
        state.change = np.zeros(state.d)
        state.change[state.columns] = sums[2:]
        state.phase = LassoPhase.REST
        return model
    w = model[:-1].copy()
    w[state.columns] = sums[2:]
    state.num_solved += 1
    # Second derivatives that are exact leave nothing to be looked at: a certificate follows in place of an evaluation.
    is_last = state.is_narrow and sums[1] and (not state.is_rough or state.num_solved > 1)
    state.phase = LassoPhase.REST if is_last else LassoPhase.EVALUATE
    return with_intercept(state, w)


def relative_gap(state: LassoState) -> float:
    """Gap as a share of the objective; infinite where it is not known."""
    return state.gap / max(state.primal, floor(state)) if np.isfinite(state.gap) else np.inf
