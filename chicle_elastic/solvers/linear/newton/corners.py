"""How wide the corners of a loss are rounded off from step to step."""

import math

import numpy as np

from chicle_elastic.solvers.linear.certified import TINY
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, OutputState, Problem

PER_FALL, NARROWER, MUCH_NARROWER, FAR = 0.3, 0.2, 0.05, 0.1
"""Factor of the width of corners: the fall that a step foretells as a share of what corners add to the gap, times the
first, and at least the second, or the third where the relative gap is below the last. Over 106 tables on four tasks the
hinge takes 3 % fewer passes with 0.1 for both, and 3 % more with 0.3 and 0.03; 68 of regressions 2 % more and fewer."""
JUST_NARROW = 0.4
"""Share of the gap to reach that corners take, once they are narrow enough; 0.1 and 0.8 take 2 to 5 % more passes."""
LEAST_THETA = 1e-12  # as a share of the first one: rounding is as large


def narrow(state: NewtonState, output: OutputState, problem: Problem) -> None:
    """Make the corners narrower, or rest where there are none, or rounding would be all that is gained."""
    output.phase, output.reach = NewtonPhase.EVALUATE, 1.0
    output.direction, output.change = np.zeros(state.D), 0.0
    if problem.loss.has_corners:
        output.theta *= MUCH_NARROWER
    if not problem.loss.has_corners or output.theta < LEAST_THETA * state.typical:
        output.phase, output.is_refused = NewtonPhase.REST, False


def narrow_along(output: OutputState, problem: Problem) -> None:
    """Have corners be narrower at the end of the direction: the more, the less it foretells beside what they cost."""
    if problem.loss.has_corners:
        corners = max(output.corners, TINY)
        just_narrow = math.sqrt(JUST_NARROW * output.enough / corners)
        least = NARROWER if output.gap > FAR else MUCH_NARROWER
        share = max(least, just_narrow, -0.5 * PER_FALL * output.slope / corners)
        output.change = (min(share, 1.0) - 1.0) * output.theta
