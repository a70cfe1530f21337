"""Lasso and elastic net below the estimator: state, bounds, the solution from products, kernels, disturbed jobs."""

import dataclasses
import inspect
import textwrap

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.kernels import penalised
from chicle_elastic.solvers.linear.lasso import steps
from chicle_elastic.solvers.linear.lasso.state import LassoPhase, LassoState
from chicle_elastic.solvers.linear.lasso.steps import Penalty, Residuals
from chicle_elastic.solvers.linear.lasso.subproblem import minimise, worst_slope
from chicle_elastic.solvers.linear.lasso.trainer import LassoTrainer
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.products import add_dense_products

PENALTY = Penalty(l1=0.2, l2=0.0)


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
    return minimise(H, q, w0, l1=l1, l2=l2, enough=enough, accuracy=1e-9, is_spent=lambda: False)


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


def test_a_budget_that_is_spent_leaves_a_lower_objective():
    """After one sweep, and that is no solution."""
    _, _, H, q, w0 = problem()
    w, is_found = minimise(H, q, w0, l1=0.1, l2=0.0, enough=0.0, accuracy=1e-9, is_spent=lambda: True)
    assert not is_found

    def value(w):
        return 0.5 * (w - w0) @ H @ (w - w0) - q @ (w - w0) + 0.1 * np.abs(w).sum()

    assert value(w) < value(w0)


def test_slopes_that_are_good_enough_end_it_early():
    """On wide data a working set is not worth more."""
    _, _, H, q, w0 = problem(dependent=True)
    w, is_found = solved(H, q, w0, l1=0.01, enough=0.05)
    assert is_found
    assert worst_slope(q - (w - w0) @ H, w, 0.01, 0.0) <= 0.05


def residuals_at(X, y, s, w, b):
    """As the tasks sum them up."""
    r = y - X @ w - b
    y_mean = s @ y / s.sum()
    return Residuals(total=s @ r, losses=s @ r**2, squares=s @ r**2, products=(s * r) @ (y - y_mean), part=(s * r) @ X)


@pytest.mark.parametrize("penalty", [PENALTY, Penalty(l1=0.2, l2=0.1), Penalty(l1=0.0, l2=0.5)])
def test_the_dual_value_is_below_every_objective(penalty):
    """Wherever the residuals are taken; an intercept that is not the best one is allowed for."""
    rng = np.random.default_rng(1)
    X, y, s = rng.normal(size=(30, 5)) + 3.0, rng.normal(size=30) + 10.0, rng.uniform(0, 2, size=30)
    state = LassoState.fresh(5, is_sparse=False, is_rough=False, is_narrow=True)
    state.total_weight, state.means, state.target_mean = s.sum(), s @ X / s.sum(), s @ y / s.sum()
    duals, primals = [], []
    for scale in (0.0, 0.01, 0.1, 1.0):
        for shift in (0.0, 0.7):
            w = scale * rng.normal(size=5)
            b = state.target_mean - state.means @ w + shift
            sums = residuals_at(X, y, s, w, b)
            primal, dual, v = steps.bounds(state, w, sums, penalty, has_intercept=True)
            r = y - X @ w - b
            penalties = penalty.l1 * np.abs(w).sum() + 0.5 * penalty.l2 * w @ w
            assert primal == pytest.approx(s @ r**2 / (2 * s.sum()) + penalties)
            np.testing.assert_allclose(v, (s * (r - s @ r / s.sum())) @ X / s.sum(), atol=1e-12)
            duals.append(dual)
            primals.append(primal)
    assert max(duals) <= min(primals) * (1 + 1e-12)
    assert max(duals) >= 0.0


def advance(state, model, sums, *, tol=0.1):
    """With the arguments that do not matter."""
    return steps.advance(state, model, sums, penalty=PENALTY, tol=tol, has_intercept=True)


def test_rows_that_are_lost_or_come_back_start_the_steps_anew():
    """Products and means are those of other rows; interrupted tasks make the pass again."""
    state = LassoState.fresh(3, is_sparse=False, is_rough=False, is_narrow=True)
    state.phase, state.num_rows, state.total_weight = LassoPhase.EVALUATE, 10.0, 10.0
    state.set_products(np.ones(6))
    model, sums = np.ones(4), np.zeros(state.sums_size)
    sums[0] = 1.0
    assert advance(state, model, sums) is model
    assert state.phase is LassoPhase.EVALUATE
    sums[:2] = 0.0, 9.0
    assert advance(state, model, sums) is model
    assert state.phase is LassoPhase.LOOK
    assert not len(state.products)


def test_the_turn_goes_to_another_task_where_one_has_no_chunks():
    """Its sums are not in the iteration, so nothing was solved."""
    state = LassoState.fresh(3, is_sparse=False, is_rough=False, is_narrow=True)
    state.phase = LassoPhase.SOLVE
    model, sums = np.zeros(4), np.zeros(state.sums_size)
    assert advance(state, model, sums) is model
    assert (state.phase, state.turn) == (LassoPhase.SOLVE, 1)
    sums[HEAD:] = 1.0, 1.0, 0.0, 2.0, 0.0
    np.testing.assert_array_equal(advance(state, model, sums)[:3], [0.0, 2.0, 0.0])
    assert state.phase is LassoPhase.REST


def test_a_working_set_keeps_the_weights_and_takes_the_steepest_columns():
    """It grows to twice their number, and of more weights than it has room for it takes the worst."""
    d = 5000
    rng = np.random.default_rng(0)
    state = LassoState.fresh(d, is_sparse=True, is_rough=False, is_narrow=False)
    state.norms, state.slopes = np.ones(d), rng.uniform(0, 0.1, size=d)
    state.slopes[[7, 4000]], state.norms[9] = 1.0, 0.0
    w = np.zeros(d)
    w[100:110] = 1.0
    chosen = steps._chosen(state, w, PENALTY)
    assert len(chosen) == steps.FIRST_COLUMNS
    assert {7, 4000, *range(100, 110)} <= set(chosen.tolist())
    assert 9 not in chosen
    w[:600] = 1.0
    assert len(steps._chosen(state, w, PENALTY)) == 1200
    w[:4000] = 1.0
    chosen = steps._chosen(state, w, PENALTY)
    assert len(chosen) == steps.MOST_SET_COLUMNS
    assert 4000 in chosen


def test_refused_certificates_begin_anew_and_then_without_what_may_be_rough():
    """The first one keeps the products."""
    state = LassoState.fresh(3, is_sparse=False, is_rough=True, is_narrow=True)
    state.set_products(np.ones(6))
    for num_products, is_rough in ((6, True), (0, False)):
        state.phase = LassoPhase.REST
        steps.reopen(state)
        assert (state.phase, len(state.products), state.is_rough) == (LassoPhase.LOOK, num_products, is_rough)


def test_a_model_to_begin_with_is_taken_up():
    """A warm start of a job of one's own; from the solution nothing is left to be solved."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 8))
    source = ArraySource(X, X[:, 0] + 5.0, max_tasks=2)
    job = Job(trainer=LassoTrainer(alpha=0.1), source=source, max_iterations=50)
    cold = InProcess(num_tasks=2).run(job)
    warm = InProcess(num_tasks=2).run(dataclasses.replace(job, initial_model=cold.model))
    assert (len(cold.history), len(warm.history)) == (3, 2)
    np.testing.assert_allclose(warm.model, cold.model, rtol=1e-12)


def test_parameters_and_data_that_cannot_be_are_refused():
    """By the trainer, too, which scripts use without an estimator."""
    for params in ({"alpha": 0.0}, {"alpha": np.inf}, {"l1_ratio": 1.1}, {"l1_ratio": np.nan}, {"tol": -1.0}):
        with pytest.raises(UsageError, match="need alpha > 0, l1_ratio from 0 to 1 and tol >= 0"):
            LassoTrainer(**params)
    labels = ArraySource(np.ones((4, 2)), np.array([0, 1, 0, 1]))
    with pytest.raises(UsageError, match="l1 penalties come with the squared loss of real targets"):
        InProcess(num_tasks=1).run(Job(trainer=LassoTrainer(), source=labels, max_iterations=3))


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
