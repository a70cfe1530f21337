"""How Newton's method goes on from the sums of a pass. Pure: no row is in sight, and every task comes to the same.

An iteration is one pass over the rows of every task. In phase EVALUATE the pass looks at candidates on the line
w + t * direction. The best of them becomes w if the (smoothed) objective falls enough there (Armijo's rule), and its
gradient and second derivatives give the next direction; else the next pass looks at a smaller share.

Smooth losses are minimised as they are. a(w) = -C_i loss'(m_i) is dual feasible, so each pass comes with a gap, which
is 1/2 |w - w(a)|^2 = 1/2 |gradient|^2. Where second derivatives are cheap, an output rests once the gap is small enough
not only at w but most likely at w(a), too: that one is certified, so that w = w(alpha) holds in the end as after
coordinate descent. It is a gradient step away from w, and its gap larger by 1/2 g^T (H - I) g. Where it takes conjugate
gradients to get there, up to a third of all passes, w is certified together with a(w): the gap is as true.

There are better duals than a(w), one Newton step on: a - C_i loss''(m_i) (change of the margin along the direction).
With r = (I + H) direction + g, what the direction leaves of the Newton equations, their w(a) is w + direction - r, and
the gap there 1/2 r^T (I + H) r, but for terms of third order. So an output rests as soon as that is small enough, as
far as can be told: after an exact step if it went as the second derivatives had foretold, but for a part of tol. Of the
squared hinge, duals that would be negative become 0, so there the step has to be short.

With features of very different scales no dual is exact enough for that: rounding of the duals times a feature of 1e8 is
a w that is worth nothing. Where steps no longer change the objective, an output rests where it is, and w is certified
together with a(w). Newton's duals are not tried again once two certificates have refused them.

The hinge is made smooth by the proximal point method on the dual (Rockafellar 1976; for SVMs: Yin and Li 2019, "A
semismooth Newton method for support vector classification"): around centers alpha, phi(w) = 1/2 |w|^2 + sum_i of

    max_{0 <= a <= C_i} a (1 - m_i) - (a - alpha_i)^2 / (2 tau C_i),      a_i(w) = clip(alpha_i + tau C_i (1 - m_i))

which is C_i (1 - m_i) but for a rounded corner. The part of the gap that comes from w not being the minimum of phi is
at most 1/2 |gradient|^2, because phi is 1-strongly convex. Once that is a small part of the whole, the centers move to
the duals of w, and tau grows the more the easier the last centers were. Once the gap is small enough phi is minimised
to the last digits, and w(a) = w is what is certified.

The first step of the hinge has tau < 1 and centers 0: no corner is in reach at w = 0, and the step is that of a least
squares SVM.

Where second derivatives are cheap, each step adds them up anew, in float32 unless that leads nowhere.

Where the block is not all of the second derivatives, it is the preconditioner of conjugate gradients, one product and
so one pass each. Its sum takes as long as many products, so the one of an earlier step is kept as long as few are
needed with it, and corrected by the products of the last step. They end when the residual is as small a share as
Newton's method can make use of by now (Dembo, Eisenstat and Steihaug 1982), or small enough for the step to be the
last.

`smooth`, `conjugate` and `hinge` have what the three do with the sums of a pass.
"""

import math

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import squared
from chicle_elastic.solvers.linear.multinomial.objective import LEFT_OUT
from chicle_elastic.solvers.linear.newton import conjugate, hinge, smooth
from chicle_elastic.solvers.linear.newton.line import ROUNDING
from chicle_elastic.solvers.linear.newton.plan import Group, NewtonPlan
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, OutputState
from chicle_elastic.solvers.linear.objectives import TINY, Loss

BALANCED = 1e-9
"""Share of the sum of duals that those of two classes may differ by, for rounding, beside a free intercept."""
SHARE = 0.9
"""Share of tol below which an output rests; halved each time that the certificate says otherwise."""


def start(plan: NewtonPlan, model: Array) -> NewtonState:
    """The state before the first pass from `model`: w, shape (num_outputs * D,)."""
    outputs = []
    for w in model.reshape(plan.num_outputs, plan.D):
        is_least_squares = plan.loss is Loss.HINGE and not w.any()
        tau = hinge.LEAST_SQUARES_TAU if is_least_squares else hinge.FIRST_TAU
        outputs.append(
            OutputState(
                direction=-w if plan.has_free_intercept and abs(w[-1]) >= -LEFT_OUT else np.zeros(plan.D),
                gradient=np.zeros(plan.D),
                tau=tau,
                next_tau=tau,
                is_least_squares=is_least_squares,
                block=plan.first_block,
            )
        )
    return NewtonState(
        block_columns=plan.block_columns,
        row_step=plan.row_step,
        has_many_rows=plan.has_many_rows,
        is_cheap=plan.is_cheap,
        share=SHARE,
        sums_size=plan.sums_size(outputs),
        outputs=outputs,
    )


def reopen(plan: NewtonPlan, model: Array, state: NewtonState) -> None:
    """Let outputs go on that rest: the certificate said that not all of them are where they were thought to be.

    Args:
        plan: What is fixed.
        model: w that was certified, shape (num_outputs * D,).
        state: Changed in place.
    """
    is_poor = state.share < SHARE
    state.share *= 0.5
    for w, output in zip(model.reshape(plan.num_outputs, plan.D), state.outputs, strict=True):
        output.phase = NewtonPhase.EVALUATE
        # w of its duals was certified, and may be far worse than where it rested.
        output.direction = output.point - w if output.has_newton_duals else np.zeros(plan.D)
        if plan.has_free_intercept and abs(w[-1]) >= -LEFT_OUT:  # of rows that were of one class, and are no more
            output.direction = -w
        output.keeps_duals = output.has_newton_duals = output.is_exact = False
        output.value = np.inf
        output.gradient = np.zeros(plan.D)
        output.block = smooth.next_block(plan, output, is_poor=is_poor) if plan.is_smooth else plan.first_block
        output.serial += 1  # the model is not where the output rested: margins are found from it
        output.t = math.nan
    state.sums_size = plan.sums_size(state.outputs)


def advance(plan: NewtonPlan, model: Array, state: NewtonState, sums: Array, num_tasks: float) -> Array:
    """Go on from the sums of a pass.

    Args:
        plan: What is fixed.
        model: w, shape (num_outputs * D,).
        state: Of the pass; changed in place.
        sums: See `plan`.
        num_tasks: Tasks that were added up.

    Returns:
        The new w, of the same shape.
    """
    if sums[0] > 0:  # a task was interrupted: the pass is made again
        return model
    following = model.copy()
    w = following.reshape(plan.num_outputs, plan.D)
    for group in plan.groups(state.outputs, sums):
        if group.is_balance:
            for j, k in enumerate(group.numbers):
                smooth.balanced(state.outputs[k], group.masses[j])
            continue
        group.direction /= num_tasks
        if group.is_product:
            for j, k in enumerate(group.numbers):
                conjugate.multiplied(plan, state.outputs[k], group, j)
            continue
        are_there = [
            state.outputs[k].serial == 0
            and (
                smooth.is_one_sided(plan, w[k], state.outputs[k], group, j)
                or _is_there_already(plan, state.share, w[k], state.outputs[k], group, j)
            )
            for j, k in enumerate(group.numbers)
        ]
        going_on = [j for j, is_there in enumerate(are_there) if not is_there]
        if plan.is_smooth:
            smooth.evaluated(plan, state.share, w, state.outputs, group, going_on)
            continue
        for j in going_on:
            k = group.numbers[j]
            hinge.evaluated(plan, state.share, w[k], state.outputs[k], group, j)
    state.sums_size = plan.sums_size(state.outputs)
    return following


def _is_there_already(plan: NewtonPlan, share: float, w: Array, output: OutputState, group: Group, j: int) -> bool:
    """Whether w and the duals of the chunks are good enough together: a fit goes on where one has ended."""
    if group.direction[j].any():
        return False
    half_norm = 0.5 * squared(plan.penalised(w))
    primal = half_norm + float(group.values[j, 0, 0])
    gap = primal - (float(group.start[j, 0]) - half_norm)  # of w that is that of the duals; else the certificate tells
    is_balanced = not plan.has_free_intercept or abs(group.start[j, 1]) <= BALANCED * group.values[j, 0, 1:].sum()
    if not (is_balanced and -ROUNDING * primal <= gap <= share * plan.tol * primal):
        return False
    output.gap = gap / max(primal, TINY)
    output.keeps_duals = True
    output.rest(w, np.zeros(plan.D))
    return True
