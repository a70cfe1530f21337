"""How Newton's method goes on from the sums of a pass. Pure: no row is in sight, and every task comes to the same.

An iteration is one pass over the rows of every task. In phase EVALUATE the pass looks at candidates on the line
w + t * direction. The best of them becomes w if the (smoothed) objective falls enough there (Armijo's rule), and its
gradient and second derivatives give the next direction; else the next pass looks at a smaller share.

Smooth losses are minimised as they are. a(w) = -C_i loss'(m_i) is dual feasible, so each pass comes with a gap, which
is 1/2 |w - w(a)|^2 = 1/2 |gradient|^2. An output rests once the gap is small enough not only at w but most likely at
w(a), too: that one is certified, so that w = w(alpha) holds in the end as after coordinate descent. It is a gradient
step away from w, and its gap larger by 1/2 g^T (H - I) g.

Where the direction is exact and the loss has no kinks (logistic), there are better duals than a(w), one Newton step on:
a - C_i loss''(m_i) (change of the margin along the direction), whose w(a) is w + direction. So there an output rests as
soon as its last step went as the second derivatives had foretold, but for a part of tol.

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

Where the block is not all of the second derivatives, it is the preconditioner of conjugate gradients, one product and
so one pass each. Its sum takes as long as many products, so the one of an earlier step is kept as long as few are
needed with it; whether an output may rest is then asked by a product with its gradient. The products end when the
residual is as small a share as Newton's method can make use of by now (Dembo, Eisenstat and Steihaug 1982).
"""

import math

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, squared
from chicle_elastic.solvers.linear.newton.plan import GRID, NewtonPlan, OutputSums
from chicle_elastic.solvers.linear.newton.preconditioner import PreconditionerBlock, factorise
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, OutputState
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.products import packed_diagonal, unpack

SHARE = 0.9
"""Share of tol below which an output rests; halved each time that the certificate says otherwise."""
FORETOLD = 0.5
"""What a step may have gone otherwise than foretold before an output rests, as a multiple of its goal."""
LEAST_SQUARES_TAU, FIRST_TAU = 0.99, 2.0
MOST_TAU = 1e9
GROWTH = 4.0
"""Factor of tau where the centers were easy; half of it where they took two steps, 1 where they took more."""
INNER_SHARE = 0.3
"""Share of the gap that may come from w not being the minimum of phi when the centers move."""
ARMIJO = 1e-4
ROUNDING = 1e-13
"""Relative change of the objective that is none."""
LEAST_SHARE_OF_NEWTON_DUALS = 0.25 * SHARE
"""Below, which is after two certificates in vain, an output does not rest with the duals of one Newton step on."""
MOST_REJECTED = 4
"""Directions in a row that may be too long; then w is evaluated anew, as rows may have come back meanwhile."""
SHORTER = 0.25
"""Share of a direction of the hinge that was too long, where no slopes along it were found."""
NEARLY_BEST = (0.4, 2.0)
"""Shares of a direction between which it need not be looked at again: the squared hinge has kinks, and a step that ends
just before the next one is repeated for ever."""
MOST_PRODUCTS = 100
KEPT_PRODUCTS = 8
"""Products of a run up to which the next one has the same preconditioner."""
LEAST_ETA, MOST_ETA = 1e-2, 0.3
TINY = float(np.finfo(np.float64).tiny)


def start(plan: NewtonPlan, model: Array) -> NewtonState:
    """The state before the first pass from `model`: w, shape (num_outputs * D,)."""
    outputs = []
    for w in model.reshape(plan.num_outputs, plan.D):
        is_least_squares = plan.loss is Loss.HINGE and not w.any()
        tau = LEAST_SQUARES_TAU if is_least_squares else FIRST_TAU
        outputs.append(
            OutputState(
                direction=np.zeros(plan.D),
                gradient=np.zeros(plan.D),
                tau=tau,
                next_tau=tau,
                is_least_squares=is_least_squares,
            )
        )
    return NewtonState(
        block_columns=plan.block_columns,
        row_step=plan.row_step,
        has_many_rows=plan.has_many_rows,
        share=SHARE,
        outputs=outputs,
    )


def reopen(plan: NewtonPlan, model: Array, state: NewtonState) -> None:
    """Let outputs go on that rest: the certificate said that not all of them are where they were thought to be.

    Args:
        plan: What is fixed.
        model: w that was certified, shape (num_outputs * D,).
        state: Changed in place.
    """
    state.share *= 0.5
    for w, output in zip(model.reshape(plan.num_outputs, plan.D), state.outputs, strict=True):
        output.phase = NewtonPhase.EVALUATE
        # The end of the direction may be better than what was certified, w of its duals.
        output.direction = output.point + output.direction - w if output.has_newton_duals else np.zeros(plan.D)
        output.keeps_duals = output.has_newton_duals = False
        output.value = np.inf
        output.gradient = np.zeros(plan.D)
        output.serial += 1  # the model is not where the output rested: margins are found from it
        output.t = math.nan


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
    parts = plan.sums(state, sums)
    for w, output, part in zip(following.reshape(plan.num_outputs, plan.D), state.outputs, parts, strict=True):
        if part is None:
            continue
        part.direction /= num_tasks
        if output.phase is NewtonPhase.MULTIPLY:
            _multiplied(plan, state.share, w, output, part)
        elif output.serial == 0 and _is_there_already(plan, state.share, w, output, part):
            pass
        elif plan.is_smooth:
            _evaluated_smooth(plan, state.share, w, output, part)
        else:
            _evaluated_hinge(plan, state.share, w, output, part)
    return following


def _is_there_already(plan: NewtonPlan, share: float, w: Array, output: OutputState, part: OutputSums) -> bool:
    """Whether w and the duals of the chunks are good enough together: a fit goes on where one has ended."""
    if part.direction.any():
        return False
    half_norm = 0.5 * squared(w)
    primal = half_norm + float(part.values[0, 0])
    gap = primal - (float(part.start[0]) - half_norm)  # of w that is that of the duals; else the certificate will tell
    if gap > share * plan.tol * primal or gap < 0:
        return False
    output.gap = gap / max(primal, TINY)
    output.keeps_duals = True
    _rest(output, w, np.zeros(plan.D))
    return True


def _rest(output: OutputState, w: Array, direction: Array) -> None:
    """The end of the direction is what is certified."""
    output.phase, output.point, output.direction = NewtonPhase.REST, w.copy(), direction
    output.keeps_block = False
    w += direction


# Smooth losses.


def _evaluated_smooth(plan: NewtonPlan, share: float, w: Array, output: OutputState, part: OutputSums) -> None:
    """Take the step if it is good enough; `w` is written."""
    direction = part.direction
    has_direction = bool(direction.any())
    there = w + direction
    value = 0.5 * squared(there) + float(part.values[0, 0])
    foretold, has_changed = math.inf, True
    if has_direction and math.isfinite(output.value):
        slope = dot(output.gradient, direction)
        if len(part.slopes) and output.num_rejected < MOST_REJECTED - 1:
            best = _where_slope_is_0(part, dot(w, direction), squared(direction), slope)
            if not NEARLY_BEST[0] <= best <= NEARLY_BEST[1]:
                output.t, output.direction = 0.0, best * direction
                output.num_rejected += 1
                return
        if not value <= output.value + ARMIJO * min(slope, 0.0) + ROUNDING * abs(output.value):
            _reject_smooth(output, direction, slope, value)
            return
        # A full step along a direction that solves the Newton equations changes the objective by half its slope.
        foretold = abs((value - output.value) - 0.5 * slope)
        has_changed = abs(value - output.value) > ROUNDING * value
    if has_direction:
        w[:] = there
        output.serial += 1
    output.t = 1.0 if has_direction else 0.0
    output.num_rejected = 0
    gradient = w - part.gradients[0][0]
    output.gap = 0.5 * squared(gradient) / max(value, TINY)
    output.value, output.gradient = value, gradient
    goal = share * plan.tol * value
    gap = output.gap * value
    if output.keeps_block:
        if gap <= goal:
            _begin_check(plan, output)
        else:
            _begin_products(plan, output, PreconditionerBlock.of(output.factor, output.scale, output.columns))
        return
    block, diagonal = part.blocks[0][0], part.diagonals[0][0]
    diagonal = diagonal if len(diagonal) else packed_diagonal(block, plan.D)
    if gap <= goal and gap + 0.5 * _curvature_along(gradient, block, diagonal, output.columns) <= goal:
        _rest(output, w, -gradient)
        return
    if gap <= goal and not has_changed:
        _rest(output, w, np.zeros(plan.D))
        return
    factored = factorise(block, diagonal, output.columns)
    if not plan.is_exact:
        _begin_products(plan, output, factored)
        if not plan.has_all_columns and not len(output.columns):  # from the next evaluation on there is a block
            output.columns = heaviest_columns(diagonal, plan.block_columns)
        return
    output.direction = -factored.solve(gradient)
    has_duals = plan.loss is Loss.LOGISTIC and share > LEAST_SHARE_OF_NEWTON_DUALS
    if has_duals and min(foretold, gap) <= FORETOLD * goal:
        output.has_newton_duals = True
        _rest(output, w, output.direction)


def _reject_smooth(output: OutputState, direction: Array, slope: float, value: float) -> None:
    output.t = 0.0
    output.num_rejected += 1
    if output.num_rejected >= MOST_REJECTED:
        output.num_rejected, output.value = 0, np.inf
        output.direction = np.zeros(len(direction))
        return
    # The minimum of the parabola through value and slope at 0 and the value at 1.
    curvature = value - output.value - slope
    is_parabola = curvature > 0 and math.isfinite(curvature)
    output.direction = direction * (min(max(-0.5 * slope / curvature, 0.05), 0.5) if is_parabola else 0.1)


def _begin_products(plan: NewtonPlan, output: OutputState, block: PreconditionerBlock) -> None:
    """Solve for the direction by conjugate gradients, from the next pass on."""
    gradient, scale = output.gradient, block.scale
    eta = min(max(math.sqrt(min(output.gap, 1.0)), LEAST_ETA), MOST_ETA)
    output.phase = NewtonPhase.MULTIPLY
    output.num_products = 0
    output.x, output.r, output.scale = np.zeros(plan.D), -gradient, scale
    output.factor = block.factor
    output.p = block.solve(output.r)
    output.rz = dot(output.r, output.p)
    output.goal = eta * eta * squared(scale * gradient)


def _begin_check(plan: NewtonPlan, output: OutputState) -> None:
    """Ask for the product with the gradient."""
    output.phase, output.is_checked = NewtonPhase.MULTIPLY, True
    output.p, output.x, output.r = output.gradient, np.zeros(plan.D), np.zeros(plan.D)


def _multiplied(plan: NewtonPlan, share: float, w: Array, output: OutputState, part: OutputSums) -> None:
    """A step of conjugate gradients; or the product with the gradient, and then `w` is written if the output rests."""
    if output.is_checked:
        output.is_checked = False
        gap = 0.5 * squared(output.gradient) + 0.5 * dot(output.gradient, part.product)
        if gap <= share * plan.tol * output.value:
            _rest(output, w, -output.gradient)
        else:
            _begin_products(plan, output, PreconditionerBlock.of(output.factor, output.scale, output.columns))
        return
    p, product = part.direction, part.direction + part.product
    curvature = dot(p, product)
    length = dot(output.r, p) / curvature if curvature > 0 else 0.0
    output.num_products += 1
    x, r = output.x + length * p, output.r - length * product
    if squared(output.scale * r) <= output.goal or output.num_products >= MOST_PRODUCTS or length == 0.0:
        output.phase = NewtonPhase.EVALUATE
        output.keeps_block = len(output.factor) > 0 and output.num_products <= KEPT_PRODUCTS
        output.direction = x if x.any() else output.scale * output.scale * r
        return
    z = PreconditionerBlock.of(output.factor, output.scale, output.columns).solve(r)
    rz = dot(r, z)
    output.x, output.r, output.p = x, r, z + (rz / output.rz) * p
    output.rz = rz


def heaviest_columns(diagonal: Array, number: int) -> Array:
    """The columns with the largest second derivatives, ascending, int64; equal ones by their number."""
    order = np.argsort(-diagonal, kind="stable")[:number]
    return np.sort(order[diagonal[order] > 0])


# Hinge.


def _evaluated_hinge(plan: NewtonPlan, share: float, w: Array, output: OutputState, part: OutputSums) -> None:
    """Take the best candidate if it is good enough; `w` is written."""
    direction = part.direction
    has_direction = bool(direction.any())
    chosen, t, has_changed = 0, 0.0, True
    if has_direction:
        at_w, along, length = squared(w), dot(w, direction), squared(direction)

        def half_norm(t: float) -> float:
            return 0.5 * (at_w + 2.0 * t * along + t * t * length)

        phi, slope = half_norm(0.0) + float(part.start[0]), along + float(part.start[1])
        values = [half_norm(t) + float(part.values[c, 2]) for c, t in enumerate(plan.candidates)]
        chosen = min(range(len(values)), key=lambda c: values[c])
        t = plan.candidates[chosen]
        if not values[chosen] <= phi + ARMIJO * t * min(slope, 0.0) + ROUNDING * abs(phi):
            if len(part.slopes):
                output.direction = direction * _where_slope_is_0(part, along, length, slope)
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
    gradients, blocks = part.gradients[chosen], part.blocks[chosen]
    primal = 0.5 * squared(w) + float(part.values[chosen, 0])
    gap = primal - (float(part.values[chosen, 1]) - 0.5 * squared(gradients[0]))
    output.gap = gap / max(primal, TINY)
    output.old_tau = 0.0
    goal = share * plan.tol
    is_landing = output.gap <= goal
    everywhere = packed_diagonal(blocks[0], plan.D)
    further = 0.5 * _curvature_along(w - gradients[0], blocks[0], everywhere, output.columns) if is_landing else 0.0
    if is_landing and gap + further <= goal * primal:
        _rest(output, w, gradients[0] - w)
        return
    if is_landing and not has_changed:
        _rest(output, w, np.zeros(plan.D))
        return
    variant = _centered(output, has_direction, w - gradients[0], gap, is_landing=is_landing)
    diagonal = packed_diagonal(blocks[variant], plan.D)
    output.direction = -factorise(blocks[variant], diagonal, output.columns).solve(w - gradients[variant])


def _where_slope_is_0(part: OutputSums, along: float, length: float, slope: float) -> float:
    """Share of the direction to look at next, as no candidate was good enough.

    Slopes rise along the line; where a straight line between the two around 0 is 0, not too near to either.
    """
    t_before, before = 0.0, slope
    for t, rows in zip(GRID.tolist(), part.slopes.tolist(), strict=True):
        here = along + t * length + rows
        if here > 0:
            return t_before + (t - t_before) * min(max(before / (before - here), 0.1), 0.9)
        t_before, before = t, here
    return t_before


def _curvature_along(vector: Array, block: Array, diagonal: Array, columns: Array) -> float:
    """v^T (H - I) v as far as it is known: in the columns of the block, and by the diagonal elsewhere."""
    weights = diagonal.copy()
    total = 0.0
    if len(block):
        where = columns if len(columns) else slice(None)
        inner = vector[where]
        weights[where] = 0.0
        # Rows are added up one after the other, so that every task finds the same (see `agreement`).
        product = np.add.reduce(np.tril(unpack(block, len(inner))) * inner[:, None], axis=0)
        total = 2.0 * dot(product, inner) - dot(packed_diagonal(block, len(inner)), inner * inner)
    return total + dot(weights, vector * vector)


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
