"""Lasso and elastic net below the estimator: state, bounds, the solution from products, kernels, disturbed jobs."""

import inspect
import textwrap

import numpy as np
import pytest

from chicle_elastic.solvers.kernels import penalised
from chicle_elastic.solvers.linear.l1.problem import L1Problem
from chicle_elastic.solvers.linear.l1.subproblem import minimise, worst_slope
from chicle_elastic.solvers.linear.losses import SquaredEpsilonInsensitive
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase
from chicle_elastic.solvers.linear.products import MOST_EXACT, add_dense_products
from chicle_elastic.solvers.linear.progress import HEAD
from tests.solvers.test_l1 import state_of as any_state_of


def problem_of(l1=0.2, l2=0.0):
    """With an intercept."""
    loss = SquaredEpsilonInsensitive()
    return L1Problem(loss=loss, l1=l1, alpha=l2, C=0.5, is_mean=True, has_free_intercept=True, tol=0.1)


def state_of(D, *, is_rough=False, is_whole=True):
    """Before the first pass."""
    state = any_state_of(problem_of(), 1, D, is_whole=is_whole)
    state.is_rough, state.outputs[0].reach = is_rough, 0.0
    return state


def problem(*, num_rows=60, h=20, seed=0, dependent=False):
    """Second derivatives and slopes at w0 of h columns."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, h))
    if dependent:
        X[:, h // 2 :] = X[:, : h - h // 2]
    y = X @ (rng.normal(size=h) * (rng.random(h) < 0.3)) + 0.1 * rng.normal(size=num_rows)
    w0 = rng.normal(size=h) * (rng.random(h) < 0.2)
    return X, y, X.T @ X / num_rows, X.T @ (y - X @ w0) / num_rows, w0


def solved(H, q, w0, *, l1, l2=0.0, enough=0.0):
    """The solution and whether it was found."""
    return minimise(H, q, w0, l1=l1, l2=l2, enough=enough, accuracy=1e-9)


def test_the_kernel_does_what_its_numpy_equivalent_does():
    """Sweep by sweep; a column of zeros gets no weight."""
    _, _, H, q, w0 = problem()
    H[3], H[:, 3], q[3], w0[3] = 0.0, 0.0, 0.0, 0.5
    text = inspect.getdoc(penalised.descend.py_func).split("NumPy equivalent::")[1]
    for l2 in (0.0, 0.7):
        places = np.array([0, 3, 7, 19, 4])
        slopes, w = q.copy(), w0.copy()
        penalised.descend(H, places, 0.2, l2, 7, 1e-30, slopes, w)
        names = {"H": H, "places": places, "l1": 0.2, "l2": l2, "num_sweeps": 7, "enough": 1e-30, "np": np}
        names |= {"slopes": q.copy(), "w": w0.copy()}
        exec(textwrap.dedent(text), names)
        np.testing.assert_allclose(w, names["w"], rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(slopes, names["slopes"], rtol=1e-10, atol=1e-12)
        assert w[3] == 0.0


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("l1", [1e-4, 1e-2, 0.3, 100.0])
@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("num_rows", [60, 8])
def test_a_solution_meets_the_optimality_conditions(num_rows, dependent, l1, l2):
    """Of few rows and of columns that depend on each other as well, from weights that are not 0."""
    _, _, H, q, w0 = problem(num_rows=num_rows, dependent=dependent)
    w, is_found = solved(H, q, w0, l1=l1, l2=l2)
    assert is_found
    assert worst_slope(q - (w - w0) @ H, w, l1, l2) <= 1e-8 * l1 + 1e-11


@pytest.mark.parametrize(("l1", "l2"), [(0.2, 0.0), (0.2, 0.1), (0.0, 0.5)])
def test_the_dual_value_is_below_every_objective(l1, l2):
    """Wherever the residuals are taken; an intercept that is not the best one is allowed for."""
    rng = np.random.default_rng(1)
    X, y, s = rng.normal(size=(30, 5)) + 3.0, rng.normal(size=30) + 10.0, rng.uniform(0, 2, size=30)
    s /= s.sum()
    X, what = np.column_stack([X, np.ones(30)]), problem_of(l1, l2)
    state, means, y_mean, duals, primals = state_of(6), s @ X, s @ y, [], []
    penalty = what.penalty_of(state)
    for scale in (0.0, 0.01, 0.1, 1.0):
        for shift in (0.0, 0.7):
            w = np.append(scale * rng.normal(size=5), 0.0)
            w[-1] = y_mean - means @ w + shift
            r = y - X @ w
            primal = s @ r**2 + what.penalty(state, w)
            assert primal == pytest.approx(s @ r**2 + 2 * l1 * np.abs(w[:-1]).sum() + l2 * w[:-1] @ w[:-1])
            centred = r - s @ r
            v = np.append(2.0 * (s * centred) @ X[:, :-1], 0.0)
            (factor,), gap = penalty.scaled(what.penalised(w), primal, np.array([s @ centred**2]), v[None])
            a = factor * 2.0 * centred
            of_losses = s @ (r**2 - a * (y - y_mean) + 0.25 * a * a + a * (X @ w - y_mean))
            dual = primal - what.lack(state, w, factor * v, of_losses, primal, s @ a**2)
            assert gap == pytest.approx(primal - max(dual, 0.0), rel=1e-9, abs=1e-12)
            duals.append(dual)
            primals.append(primal)
    assert max(duals) <= min(primals) * (1 + 1e-12)
    assert max(duals) >= 0.0


def test_nothing_is_looked_at_after_a_solution_from_all_products():
    """Where a task is alone its end is w, and a certificate follows; but for rough products, and of duals alone."""
    for num_refused, is_rough, num_alone, phase in (
        (0, False, 1.0, NewtonPhase.REST),
        (0, False, 0.0, NewtonPhase.EVALUATE),
        (0, True, 1.0, NewtonPhase.EVALUATE),
        (3, False, 0.0, NewtonPhase.REST),
    ):
        state, what = state_of(3, is_rough=is_rough), problem_of()
        state.num_refused, (output,) = num_refused, state.outputs
        output.diagonal = np.zeros(3)
        output.phase, output.residual, output.beside = NewtonPhase.PRODUCTS, np.array([0.0, 2.4, 1.0]), np.eye(3)[2]
        sums = np.zeros(state.sums_size(what))
        sums[2], sums[HEAD:], state.num_rows = num_alone, (1.0, 0.0, 1.0, 0.0, 0.0, 2.0), 10.0
        sums[1] = 10.0
        model = steps.advance(state, what, np.zeros(3), sums, 1.0)
        assert (output.phase, output.block, len(output.factor)) == (phase, Block.KEPT, 6)
        is_beside = phase is NewtonPhase.EVALUATE or num_refused == 3
        expected = [0.0, 0.0 if num_refused == 3 else 2.0, 0.5]
        beside = output.shift if num_refused == 3 else output.direction
        np.testing.assert_allclose(beside if is_beside else model, expected, rtol=1e-5)
        assert model.any() != is_beside


def test_a_working_set_keeps_the_weights_and_takes_the_steepest_columns():
    """It grows to twice their number, and of more weights than it has room for it takes the worst."""
    d = 5000
    rng, what = np.random.default_rng(0), problem_of(0.1)
    state = state_of(d + 1, is_whole=False)
    (output,) = state.outputs
    output.diagonal, slopes = np.ones(d + 1), rng.uniform(0, 0.1, size=d + 1)
    slopes[[7, 4000]], output.diagonal[9], slopes[-1] = 1.0, 0.0, 0.0
    w = np.zeros(d + 1)
    w[100:110] = 1.0
    chosen = what.chosen(state, output, w, slopes)
    assert len(chosen) == MOST_EXACT + 1
    assert {7, 4000, *range(100, 110), d} <= set(chosen.tolist())
    assert 9 not in chosen
    w[:600] = 1.0
    assert len(what.chosen(state, output, w, slopes)) == 1201
    w[:4000] = 1.0
    chosen = what.chosen(state, output, w, slopes)
    assert len(chosen) == 2048
    assert 4000 in chosen


def test_refused_certificates_begin_anew_without_what_may_be_rough():
    """What a solution for the duals had beside w goes to w."""
    state, what = state_of(3, is_rough=True), problem_of()
    (output,) = state.outputs
    output.phase, output.factor, output.shift = NewtonPhase.REST, np.ones(6), np.array([0.0, 1.0, 2.0])
    steps.reopen(state, what, np.ones(3))
    assert (output.phase, state.is_rough, output.block) == (NewtonPhase.LOOK, False, Block.EXACT)
    sums = np.zeros(state.sums_size(what))
    sums[1], sums[HEAD] = 10.0, 10.0
    sums[-4:] = 2.0 * np.append(output.shift, 1.0)
    np.testing.assert_array_equal(steps.advance(state, what, np.ones(3), sums, 2.0), [1.0, 2.0, 3.0])
    assert not len(output.factor)
    assert not output.shift.any()


@pytest.mark.parametrize("columns", [[], [0, 2]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_shifted_rows_are_those_of_numpy(dtype, columns):
    """In blocks, with rows of weight 0 left out; of all columns or of some."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 3)).astype(dtype) + 100 for n in (7, 300)]
    weights = rng.uniform(size=307) * (rng.uniform(size=307) < 0.5)
    some = columns or [0, 1, 2]
    h = len(some)
    shift, out = np.array([100.0, 99.0, 101.0])[some], np.ones(h * (h + 1) // 2)
    add_dense_products(parts, weights, np.array(columns, dtype=np.int64), None, out, shift=shift)
    X = np.concatenate(parts).astype(np.float64)[:, some] - shift
    np.testing.assert_allclose(out - 1.0, ((X.T * weights) @ X)[np.tril_indices(h)], rtol=1e-9)
