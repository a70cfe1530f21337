"""How a model with an l1 penalty goes on from the sums of a pass. Pure: no row is in sight.

`objective` has the objective, its duals and the gap. It is minimised by a proximal Newton method (Lee, Sun and Saunders
2014, "Proximal Newton-type methods for minimizing composite functions"; for the losses of classes Yuan, Ho and Lin
2012, "An improved GLMNET for l1-regularized logistic regression"), output by output:

    EVALUATE   Losses at the end of the direction, and the slopes of all columns. The end becomes w if the objective has
               fallen enough there (Armijo's rule); these slopes give the gap, and the next direction. Else the next
               pass evaluates a part of the direction, where a cubic through what is known is least. If that is a small
               part, the next models are damped (Levenberg and Marquardt).
    MULTIPLY   Second derivatives, weighted products of columns, of the working set W at w.

Each task minimises the second order model, with the penalties as they are, over the weights of W from these sums alone
(`subproblem`). Tasks send along what they have found and go on with its mean (see `agreement`), but a weight that
cancels is 0, whatever rounding leaves of the mean.

Sums do not depend on which task has a row, and so the number of passes is the same for any number of tasks. Where
products of all columns cost little, W always has all of them, and EVALUATE brings them along. Else W has the columns
with a weight and those that are closest to having one (Celer's rule and size; Massias, Gramfort and Salmon 2018).

A task that is alone and has sparse rows of many columns with classes does both in a pass of its own (COLUMNS), and goes
without products and W where the direction is found with less work from the columns of its rows (`columns`).

Of the squared loss (lasso and elastic net, as scikit-learn's ElasticNet has them, with residuals r_i, weights s_i and
their sum S: sum_i s_i r_i^2 / (2 S) + alpha l1_ratio |w|_1 + alpha (1 - l1_ratio)/2 |w|^2) the model is the objective.
So its end is w whatever the objective is there, and products are kept. A task that is alone and has those of all
columns is done with one solution: a certificate follows in place of an evaluation. Rows and targets are centred by
weighted means, dense rows before they are multiplied. The slopes are those of the rows and not of sums of products, so
what these have lost to rounding (or to float32, of dense float32 rows) is repaired by the next solution. Of large
features the residuals at any w are mostly rounding of w. Then the last solution is a change of w that is kept beside
it, with digits of its own, and the duals are those of w + change.
"""

from decimal import Decimal

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import SAME, dot
from chicle_elastic.solvers.linear.certified import LEAST_SHARE, PATIENCE, TINY, has_progress
from chicle_elastic.solvers.linear.l1.objective import Objective
from chicle_elastic.solvers.linear.l1.state import L1Output, L1State
from chicle_elastic.solvers.linear.l1.subproblem import minimise, step_with_signs, worst_slope
from chicle_elastic.solvers.linear.methods import most_block_columns
from chicle_elastic.solvers.linear.multinomial.objective import LEFT_OUT
from chicle_elastic.solvers.linear.newton.conjugate import ETA, LEAST_ETA
from chicle_elastic.solvers.linear.newton.directions import JITTERS
from chicle_elastic.solvers.linear.newton.state import NewtonPhase
from chicle_elastic.solvers.linear.newton.steps import DAMPED, FIRST_DAMPING, LEAST_REACH
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.products import MOST_EXACT, symmetric
from chicle_elastic.solvers.linear.progress import NO_NUMBERS, NOTHING

SHORT = 0.2
"""Share of a direction below which it was much too long: the model does not foresee rows whose curvature begins there,
as on separable data with the squared hinge. And below which it leads nowhere."""


def reopen(state: L1State, objective: Objective, model: Array) -> None:
    """Begin anew at the present w: a certificate was not good enough."""
    state.share = max(0.5 * state.share, LEAST_SHARE)
    state.num_refused += 1
    for output in state.outputs:
        output.is_rough = False
    _restart(state)


def _restart(state: L1State) -> None:
    for output in state.outputs:
        if output.phase is not NewtonPhase.REST:  # else it is to be added to w
            output.direction = np.zeros(state.D)
        output.phase, output.value, output.gap = NewtonPhase.LOOK, np.inf, np.inf
        output.num_solved = output.num_still = 0
        output.slopes = output.products = NOTHING
        output.columns = NO_NUMBERS


def advance(state: L1State, objective: Objective, model: Array, sums: Array, weight: float) -> Array:
    """Go on from the sums of a pass of `weight` tasks (`state`, which is changed); returns the new w of all outputs."""
    num_interrupted, num_rows, num_alone = sums[:HEAD].tolist()
    if num_interrupted > 0:  # the pass is made again
        return model
    if not (state.is_looking or state.is_at_rest or num_rows == state.num_rows):
        _restart(state)  # rows were lost or have come back: another objective
        return model
    following, parts, is_look = model.copy(), state.parts(sums), state.is_looking
    state.is_alone = num_alone > 0
    if is_look:
        if num_rows != state.num_rows:
            state.num_rows, state.num_refused = num_rows, 0
        _looked(state, sums[HEAD : HEAD + 2 * state.D], parts[0][state.D :], objective)
    for w, output, part in zip(following.reshape(-1, state.D), state.outputs, parts, strict=True):
        if is_look:
            _begin(state, w, output, part, weight, objective)
        elif output.phase is NewtonPhase.EVALUATE:
            _evaluated(state, w, output, part, weight, objective)
        elif output.phase is NewtonPhase.MULTIPLY:
            output.products = part.copy()
            _solve(state, w, output, objective)
        elif output.phase is NewtonPhase.COLUMNS and state.is_alone:
            _go(state, output, part.copy())
        elif output.phase is NewtonPhase.COLUMNS:  # another task has come while this one was at work
            _beginsolution(state, w, output, objective)
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


def _begin(state: L1State, w: Array, output: L1Output, part: Array, weight: float, objective: Objective) -> None:
    """Set the best intercept where it is free and there are no weights, or one side has no weight; `w` is written."""
    w += part[: state.D] / weight  # what the last certificate had beside w
    plus, minus = part[state.D :].tolist()
    if objective.has_free_intercept and not state.is_parabola and (plus > 0) != (minus > 0):
        w[:-1], w[-1] = 0.0, -LEFT_OUT if plus > 0 else LEFT_OUT
    elif objective.has_free_intercept and not w[:-1].any() and (state.is_parabola or (plus > 0 and minus > 0)):
        # Of libm's logarithm the last digit depends on the processor, and every task has to find the same.
        w[-1] = state.target_mean if state.is_parabola else float(Decimal(plus / minus).ln())
    _look_again(state, output)


def _look_again(state: L1State, output: L1Output) -> None:
    """Evaluate w itself."""
    output.phase, output.reach, output.direction = NewtonPhase.EVALUATE, 0.0, np.zeros(state.D)


def _evaluated(state: L1State, w: Array, output: L1Output, part: Array, weight: float, objective: Objective) -> None:
    """Take the step if it is good enough; `w` is written."""
    direction, end = part[: state.D] / weight, state.D + state.evaluation_size
    sums = part[state.D : end].reshape(state.num_sides, -1)
    if output.reach and not _leads_on(direction):
        output.phase, output.direction = NewtonPhase.REST, np.zeros(state.D)
        return
    there = w + direction
    there[np.abs(there) <= SAME * np.abs(w)] = 0.0
    penalty = objective.penalty(there)
    value, before, old = float(sums[:, 0].sum()) + penalty, output.gap, output.value
    if output.reach and not state.is_parabola:
        slope = min(penalty - objective.penalty(w) - dot(output.slopes, direction), 0.0)
        if not value <= old + 1e-4 * slope + SAME * abs(old):
            at_end = objective.penalty_slope(there, direction) - dot(sums[:, 2:].sum(axis=0), direction)
            _shorten(state, output, direction, slope, value - old, at_end)
            return
        if output.reach < SHORT:
            output.damping = max(output.damping * DAMPED, FIRST_DAMPING)
        elif output.reach == 1.0:
            output.damping = output.damping / DAMPED if output.damping > FIRST_DAMPING else 0.0
    w[:] = there
    output.value, output.slopes, output.direction = value, sums[:, 2:].sum(axis=0), np.zeros(state.D)
    if state.is_parabola:  # less the mean of the slopes
        mean = float(sums[0, -1])
        sums = sums - np.concatenate([[0.5 * mean * mean, -mean * mean], mean * state.means])
    sides, gap = objective.scaled(w, value, sums)
    output.gap, output.plus, output.minus = gap / max(value, state.floor), float(sides[0]), float(sides[-1])
    tol = objective.tol if state.is_parabola else SAME
    patience = 1 if state.is_parabola and not output.is_rough else PATIENCE
    is_still = output.num_solved > 0 and not has_progress(output.gap, value, before, old, tol=tol)
    output.num_still = output.num_still + 1 if is_still else 0
    if _is_good(state, w, output, objective) or output.num_still >= patience:  # what more steps bring is rounding
        output.phase = NewtonPhase.REST
    elif len(part) > end:
        output.products = part[end:].copy()
        _solve(state, w, output, objective)
    else:
        _beginsolution(state, w, output, objective)


def _leads_on(direction: Array) -> bool:
    return bool(direction.any() and np.isfinite(direction).all())


def _shorten(state: L1State, output: L1Output, direction: Array, slope: float, rise: float, at_end: float) -> None:
    """Go a part of the way: to where the cubic is least that has these slopes and rises by that much."""
    middle = slope + at_end - 3.0 * rise
    root = np.sqrt(max(middle * middle - slope * at_end, 0.0))
    share = 1.0 - (at_end + root - middle) / max(at_end - slope + 2.0 * root, TINY)
    share = min(max(share, 0.5 * SHORT), 1.0 - 0.5 * SHORT) if np.isfinite(share) else 0.5 * SHORT
    output.reach, output.direction = share * output.reach, share * direction
    if output.reach < LEAST_REACH:  # damped by all the curvature there may be it leads down, but for rounding
        _look_again(state, output)
        output.phase = NewtonPhase.EVALUATE if output.damping < 1.0 else NewtonPhase.REST
        output.damping = max(output.damping * DAMPED**2, FIRST_DAMPING)


def _is_good(state: L1State, w: Array, output: L1Output, objective: Objective) -> bool:
    """Say whether the gap is small enough for a certificate."""
    if not output.gap <= state.share * objective.tol:
        return False
    if not state.is_parabola:
        return bool(output.num_solved or not state.num_refused)
    # Where weights have slopes beyond l1, w = 0 may be within tol, and says nothing: one solution is made.
    slopes = _centred(state, output, objective)
    return bool(w[:-1].any()) or float(np.max(np.abs(slopes), initial=0.0)) <= objective.l1


def _centred(state: L1State, output: L1Output, objective: Objective) -> Array:
    """Return the slopes of penalised columns; of the squared loss those of columns less their means."""
    slopes = output.slopes - output.slopes[-1] * state.means if state.is_parabola else output.slopes
    return objective.penalised(slopes)


def _beginsolution(state: L1State, w: Array, output: L1Output, objective: Objective) -> None:
    """From the columns of one task, from products of a working set, or from those that are kept and not too rough."""
    if state.has_columns and state.is_alone:
        output.phase = NewtonPhase.COLUMNS
        return
    columns = output.columns if state.is_whole else chosen(state, w, output, objective)
    is_known = len(output.products) > 0 and np.isin(columns, output.columns).all()
    if is_known and output.is_rough and output.num_still:  # float32 has no room for more
        is_known, output.is_rough, columns = False, False, output.columns
    if is_known:
        _solve(state, w, output, objective)
    else:
        output.products, output.columns, output.phase = NOTHING, columns, NewtonPhase.MULTIPLY


def chosen(state: L1State, w: Array, output: L1Output, objective: Objective) -> Array:
    """Choose the columns of the next working set, ascending, int64."""
    weights, norms = objective.penalised(w), objective.penalised(state.norms)
    slopes = _centred(state, output, objective) - objective.l2 * weights
    room = most_block_columns(len(state.outputs)) - len(w) + len(slopes)
    columns = working_set(slopes, weights, norms, l1=objective.l1, first=MOST_EXACT, most=room)
    return np.append(columns, np.arange(len(slopes), len(w)))  # the intercept, where it is not penalised


def working_set(slopes: Array, w: Array, norms: Array, *, l1: float, first: int, most: int) -> Array:
    """Return the columns with a weight and those that are closest to having one, twice as many as there are weights.

    There are `first` at least and `most` at most: then the worst ones. Columns of length (`norms`) 0 are left out.
    `slopes` are the negative gradient of all but the l1 penalty.
    """
    num_weights = int(np.count_nonzero(w))
    has_room = 2 * num_weights <= most or num_weights + first <= most
    size = min(max(first, 2 * num_weights) if has_room else most, most, len(w))
    scores = (np.abs(slopes - l1 * np.sign(w)) - l1 * (w == 0)) / np.maximum(norms, TINY)
    scores[norms == 0], scores[(w != 0) & (norms > 0) & has_room] = -np.inf, np.inf
    least = np.partition(scores, -size)[-size]  # a sort of all takes ten times as long
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return np.sort(np.concatenate([above, equal[: size - len(above)]]))


def damping(state: L1State, output: L1Output, objective: Objective) -> Array:
    """Return what is added to the diagonal of the second derivatives, shape (D,)."""
    if not output.damping or objective.loss is None:  # squared lengths may be beyond all numbers
        return np.zeros(len(state.norms))
    return output.damping * objective.loss.most_curvature * state.norms**2


def accuracy(output: L1Output) -> float:
    """Return the share of how far slopes are off that a solution may leave."""
    return min(ETA, output.gap) if np.isfinite(output.gap) else ETA


def _solve(state: L1State, w: Array, output: L1Output, objective: Objective) -> None:
    """Find where the second order model is least over the weights of W, and go there; `w` is written at the end."""
    places = output.columns if len(output.columns) else np.arange(state.D)
    direction = np.zeros(state.D)
    direction[places], is_found = solution(state, output, places, w[places], objective)
    if not state.is_parabola:
        output.products, output.columns = NOTHING, NO_NUMBERS
    is_last = state.is_alone and state.is_parabola and state.is_whole and is_found
    is_last = is_last and not (output.is_rough and output.num_solved == 0)
    _go(state, output, direction)
    if output.phase is NewtonPhase.EVALUATE and (state.has_last_word or is_last):
        output.phase, output.plus, output.minus = NewtonPhase.REST, 1.0, 1.0
        if not state.has_last_word:
            w += direction
            output.direction = np.zeros(state.D)


def _go(state: L1State, output: L1Output, direction: Array) -> None:
    """Evaluate the end of a direction, or rest where it leads nowhere: nothing is left that rounding does not hide."""
    output.phase, output.reach, output.direction = NewtonPhase.EVALUATE, 1.0, direction
    output.num_solved += 1
    if state.is_alone and not _leads_on(direction):  # else all tasks find that out from its mean
        output.phase, output.direction = NewtonPhase.REST, np.zeros(state.D)


def solution(state: L1State, output: L1Output, places: Array, w: Array, objective: Objective) -> tuple[Array, bool]:
    """Find the changes of w to where the second order model is least over these places, and whether they are exact."""
    size, l1, l2 = len(places) - objective.has_free_intercept, objective.l1, objective.l2
    num_products = size * (size + 1) // 2
    H, damped = symmetric(output.products[:num_products], size), damping(state, output, objective)[places]
    H.ravel()[:: size + 1] *= 1.0 + JITTERS[2] * output.is_rough
    H.ravel()[:: size + 1] += damped[:size]
    q = output.slopes[places]
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
            least = LEAST_SHARE * objective.tol * l1
            most = enough = least
            if not state.is_parabola:
                share, worst = accuracy(output), worst_slope(q, w, l1, l2)
                most = max(least, share * worst)
                # Over few columns a solution takes less time than a pass.
                enough = max(least, min(share, LEAST_ETA) * worst) if size <= MOST_EXACT else most
            elif state.is_whole:
                enough = 0.0
            found, is_found = minimise(H, q, w, l1=l1, l2=l2, enough=enough, accuracy=most)
            found -= w
        if objective.has_free_intercept:
            found = np.append(found, offset - means @ found)
    return found, is_found
