"""Conjugate gradients: how one output finds its direction by products with its second derivatives. See `steps`.

A kept preconditioner is corrected by what the products of the last run have shown of the second derivatives: its last
vectors and their products are pairs as those of `pairs` (Morales and Nocedal 2000, "Automatic preconditioning by
limited memory quasi-Newton updating").
"""

import math

import numpy as np

from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.newton import pairs
from chicle_elastic.solvers.linear.newton.plan import Group, NewtonPlan
from chicle_elastic.solvers.linear.newton.preconditioner import PreconditionerBlock
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, OutputState
from chicle_elastic.solvers.linear.objectives import TINY

MOST_PRODUCTS = 100
KEPT_PRODUCTS = 8
"""Products of a run up to which the next one has the same preconditioner."""
LEAST_ETA, MOST_ETA = 1e-2, 0.3
"""Shares of the gradient that a run leaves."""
LANDING = 0.3
"""Share of the goal that the residual of a run that may be the last one may leave."""
LEAST_LEFT = 0.3
"""What an exact step may leave of the gap, as a share of its square: a run cannot be the last one below that."""


def begin(plan: NewtonPlan, share: float, output: OutputState, block: PreconditionerBlock) -> None:
    """Solve for the direction, from the next pass on.

    Args:
        plan: What is fixed.
        share: Share of tol below which an output rests.
        output: OUT. Its state, whose gap is larger than that.
        block: The preconditioner, without the pairs of the output.
    """
    gradient = output.gradient
    output.phase = NewtonPhase.MULTIPLY
    output.scale, output.factor, output.met = block.scale, block.factor, np.zeros(0)
    output.num_products = 0
    output.x, output.r = np.zeros(plan.D), -gradient
    output.p = pairs.solve(output.pairs, output.r, block.solve)
    output.rz = dot(output.r, output.p)
    landing = LANDING * share * plan.tol / max(output.gap, TINY)
    may_be_last = landing >= LEAST_LEFT * output.gap
    eta = min(max(math.sqrt(landing if may_be_last else min(output.gap, 1.0)), LEAST_ETA), MOST_ETA)
    output.goal = eta * eta * squared(block.scale * gradient)


def multiplied(plan: NewtonPlan, output: OutputState, group: Group, j: int) -> None:
    """A step of conjugate gradients.

    Args:
        plan: What is fixed.
        output: OUT. Its state.
        group, j: The sums, and which row of them is the output's.
    """
    p = group.direction[j]
    product = plan.penalised(p) + group.product[j]
    curvature = dot(p, product)
    output.length = length = dot(output.r, p) / curvature if curvature > 0 else 0.0
    output.num_products += 1
    output.met = pairs.appended(output.met, p, product)
    x, r = output.x + length * p, output.r - length * product
    if squared(output.scale * r) <= output.goal or output.num_products >= MOST_PRODUCTS or length == 0.0:
        output.phase = NewtonPhase.EVALUATE
        is_kept = len(output.factor) > 0 and output.num_products <= KEPT_PRODUCTS
        output.block = Block.KEPT if is_kept else plan.first_block
        output.direction = x if x.any() else output.scale * output.scale * r
        if len(output.met):
            output.pairs = output.met
        return
    z = pairs.solve(output.pairs, r, PreconditionerBlock(output.factor, output.scale, output.columns).solve)
    rz = dot(r, z)
    output.x, output.r, output.p = x, r, z + (rz / output.rz) * p
    output.rz = rz
