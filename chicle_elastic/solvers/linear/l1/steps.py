"""How a model with an l1 penalty goes on from the sums of a pass. Pure: no row is in sight.

`objective` has the objective, its duals and the gap. It is minimised by a proximal Newton method (Lee, Sun and Saunders
2014, "Proximal Newton-type methods for minimizing composite functions"; for the losses of classes Yuan, Ho and Lin
2012, "An improved GLMNET for l1-regularized logistic regression"), output by output:

    EVALUATE   Losses at the end of the direction, and the slopes of all columns. The end becomes w if the objective has
               fallen enough there (Armijo's rule); these slopes give the gap, and the next direction.
    MULTIPLY   Second derivatives, weighted products of columns, of the working set W at w.
    SOLVE      One task minimises the second order model, with the penalties as they are, over the weights of W, from
               these sums alone (`subproblem`). It sends the changes of the weights, which are the direction, because
               signs and zeros follow from rounding. A task that has nobody to send them to does it at once.
    SEARCH     Losses at some shares of a direction that was too long: the best one is taken. If it was much too long,
               the next models are damped.

Sums do not depend on which task has a row, and so the number of passes is the same for any number of tasks. Where
products of all columns cost little, W always has all of them, and EVALUATE brings them along. Else W has the columns
with a weight and those that are closest to having one (`working_set`).

A task that is alone and has sparse rows of many columns with classes goes without products and W: it finds the
direction from the columns of its rows (`columns`).

Of the squared loss (lasso and elastic net, as scikit-learn's ElasticNet has them, with residuals r_i, weights s_i and
their sum S: sum_i s_i r_i^2 / (2 S) + alpha l1_ratio |w|_1 + alpha (1 - l1_ratio)/2 |w|^2) the model is the objective.
So its end is w whatever the objective is there, products are kept, and with those of all columns one solution is all: a
certificate follows in place of an evaluation. Rows and targets are centred by weighted means, dense rows before they
are multiplied. The slopes are those of the rows and not of sums of products, so what these have lost to rounding (or to
float32, of dense float32 rows) is repaired by the next solution. Of large features the residuals at any w are mostly
rounding of w. Then the last solution is a change of w that is kept beside it, with digits of its own, and the duals are
those of w + change.
"""

from collections.abc import Callable
from decimal import Decimal

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot
from chicle_elastic.solvers.linear.certified import TINY, has_progress
from chicle_elastic.solvers.linear.l1.objective import Objective, SlopeSums
from chicle_elastic.solvers.linear.l1.state import SHARES, L1Phase, L1State, OutputState
from chicle_elastic.solvers.linear.l1.subproblem import minimise, step_with_signs, worst_slope
from chicle_elastic.solvers.linear.l1.working_set import working_set
from chicle_elastic.solvers.linear.multinomial.objective import LEFT_OUT
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.products import symmetric
from chicle_elastic.solvers.linear.progress import NO_NUMBERS, NOTHING

ARMIJO = 1e-4
ROUNDING = 1e-14
"""Relative change of the objective that is none."""
LEAST_SHARE = 0.05
"""Share of tol that is aimed at, at least."""
FIRST_COLUMNS = 256
"""Columns of the first working set."""
SHORT = 0.2
"""Share of a direction from which it was much too long: the model does not foresee rows whose curvature begins there,
as on separable data with the squared hinge."""
FIRST_DAMPING, LEAST_DAMPING, FACTOR = 1e-2, 1e-6, 10.0
"""Damping after such a direction, below what it is none, and what each one changes it by (Levenberg and Marquardt)."""
STILL, MOST_STILL = 0.5, 3
"""Share of the gap that is progress where rounding hides that of the objective, and steps without any that end it."""
MOST_LEFT, MOST_OF_PARABOLA = 0.1, 0.01
"""Share of how far slopes are off that a solution may leave, less where the gap is smaller than that; of the squared
loss the next look is at other columns alone."""
LEAST_FALL = 0.1
"""Share of the gap that a solution may leave where kept products are rough; if it leaves more, they are too rough."""
SLOPE_SHARE = 0.05
"""Share of tol that slopes may be off at a solution, by l1."""
MOST_EXACT = 256
"""Columns up to which the second order model is minimised to rounding."""
LEAST_ACCURACY = 0.01
"""Share of how far slopes were off that they may be where signs do not come to rest."""
ROUGH_DIAGONAL = 1e-6
"""Share of the diagonal that is added to second derivatives of float32, which rounding may have made indefinite."""


def reopen(state: L1State) -> None:
    """Begin anew at the present w: a certificate was not good enough."""
    state.share = max(0.5 * state.share, LEAST_SHARE)
    state.num_refused += 1
    for output in state.outputs:
        output.is_rough = False
    _restart(state)


def _restart(state: L1State) -> None:
    for output in state.outputs:
        if output.phase is not L1Phase.REST:  # else it is to be added to w
            output.direction = NOTHING
        output.phase, output.value, output.gap = L1Phase.LOOK, np.inf, np.inf
        output.num_solved = output.num_still = 0
        output.slopes = output.products = NOTHING
        output.columns = NO_NUMBERS


def set_alone(state: L1State, model: Array, objective: Objective, *, is_alone: bool) -> None:
    """Directions come from the columns of one task from now on, or again from products."""
    if state.from_columns == is_alone:
        return
    state.from_columns = is_alone
    for w, output in zip(model.reshape(len(state.outputs), -1), state.outputs, strict=True):
        if output.phase in (L1Phase.MULTIPLY, L1Phase.SOLVE):
            _begin_solution(state, w, output, objective)


def advance(state: L1State, model: Array, sums: Array, objective: Objective) -> Array:
    """Go on from the sums of a pass.

    Args:
        state: Of the pass; changed in place.
        model: w of all outputs, shape (outputs * D,).
        sums: See `L1State.sums_size`.
        objective: Of each output.

    Returns:
        The new w, of the same shape.
    """
    num_interrupted, num_rows, num_alone = sums[:HEAD].tolist()
    if num_interrupted > 0:  # the pass is made again
        return model
    following = model.copy()
    rows_of_w = following.reshape(len(state.outputs), -1)
    parts = state.parts(sums)
    if state.is_looking:
        if num_rows != state.num_rows:  # other rows, and another objective
            state.num_rows, state.num_refused = num_rows, 0
        _looked(state, sums[HEAD : HEAD + 2 * state.D], parts[0], objective)
        for w, output, part in zip(rows_of_w, state.outputs, parts, strict=True):
            _begin(state, w, output, part, objective)
        return following
    if state.reads_rows and num_rows != state.num_rows:  # rows were lost or have come back: another objective
        _restart(state)
        return model
    is_turned = False
    for w, output, part in zip(rows_of_w, state.outputs, parts, strict=True):
        if output.phase is L1Phase.EVALUATE:
            _evaluated(state, w, output, part, objective)
        elif output.phase is L1Phase.MULTIPLY:
            output.products, output.phase = part.copy(), L1Phase.SOLVE
        elif output.phase is L1Phase.SOLVE:
            is_turned |= not _solved(state, w, output, part)
        elif output.phase is L1Phase.SEARCH:
            _searched(w, output, part, objective)
        if num_alone and output.phase is L1Phase.SOLVE and not state.from_columns:
            _solved(state, w, output, solution(state, output, w, objective))
    if is_turned:  # a task whose turn it was has no chunks, and so no part in an iteration
        state.turn += 1
    return following


def _looked(state: L1State, sums: Array, part: Array, objective: Objective) -> None:
    """Keep lengths of columns; of real targets all is relative to the sum of the weights, and to means."""
    D = state.D
    state.means, squares = np.zeros(D), sums[D:]
    if state.is_parabola:
        total, target_sum = part.tolist()
        state.total = max(total, TINY)
        if objective.has_free_intercept:
            state.means, state.target_mean = sums[:D] / state.total, target_sum / state.total
        squares = np.maximum(squares / state.total - state.means**2, 0.0)
    state.norms = np.sqrt(squares)


def _begin(state: L1State, w: Array, output: OutputState, part: Array, objective: Objective) -> None:
    """Without weights the best intercept is known, if it is not penalised; `w` is written.

    Where samples of one side have no weight at all, the other side is all there is to say.
    """
    plus, minus = part.tolist()
    if len(output.direction):  # what the last certificate had beside w
        w += output.direction
    if objective.has_free_intercept and not state.is_parabola and (plus > 0) != (minus > 0):
        w[:-1], w[-1] = 0.0, -LEFT_OUT if plus > 0 else LEFT_OUT
    elif objective.has_free_intercept and not w[:-1].any() and (state.is_parabola or (plus > 0 and minus > 0)):
        # Of libm's logarithm the last digit depends on the processor, and every task has to find the same.
        w[-1] = state.target_mean if state.is_parabola else float(Decimal(plus / minus).ln())
    output.phase, output.is_chosen = L1Phase.EVALUATE, True
    output.direction = np.zeros(len(w))


def _evaluated(state: L1State, w: Array, output: OutputState, part: Array, objective: Objective) -> None:
    """Take the step if it is good enough; `w` is written."""
    size = SlopeSums.size(state.num_sides, len(w))
    sums = SlopeSums.of(part[:size], state.num_sides)
    direction = output.direction
    there = w + direction
    penalty = objective.penalty(there)
    value = float(sums.losses.sum()) + penalty
    if not output.is_chosen:
        foretold = penalty - objective.penalty(w) - dot(output.slopes, direction)
        if not value <= output.value + ARMIJO * min(foretold, 0.0) + ROUNDING * abs(output.value):
            output.phase = L1Phase.SEARCH
            return
        output.damping = output.damping / FACTOR if output.damping >= LEAST_DAMPING else 0.0
    w[:] = there
    before, old = output.gap, output.value
    output.value, output.slopes, output.direction = value, sums.v.sum(axis=0), np.zeros(0)
    if state.is_parabola:
        sums = sums.centred(state.means)
    sides, primal = objective.factors(sums.v), max(value, state.floor)
    factor, gap = objective.factor_and_gap(w, value, sums, sides)
    output.gap = gap / primal
    output.plus, output.minus = factor * float(sides[0]), factor * float(sides[-1])
    if _is_good(state, w, output, objective) or _is_still(state, output, before, old, objective.tol):
        output.phase = L1Phase.REST
        return
    most_left = MOST_OF_PARABOLA if state.is_parabola else MOST_LEFT
    output.accuracy = min(most_left, output.gap) if np.isfinite(output.gap) else most_left
    if len(part) > size:
        output.products, output.phase = part[size:].copy(), L1Phase.SOLVE
    else:
        _begin_solution(state, w, output, objective, is_poor=not output.gap <= LEAST_FALL * before)


def _is_good(state: L1State, w: Array, output: OutputState, objective: Objective) -> bool:
    """Whether the gap is small enough for a certificate."""
    if not output.gap <= state.share * objective.tol:
        return False
    if not state.is_parabola:
        return bool(output.num_solved or not state.num_refused)
    # Where weights have slopes beyond l1, w = 0 may be within tol, and says nothing: one solution is made.
    slopes = _centred(state, output, objective)
    return bool(w[:-1].any()) or float(np.max(np.abs(slopes), initial=0.0)) <= objective.l1


def _is_still(state: L1State, output: OutputState, before: float, old: float, tol: float) -> bool:
    """Whether steps bring nothing more: a solution of the squared loss, or some in a row of another one."""
    if state.is_parabola:
        is_last = output.num_solved > 1 and not output.is_rough
        return is_last and not has_progress(output.gap, output.value, before, old, tol=tol)
    is_lower = output.value < old * (1.0 - ROUNDING)
    output.num_still = 0 if is_lower or output.gap <= STILL * before else output.num_still + 1
    return output.num_still >= MOST_STILL


def _centred(state: L1State, output: OutputState, objective: Objective) -> Array:
    """The slopes of penalised columns; of the squared loss those of columns less their means."""
    slopes = output.slopes - output.slopes[-1] * state.means if state.is_parabola else output.slopes
    return objective.penalised(slopes)


def _begin_solution(
    state: L1State, w: Array, output: OutputState, objective: Objective, *, is_poor: bool = False
) -> None:
    """From the columns of one task, from products of a working set, or from those that are kept and not too rough."""
    if state.from_columns:
        output.products, output.columns = NOTHING, NO_NUMBERS
        output.phase = L1Phase.SOLVE
        return
    columns = output.columns if state.is_whole else _chosen(state, w, output, objective)
    is_known = state.is_parabola and len(output.products) > 0 and np.isin(columns, output.columns).all()
    if is_known and is_poor and output.is_rough and output.num_solved:
        is_known, output.is_rough, columns = False, False, output.columns
    if not is_known:
        output.products, output.columns = NOTHING, columns
    output.phase = L1Phase.SOLVE if is_known else L1Phase.MULTIPLY


def _chosen(state: L1State, w: Array, output: OutputState, objective: Objective) -> Array:
    """The columns of the next working set, ascending, int64."""
    weights, norms = objective.penalised(w), objective.penalised(state.norms)
    slopes = _centred(state, output, objective) - objective.l2 * weights
    room = state.most_columns - len(w) + len(slopes)
    columns = working_set(slopes, weights, norms, l1=objective.l1, first=FIRST_COLUMNS, most=room)
    return np.append(columns, np.arange(len(slopes), len(w)))  # the intercept, where it is not penalised


def damping(state: L1State, output: OutputState, objective: Objective) -> Array:
    """Return what is added to the diagonal of the second derivatives, shape (D,)."""
    if not output.damping or objective.loss is None:  # squared lengths may be beyond all numbers
        return np.zeros(len(state.norms))
    return output.damping * objective.loss.most_curvature * state.norms**2


def solution(
    state: L1State, output: OutputState, w: Array, objective: Objective, *, is_spent: Callable[[], bool] = lambda: False
) -> Array:
    """Find where the second order model with the penalties is least over the weights of W.

    Returns:
        The sums of a pass in phase SOLVE: 1, whether it was found, and the changes of w, shape (2 + h,).
    """
    places = output.columns if len(output.columns) else np.arange(len(w))
    size = len(places) - objective.has_free_intercept
    num_products = size * (size + 1) // 2
    H, damped = symmetric(output.products[:num_products], size), damping(state, output, objective)[places]
    if output.is_rough:
        H.ravel()[:: size + 1] *= 1.0 + ROUGH_DIAGONAL
    H.ravel()[:: size + 1] += damped[:size]
    q, w, l1, l2 = output.slopes[places], w[places], objective.l1, objective.l2
    with np.errstate(all="ignore"):  # of squares beyond all numbers; the gap is then NaN
        if objective.has_free_intercept:
            # The best intercept for any weights is known: what is left are columns centred by their curvatures.
            h, top = output.products[num_products:-1], 1.0
            means = state.means[places[:-1]]
            if not state.is_parabola:
                top = max(float(output.products[-1] + damped[-1]), TINY)
                means = h / top
            if h.any():  # else the rows were centred before they were multiplied
                H -= np.outer(h, h / top)
            q, offset, w = q[:-1] - means * q[-1], q[-1] / top, w[:-1]
        if state.has_last_word:
            found, is_found = step_with_signs(H, q, w, l1=l1, l2=l2), True
        else:
            worst, least = worst_slope(q, w, l1, l2), SLOPE_SHARE * objective.tol * l1
            is_exact = state.is_whole if state.is_parabola else len(H) <= MOST_EXACT
            enough = 0.0 if is_exact else max(least, output.accuracy * worst)
            accuracy = least if state.is_parabola else LEAST_ACCURACY * worst
            found, is_found = minimise(H, q, w, l1=l1, l2=l2, enough=enough, accuracy=accuracy, is_spent=is_spent)
            found -= w
        if objective.has_free_intercept:
            found = np.append(found, offset - means @ found)
    return np.concatenate([[1.0, is_found], found])


def _solved(state: L1State, w: Array, output: OutputState, part: Array) -> bool:
    """Whether a task has solved; `w` is written where nothing is left to be looked at."""
    if not part[0]:
        return False
    direction, places = np.zeros(len(w)), output.columns
    direction[places if len(places) else slice(None)] = part[2:]
    if not state.is_parabola:
        output.products, output.columns = NOTHING, NO_NUMBERS
    output.is_chosen, output.num_solved = state.is_parabola, output.num_solved + 1
    if not direction.any() or not np.isfinite(direction).all():  # nothing is left that rounding does not hide
        output.phase = L1Phase.REST
        return True
    is_last = state.is_parabola and state.is_whole and part[1] and (not output.is_rough or output.num_solved > 1)
    output.direction, output.phase = direction, L1Phase.EVALUATE
    if state.has_last_word or is_last:
        output.phase, output.plus, output.minus = L1Phase.REST, 1.0, 1.0
        if not state.has_last_word:
            w += direction
            output.direction = NOTHING
    return True


def _searched(w: Array, output: OutputState, part: Array, objective: Objective) -> None:
    """The share of the direction at which the objective is least; none where it is nowhere less than at w."""
    values = [
        losses + objective.penalty(w + share * output.direction) if np.isfinite(losses) else np.inf
        for share, losses in zip(SHARES, part.tolist(), strict=True)
    ]
    best = min(range(len(values)), key=values.__getitem__)
    if values[best] >= output.value:
        # Damped by all the curvature there may be, a direction does lead down, but for rounding.
        output.phase = L1Phase.EVALUATE if output.damping < 1.0 else L1Phase.REST
        output.damping, output.is_chosen = max(output.damping * FACTOR**2, FIRST_DAMPING), True
        output.direction = np.zeros(len(w) if output.phase is L1Phase.EVALUATE else 0)
        return
    if SHARES[best] < SHORT:
        output.damping = max(output.damping * FACTOR, FIRST_DAMPING)
    output.direction = SHARES[best] * output.direction
    output.phase, output.is_chosen = L1Phase.EVALUATE, True
