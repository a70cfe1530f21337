"""How a classifier with an l1 penalty goes on from the sums of a pass. Pure: no row is in sight.

`objective` has the objective, its duals and the gap. It is minimised by a proximal Newton method (Lee, Sun and Saunders
2014, "Proximal Newton-type methods for minimizing composite functions"; for these losses Yuan, Ho and Lin 2012, "An
improved GLMNET for l1-regularized logistic regression"), output by output:

    EVALUATE   Losses at the end of the direction, and the slopes of all columns. The end becomes w if the objective has
               fallen enough there (Armijo's rule); these slopes give the gap, and the next direction.
    MULTIPLY   Second derivatives, weighted products of columns, of the working set W at w.
    SOLVE      One task minimises the second order model, with the penalties as they are, over the weights of W, from
               these sums alone: the subproblem of the lasso. It sends the changes of the weights, which are the
               direction, because signs and zeros follow from rounding. A task that has nobody to send them to does it
               at once.
    SEARCH     Losses at some shares of a direction that was too long: the best one is taken. If it was much too long,
               the next models are damped.

Sums do not depend on which task has a row, and so the number of passes is the same for any number of tasks. Where
products of all columns cost little, W always has all of them, and EVALUATE brings them along. Else W has the columns
with a weight and those that are closest to having one (`lasso.columns`).

A task that is alone and has sparse rows of many columns goes without products and W: it finds the direction from the
columns of its rows (`columns`).
"""

from collections.abc import Callable
from decimal import Decimal

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot
from chicle_elastic.solvers.linear.l1.objective import Objective, SlopeSums
from chicle_elastic.solvers.linear.l1.state import SHARES, L1Phase, L1State, OutputState
from chicle_elastic.solvers.linear.lasso.columns import working_set
from chicle_elastic.solvers.linear.lasso.subproblem import minimise, worst_slope
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
MOST_LEFT = 0.1
"""Share of how far slopes are off that a solution may leave; less where the gap is smaller than that."""
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
        output.phase, output.value, output.gap = L1Phase.LOOK, np.inf, np.inf
        output.num_solved = output.num_still = 0
        output.slopes = output.direction = output.products = NOTHING
        output.columns = NO_NUMBERS


def set_alone(state: L1State, model: Array, objective: Objective, *, is_alone: bool) -> None:
    """Directions come from the columns of one task from now on, or again from products."""
    if state.from_columns == is_alone:
        return
    state.from_columns = is_alone
    for w, output in zip(model.reshape(len(state.outputs), -1), state.outputs, strict=True):
        if output.phase in (L1Phase.MULTIPLY, L1Phase.SOLVE):
            _begin_solution(state, w, output, objective)


def advance(state: L1State, model: Array, sums: Array, objective: Objective, *, tol: float) -> Array:
    """Go on from the sums of a pass.

    Args:
        state: Of the pass; changed in place.
        model: w of all outputs, shape (outputs * D,).
        sums: See `L1State.sums_size`.
        objective: Of each output.
        tol: Relative gap to reach.

    Returns:
        The new w, of the same shape.
    """
    num_interrupted, num_rows, num_alone = sums[:HEAD].tolist()
    if num_interrupted > 0:  # the pass is made again
        return model
    following = model.copy()
    rows_of_w = following.reshape(len(state.outputs), -1)
    D, parts = state.D, state.parts(sums)
    if state.is_looking:
        if num_rows != state.num_rows:  # other rows, and another objective
            state.num_rows, state.num_refused = num_rows, 0
        state.norms = np.sqrt(sums[HEAD : HEAD + D])
        for w, output, part in zip(rows_of_w, state.outputs, parts, strict=True):
            _looked(w, output, part, objective)
        return following
    if state.reads_rows and num_rows != state.num_rows:  # rows were lost or have come back: another objective
        _restart(state)
        return model
    is_turned = False
    for w, output, part in zip(rows_of_w, state.outputs, parts, strict=True):
        if output.phase is L1Phase.EVALUATE:
            _evaluated(state, w, output, part, objective, tol)
        elif output.phase is L1Phase.MULTIPLY:
            output.products, output.phase = part.copy(), L1Phase.SOLVE
        elif output.phase is L1Phase.SOLVE:
            is_turned |= not _solved(output, part, D)
        elif output.phase is L1Phase.SEARCH:
            _searched(w, output, part, objective)
        if num_alone and output.phase is L1Phase.SOLVE and not state.from_columns:
            _solved(output, np.append(1.0, direction(state, output, w, objective)), D)
    if is_turned:  # a task whose turn it was has no chunks, and so no part in an iteration
        state.turn += 1
    return following


def _looked(w: Array, output: OutputState, part: Array, objective: Objective) -> None:
    """Without weights the best intercept is known, if it is not penalised; `w` is written.

    Where samples of one side have no weight at all, the other side is all there is to say.
    """
    plus, minus = part.tolist()
    if objective.has_free_intercept and (plus > 0) != (minus > 0):
        w[:-1], w[-1] = 0.0, -LEFT_OUT if plus > 0 else LEFT_OUT
    elif objective.has_free_intercept and not w[:-1].any() and plus > 0 and minus > 0:
        # Of libm's logarithm the last digit depends on the processor, and every task has to find the same.
        w[-1] = float(Decimal(plus / minus).ln())
    output.phase, output.is_chosen = L1Phase.EVALUATE, True
    output.direction = np.zeros(len(w))


def _evaluated(state: L1State, w: Array, output: OutputState, part: Array, objective: Objective, tol: float) -> None:
    """Take the step if it is good enough; `w` is written."""
    D = len(w)
    size = SlopeSums.size(state.num_sides, D)
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
    before = output.gap
    is_lower = value < output.value * (1.0 - ROUNDING)
    output.value, output.slopes, output.direction = value, sums.v.sum(axis=0), np.zeros(0)
    sides = objective.factors(sums.masses)
    factor, output.gap = objective.factor_and_gap(w, sums, sides)
    output.plus, output.minus = factor * float(sides[0]), factor * float(sides[-1])
    output.num_still = 0 if is_lower or output.gap <= STILL * before else output.num_still + 1
    is_good = output.gap <= state.share * tol and (output.num_solved or not state.num_refused)
    if is_good or output.num_still >= MOST_STILL:
        output.phase = L1Phase.REST
        return
    output.accuracy = min(MOST_LEFT, output.gap) if np.isfinite(output.gap) else MOST_LEFT
    if state.is_whole:
        output.products, output.phase = part[size:].copy(), L1Phase.SOLVE
    else:
        _begin_solution(state, w, output, objective)


def _begin_solution(state: L1State, w: Array, output: OutputState, objective: Objective) -> None:
    """From the columns of one task, or from products of a working set."""
    output.products, output.columns = NOTHING, NO_NUMBERS
    if state.from_columns:
        output.phase = L1Phase.SOLVE
        return
    slopes = objective.penalised(output.slopes - objective.l2 * w)
    weights, norms = objective.penalised(w), objective.penalised(state.norms)
    room = state.most_columns - len(w) + len(slopes)
    columns = working_set(slopes, weights, norms, l1=objective.l1, first=FIRST_COLUMNS, most=room)
    free = np.arange(len(slopes), len(w))  # the intercept, where it is not penalised
    output.columns, output.phase = np.append(columns, free), L1Phase.MULTIPLY


def damping(state: L1State, output: OutputState, objective: Objective) -> Array:
    """Return what is added to the diagonal of the second derivatives, shape (D,)."""
    if not output.damping:  # squared lengths may be beyond all numbers
        return np.zeros(len(state.norms))
    return output.damping * objective.loss.most_curvature * state.norms**2


def direction(
    state: L1State, output: OutputState, w: Array, objective: Objective, *, is_spent: Callable[[], bool] = lambda: False
) -> Array:
    """Find where the second order model with the penalties is least over the weights of W, less w; shape (h,)."""
    places = output.columns if len(output.columns) else np.arange(len(w))
    H = symmetric(output.products, len(places))
    if output.is_rough:
        H.ravel()[:: len(H) + 1] *= 1.0 + ROUGH_DIAGONAL
    H.ravel()[:: len(H) + 1] += damping(state, output, objective)[places]
    q, w, l1, l2 = output.slopes[places], w[places], objective.l1, objective.l2
    with np.errstate(all="ignore"):  # of squares beyond all numbers; the gap is then NaN
        h = H[-1, :-1]
        if objective.has_free_intercept:
            # The best intercept for any weights is known: what is left are columns centred by their curvatures.
            top = max(float(H[-1, -1]), np.finfo(np.float64).tiny)
            H, q, w, offset = H[:-1, :-1] - np.outer(h, h / top), q[:-1] - h * (q[-1] / top), w[:-1], q[-1]
        worst = worst_slope(q, w, l1, l2)
        found, _ = minimise(
            H,
            q,
            w,
            l1=l1,
            l2=l2,
            enough=0.0 if len(H) <= MOST_EXACT else output.accuracy * worst,
            accuracy=LEAST_ACCURACY * worst,
            is_spent=is_spent,
        )
        found -= w
        return np.append(found, (offset - h @ found) / top) if objective.has_free_intercept else found


def _solved(output: OutputState, part: Array, D: int) -> bool:
    """Whether a task has solved."""
    if not part[0]:
        return False
    direction = np.zeros(D)
    places = output.columns
    direction[places if len(places) else slice(None)] = part[1:]
    output.products, output.columns = NOTHING, NO_NUMBERS
    output.is_chosen, output.num_solved = False, output.num_solved + 1
    if not direction.any() or not np.isfinite(direction).all():  # nothing is left that rounding does not hide
        output.phase = L1Phase.REST
        return True
    output.direction, output.phase = direction, L1Phase.EVALUATE
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
