"""How Newton's method goes on from the sums of a pass. Pure: no row is in sight, and of the loss only what it is.

The objective, with round corners where the loss has some, is minimised by Newton's method. Its directions are exact
where a message has room for all second derivatives and these are cheap, and else come from conjugate gradients, one
product and so one pass each. Their preconditioner has the second derivatives in the heaviest columns, or those of some
rows. Its sum takes as long as many products, so it is kept as long as few are needed with it, and corrected by the
products of the last step. They end when the residual is as small a share as Newton's method can make use of by now
(Dembo, Eisenstat and Steihaug 1982), or small enough for the step to be the last. Wide rows of few values are sent once
passes have cost as much as that, and each task takes the steps alone (`few_rows`).

The next pass evaluates the end of the direction. Where the objective has not fallen by a part of what was foretold, the
losses along the direction tell which share of it brings the objective furthest down, and the pass after evaluates that.
A scale of the residuals is one more unknown of the equations; without exact directions it takes a step of its own.

With the slopes at w as duals the gap has two parts: |gradient|^2 / (2 alpha), and what the corners leave. Corners
become narrower with every step, the more the less it foretells beside the second part, and no narrower than `tol`
needs. Each task remembers the duals that the last step has foretold for its rows, the slopes and their change to first
order: with these the first part is next to nothing after a whole step, and the gap is known long before the gradient is
small. They say how curved corners count in the next step, too (`curvatures_beside`). Of large features the gradient at
any w is mostly rounding of w; then w is as good as it gets, and the certificate has the duals of w + step, which is
more than a number has room for.

Where chunks have duals, an output rests with those one exact step on, of which w then is made: Newton's method squares
what it leaves, so that it rests as soon as that will be small enough. With features of very different scales no dual is
exact enough for that: rounding of the duals times a feature of 1e8 is a w that is worth nothing. There, and after
certificates in vain, w is certified together with its slopes.

An intercept that is not penalised takes what it can of the gradient first (`steepness_of`), and the duals of the sign
with more of them are made smaller until all add up to 0. A scale whose derivative is not 0 leaves that much, too.

The second derivatives of a parabola are summed up once. Conjugate gradients, preconditioned by their Cholesky factor
where there is room, go on until the gap is small enough, and w goes along with them: with a factor the first step is
the solution but for rounding, or for float32 (Rifkin and Lippert 2007, "Notes on regularized least-squares"). A task
that is alone has no need to multiply after that first step. Where tasks found a step from a factor, they send it along
and go on with its mean (see `agreement`).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import SAME, dot, squared
from chicle_elastic.solvers.linear.certified import LEAST_FALL, MOST_LEFT, TINY
from chicle_elastic.solvers.linear.multinomial.objective import LEFT_OUT
from chicle_elastic.solvers.linear.newton import conjugate
from chicle_elastic.solvers.linear.newton.conjugate import NARROWER, narrow_along
from chicle_elastic.solvers.linear.newton.directions import curvature_along, heaviest_columns, to_least
from chicle_elastic.solvers.linear.newton.state import (
    SHARES,
    Block,
    Evaluation,
    NewtonPhase,
    NewtonState,
    OutputState,
    Problem,
    Sum,
)
from chicle_elastic.solvers.linear.objectives import EPSILON, SLIGHT
from chicle_elastic.solvers.linear.products import packed_diagonal
from chicle_elastic.solvers.linear.progress import HEAD, NO_NUMBERS, NOTHING
from chicle_elastic.solvers.linear.race import DENSE_VALUE, ITERATION_VALUES, MULTIPLICATION, ROW_VALUES

ENOUGH = 0.25  # share of slope times direction by which the objective has to fall; of a parabola it is a half
LEAST_REACH = 1e-5
"""Of a direction; of |gradient|^2 in a step whose effect on the objective is rounding, else no more are taken."""
SHORT = 0.2
"""Share of a direction below which it was much too long: second derivatives do not foresee rows whose curvature begins
on the way."""
FIRST_DAMPING, DAMPED = 1e-3, 10.0
"""Damping after a direction that leads nowhere, at most its inverse; and what each further one and each whole step
change it by, and a step at most a scale of residuals."""


def start(
    state: NewtonState, problem: Problem, model: Array, before: Sequence[NewtonState] | None = None
) -> NewtonState:
    """Set up the outputs before the first pass from `model`: w, shape (outputs * D,).

    `before` has where a fit of the same problem to some of the rows rests. Its preconditioner does for the first steps:
    another one costs as much as many products, and a warm fit needs few. With None, none is kept for another fit.
    """
    free = not problem.has_duals and problem.has_free_intercept and not problem.loss.is_parabola
    for w in model.reshape(-1, state.D):
        output = OutputState(shift=np.zeros(state.D), beside=np.zeros(state.D), is_wary=problem.loss.has_corners)
        output.plus = output.minus = 0.0 if free else 1.0
        if problem.has_duals and w.any():
            output.theta = NARROWER  # in units of margins; with 1 warm starts take 1.4 times the passes
        _restart(state, output, problem, w)
        output.keeps_factor = before is not None and not state.is_exact
        state.outputs.append(output)
    for kept in before or ():
        for output, old in zip(state.outputs, kept.outputs, strict=False):
            if output.keeps_factor and len(old.factor) and kept.layout == state.layout:
                output.diagonal, output.factor, output.columns = old.diagonal, old.factor, old.columns
                output.beside, output.block = old.beside, Block.KEPT
    return state


def reopen(state: NewtonState, problem: Problem, model: Array) -> None:
    """Begin anew at the present w: a certificate was not good enough, or other rows are there."""
    state.num_refused += 1
    # Products of a parabola repair what that does, and slopes of a softmax are exact from now on.
    repairs = problem.loss.is_parabola or problem.num_classes > 1
    state.is_rough = state.is_rough and repairs and not problem.takes_steps
    for w, output in zip(model.reshape(-1, state.D), state.outputs, strict=True):
        output.is_refused, output.factor = True, NOTHING
        _restart(state, output, problem, w)


def _restart(state: NewtonState, output: OutputState, problem: Problem, w: Array) -> None:
    output.phase = NewtonPhase.EVALUATE if problem.has_duals else NewtonPhase.LOOK
    output.gap, output.reach, output.is_blind, output.is_chosen = np.inf, 1.0, False, False
    output.direction, output.change, output.dual, output.duals = np.zeros(state.D), 0.0, -np.inf, NOTHING
    output.foreseen = 0.0
    # Where the W of a softmax is 0 the look at the data sums up a block, too.
    is_kept = problem.num_classes > 1 and problem.penalised(w).any()
    output.block, output.keeps_duals, output.is_searched = Block.KEPT if is_kept else state.first_block, False, False
    if problem.has_duals:
        if output.shift.any():  # w that was made of duals may be far worse
            output.direction = output.residual - w
        output.shift, output.value = np.zeros(state.D), np.inf
        if problem.has_free_intercept and abs(w[-1]) >= -LEFT_OUT:  # of rows that were of one class, and may be no more
            output.direction = -w


def advance(state: NewtonState, problem: Any, model: Array, sums: Array, weight: float) -> Array:
    """Go on from the sums of a pass of `weight` tasks (see `state`, which is changed); returns w of all outputs."""
    num_interrupted, num_rows, num_alone = sums[:HEAD].tolist()
    if num_interrupted > 0 or state.is_at_rest:  # the pass is made again
        return model
    is_first = state.num_rows == 0.0 or state.is_looking
    if not is_first and num_rows != state.num_rows:  # rows were lost or have come back: another objective
        state.num_rows, state.num_refused = 0.0, 0
        state.lengths, state.gathered = NO_NUMBERS, NOTHING  # some may be those of no row
        for w, output in zip(model.reshape(-1, state.D), state.outputs, strict=True):
            _restart(state, output, problem, w)
        return model
    parts = state.parts(sums, problem)  # laid out as the tasks knew the rows and the tasks before this pass
    evaluations = [
        Evaluation.of(state, output, problem, part) if output.phase is NewtonPhase.EVALUATE else None
        for output, part in zip(state.outputs, parts, strict=True)
    ]
    state.is_alone = num_alone > 0
    if is_first:
        state.num_rows = num_rows
        state.passes = _passes_at_once(state, problem) if num_alone else 1
        for output in state.outputs:  # an update of several passes has no room for a factor, and a block costs little
            output.keeps_factor &= state.passes == 1
    following = model.copy()
    each = zip(following.reshape(-1, state.D), state.outputs, parts, evaluations, strict=True)
    for w, output, part, evaluation in each:
        if output.phase is NewtonPhase.LOOK:
            w[:], evaluation = problem.looked(state, output, w, part)
            if state.few_rows:
                state.lengths = part[-state.few_rows :].astype(np.int64)
            if evaluation is not None:
                w[:] = _evaluated(state, output, problem, w, evaluation, 1.0)
        elif output.phase is NewtonPhase.GATHER:
            state.gathered, output.phase = part.copy(), NewtonPhase.SOLVE
        elif output.phase is NewtonPhase.SOLVE:
            w += part[: state.D] / weight
            output.theta, output.gap, share_at_rest, state.work_alone = (part[state.D :][:4] / weight).tolist()
            output.direction = np.zeros(state.D)
            if share_at_rest == 1.0:
                output.duals, output.phase, output.is_refused = part[state.D + 4 :] / weight, NewtonPhase.REST, False
                state.gathered = NOTHING
        elif output.phase is NewtonPhase.MULTIPLY:
            w[:] = conjugate.multiplied(state, output, problem, w, part, weight)
        elif output.phase in (NewtonPhase.PRODUCTS, NewtonPhase.COLUMNS):
            w[:] = problem.solved(state, output, w, part)
        elif evaluation is not None and problem.takes_steps:
            w[:] = problem.evaluated(state, output, w, evaluation, weight)
        elif evaluation is not None:
            w[:] = _evaluated(state, output, problem, w, evaluation, weight)
            is_exact = problem.loss.is_parabola and state.is_exact and output.block is Block.KEPT
            is_exact = is_exact and not (state.is_rough or output.is_refused)
            if num_alone and is_exact and output.phase is NewtonPhase.MULTIPLY:
                # The step is 1, and a certificate follows in place of a product; if it refuses, products are safer.
                output.phase = NewtonPhase.REST
                w += output.conjugate
    if state.few_rows and not state.is_looking:
        conjugate.count_pass(state)
    return following


def _passes_at_once(state: NewtonState, problem: Problem) -> int:
    """Say how many passes an only task makes in an iteration: as many as cost about what is between two iterations."""
    if problem.loss.is_parabola:
        return 1
    D, num_rows = state.D, state.num_rows * len(state.outputs)
    of_row = DENSE_VALUE * D + 0.5 * MULTIPLICATION * D * D * state.is_exact + ROW_VALUES
    return max(int(ITERATION_VALUES // max(num_rows * of_row, 1.0)), 1)


def _evaluated(
    state: NewtonState, output: OutputState, problem: Problem, w: Array, found: Evaluation, weight: float
) -> Array:
    """Take the step if it is good enough, and find the next one."""
    loss, alpha = problem.loss, problem.strength(state)
    scalars = found.scalars[: Sum.DUALS].tolist()
    round_loss, sharp_loss, corners, plus, minus, by_scale, _, loss_before, of_slopes = scalars
    # The steps of all tasks differ in their last digits: all go on with their mean.
    step = found.step / weight
    output.direction, (output.change, output.slope) = step[:-2], step[-2:].tolist()
    direction, there = output.direction, w + output.direction
    penalised = problem.penalised(there)
    half = 0.5 * alpha * squared(penalised)
    if output.is_first and problem.has_duals:
        if is_one_sided(output, problem, w, direction, plus, minus):
            return w
        if not direction.any() and is_there_already(state, output, problem, half, found):
            return w
    output.is_first = False
    has_step = bool(direction.any() or output.change)
    if has_step and not output.is_chosen and math.isfinite(output.value):
        fall = output.value - half - (loss_before if loss.has_corners else round_loss)
        rounding = SAME * abs(output.value)
        if abs(fall) <= rounding and output.reach == 1.0:  # the gradient tells, if it is one of the same corners
            output.is_blind = not (loss.has_corners and output.change)
        elif not fall >= -ENOUGH * output.slope and not _is_best(state, output, problem, w, fall, found):
            output.is_best = False
            return w
    was_whole = has_step and output.reach == 1.0
    if was_whole:
        output.damping = output.damping / DAMPED if output.damping > FIRST_DAMPING else 0.0
    elif loss.full_curvature and state.is_exact and output.reach < SHORT:
        output.damping = max(DAMPED * output.damping, FIRST_DAMPING)
    if direction.any():
        output.is_refused = False
    output.theta, output.reach = output.theta + output.change, 1.0
    output.is_chosen = output.is_searched = False
    if not (loss.has_theta or problem.has_duals):  # whose duals tasks keep themselves
        output.shift = output.shift - direction
    gradient = alpha * penalised - found.v
    output.value = half + round_loss
    output.direction, output.change, output.foreseen = np.zeros(len(w)), 0.0, 0.0
    if not _keep_products(state, output, problem, found):  # float32 has no room for them
        return there
    steepness, before = problem.steepness_at(state, output, there, gradient, found), output.steepness
    value = half + sharp_loss
    primal = max(value, state.floor)
    lead = steepness
    if loss.has_scale:
        squares = float(found.scalars[Sum.SQUARES])
        lead = problem.lack(state, there, found.of_duals, corners, value, squares) - corners
    elif loss.has_corners:
        lead = problem.steepness_of(output, alpha * penalised - found.of_duals, alpha)
    keep_best_duals(output, problem, value - corners - lead, plus, minus)
    enough = state.share * problem.tol * primal
    # D of no duals may be enough, where duals of rounding are worse.
    least_dual = 0.0 if loss.has_theta and value <= enough and not problem.has_duals else -math.inf
    left = value - max(output.dual, least_dual)
    output.gap = left / primal
    is_at_rest = output.is_blind and not steepness < LEAST_FALL * before
    output.steepness, output.is_blind = steepness, False
    output.corners, output.enough = of_slopes, enough
    if output.block is Block.ROUGH and has_step and (is_at_rest or not steepness < LEAST_FALL * before):
        output.block, is_at_rest = Block.EXACT, False
    if is_at_rest and state.is_rough and not state.is_exact:
        state.is_rough, is_at_rest = False, False  # products may have been too rough
    has_begun = problem.is_begun(there) or not gradient.any() or value <= enough
    is_there = has_begun and left <= enough and not (output.is_refused and steepness > 0)
    goes_beside = state.is_exact and is_at_rest and abs(of_slopes) <= enough and not loss.is_parabola
    if problem.has_duals and state.is_exact and not loss.has_corners:
        ratio = steepness / max(before, TINY) if has_step else np.inf
        is_near, is_rounding = will_be_there(output, problem, gradient, found, ratio, was_whole=was_whole)
        if not (is_rounding or output.damping or state.num_refused > 2):
            is_there = is_there and is_at_rest
            if is_near:
                is_there, goes_beside = False, True
                output.plus = output.minus = 1.0  # those at the end of an exact direction add up to 0
    if is_there:
        there = problem.resting(output, there, gradient, found)
        goes_beside = problem.has_duals and state.is_exact and loss.has_corners and not state.num_refused
    if is_there or goes_beside:
        output.phase = NewtonPhase.REST
        if goes_beside:
            output.residual = there
            output.shift = _newton_direction(state, output, problem, there, gradient, found)
    elif is_at_rest and by_scale > 0 and output.theta > SAME * state.typical:  # w has followed
        output.change = (1.0 / DAMPED - 1.0) * output.theta
        output.slope = output.change * by_scale
    elif is_at_rest:
        narrow(state, output, problem)
    elif state.is_exact and not loss.is_parabola:
        output.direction = _newton_direction(state, output, problem, there, gradient, found)
        output.slope = dot(gradient, output.direction) + by_scale * output.change
        narrow_along(output, problem)
    else:
        if loss.has_scale:
            output.change = _of_scale(output, by_scale, float(found.scalars[Sum.TWICE_BY_SCALE]), steepness)
        output.slope = by_scale * output.change
        conjugate.begin(state, output, problem, -gradient)
    return there


def _is_best(
    state: NewtonState, output: OutputState, problem: Problem, w: Array, fall: float, found: Evaluation
) -> bool:
    """Say whether a direction that was too long is the best there is; else the next pass evaluates a share of it."""
    shares = np.array(SHARES)
    if len(found.line):
        at_w, along = problem.penalised(w), problem.penalised(output.direction)
        half_norms = 0.5 * squared(at_w) + shares * dot(at_w, along) + 0.5 * shares * shares * squared(along)
        values = problem.strength(state) * half_norms + found.line
        values[~np.isfinite(values)] = np.inf
        best = int(np.argmin(values))
        output.is_chosen = bool(values[best] < output.value - SAME * abs(output.value))
        if output.is_chosen and best == 0:
            return True
        is_damped = problem.loss.full_curvature and state.is_exact and output.damping * FIRST_DAMPING < 1.0
        if not output.is_chosen and is_damped:
            # Second derivatives do not foresee rows whose curvature begins on the way (Levenberg and Marquardt).
            output.damping = max(DAMPED * output.damping, FIRST_DAMPING)
            output.direction, output.change, output.reach = np.zeros(state.D), 0.0, 1.0
            return False
        share = SHARES[best] if output.is_chosen else SHARES[-1]
    else:  # the minimum of the parabola through value and slope at 0 and the value at 1
        curvature = -fall - output.slope
        share = min(max(-0.5 * output.slope / curvature, 0.05), 0.5) if 0 < curvature < np.inf else 0.1
    if not output.is_chosen and output.reach <= LEAST_REACH:
        narrow(state, output, problem)
        return False
    output.direction, output.slope, output.reach = share * output.direction, share * output.slope, share * output.reach
    output.change *= 0.0 if problem.loss.has_corners else share
    output.foreseen *= share
    output.is_searched = output.is_wary = True
    return False


def _keep_products(state: NewtonState, output: OutputState, problem: Problem, found: Evaluation) -> bool:
    """Keep of the second derivatives what the steps need; False if they have to be summed up with more digits."""
    if output.block is Block.KEPT:
        return True
    diagonal = found.diagonal
    if state.has_all_columns:
        output.beside, diagonal = found.second[-state.D :], packed_diagonal(found.second, state.D)
    elif problem.has_free_intercept:
        output.beside = found.beside
    if state.is_exact and not problem.loss.is_parabola:
        if problem.loss.full_curvature is not None:
            output.diagonal = np.maximum(output.diagonal, diagonal) if len(output.diagonal) else diagonal
        return True
    if state.is_exact and state.is_rough and problem.has_free_intercept and not output.beside[-1] > 0:
        state.is_rough, output.block = False, Block.EXACT  # weights are too small for float32
        return False
    # Whether there is a factor differs from one processor to another, so it decides on nothing but the factor.
    problem.precondition(state, output, diagonal, found, problem.ridge(state))
    output.pairs = np.zeros(0)
    if state.block_columns and not (state.has_all_columns or len(output.columns)):  # from the next evaluation on
        output.columns = heaviest_columns(output.diagonal, state.block_columns)
    if problem.loss.is_parabola:
        output.block = Block.KEPT
    return True


def _newton_direction(
    state: NewtonState, output: OutputState, problem: Problem, w: Array, gradient: Array, found: Evaluation
) -> Array:
    """Return -H^-1 gradient, with H the second derivatives; with a scale those by it, too, and `change` is set."""
    ridge = problem.ridge(state)
    if output.damping:
        ridge += output.damping * output.diagonal
    step, coupled, null = problem.steps(state, output, w, gradient, found, ridge)
    if problem.loss.has_scale:
        by_scale, curvature = found.scalars[[Sum.BY_SCALE, Sum.TWICE_BY_SCALE]].tolist()
        bend = max(curvature - float(found.mixed @ coupled), 0.0)
        left = -float(gradient @ step)
        output.change = _of_scale(output, by_scale + float(found.mixed @ step), bend, left)
        # What a step leaves of slopes grows where a scale falls to less than a half of what they were found for.
        leads_down = by_scale * output.change - left < output.change * float(gradient @ coupled)
        if leads_down and output.change > -0.5 * output.theta:
            output.foreseen, step = output.change, step - output.change * coupled
        else:
            output.change = _of_scale(output, by_scale, curvature, left)
    return step + to_least(w + step, null, ridge) if null.shape[1] else np.asarray(step)


def _of_scale(output: OutputState, slope: float, bend: float, left: float) -> float:
    """Return the change of a scale, which leaves it above 0: to the least of the A scale + B / scale with its slope
    and second derivative.

    Rows that are fitted exactly have no second derivative by it, and it goes to 0 by tenths, once w has followed: what
    is `left` to gain by w is no more.
    """
    falling = 0.5 * bend * output.theta
    rising = slope + falling
    share = math.sqrt(falling / rising) if rising > 0 else math.inf if slope < 0 else 1.0
    costs = output.theta * abs(slope)
    if share < 1.0 / DAMPED and left > costs:
        return 0.0
    narrow_enough = min(MOST_LEFT * output.enough / max(costs, TINY), 1.0) if slope > 0 else 0.0
    return (min(max(share, 1.0 / DAMPED, narrow_enough), DAMPED) - 1.0) * output.theta


CAUTION = 2.0  # what a step leaves may be so many times what the step before has left


def is_one_sided(output: OutputState, problem: Problem, w: Array, direction: Array, plus: float, minus: float) -> bool:
    """Say whether all c_i of one class are 0, in a first pass: then the other class is all there is to say.

    Slopes of large margins are 0, too, so w = 0 is asked. The output rests then, or goes there first.
    """
    if not problem.has_free_intercept or (plus > 0) == (minus > 0):
        return False
    if w.any() and not direction.any():
        output.direction = -w
        return True
    if (w + direction).any():
        return False
    w[:] = 0.0
    w[-1] = -LEFT_OUT if plus > 0 else LEFT_OUT
    output.plus = output.minus = output.gap = 0.0
    output.phase, output.direction = NewtonPhase.REST, np.zeros(len(w))
    return True


def is_there_already(
    state: NewtonState, output: OutputState, problem: Problem, half_norm: float, found: Evaluation
) -> bool:
    """Say whether w and the duals of the chunks are good enough together: a fit goes on where one has ended."""
    sharp_loss, of_chunks, signed = found.scalars[[Sum.LOSS, Sum.DUALS, Sum.SIGNED]].tolist()
    primal = half_norm + sharp_loss
    gap = primal - (of_chunks - half_norm)  # of w that is that of the duals; else the certificate tells
    size = float(found.scalars[Sum.PLUS] + found.scalars[Sum.MINUS])
    is_balanced = not problem.has_free_intercept or abs(signed) <= SLIGHT * size
    if not (is_balanced and -SAME * primal <= gap <= state.share * problem.tol * primal):
        return False
    output.phase, output.gap, output.keeps_duals = NewtonPhase.REST, gap / max(primal, TINY), True
    return True


def will_be_there(
    output: OutputState, problem: Problem, gradient: Array, found: Evaluation, ratio: float, *, was_whole: bool
) -> tuple[bool, bool]:
    """Say whether w one exact step on, and the duals of which it is made, are good enough; and if these are rounding.

    Newton's method squares the share of the gap that a step leaves, which was `ratio` for the last one, but for kinks.
    """
    g = problem.penalised(gradient)
    if problem.has_free_intercept:
        g = problem.penalised(gradient - (float(gradient[-1]) / max(float(output.beside[-1]), TINY)) * output.beside)
    bend, has_kinks = curvature_along(g, found.second) / max(squared(g), TINY), problem.loss.full_curvature is not None
    expected = ratio * ratio if was_whole and not has_kinks else ratio
    left = CAUTION * expected * (1.0 + bend if has_kinks else 1.0)
    is_near = output.steepness * min(left, 1.0 + bend) <= output.enough
    # Rounding of duals of about 1, times features whose squares add up to `bend`, and once more in the objective.
    return is_near, (EPSILON * bend) ** 2 > output.enough


def keep_best_duals(output: OutputState, problem: Problem, dual: float, plus: float, minus: float) -> None:
    """Take the slopes at w as duals, if D is larger with them than it has been.

    Where a scale goes to 0, slopes are rounding of w. With corners tasks keep the duals themselves.
    """
    output.is_best = dual > output.dual or problem.has_duals_of_w
    if not output.is_best:
        return
    output.dual, output.dual_theta, output.shift = dual, output.theta, np.zeros_like(output.shift)
    if problem.has_free_intercept and not problem.loss.is_parabola:
        least = min(plus, minus)
        output.plus, output.minus = least / max(plus, TINY), least / max(minus, TINY)


def narrow(state: NewtonState, output: OutputState, problem: Problem) -> None:
    """Make the corners narrower, or rest where there are none, or rounding would be all that is gained."""
    output.phase, output.reach = NewtonPhase.EVALUATE, 1.0
    output.direction, output.change = np.zeros(state.D), 0.0
    if problem.loss.has_corners:
        output.theta *= NARROWER
    if not problem.loss.has_corners or output.theta < SAME * state.typical:
        output.phase, output.is_refused = NewtonPhase.REST, False
