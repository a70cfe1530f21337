"""The parts of Newton's method without rows: sums in a fixed order, where sums lie, steps from given sums."""

import math

import numpy as np
import pytest
import scipy.sparse

from chicle_elastic.solvers.linear import agreement
from chicle_elastic.solvers.linear.certified import AGAIN
from chicle_elastic.solvers.linear.losses import Huber, margin_loss
from chicle_elastic.solvers.linear.newton import conjugate, steps
from chicle_elastic.solvers.linear.newton.directions import (
    Preconditioner,
    RowProducts,
    exact_solver,
    heaviest_columns,
    to_least,
)
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, OutputState, Problem
from chicle_elastic.solvers.linear.objectives import Loss
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


@pytest.mark.parametrize(
    ("gap", "tol", "left"),
    [
        (1.0, 1e-3, conjugate.MOST_LEFT**2),  # an exact step would not do
        (0.04, 1e-6, 0.04),
        (1e-6, 1e-13, conjugate.LEAST_ETA**2),
        (1e-2, 1e-3 / AGAIN, conjugate.MOST_LEFT * 0.1),  # the last one, if it leaves that much
        (1e-3, 0.9e-3, conjugate.MOST_LEFT**2),
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


def test_the_heaviest_columns_are_in_order_and_none_is_empty():
    """Equal ones by their number, so that every task chooses the same."""
    diagonal = np.array([0.0, 3.0, 1.0, 3.0, 0.0, 3.0])
    assert heaviest_columns(diagonal, 2).tolist() == [1, 3]
    assert heaviest_columns(diagonal, 4).tolist() == [1, 2, 3, 5]
    assert heaviest_columns(diagonal, 6).tolist() == [1, 2, 3, 5]


@pytest.mark.parametrize("has_free_intercept", [False, True])
def test_few_rows_make_a_step_of_many_columns_exact(has_free_intercept):
    """As the equations of all columns say; rows without curvature are none, and a column may have no ridge."""
    rng = np.random.default_rng(0)
    X, curvatures, ridge = rng.normal(size=(6, 20)), np.array([0.0, 1.0, 1e-9, 3.0, 1e6, 2.0]), np.full(20, 0.5)
    X[:, -1], ridge[-1] = 2.0, 0.5 * (not has_free_intercept)
    g = rng.normal(size=20)
    matrix = np.diag(ridge) + (X.T * curvatures) @ X
    expected, rounding = np.linalg.solve(matrix, g), np.finfo(float).eps * np.linalg.cond(matrix)
    none = np.zeros(6)
    found, _ = RowProducts(scipy.sparse.csr_array(X)).solver(curvatures, ridge)(g, none)
    np.testing.assert_allclose(found, expected, atol=4 * rounding * np.abs(expected).max(), rtol=0)
    huge, _ = RowProducts(scipy.sparse.csr_array(X * 1e200)).solver(curvatures, ridge)(g, none)
    assert np.isfinite(huge).all()
    without, _ = RowProducts(scipy.sparse.csr_array(X)).solver(none, ridge)(g, none)
    np.testing.assert_allclose(without[:-1], g[:-1] / 0.5)


def test_a_step_of_few_rows_changes_their_scores_by_as_little_as_it_has_to():
    """Slopes that are rounding of scores, over a small penalty: what cancels on the way is 1e14 times as large."""
    rng = np.random.default_rng(0)
    X, alpha, curvatures = rng.normal(size=(6, 200)), 1e-6, np.full(6, 1e8)
    slopes = rng.normal(size=6)
    step, duals = RowProducts(scipy.sparse.csr_array(X)).solver(curvatures, np.full(200, alpha))(np.zeros(200), slopes)
    np.testing.assert_allclose(curvatures * (X @ step), slopes, rtol=1e-5)
    np.testing.assert_allclose(X.T @ duals, alpha * step, rtol=1e-9, atol=1e-9 * alpha * np.abs(step).max())


def test_a_fit_that_begins_anew_foretells_no_change_of_a_scale():
    """Duals of its first pass are slopes, whatever the last step before was."""
    output = OutputState(phase=NewtonPhase.REST, foreseen=-0.5)
    state = NewtonState(D=D, block_columns=D, outputs=[output])
    steps.reopen(state, Problem(loss=Huber(), tol=1e-3), np.zeros(D))
    assert (output.phase, output.foreseen) == (NewtonPhase.LOOK, 0.0)
