"""The hinge, smoothed: how one output goes on from the sums of an evaluation. See `steps`."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.newton.line import ARMIJO, ROUNDING, where_slope_is_0
from chicle_elastic.solvers.linear.newton.plan import Group, NewtonPlan
from chicle_elastic.solvers.linear.newton.preconditioner import curvatures_along, factorise
from chicle_elastic.solvers.linear.newton.state import OutputState
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.products import packed_diagonal

LEAST_SQUARES_TAU, FIRST_TAU = 0.99, 2.0
MOST_TAU = 1e9
GROWTH = 4.0
"""Factor of tau where the centers were easy; half of it where they took two steps, 1 where they took more."""
INNER_SHARE = 0.3
"""Share of the gap that may come from w not being the minimum of phi when the centers move."""
SHORTER = 0.25
"""Share of a direction that was too long, where no slopes along it were found."""


def evaluated(plan: NewtonPlan, share: float, w: Array, output: OutputState, group: Group, j: int) -> None:
    """Take the best candidate if it is good enough.

    Args:
        plan: What is fixed.
        share: Share of tol below which an output rests.
        w: OUT. Of the output, shape (D,).
        output: OUT. Its state.
        group, j: The sums, and which row of them is the output's.
    """
    direction = group.direction[j]
    has_direction = bool(direction.any())
    chosen, t, has_changed = 0, 0.0, True
    if has_direction:
        at_w, along, length = squared(w), dot(w, direction), squared(direction)

        def half_norm(t: float) -> float:
            return 0.5 * (at_w + 2.0 * t * along + t * t * length)

        phi, slope = half_norm(0.0) + float(group.start[j, 0]), along + float(group.start[j, 1])
        values = [half_norm(t) + float(group.values[j, c, 2]) for c, t in enumerate(plan.candidates)]
        chosen = min(range(len(values)), key=lambda c: values[c])
        t = plan.candidates[chosen]
        if not values[chosen] <= phi + ARMIJO * t * min(slope, 0.0) + ROUNDING * abs(phi):
            if group.slopes.shape[1]:
                output.direction = direction * where_slope_is_0(group.slopes[j], along, length, slope)
            else:
                output.direction = SHORTER * direction  # and the next pass finds slopes
            output.old_tau = 0.0  # the centers have moved in this pass, and stay for the next
            output.t = 0.0
            output.num_rejected += 1
            return
        has_changed = abs(values[chosen] - phi) > ROUNDING * abs(phi)
        w += t * direction
        output.serial += 1
    output.t = t
    gradients = [of_variant[j] for of_variant in group.gradients[chosen]]
    blocks = [of_variant[j] for of_variant in group.blocks[chosen]]
    primal = 0.5 * squared(w) + float(group.values[j, chosen, 0])
    gap = primal - (float(group.values[j, chosen, 1]) - 0.5 * squared(gradients[0]))
    output.gap = gap / max(primal, TINY)
    output.old_tau = 0.0
    goal = share * plan.tol
    is_landing = output.gap <= goal
    further = 0.5 * float(curvatures_along((w - gradients[0])[None], blocks[0][None])[0]) if is_landing else 0.0
    if is_landing and gap + further <= goal * primal:
        output.rest(w, gradients[0] - w)
        return
    if is_landing and not has_changed:
        output.rest(w, np.zeros(plan.D))
        return
    variant = _centered(output, has_direction, w - gradients[0], gap, is_landing=is_landing)
    diagonal = packed_diagonal(blocks[variant], plan.D)
    output.direction = -factorise(blocks[variant], diagonal, output.columns).solve(w - gradients[variant])


def _centered(output: OutputState, has_direction: bool, gradient: Array, gap: float, *, is_landing: bool) -> int:
    """Whether the centers move here: the variant that counts. What the next pass may move them to is set."""
    if output.is_least_squares:
        has_moved = has_direction
        output.is_least_squares = not has_moved
    else:
        # At the end phi is minimised to the last digits, for w(alpha) to be as good as w.
        has_moved = not is_landing and 0.5 * squared(gradient) <= INNER_SHARE * gap
    if not has_moved:
        output.num_inner += 1
    else:
        output.old_tau, output.tau = output.tau, output.next_tau
        output.num_inner = output.num_rejected = 0
    output.next_tau = _next_tau(output)
    return int(has_moved)


def _next_tau(output: OutputState) -> float:
    if output.is_least_squares:
        return FIRST_TAU
    if output.num_inner <= 1 and output.num_rejected == 0:
        growth = GROWTH
    else:
        growth = 0.5 * GROWTH if output.num_inner <= 2 else 1.0
    return min(growth * output.tau, MOST_TAU)
