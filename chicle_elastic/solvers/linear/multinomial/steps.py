"""How a multinomial regression goes on from the sums of a pass. Pure: no row is in sight.

The objective is that of scikit-learn's LogisticRegression (see `objective`). Newton's method minimises it, and
conjugate gradients find its directions, one product with the second derivatives and so one pass each (Dembo, Eisenstat
and Steihaug 1982, "Inexact Newton methods"). Their preconditioner has the second derivatives of each class by itself
(`preconditioner`): all of them together would be K^2 blocks, with fewer passes that take far longer. These blocks are
kept as long as few products are needed with them. Each task makes factors of them and keeps these; a task that came
later, and has none, says so, and the blocks are summed up again. On little data there is a joint block of all weights
instead, and an exact step in place of products.

    LOOK       weight and features of each class. Where W is 0 all samples have the shares of the classes as their
               probabilities, so loss, gradient and second derivatives follow, from a single block.
    MULTIPLY   a product, until the residual is as small as Newton's method can make use of by now
    EVALUATE   the end of the direction: loss, which has to fall by Armijo's rule, and gradient; again, where it was too
               long, at a share of it
    BLOCKS     where many products were needed

Every evaluation comes with a gap. Directions have a sum of 0 over the classes, as has the gradient: scores of all
classes may rise together, and the penalty has W where they do not.

Second derivatives of dense rows that are no float64 are multiplied in float32, until steps no longer lead further down
or a certificate has refused W. Gradients are always exact.

Where tasks found a vector with a factor, they send it along and go on with its mean (see `agreement`).
"""

import math
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, solve_positive, squared
from chicle_elastic.solvers.linear.certified import TINY
from chicle_elastic.solvers.linear.multinomial import objective
from chicle_elastic.solvers.linear.multinomial.state import MultinomialPhase, MultinomialState
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.progress import NOTHING

ARMIJO = 1e-4
ROUNDING = 1e-13
"""Relative change of the objective that is none."""
LEAST_REACH = 1e-6
SHORTER = 0.3
"""Share of a direction that was too long which is evaluated next. On separable classes 0.5 takes twice the passes."""
LEAST_SHARE = 0.05
"""Share of tol that is aimed at, at least: a certificate that refuses that one sees rounding, or rows are missing."""
INNER_SHARE = 0.3
"""Share of that which the residual of conjugate gradients may leave of the gap."""
LEAST_ETA, MOST_ETA = 1e-2, 0.3
"""Share of the residual, in the norm of the preconditioner, at which conjugate gradients end."""
MOST_PRODUCTS = 200
MOST_STALLS = 1
"""Steps in a row that may not lower the objective: more, and products are too rough, or all is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is asked for.

    Attributes:
        tol: Relative gap to reach.
        has_intercept: Whether b is anything but 0.
    """

    tol: float
    has_intercept: bool


def reopen(state: MultinomialState) -> None:
    """Go on at the present W, b: a certificate was not good enough, or other rows are there."""
    if state.is_rough:
        state.is_rough = False
    else:
        state.share = max(0.5 * state.share, LEAST_SHARE)
    if state.num_rows:
        _evaluate_here(state)
    else:
        state.phase = MultinomialPhase.LOOK


def _evaluate_here(state: MultinomialState) -> None:
    """Evaluate W, b themselves, whatever was known of them."""
    state.phase, state.value, state.gap = MultinomialPhase.EVALUATE, np.inf, np.inf
    state.direction = np.zeros((state.num_classes, state.D))
    state.reach, state.num_products, state.num_stalls = 1.0, 0, 0
    state.blocks = NOTHING


def _look_again(state: MultinomialState) -> None:
    state.phase, state.is_cold = MultinomialPhase.LOOK, False
    state.value, state.gap, state.num_rows = np.inf, np.inf, 0.0
    state.blocks = NOTHING


def advance(state: MultinomialState, model: Array, sums: Array, weight: float, goal: Goal) -> Array:
    """Go on from the sums of a pass.

    Args:
        state: Of the pass; changed in place.
        model: W and, as the last column, b, shape (K, D); stays as it is.
        sums: See `MultinomialState.sums_size`.
        weight: Tasks that have summed something up.
        goal: What is asked for.

    Returns:
        The new W and b, of the same shape.
    """
    num_interrupted, num_rows, _ = sums[:HEAD].tolist()
    if num_interrupted > 0 or state.phase is MultinomialPhase.REST:  # the pass is made again
        return model
    sums = sums[HEAD:]
    if state.phase is MultinomialPhase.LOOK:
        return _looked(state, model, sums, num_rows, goal)
    if num_rows != state.num_rows:  # rows were lost or have come back: another objective
        _look_again(state)
        return model
    if state.phase is MultinomialPhase.EVALUATE:
        return _evaluated(state, model, sums, weight, goal)
    if state.phase is MultinomialPhase.BLOCKS:
        _keep_blocks(state, sums)
        _begin_products(state, state.residual)
    else:
        _multiplied(state, sums, weight, goal)
    return model


def _looked(state: MultinomialState, model: Array, sums: Array, num_rows: float, goal: Goal) -> Array:
    K, D = state.num_classes, state.D
    state.num_rows = num_rows
    state.totals, state.class_sums = sums[:K], sums[K : K * D].reshape(K, D - 1)
    block = sums[K * D :]
    is_active = state.is_active(has_intercept=goal.has_intercept)
    model = _centred(model, is_active, has_intercept=goal.has_intercept)
    total = dot(state.totals, np.ones(K))
    state.needs_blocks = True
    if not state.is_cold or not total > 0:
        _evaluate_here(state)
        return model
    shares = state.totals / total if goal.has_intercept else np.full(K, 1.0 / K)
    logs = np.array([math.log(share) if share > 0 else 0.0 for share in shares.tolist()])
    if goal.has_intercept:
        model[is_active, -1] = logs[is_active]
        model = _centred(model, is_active, has_intercept=True)
    all_sums = np.add.reduce(state.class_sums, axis=0)
    gradient = np.zeros((K, D))
    gradient[:, :-1] = shares[:, np.newaxis] * all_sums - state.class_sums
    loss, entropy = -dot(state.totals, logs), total * objective.entropy_of(shares)
    _found(state, model, gradient, loss, entropy, np.zeros((K, K)), goal)
    if not gradient[:, :-1].any() and _is_good_enough(state, goal):
        return model
    if state.is_joint:
        _evaluate_here(state)
        return model
    _keep_blocks(state, dot(shares, 1.0 - shares) / (K - 1.0) * block)
    _begin_products(state, _residual_of(model, gradient))
    return model


def _centred(model: Array, is_active: Array, *, has_intercept: bool) -> Array:
    """The same probabilities with the least penalty: the sum over classes is 0. Classes without weight are left out."""
    result = np.zeros_like(model)
    active = np.where(model <= 0.5 * objective.LEFT_OUT, 0.0, model)[is_active]  # others had no weight in the last fit
    result[is_active] = active - np.add.reduce(active, axis=0) / max(len(active), 1)
    if not has_intercept:
        result[:, -1] = 0.0
    result[~is_active, -1] = objective.LEFT_OUT
    return result


def _found(
    state: MultinomialState,
    model: Array,
    gradient: Array,
    loss: float,
    entropy: float,
    curvatures: Array,
    goal: Goal,
) -> Array:
    """Keep what is known at W, b from now on.

    Args:
        state: Changed in place.
        model: W, b.
        gradient: Of the losses there, shape (K, D).
        loss, entropy: Sums there.
        curvatures: Second derivatives of the intercepts, shape (K, K).
        goal: What is asked for.

    Returns:
        The model at which to rest, if the gap is small enough.
    """
    primal, dual = objective.primal_and_dual(
        model,
        gradient,
        loss=loss,
        entropy=entropy,
        totals=state.totals,
        class_sums=state.class_sums,
        has_intercept=goal.has_intercept,
    )
    state.value, state.gap = primal, primal - dual
    if not goal.has_intercept:
        return model
    residual = gradient[:, -1]
    step = _intercept_step(curvatures, residual, state.is_active(has_intercept=True))
    left = _half_norm(state, model[:, :-1] + gradient[:, :-1], residual) - 0.5 * dot(residual, step)
    if not left <= state.gap:
        return model
    state.gap = left
    following = model.copy()
    following[:, -1] += step
    return following


def _half_norm(state: MultinomialState, weights: Array, intercepts: Array) -> float:
    """1/2 |gradient of the weights|^2 that is left once a step of the intercepts has taken theirs to 0, about so.

    Such a step moves samples from one class to another, and features with them, which are taken to be their means.
    """
    total = dot(state.totals, np.ones(state.num_classes))
    means = np.add.reduce(state.class_sums, axis=0) / max(total, TINY)
    return 0.5 * squared((weights - intercepts[:, np.newaxis] * means).ravel())


def _intercept_step(curvatures: Array, residual: Array, is_active: Array) -> Array:
    """The Newton step of the intercepts alone, whose sum is 0; shape (K,)."""
    step = np.zeros(len(residual))
    inner = curvatures[np.ix_(is_active, is_active)]
    scale = float(np.diagonal(inner).max(initial=0.0))
    if scale > 0:  # all intercepts may rise together
        found = solve_positive(inner + scale / len(inner), -residual[is_active])
        step[is_active] = found - dot(found, np.ones(len(found))) / len(found)
    return step


def _is_good_enough(state: MultinomialState, goal: Goal) -> bool:
    """Whether the run rests here; then it does."""
    if state.gap <= state.share * goal.tol * state.value:
        state.phase = MultinomialPhase.REST
        return True
    return False


def _residual_of(model: Array, gradient: Array) -> Array:
    """Less the gradient of P, shape (K, D), from W, b and the gradient of the losses."""
    residual = -gradient
    residual[:, :-1] -= model[:, :-1]
    return residual


def _keep_blocks(state: MultinomialState, blocks: Array) -> None:
    """For the next pass, in which tasks make factors of them."""
    state.blocks = blocks
    state.block_serial += 1
    state.needs_blocks = False


def _begin_products(state: MultinomialState, residual: Array) -> None:
    """Solve for the direction from the next pass on."""
    state.phase, state.residual = MultinomialPhase.MULTIPLY, residual
    state.direction, state.conjugate = np.zeros_like(residual), np.zeros_like(residual)
    state.num_products, state.decrease, state.reach = 0, 0.0, 1.0


def _multiplied(state: MultinomialState, sums: Array, weight: float, goal: Goal) -> None:
    """A step of conjugate gradients, if all tasks have the preconditioner."""
    if sums[0] > 0:
        state.needs_blocks = True
        _evaluate_here(state)
        return
    rz = float(sums[1]) / weight
    p, product = sums[2:].reshape(2, state.num_classes, state.D)
    p = p / weight
    product = product.copy()
    product[:, :-1] += p[:, :-1]
    state.blocks = NOTHING
    curvature, slope = dot(p.ravel(), product.ravel()), dot(p.ravel(), state.residual.ravel())
    state.num_products += 1
    is_sound = curvature > 0 and slope > 0 and math.isfinite(curvature)
    if not is_sound:
        _end_products(state)
        return
    length = slope / curvature
    state.direction = state.direction + length * p
    state.residual = state.residual - length * product
    state.conjugate, state.rz = p, rz
    state.decrease += 0.5 * length * slope
    if state.num_products == 1:
        state.first_rz = rz
    if _is_solved(state, goal) or state.num_products >= MOST_PRODUCTS:
        _end_products(state)


def _is_solved(state: MultinomialState, goal: Goal) -> bool:
    """Whether the direction is as good as Newton's method can make use of by now."""
    left = _half_norm(state, state.residual[:, :-1], state.residual[:, -1])
    if left <= INNER_SHARE * state.share * goal.tol * state.value:
        return True
    eta = min(max(math.sqrt(max(state.decrease, 0.0) / max(state.value, TINY)), LEAST_ETA), MOST_ETA)
    return state.rz <= eta * eta * min(state.first_rz, 2.0 * state.decrease)


def _end_products(state: MultinomialState) -> None:
    """Look at the end of the direction, with new blocks if these have cost many products."""
    if not state.direction.any():  # rounding is all that is left
        _stalled(state)
        return
    state.phase = MultinomialPhase.EVALUATE
    state.needs_blocks = state.num_products > state.kept_products


def _stalled(state: MultinomialState) -> None:
    """No step leads further down: go on with exact products, or rest."""
    if not state.is_rough:
        state.phase = MultinomialPhase.REST
        return
    state.is_rough = False
    _evaluate_here(state)


def _evaluated(state: MultinomialState, model: Array, sums: Array, weight: float, goal: Goal) -> Array:
    """Take the step if it is good enough."""
    K, D = state.num_classes, state.D
    rest = sums[2 + K * K + K * D :]
    if state.is_joint:
        state.direction = rest[: K * D].reshape(K, D) / weight
        if len(state.blocks):
            state.decrease = 0.5 * dot(state.direction.ravel(), state.residual.ravel())
            state.blocks = NOTHING
    loss, entropy = sums[:2].tolist()
    there = model + state.reach * state.direction
    value = 0.5 * squared(there[:, :-1].ravel()) + loss
    rounding = ROUNDING * abs(state.value)
    if math.isfinite(state.value):
        foretold = 2.0 * state.reach * state.decrease
        is_too_long = not value <= state.value - ARMIJO * foretold + rounding
    else:
        is_too_long = not math.isfinite(value) and bool(state.direction.any())
    if is_too_long:
        state.reach *= SHORTER
        if state.reach < LEAST_REACH:
            _stalled(state)
        return model
    has_moved = value < state.value - rounding
    curvatures = sums[2 : 2 + K * K].reshape(K, K)
    state.masses = (K / (K - 1.0)) * np.diagonal(curvatures)
    gradient = sums[2 + K * K : 2 + K * K + K * D].reshape(K, D)
    resting = _found(state, there, gradient, loss, entropy, curvatures, goal)
    # Of a small C, W = 0 is within tol, and says nothing: one step is made.
    has_begun = there[:, :-1].any() or not gradient[:, :-1].any()
    if has_begun and _is_good_enough(state, goal):
        return resting
    state.num_stalls = 0 if has_moved else state.num_stalls + 1
    if state.num_stalls > MOST_STALLS:
        _stalled(state)
        return there
    residual = _residual_of(there, gradient)
    if state.is_joint:  # each task solves for the direction, and evaluates its end, in the next pass
        state.residual, state.reach = residual, 1.0
        _keep_blocks(state, rest[K * D :])
    elif state.needs_blocks:
        state.phase, state.residual = MultinomialPhase.BLOCKS, residual
    else:
        _begin_products(state, residual)
    return there
