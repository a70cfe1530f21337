"""Conjugate gradients: how one output finds its direction by products with its second derivatives. See `steps`."""

import math

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.newton.plan import Group, NewtonPlan
from chicle_elastic.solvers.linear.newton.preconditioner import PreconditionerBlock
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, OutputState
from chicle_elastic.solvers.linear.objectives import TINY, Loss

MOST_PRODUCTS = 100
KEPT_PRODUCTS = 8
"""Products of a run up to which the next one has the same preconditioner."""
LEAST_ETA, MOST_ETA = 1e-2, 0.3
FINAL_SHARE = 0.1
"""Share of its goal that the gap of an output may have from the residual of the last run."""
SHARE_AMONG_KINKS = 0.05
"""Share of the goal below which the gap of the squared hinge has to be for a run to be the last."""
LEAST_SHARE_OF_FINAL_RUNS = 0.2
"""Share of tol below which, after two certificates in vain, an output rests without a last run."""


def begin(plan: NewtonPlan, share: float, output: OutputState, block: PreconditionerBlock) -> None:
    """Solve for the direction, from the next pass on; or ask for the product with the gradient first."""
    output.scale, output.factor = block.scale, block.factor
    if output.gap > share * plan.tol or (plan.has_all_columns and share > LEAST_SHARE_OF_FINAL_RUNS):
        _begin_run(plan, share, output, block)
        return
    output.phase, output.is_checked = NewtonPhase.MULTIPLY, True
    output.p, output.x, output.r = output.gradient, np.zeros(plan.D), np.zeros(plan.D)


def _begin_run(plan: NewtonPlan, share: float, output: OutputState, block: PreconditionerBlock) -> None:
    gradient, scale = output.gradient, output.scale
    output.phase, output.is_checked = NewtonPhase.MULTIPLY, False
    # A step from further away would go beyond kinks.
    enough = share * plan.tol * (SHARE_AMONG_KINKS if plan.loss is Loss.SQUARED_HINGE else 1.0)
    output.is_final = output.gap <= enough and share > LEAST_SHARE_OF_FINAL_RUNS
    output.num_products = 0
    output.x, output.r = np.zeros(plan.D), -gradient
    output.p = block.solve(output.r)
    output.rz = dot(output.r, output.p)
    if output.is_final:
        output.goal = 2.0 * FINAL_SHARE * share * plan.tol * output.value / (1.0 + output.bend)
    else:
        eta = min(max(math.sqrt(min(output.gap, 1.0)), LEAST_ETA), MOST_ETA)
        output.goal = eta * eta * squared(scale * gradient)


def multiplied(plan: NewtonPlan, share: float, w: Array, output: OutputState, group: Group, j: int) -> None:
    """A step of conjugate gradients; or the product with the gradient, which says how much may be left.

    Args:
        plan: What is fixed.
        share: Share of tol below which an output rests.
        w: OUT. Of the output, shape (D,); written if the output rests.
        output: OUT. Its state.
        group, j: The sums, and which row of them is the output's.
    """
    if output.is_checked:
        output.bend = dot(output.gradient, group.product[j]) / max(squared(output.gradient), TINY)
        if output.gap * (1.0 + output.bend) <= share * plan.tol:
            output.is_checked = False
            output.rest(w, -output.gradient)
        else:
            block = PreconditionerBlock.of(output.factor, output.scale, output.columns)
            _begin_run(plan, share, output, block)
        return
    p, product = group.direction[j], group.direction[j] + group.product[j]
    curvature = dot(p, product)
    length = dot(output.r, p) / curvature if curvature > 0 else 0.0
    output.num_products += 1
    x, r = output.x + length * p, output.r - length * product
    left = squared(r) if output.is_final else squared(output.scale * r)
    if left <= output.goal or output.num_products >= MOST_PRODUCTS or length == 0.0:
        if output.is_final and left <= output.goal:
            output.has_newton_duals = True
            output.rest(w, x)
            return
        output.phase, output.is_final = NewtonPhase.EVALUATE, False
        is_kept = len(output.factor) > 0 and output.num_products <= KEPT_PRODUCTS
        output.block = Block.KEPT if is_kept else plan.first_block
        output.direction = x if x.any() else output.scale * output.scale * r
        return
    z = PreconditionerBlock.of(output.factor, output.scale, output.columns).solve(r)
    rz = dot(r, z)
    output.x, output.r, output.p = x, r, z + (rz / output.rz) * p
    output.rz = rz
