"""Smooth losses: how outputs go on from the sums of an evaluation. See `steps`."""

import math
from collections.abc import Sequence

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, dots, squared
from chicle_elastic.solvers.linear.multinomial.objective import LEFT_OUT
from chicle_elastic.solvers.linear.newton import conjugate
from chicle_elastic.solvers.linear.newton.line import ARMIJO, ROUNDING, where_slope_is_0
from chicle_elastic.solvers.linear.newton.plan import Group, NewtonPlan
from chicle_elastic.solvers.linear.newton.preconditioner import PreconditionerBlock, curvatures_along, factorise
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, OutputState
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.products import packed_diagonal

LEAST_SHARE_OF_NEWTON_DUALS = 0.2
"""Share of tol below which, after two certificates in vain, no output rests with the duals of one Newton step on."""
MOST_REJECTED = 4
"""Directions in a row that may be too long; then w is evaluated anew, as rows may have come back meanwhile."""
NEARLY_BEST = (0.4, 2.0)
"""Shares of a direction between which it need not be looked at again: the squared hinge has kinks, and a step that ends
just before the next one is repeated for ever."""
POOR = 0.9
"""Share above which sums in float32 are not good enough."""
EPSILON = float(np.finfo(np.float64).eps)
SHORT = 0.2
"""Share of a direction from which it was much too long."""
FIRST_DAMPING, LEAST_DAMPING, FACTOR = 1e-3, 1e-6, 10.0
"""Damping after such a direction, below what it is none, and what each one changes it by."""
CAUTION = 4.0
"""What a step leaves may be so many times what the step before has left."""


def evaluated(
    plan: NewtonPlan,
    share: float,
    w: Array,  # OUT
    outputs: Sequence[OutputState],  # OUT
    group: Group,
    going_on: Sequence[int],
) -> None:
    """Take those steps that are good enough.

    Args:
        plan: What is fixed.
        share: Share of tol below which an output rests.
        w: Shape (num_outputs, D).
        outputs: All of them.
        group: The sums.
        going_on: Rows of the group that count.
    """
    directions = group.direction
    there = w[group.numbers] + directions
    penalised = plan.penalised(there)
    values = 0.5 * dots(penalised, penalised) + group.values[:, 0, 0]
    gradients = penalised - group.gradients[0][0]
    before = np.array([outputs[k].gradient for k in group.numbers])
    steps, steps_before = gradients, before
    if plan.has_free_intercept:
        for j, k in enumerate(group.numbers):
            _learn_beside(plan, outputs[k], group, j)
        steps, steps_before = (_centred(plan, of_all, outputs, group.numbers) for of_all in (gradients, before))
    squares, squares_before = dots(steps, steps).tolist(), dots(steps_before, steps_before).tolist()
    slopes = dots(before, directions).tolist()
    bends = _bends(plan, group, plan.penalised(steps))
    have_directions = np.any(directions, axis=1).tolist()
    for j in going_on:
        k, value = group.numbers[j], float(values[j])
        output, left, has_changed = outputs[k], math.inf, True
        if have_directions[j] and math.isfinite(output.value):
            if _refused(plan, w[k], output, group, j, slopes[j], value):
                continue
            left = squares[j] / max(squares_before[j], TINY)
            has_changed = abs(value - output.value) > ROUNDING * value
        if have_directions[j]:
            w[k] = there[j]
            output.serial += 1
            if plan.has_all_columns and (plan.loss.has_kinks or output.damping):
                _damp(output)
        if plan.has_free_intercept:
            _balance(output, group.values[j, 0, 1:])
        output.t = 1.0 if have_directions[j] else 0.0
        output.num_rejected = 0
        output.gap = 0.5 * squares[j] / max(value, TINY)
        output.value, output.gradient = value, gradients[j].copy()
        goal = share * plan.tol * value
        if output.block is not Block.KEPT:
            output.pairs = np.zeros(0)
        factored = _factored(plan, output, group, j)
        if not plan.needs_products:
            output.bend = bends[j] / max(squares[j], TINY)
            if output.gap * value * (1.0 + output.bend) <= goal:
                _rest(plan, w[k], output, -plan.penalised(steps[j]))
            else:
                _go_on(plan, share, w[k], output, factored, left, has_changed=has_changed)
        elif output.gap * value <= goal:  # better duals would cost some products more
            _rest(plan, w[k], output, np.zeros(plan.D))
        else:
            conjugate.begin(plan, share, output, factored)


def _bends(plan: NewtonPlan, group: Group, gradients: Array) -> list[float]:
    """Second derivatives of the losses along each gradient; empty where steps need products."""
    return [] if plan.needs_products else curvatures_along(gradients, group.blocks[0][0]).tolist()


def _factored(plan: NewtonPlan, output: OutputState, group: Group, j: int) -> PreconditionerBlock:
    """Of the block of this pass, or the kept one."""
    if output.block is Block.KEPT:
        return PreconditionerBlock(output.factor, output.scale, output.columns)
    block = group.blocks[0][0][j]
    diagonal = packed_diagonal(block, plan.D) if plan.has_all_columns else group.diagonals[0][0][j]
    ridge = plan.ridge
    if plan.has_all_columns:
        output.most = np.maximum(output.most, diagonal) if len(output.most) else diagonal.copy()
        if output.damping:
            ridge = ridge + output.damping * output.most
    factored = factorise(block, diagonal, output.columns, ridge)
    if not plan.has_all_columns and not len(output.columns):  # from the next evaluation on there is a block
        output.columns = heaviest_columns(diagonal, plan.block_columns)
    return factored


def _go_on(
    plan: NewtonPlan,
    share: float,
    w: Array,
    output: OutputState,
    factored: PreconditionerBlock,
    left: float,
    *,
    has_changed: bool,
) -> None:
    """The next direction, and whether the output rests with its duals.

    Args:
        left: Share of the squared gradient that the last step has left; infinite without a step.
        has_changed: Whether it has changed the objective.
    """
    goal, gap = share * plan.tol * output.value, output.gap * output.value
    was_exact, output.is_exact = output.is_exact, not output.damping
    output.reach = 1.0
    output.direction = -factored.solve(output.gradient)
    # Newton's method squares what it leaves, and w of the duals is the end of an exact direction, but for kinks.
    has_kinks = plan.loss.has_kinks
    expected = left * left if output.is_exact and was_exact and not has_kinks else left
    bend = 0.0 if output.is_exact and not has_kinks else output.bend
    is_near = CAUTION * expected * gap * (1.0 + bend) <= goal
    # Rounding of duals of about 1, times features whose squares add up to `bend`, and once more in the objective.
    is_rounding = (EPSILON * output.bend) ** 2 > goal
    if share > LEAST_SHARE_OF_NEWTON_DUALS and is_near and not is_rounding:
        output.has_newton_duals = True
        _rest(plan, w, output, output.direction)
    elif not has_changed and gap <= goal and output.block is Block.EXACT:
        _rest(plan, w, output, np.zeros(plan.D))
    else:
        output.block = next_block(plan, output, is_poor=POOR < left < math.inf or not has_changed)


def _rest(plan: NewtonPlan, w: Array, output: OutputState, direction: Array) -> None:
    """Rest at the end of a direction, once the duals are balanced where they have to be; `w` is written."""
    output.rest(w, direction)
    if plan.has_free_intercept and output.has_newton_duals:
        # Those at the end of an exact direction are balanced already; of others only a pass knows the sums.
        output.plus = output.minus = 1.0
        output.phase = NewtonPhase.REST if output.is_exact else NewtonPhase.BALANCE


def balanced(output: OutputState, masses: Array) -> None:
    """Rest with Newton's duals, whose sums are known now."""
    _balance(output, masses)
    output.phase = NewtonPhase.REST


def _balance(output: OutputState, masses: Array) -> None:
    """Have the duals of the class with more of them made smaller, so that a free intercept has nothing to gain."""
    plus, minus = masses.tolist()
    output.plus, output.minus = min(plus, minus) / max(plus, TINY), min(plus, minus) / max(minus, TINY)


def is_one_sided(plan: NewtonPlan, w: Array, output: OutputState, group: Group, j: int) -> bool:
    """Say whether all C_i of one class are 0, in a first pass: then the other class is all there is to say.

    Slopes of large margins are 0, too, so the question is asked at w = 0. The output rests then, or goes there first.
    """
    plus, minus = group.values[j, 0, 1:].tolist()
    if not plan.has_free_intercept or (plus > 0) == (minus > 0):
        return False
    if w.any() and not group.direction[j].any():
        output.direction = -w
        return True
    if (w + group.direction[j]).any():
        return False
    w[:] = 0.0
    w[-1] = -LEFT_OUT if plus > 0 else LEFT_OUT
    output.plus = output.minus = output.gap = 0.0
    output.rest(w, np.zeros(len(w)))
    return True


def _learn_beside(plan: NewtonPlan, output: OutputState, group: Group, j: int) -> None:
    """Keep the second derivatives by the free intercept and each weight that this pass has summed up."""
    if output.block is Block.KEPT:
        return
    if plan.has_all_columns:
        output.beside = group.blocks[0][0][j, -plan.D :].copy()  # the last row of the triangle
    else:
        output.beside = group.beside[j].copy()


def _centred(plan: NewtonPlan, gradients: Array, outputs: Sequence[OutputState], numbers: Sequence[int]) -> Array:
    """Gradients as the gap has them, once the free intercept has taken what it can take; shape (n, D).

    With h the second derivatives by the intercept b, a step of b alone changes the gradient g of the weights to
    g - g_b h / h_b, and is worth g_b^2 / (2 h_b).
    """
    found = gradients.copy()
    for k, g in zip(numbers, found, strict=True):
        beside = outputs[k].beside
        if len(beside) and beside[-1] > 0:
            of_intercept = g[-1]
            g -= (of_intercept / beside[-1]) * beside
            g[-1] = of_intercept / math.sqrt(beside[-1])
    return found


def next_block(plan: NewtonPlan, output: OutputState, *, is_poor: bool) -> Block:
    """What the next evaluation adds up, where the last block is not good enough.

    Args:
        is_poor: Whether steps with it have led nowhere.
    """
    if plan.needs_products:
        return plan.first_block
    return Block.EXACT if is_poor or output.block is Block.EXACT else Block.ROUGH


def _refused(plan: NewtonPlan, w: Array, output: OutputState, group: Group, j: int, slope: float, value: float) -> bool:
    """Whether the step is not good enough; then the state has a shorter one."""
    direction = group.direction[j]
    is_enough = value <= output.value + ARMIJO * min(slope, 0.0) + ROUNDING * abs(output.value)
    if is_enough and not plan.loss.has_kinks:
        return False
    if group.slopes.shape[1] and output.num_rejected < MOST_REJECTED - 1:
        w, along = plan.penalised(w), plan.penalised(direction)
        best = where_slope_is_0(group.slopes[j], dot(w, along), squared(along), slope)
        if not NEARLY_BEST[0] <= best <= NEARLY_BEST[1]:
            _look_again(plan, output, best, direction)
            return True
    if is_enough:
        return False
    # The minimum of the parabola through value and slope at 0 and the value at 1.
    curvature = value - output.value - slope
    is_parabola = curvature > 0 and math.isfinite(curvature)
    share = min(max(-0.5 * slope / curvature, 0.05), 0.5) if is_parabola else 0.1
    _look_again(plan, output, share, direction)
    return True


def _damp(output: OutputState) -> None:
    """Trust w more after a step that was a small share of its direction, and less after a whole one.

    Second derivatives of a loss with kinks do not foresee rows whose curvature begins on the way, as on separable data;
    and those of the logistic loss are 0, for rounding, where features are huge (Levenberg and Marquardt).
    """
    if output.reach < SHORT:
        output.damping = max(output.damping * FACTOR, FIRST_DAMPING)
    elif output.reach >= 1.0:
        output.damping = output.damping / FACTOR if output.damping >= LEAST_DAMPING else 0.0


def _look_again(plan: NewtonPlan, output: OutputState, share: float, direction: Array) -> None:
    """Evaluate the end of a share of the direction from the same w; after some in vain, w itself."""
    output.t, output.direction, output.is_exact = 0.0, share * direction, False
    output.reach *= share
    output.num_rejected += 1
    if output.num_rejected >= MOST_REJECTED:
        if plan.has_all_columns and output.block is Block.EXACT:  # it would be the same direction again
            output.damping = max(output.damping * FACTOR, FIRST_DAMPING)
        output.num_rejected, output.value = 0, np.inf
        output.direction = np.zeros(len(direction))
    if not plan.needs_products:
        output.block = next_block(plan, output, is_poor=True)


def heaviest_columns(diagonal: Array, number: int) -> Array:
    """The columns with the largest second derivatives, ascending, int64; equal ones by their number."""
    order = np.argsort(-diagonal, kind="stable")[:number]
    return np.sort(order[diagonal[order] > 0])
