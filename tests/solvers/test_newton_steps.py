"""The parts of Newton's method without rows: sums in a fixed order, where sums lie, steps from given sums."""

import math

import numpy as np
import pytest

from chicle_elastic.solvers.linear import agreement
from chicle_elastic.solvers.linear.newton import conjugate, steps
from chicle_elastic.solvers.linear.newton.directions import Preconditioner, exact_solver, heaviest_columns, to_least
from chicle_elastic.solvers.linear.newton.margins import margin_loss
from chicle_elastic.solvers.linear.newton.state import (
    FIRST_SHARE,
    Block,
    Evaluation,
    NewtonPhase,
    NewtonState,
    Problem,
)
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.pass_solver import HEAD, ROWS
from chicle_elastic.solvers.linear.products import pack, packed_diagonal, unpack

D = 3
ALL = NONE = np.zeros(0, dtype=np.int64)
NOTHING = np.zeros(0)


def problem(loss=Loss.LOGISTIC, **params):
    """As the trainer of a classifier makes it."""
    return Problem(**{"loss": margin_loss(loss), "tol": 1e-3, "has_duals": True, **params})


def begun(what, *, num_outputs=1, model=None, **fields):
    """Before the first pass over three columns."""
    state = NewtonState(**{"D": D, "block_columns": D, "outputs": [], **fields})
    return steps.start(state, what, np.zeros(num_outputs * D) if model is None else model)


def packed(H):
    """The lower triangle by rows."""
    out = np.zeros(len(H) * (len(H) + 1) // 2)
    pack(np.ascontiguousarray(H), out)
    return out


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


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("block_columns", [2, 3])
@pytest.mark.parametrize("has_free_intercept", [False, True])
def test_sums_lie_side_by_side_and_nothing_is_left_over(loss, block_columns, has_free_intercept):
    """Whatever an output needs; one that rests has no sums."""
    what = problem(loss, has_free_intercept=has_free_intercept)
    state = begun(what, num_outputs=5, block_columns=block_columns)
    state.outputs[1].phase, state.outputs[2].phase = NewtonPhase.MULTIPLY, NewtonPhase.REST
    state.outputs[3].block = Block.KEPT
    state.outputs[4].direction, state.outputs[4].is_searched = np.ones(D), True
    sums = np.zeros(state.sums_size(what))
    parts = state.parts(sums, what)
    assert sum(map(len, parts)) == len(sums) - HEAD
    assert [len(part) for part in parts[1:3]] == [2 * D, 0]
    for number in (0, 3, 4):
        found = Evaluation.of(state, state.outputs[number], what, parts[number])
        for values in (getattr(found, name) for name in Evaluation.__slots__):
            values += 1.0
    np.testing.assert_array_equal(sums[HEAD:], np.concatenate([np.ones(len(p)) * (len(p) != 2 * D) for p in parts]))


def test_a_block_solves_what_it_was_made_of():
    """I + H where it has all columns, however they are scaled; the diagonal elsewhere."""
    Z = np.random.default_rng(0).normal(size=(9, D)) * np.array([1.0, 1e8, 1e-4])
    H, r, ridge = Z.T @ Z, np.array([1.0, -2.0, 3.0]), np.ones(D)
    assert np.array_equal(unpack(packed(H), D), np.tril(H))
    assert np.array_equal(packed_diagonal(packed(H), D), np.diag(H))
    x = Preconditioner.of(packed(H), np.diag(H), ALL, NOTHING, ridge).solve(r)
    np.testing.assert_allclose((np.eye(D) + H) @ x, r, rtol=1e-6)
    some = np.array([0, 2])
    M = np.diag(1.0 + np.diag(H))
    M[np.ix_(some, some)] += H[np.ix_(some, some)] - np.diag(np.diag(H)[some])
    x = Preconditioner.of(packed(H[np.ix_(some, some)]), np.diag(H), some, NOTHING, ridge).solve(r)
    np.testing.assert_allclose(M @ x, r, rtol=1e-6)
    x = Preconditioner.of(NOTHING, np.diag(H), NONE, NOTHING, ridge).solve(r)
    np.testing.assert_allclose((1.0 + np.diag(H)) * x, r)


def test_a_free_intercept_is_eliminated():
    """Of columns that are at right angles but for their means the diagonal is all there is to know."""
    Q = np.linalg.qr(np.column_stack([np.ones(9), np.random.default_rng(0).normal(size=(9, 2))]))[0]
    Z = np.column_stack([Q[:, 1:] + 50.0, np.ones(9)])
    H, r, ridge = Z.T @ Z, np.array([1.0, -2.0, 3.0]), np.array([0.5, 0.5, 0.0])
    x = Preconditioner.of(NOTHING, np.diag(H), NONE, H[-1], ridge).solve(r)
    np.testing.assert_allclose((np.diag(ridge) + H) @ x, r, rtol=1e-6)


def test_a_block_of_equal_columns_is_solved_nearly():
    """Rounding may leave no factor; what is found is still a direction downhill."""
    z = np.random.default_rng(0).normal(size=50) * 1e9
    H, r = np.full((D, D), z @ z), np.ones(D)
    x = Preconditioner.of(packed(H), np.diag(H), ALL, NOTHING, np.ones(D)).solve(r)
    assert np.isfinite(x).all()
    assert x @ r > 0


def test_where_columns_hang_together_a_step_leads_to_the_least_weights():
    """Equal columns share what one of them would have."""
    z = np.random.default_rng(0).normal(size=50) * 1e9
    H, w, ridge = np.outer([1.0, 1.0, 0.0], [1.0, 1.0, 0.0]) * (z @ z), np.array([5.0, 0.0, 1.0]), np.ones(D)
    solve, null = exact_solver(H.copy(), ridge, is_rough=False)
    there = w - solve(np.array([z @ z, z @ z, 1.0]))
    there = there + to_least(there, null, ridge)
    assert null.shape[1] == 1
    assert there[0] == pytest.approx(there[1])
    rough, none = exact_solver(H.copy(), ridge, is_rough=True)
    assert none.shape[1] == 0
    assert np.isfinite(rough(np.ones(D))).all()


class Bowl:
    """Sums of a pass of a smooth loss over one row set: 1/2 |A w - b|^2 in place of the losses."""

    def __init__(self, what, state):
        rng = np.random.default_rng(1)
        self.what, self.state, self.A, self.b = what, state, rng.normal(size=(8, D)), rng.normal(size=8)

    def sums(self, w):
        """Of the only output."""
        state, sums = self.state, np.zeros(self.state.sums_size(self.what))
        [output], [part] = state.outputs, state.parts(sums, self.what)
        sums[ROWS], H = 8.0, self.A.T @ self.A
        if output.phase is NewtonPhase.MULTIPLY:
            part[:D], part[D:] = H @ output.conjugate, output.conjugate
            return sums
        found = Evaluation.of(state, output, self.what, part)
        r = self.A @ (w + output.direction) - self.b
        found.scalars[:2], found.v[:], found.step[:] = 0.5 * r @ r, -self.A.T @ r, output.step
        if len(found.second):
            found.second[:] = packed(H)
        if len(found.diagonal):
            found.diagonal[:] = np.diag(H)
        return sums

    def run(self, most):
        """To rest; returns w, and how many passes of each kind there were."""
        w, phases = np.zeros(D), []
        while not self.state.is_at_rest and len(phases) < most:
            phases.append(self.state.outputs[0].phase)
            w = steps.advance(self.state, self.what, w, self.sums(w), 1.0)
        return w + self.state.outputs[0].shift, phases

    def optimum(self):
        """Of the objective."""
        return np.linalg.solve(np.eye(D) + self.A.T @ self.A, self.A.T @ self.b)


def test_a_parabola_is_done_in_one_step():
    """The second pass finds out that nothing is left; the duals of an exact step make up the rest."""
    what = problem(tol=1e-9)
    bowl = Bowl(what, begun(what))
    w, phases = bowl.run(5)
    assert phases == [NewtonPhase.EVALUATE] * 2
    np.testing.assert_allclose(w, bowl.optimum(), rtol=1e-10)


def test_conjugate_gradients_come_to_the_newton_direction():
    """As many products as there are columns, at most, in each step."""
    what = problem(tol=1e-9)
    bowl = Bowl(what, begun(what, is_exact=False, block_columns=0))
    w, phases = bowl.run(40)
    assert phases.count(NewtonPhase.MULTIPLY) <= D * phases.count(NewtonPhase.EVALUATE)
    np.testing.assert_allclose(w, bowl.optimum(), rtol=1e-4)


def test_a_step_that_does_not_fall_far_enough_is_refused_and_shortened():
    """To where a parabola through what is known is least; then the losses along it tell."""
    what = problem()
    bowl = Bowl(what, begun(what))
    w = steps.advance(bowl.state, what, np.zeros(D), bowl.sums(np.zeros(D)), 1.0)
    [output] = bowl.state.outputs
    direction, sums = output.direction.copy(), bowl.sums(w)
    Evaluation.of(bowl.state, output, what, bowl.state.parts(sums, what)[0]).scalars[:2] = 1e3
    assert not steps.advance(bowl.state, what, w, sums, 1.0).any()
    assert output.reach == 0.05
    np.testing.assert_allclose(output.direction, output.reach * direction)
    sums = bowl.sums(w)
    found = Evaluation.of(bowl.state, output, what, bowl.state.parts(sums, what)[0])
    found.scalars[:2], found.line[:] = 1e3, 1e3
    found.line[4] = 0.0
    steps.advance(bowl.state, what, w, sums, 1.0)
    assert output.is_chosen
    np.testing.assert_allclose(output.direction, 0.3 * 0.05 * direction)


def test_an_output_that_rested_too_early_goes_on():
    """From w as it was before another one was made of its duals, and to half of the gap."""
    what = problem(tol=1e-9)
    bowl = Bowl(what, begun(what))
    made, _ = bowl.run(5)
    [output] = bowl.state.outputs
    point = output.residual.copy()
    steps.reopen(bowl.state, what, made)
    assert bowl.state.share == 0.5 * FIRST_SHARE
    assert output.phase is NewtonPhase.EVALUATE
    np.testing.assert_allclose(made + output.direction, point)


def test_products_end_after_a_hundred():
    """Rounding may keep the residual from ever being small."""
    what = problem(tol=1e-9)
    state = begun(what, is_exact=False, num_rows=8.0)
    [output] = state.outputs
    output.phase, output.num_products, output.goal = NewtonPhase.MULTIPLY, conjugate.MOST_PRODUCTS - 1, 0.0
    output.residual, output.conjugate, output.diagonal = np.ones(D), np.ones(D), np.ones(D)
    sums = np.zeros(state.sums_size(what))
    sums[ROWS], sums[HEAD + D :] = 8.0, 1.0
    sums[HEAD] = 3.0
    steps.advance(state, what, np.zeros(D), sums, 1.0)
    assert output.phase is NewtonPhase.EVALUATE
    assert output.direction.any()


@pytest.mark.parametrize(
    ("gap", "tol", "left"),
    [
        (1.0, 1e-3, conjugate.MOST_ETA**2),  # an exact step would not do
        (0.04, 1e-6, 0.04),
        (1e-6, 1e-13, conjugate.LEAST_ETA**2),
        (1e-2, 1e-3 / FIRST_SHARE, conjugate.LANDING * 0.1),  # the last one, if it leaves that much
        (1e-3, 0.9e-3, conjugate.MOST_ETA**2),
    ],
)
def test_a_run_of_products_is_as_exact_as_it_has_to_be(gap, tol, left):
    """As its step may be exact, or as the goal needs it."""
    what = problem(tol=tol)
    state = begun(what, is_exact=False)
    [output] = state.outputs
    output.gap, output.diagonal = gap, np.full(D, 2.0)
    conjugate.begin(state, output, what, np.arange(1.0, 4.0))
    assert output.goal == pytest.approx(left * np.square(np.arange(1.0, 4.0)).sum() / 2.0)


def test_dot_products_of_rows_are_those_of_each():
    """To the last bit, whichever outputs are looked at together."""
    for length in (0, 3, 64, 130, 1000):
        a, b = np.random.default_rng(length).normal(size=(2, 4, length))
        assert agreement.dots(a, b).tolist() == [agreement.dot(x, y) for x, y in zip(a, b, strict=True)]


def test_the_heaviest_columns_are_in_order_and_none_is_empty():
    """Equal ones by their number, so that every task chooses the same."""
    diagonal = np.array([0.0, 3.0, 1.0, 3.0, 0.0, 3.0])
    assert heaviest_columns(diagonal, 2).tolist() == [1, 3]
    assert heaviest_columns(diagonal, 4).tolist() == [1, 2, 3, 5]
    assert heaviest_columns(diagonal, 6).tolist() == [1, 2, 3, 5]
