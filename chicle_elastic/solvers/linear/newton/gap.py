"""Say from the sums of an evaluation how large the gap is, and how wide the corners of a loss are rounded off."""

import math

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import SAME, squared
from chicle_elastic.solvers.linear.certified import MOST_LEFT, TINY
from chicle_elastic.solvers.linear.multinomial.objective import LEFT_OUT
from chicle_elastic.solvers.linear.newton.directions import curvature_along
from chicle_elastic.solvers.linear.newton.state import Evaluation, NewtonPhase, NewtonState, OutputState, Problem, Sum
from chicle_elastic.solvers.linear.objectives import EPSILON, SLIGHT

CAUTION = 2.0  # what a step leaves may be so many times what the step before has left
NARROWER, FAR = 0.2, 0.1
"""Factor of the width of corners at least, which is squared where the relative gap is below the second; else it is
`MOST_LEFT` times the fall that a step foretells, as a share of what corners add to the gap. Over 106 tables on four
tasks the hinge takes 3 % fewer passes with 0.1 for both factors, and 3 % more with 0.3 and 0.03; 68 of regressions 2 %
more and fewer. On four tables of two tasks it takes 5 % more with 0.1, and on one of a regression 20 %."""


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


def narrow_along(output: OutputState, problem: Problem) -> None:
    """Have corners be narrower at the end of the direction: the more, the less it foretells beside what they cost.

    Once they are narrow enough they take `MOST_LEFT` of the gap to reach; with 0.1 and 0.8 of it passes are 2 to 5 %
    more.
    """
    if problem.loss.has_corners:
        corners = max(output.corners, TINY)
        just_narrow = math.sqrt(MOST_LEFT * output.enough / corners)
        least = NARROWER if output.gap > FAR else NARROWER * NARROWER
        share = max(least, just_narrow, -0.5 * MOST_LEFT * output.slope / corners)
        output.change = (min(share, 1.0) - 1.0) * output.theta
