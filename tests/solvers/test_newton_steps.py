"""The parts of Newton's method without rows: sums in a fixed order, the state as a vector, steps from given sums."""

import math

import numpy as np
import pytest

from chicle_elastic.solvers.linear import agreement
from chicle_elastic.solvers.linear.newton import conjugate, line, smooth, steps
from chicle_elastic.solvers.linear.newton.plan import GRID, NewtonPlan
from chicle_elastic.solvers.linear.newton.preconditioner import factorise
from chicle_elastic.solvers.linear.newton.state import (
    Block,
    NewtonPhase,
    NewtonState,
    OutputState,
)
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.products import packed_diagonal, unpack

D = 3


def plan_of(loss=Loss.SQUARED_HINGE, *, tol=1e-3, num_outputs=1, block_columns=D):
    """Three columns."""
    return NewtonPlan(loss=loss, tol=tol, num_outputs=num_outputs, D=D, block_columns=block_columns)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1000])
def test_a_dot_product_is_that_of_its_lanes(length):
    """64 partial sums, each in order, then added one after the other; written down in plain Python."""
    a, b = np.random.default_rng(length).normal(size=(2, length)) * 10.0 ** np.arange(-6, 6, 6)[:, None]
    lanes = [0.0] * (agreement.LANES if length >= agreement.LANES else 0)
    whole = length // agreement.LANES * agreement.LANES
    for start in range(0, whole, agreement.LANES):
        for lane in range(agreement.LANES):
            product = float(a[start + lane]) * float(b[start + lane])
            lanes[lane] = product if start == 0 else lanes[lane] + product
    expected = 0.0
    for value in [*lanes, *(float(x) * float(y) for x, y in zip(a[whole:], b[whole:], strict=True))]:
        expected += value
    assert agreement.dot(a, b) == expected
    assert agreement.dot(a, b) == pytest.approx(math.fsum(a * b), rel=1e-9, abs=1e-12)
    assert agreement.squared(a) == agreement.dot(a, a)


@pytest.mark.parametrize("offset", [1, 3])
def test_a_dot_product_does_not_depend_on_where_the_vectors_lie(offset):
    """Alignment and strides decide how NumPy would add."""
    a, b = np.random.default_rng(0).normal(size=(2, 777))
    moved, strided = np.zeros(800), np.zeros((777, 2))
    moved[offset : offset + 777], strided[:, 0] = a, b
    assert agreement.dot(moved[offset : offset + 777], strided[:, 0]) == agreement.dot(a, b)


def test_a_plan_follows_from_a_state():
    """A task that joins has nothing else."""
    plan = plan_of(num_outputs=4, block_columns=2)
    state = steps.start(plan, np.zeros(4 * D))
    assert NewtonPlan.of(state, 4 * D, loss=plan.loss, tol=plan.tol) == plan
    assert not NewtonState.is_of(np.zeros(0))


@pytest.mark.parametrize(
    ("loss", "block_columns"), [(Loss.HINGE, D), (Loss.SQUARED_HINGE, D), (Loss.SQUARED_HINGE, 2), (Loss.LOGISTIC, 2)]
)
def test_sums_lie_side_by_side_and_nothing_is_left_over(loss, block_columns):
    """Every value of the vector but the first belongs to exactly one view."""
    plan = plan_of(loss, num_outputs=3, block_columns=block_columns)
    state = steps.start(plan, np.zeros(3 * D))
    state.outputs[1].phase = NewtonPhase.REST
    if not plan.has_all_columns:
        state.outputs[0].columns = np.array([0, 2])
        state.outputs[2].phase = NewtonPhase.MULTIPLY
    buffer = np.zeros(plan.sums_size(state.outputs))
    groups = plan.groups(state.outputs, buffer)
    assert [group.numbers for group in groups] == [[0], [2]]
    for group in groups:
        views = [group.direction]
        if group.is_product:
            views.append(group.product)
        else:
            views += [group.start, group.values, group.slopes]
            for nested in (group.gradients, group.blocks, group.diagonals):
                views += [view for variants in nested for view in variants]
        for view in views:
            view += 1.0
    assert buffer[0] == 0.0
    assert (buffer[1:] == 1.0).all()


def pack_lower(matrix):
    """The lower triangle, row by row."""
    return matrix[np.tril_indices(len(matrix))]


def test_a_block_solves_what_it_was_made_of():
    """I + H where it has all columns, however they are scaled; the diagonal elsewhere."""
    Z = np.random.default_rng(0).normal(size=(9, D)) * np.array([1.0, 1e8, 1e-4])
    H, r = Z.T @ Z, np.array([1.0, -2.0, 3.0])
    assert np.array_equal(unpack(pack_lower(H), D), np.tril(H))
    assert np.array_equal(packed_diagonal(pack_lower(H), D), np.diag(H))
    x = factorise(pack_lower(H), np.diag(H), np.zeros(0, dtype=np.int64)).solve(r)
    np.testing.assert_allclose((np.eye(D) + H) @ x, r, rtol=1e-6)
    some = np.array([0, 2])
    M = np.diag(1.0 + np.diag(H))
    M[np.ix_(some, some)] += H[np.ix_(some, some)] - np.diag(np.diag(H)[some])
    x = factorise(pack_lower(H[np.ix_(some, some)]), np.diag(H), some).solve(r)
    np.testing.assert_allclose(M @ x, r, rtol=1e-6)
    x = factorise(np.zeros(0), np.diag(H), np.zeros(0, dtype=np.int64)).solve(r)
    np.testing.assert_allclose((1.0 + np.diag(H)) * x, r)


def test_a_block_of_equal_columns_is_solved_nearly():
    """Rounding may leave no factor; what is found is still a direction downhill."""
    z = np.random.default_rng(0).normal(size=50) * 1e9
    H = np.full((D, D), z @ z)
    r = np.ones(D)
    x = factorise(pack_lower(H), np.diag(H), np.zeros(0, dtype=np.int64)).solve(r)
    assert np.isfinite(x).all()
    assert x @ r > 0


class Bowl:
    """Sums of a pass of a smooth loss over one row set: 1/2 |A w - b|^2 in place of the losses."""

    def __init__(self, plan):
        rng = np.random.default_rng(1)
        self.plan, self.A, self.b = plan, rng.normal(size=(8, D)), rng.normal(size=8)

    def losses(self, w):
        """At w."""
        return 0.5 * np.sum((self.A @ w - self.b) ** 2)

    def optimum(self):
        """Of losses and 1/2 |w|^2 together."""
        return np.linalg.solve(np.eye(D) + self.A.T @ self.A, self.A.T @ self.b)

    def advance(self, w, state, *, extra=0.0, num_tasks=1.0):
        """One pass; `extra` is added to the losses."""
        sums = np.zeros(self.plan.sums_size(state.outputs))
        [group] = self.plan.groups(state.outputs, sums)
        output = state.outputs[0]
        there = w + output.direction
        group.direction += num_tasks * output.direction
        group.values[0, 0, 0] = self.losses(there) + extra
        for number in range(group.slopes.shape[1]):
            at = self.A @ (w + GRID[number] * output.direction)
            group.slopes[0, number] = (at - self.b) @ (self.A @ output.direction)
        group.gradients[0][0][0] += self.A.T @ (self.b - self.A @ there)
        if output.block is not Block.KEPT:
            group.blocks[0][0][0] += pack_lower(self.A.T @ self.A)
        return steps.advance(self.plan, w, state, sums, num_tasks)


def begun(bowl):
    """After the first pass, which evaluates w = 0; the next one has a direction."""
    state = steps.start(bowl.plan, np.zeros(D))
    state.outputs[0].serial = 1  # the duals of the beginning are not what these tests are about
    w = bowl.advance(np.zeros(D), state)
    assert not w.any()
    return w, state


def test_a_parabola_is_done_in_one_step():
    """The direction leads to its minimum, and there the output rests; the mean of the tasks' directions counts."""
    bowl = Bowl(plan_of())
    w, state = begun(bowl)
    [output] = state.outputs
    np.testing.assert_allclose(output.direction, bowl.optimum(), rtol=1e-12)
    w = bowl.advance(w, state, num_tasks=3.0)
    np.testing.assert_allclose(w, bowl.optimum(), rtol=1e-12)
    assert output.phase is NewtonPhase.REST
    assert output.gap <= 1e-20


def test_sums_of_an_interrupted_pass_change_nothing():
    """Neither w nor the state, to the last bit."""
    bowl = Bowl(plan_of())
    w, state = begun(bowl)
    before = state.encode()
    sums = np.full(bowl.plan.sums_size(state.outputs), 1e3)
    sums[0] = 1.0
    assert steps.advance(bowl.plan, w, state, sums, 2.0) is w
    np.testing.assert_array_equal(state.encode(), before)


def test_a_step_that_does_not_fall_far_enough_is_refused_and_shortened():
    """Armijo's rule; w stays, and the next direction is a share of this one, which then is taken."""
    bowl = Bowl(plan_of())
    w, state = begun(bowl)
    [output] = state.outputs
    direction, slope, serial = output.direction.copy(), output.gradient @ output.direction, output.serial
    fall = bowl.losses(w) - bowl.losses(w + direction) - 0.5 * direction @ direction
    following = bowl.advance(w, state, extra=fall + 0.9 * line.ARMIJO * slope)
    np.testing.assert_array_equal(following, w)
    assert (output.num_rejected, output.serial, output.t) == (1, serial, 0.0)
    share = output.direction @ direction / (direction @ direction)
    assert 0.05 <= share <= 0.5
    np.testing.assert_allclose(output.direction, share * direction, rtol=1e-12)
    following = bowl.advance(w, state)  # with slopes, which say that half of the way is near enough to the minimum
    np.testing.assert_allclose(following, share * direction, rtol=1e-12)
    assert (output.num_rejected, output.serial, output.t) == (0, serial + 1, 1.0)


def test_slopes_lead_beyond_a_step_that_is_far_too_short():
    """A refused direction of the squared hinge is looked at along its length, and not shortened again and again."""
    bowl = Bowl(plan_of())
    w, state = begun(bowl)
    [output] = state.outputs
    direction = output.direction.copy()
    output.num_rejected, output.direction = 1, 0.1 * direction
    np.testing.assert_array_equal(bowl.advance(w, state), w)
    assert output.num_rejected == 2
    assert output.direction @ direction > 0.5 * (direction @ direction)
    assert bowl.advance(w, state).any()


def test_a_shortened_step_of_a_loss_without_kinks_is_taken():
    """Whatever slopes say: they are for directions that are too long again."""
    bowl = Bowl(plan_of(loss=Loss.LOGISTIC))
    w, state = begun(bowl)
    [output] = state.outputs
    np.testing.assert_array_equal(bowl.advance(w, state, extra=1e3), w)
    shortened = output.direction.copy()
    np.testing.assert_allclose(bowl.advance(w, state), shortened, rtol=1e-12)
    assert (output.num_rejected, output.t) == (0, 1.0)


def test_a_direction_that_is_far_too_long_is_looked_at_along_its_length_for_any_loss():
    """Shortened by parabolas alone, it would be given up and found again, for ever."""
    for loss in (Loss.SQUARED_HINGE, Loss.LOGISTIC):
        bowl = Bowl(plan_of(loss=loss))
        w, state = begun(bowl)
        [output] = state.outputs
        best = output.direction.copy()
        output.direction = 1e3 * best
        w = bowl.advance(w, state)
        assert output.num_rejected == 1
        np.testing.assert_array_equal(bowl.advance(w, state), w)
        assert output.num_rejected == 2
        np.testing.assert_allclose(bowl.advance(w, state), best, rtol=0.6)


def test_a_step_that_falls_just_far_enough_is_taken():
    """The other side of the same rule."""
    bowl = Bowl(plan_of())
    w, state = begun(bowl)
    [output] = state.outputs
    direction, slope = output.direction.copy(), output.gradient @ output.direction
    fall = bowl.losses(w) - bowl.losses(w + direction) - 0.5 * direction @ direction
    assert bowl.advance(w, state, extra=fall + 1.1 * line.ARMIJO * slope).any()


def test_after_some_refusals_w_is_looked_at_anew():
    """Rows may have come back since: what was thought to be the objective at w is forgotten, and found in a pass."""
    bowl = Bowl(plan_of())
    w, state = begun(bowl)
    [output] = state.outputs
    for _ in range(smooth.MOST_REJECTED):
        assert output.direction.any()
        np.testing.assert_array_equal(bowl.advance(w, state, extra=1e3), w)
    assert not output.direction.any()
    assert output.value == np.inf
    bowl.advance(w, state, extra=1e3)
    assert output.value == pytest.approx(bowl.losses(w) + 1e3)
    assert bowl.advance(w, state, extra=1e3).any()


@pytest.mark.parametrize("has_newton_duals", [False, True])
def test_an_output_that_rested_too_early_goes_on(has_newton_duals):
    """Half of the share of tol is its goal from then on; the margins are found anew from the w that was certified."""
    bowl = Bowl(plan_of(Loss.LOGISTIC))
    w, state = begun(bowl)
    bowl.advance(w, state)
    [output] = state.outputs
    output.phase, output.has_newton_duals, output.keeps_duals = NewtonPhase.REST, has_newton_duals, True
    output.point, output.direction = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.0, 0.0])
    serial, certified = output.serial, np.array([1.25, 2.0, 3.0])
    steps.reopen(bowl.plan, certified, state)
    assert state.share == 0.5 * steps.SHARE
    assert not state.is_at_rest
    assert output.serial == serial + 1
    assert math.isnan(output.t)
    assert not output.keeps_duals
    assert not output.has_newton_duals
    # It goes back to where it rested, where that is not what was certified.
    np.testing.assert_allclose(certified + output.direction, output.point if has_newton_duals else certified)
    following = bowl.advance(certified, state)
    for _ in range(3):
        if not state.is_at_rest:
            following = bowl.advance(following, state)
    np.testing.assert_allclose(following, bowl.optimum(), rtol=1e-6)


def test_an_output_rests_where_steps_change_nothing():
    """The gap is small, and at the w of its duals it would not be: rounding times huge second derivatives."""
    plan = plan_of(tol=1e-9)
    state = steps.start(plan, np.zeros(D))
    [output] = state.outputs
    output.block = Block.EXACT
    w, output.serial, output.value = np.array([1.0, 0.0, 0.0]), 1, 100.5
    output.direction, output.gradient = np.array([0.0, 0.0, 1e-16]), np.zeros(D)
    sums = np.zeros(plan.sums_size(state.outputs))
    [group] = plan.groups(state.outputs, sums)
    group.direction += output.direction
    group.values[0, 0, 0] = 100.0
    group.gradients[0][0][0] += [1.0, 0.0, 1e-8]
    group.blocks[0][0][0] += pack_lower(np.diag([1.0, 1.0, 1e18]))
    following = steps.advance(plan, w, state, sums, 1.0)
    assert output.phase is NewtonPhase.REST
    assert not output.direction.any()
    np.testing.assert_array_equal(output.point, following)
    np.testing.assert_allclose(following, w, atol=1e-15)


def test_dot_products_of_rows_are_those_of_each():
    """To the last bit, whichever outputs are looked at together."""
    for length in (0, 3, 64, 130, 1000):
        a, b = np.random.default_rng(length).normal(size=(2, 4, length))
        assert agreement.dots(a, b).tolist() == [agreement.dot(x, y) for x, y in zip(a, b, strict=True)]


def hinge_pass(phi, slope, values, slopes):
    """A pass of the hinge at w = 0 along the first axis; sums of smoothed losses, without what |w|^2 adds."""
    plan = plan_of(Loss.HINGE)
    state = steps.start(plan, np.zeros(D))
    [output] = state.outputs
    output.serial, output.is_least_squares, output.tau, output.next_tau, output.old_tau = 1, False, 8.0, 32.0, 2.0
    output.direction = np.array([1.0, 0.0, 0.0])
    sums = np.zeros(plan.sums_size(state.outputs))
    [group] = plan.groups(state.outputs, sums)
    group.direction += output.direction
    group.start[0] = phi, slope
    for candidate, value in enumerate(values):
        group.values[0, candidate] = 50.0, 10.0, value
        group.gradients[candidate][0][0] += [2.0, 0.0, 0.0]
        group.gradients[candidate][1][0] += [3.0, 0.0, 0.0]
    group.slopes += slopes
    return steps.advance(plan, np.zeros(D), state, sums, 1.0), output


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_best_candidate_of_the_hinge_is_taken(best):
    """By the smoothed objective there, half the squared norm included."""
    values = [9.0, 9.0, 9.0]
    values[best] = 1.0
    w, output = hinge_pass(10.0, -5.0, values, 0.0)
    t = plan_of(Loss.HINGE).candidates[best]
    np.testing.assert_array_equal(w, [t, 0.0, 0.0])
    assert (output.t, output.serial) == (t, 2)
    assert (output.old_tau, output.tau) == (8.0, 32.0), "phi was easy to minimise, so the centers move in the next pass"


def test_where_no_candidate_of_the_hinge_will_do_the_slopes_say_how_far_to_go():
    """w stays, the centers do not move again, and the next direction ends where slopes change their sign."""
    slopes = np.where(GRID < 0.1, -5.0, 5.0)
    w, output = hinge_pass(10.0, -5.0, [11.0, 11.0, 11.0], slopes)
    assert not w.any()
    assert (output.num_rejected, output.serial, output.t, output.old_tau) == (1, 1, 0.0, 0.0)
    assert 0.05 < output.direction[0] < 0.12
    assert not output.direction[1:].any()


def test_conjugate_gradients_come_to_the_newton_direction():
    """As many products as there are columns, with the diagonal as preconditioner only."""
    plan = plan_of(tol=1e-12, block_columns=2)
    bowl = Bowl(plan)
    H = bowl.A.T @ bowl.A
    state = steps.start(plan, np.zeros(D))
    [output] = state.outputs
    output.serial = 1
    sums = np.zeros(plan.sums_size(state.outputs))
    [group] = plan.groups(state.outputs, sums)
    group.values[0, 0, 0] = bowl.losses(np.zeros(D))
    group.gradients[0][0][0] += bowl.A.T @ bowl.b
    group.diagonals[0][0][0] += np.diag(H)
    steps.advance(plan, np.zeros(D), state, sums, 1.0)
    assert output.phase is NewtonPhase.MULTIPLY
    heaviest = np.sort(np.argsort(-np.diag(H))[:2])
    np.testing.assert_array_equal(output.columns, heaviest)
    output.goal = 1e-28
    for count in range(1, D + 2):
        state = NewtonState.decode(state.encode())  # the way it comes to the tasks
        [output] = state.outputs
        sums = np.zeros(plan.sums_size(state.outputs))
        [group] = plan.groups(state.outputs, sums)
        group.direction += output.p
        group.product += H @ output.p
        steps.advance(plan, np.zeros(D), state, sums, 1.0)
        assert output.num_products == count
        if output.phase is NewtonPhase.EVALUATE:
            break
    assert count <= D + 1
    np.testing.assert_allclose(output.direction, bowl.optimum(), rtol=1e-9)


def test_products_end_after_a_hundred():
    """Whatever the residual is; what there is of the solution is the direction."""
    plan = plan_of(block_columns=2)
    output = OutputState(phase=NewtonPhase.MULTIPLY, columns=np.array([0, 2]))
    output.gradient, output.p, output.x, output.r = np.random.default_rng(1).normal(size=(4, D))
    output.num_products, output.goal, output.scale = conjugate.MOST_PRODUCTS - 1, 0.0, np.ones(D)
    state = NewtonState(block_columns=2, row_step=1, has_many_rows=False, is_cheap=True, share=0.9, outputs=[output])
    sums = np.zeros(plan.sums_size(state.outputs))
    [group] = plan.groups(state.outputs, sums)
    group.direction += output.p
    steps.advance(plan, np.zeros(D), state, sums, 1.0)
    assert output.phase is NewtonPhase.EVALUATE
    assert output.direction.any()


def test_the_heaviest_columns_are_in_order_and_none_is_empty():
    """Equal ones by their number, so that every task chooses the same."""
    diagonal = np.array([0.0, 3.0, 1.0, 3.0, 0.0, 3.0])
    assert smooth.heaviest_columns(diagonal, 2).tolist() == [1, 3]
    assert smooth.heaviest_columns(diagonal, 4).tolist() == [1, 2, 3, 5]
    assert smooth.heaviest_columns(diagonal, 6).tolist() == [1, 2, 3, 5]
