"""Ridge regression below the estimator: progress as a vector, steps without rows, and jobs that are disturbed."""

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.products import add_dense_products
from chicle_elastic.solvers.linear.ridge import steps
from chicle_elastic.solvers.linear.ridge.state import HEAD, RidgePhase, RidgeState
from chicle_elastic.solvers.linear.ridge.trainer import RidgeTrainer

ALPHA = 0.7


class Rows:
    """Sums of a pass over rows in memory, as one of two tasks sends them."""

    def __init__(self, *, num_rows=40, d=5, seed=0):
        rng = np.random.default_rng(seed)
        self.X, self.y = rng.normal(size=(num_rows, d)) + 2.0, rng.normal(size=num_rows)
        self.s = rng.uniform(0.0, 2.0, size=num_rows)

    def sums(self, state, model, *, direction=None):
        """See `RidgeState.sums_size`."""
        X, y, s = self.X, self.y, self.s
        head = [0.0, float(len(y)), 0.0]
        if state.phase is RidgePhase.LOOK:
            return np.concatenate([head, [s.sum(), s @ y, s @ y**2], s @ X, s @ X**2])
        if state.phase is RidgePhase.EVALUATE:
            r = y - X @ model[:-1] - model[-1]
            centred = X - state.means
            products = (centred.T * s) @ centred
            packed = products[np.tril_indices(len(products))] if state.needs_products else []
            return np.concatenate([head, [s @ r, s @ r**2], (s * r) @ X, packed])
        p = state.direction if direction is None else direction
        u = (X - state.means) @ p
        return np.concatenate([head, [s @ u], (s * u) @ X, p])

    def run(self, state, model, *, tol=1e-12, most=60):
        """Passes until the state rests; the model, and how many there were."""
        for number in range(most):
            if state.phase is RidgePhase.REST:
                return model, number
            sums = self.sums(state, model)
            model = steps.advance(state, model, sums, 1.0, alpha=ALPHA, tol=tol, has_intercept=True)
        raise AssertionError("the steps do not rest")

    def solution(self):
        """w and b of the centred equations."""
        x_mean, y_mean = self.s @ self.X / self.s.sum(), self.s @ self.y / self.s.sum()
        centred = self.X - x_mean
        matrix = (centred.T * self.s) @ centred + ALPHA * np.eye(self.X.shape[1])
        w = np.linalg.solve(matrix, (centred.T * self.s) @ (self.y - y_mean))
        return np.append(w, y_mean - x_mean @ w)


@pytest.mark.parametrize(("has_factor", "num_passes"), [(True, 3), (False, 7)])
def test_steps_solve_the_equations(has_factor, num_passes):
    """With second derivatives in a look, an evaluation and one product; without, in as many products as columns."""
    rows = Rows()
    state = RidgeState.fresh(5, is_sparse=False, is_rough=False, has_factor=has_factor)
    model, found = rows.run(state, np.zeros(6))
    np.testing.assert_allclose(model, rows.solution(), rtol=1e-6)
    assert found <= num_passes


def test_rows_that_are_lost_or_come_back_start_the_steps_anew():
    """Means of other rows would solve another problem; the model so far is kept as a place to begin."""
    some, all_rows = Rows(num_rows=30), Rows(num_rows=40, seed=1)
    state = RidgeState.fresh(5, is_sparse=False, is_rough=False, has_factor=True)
    model, _ = some.run(state, np.zeros(6))
    state.phase = RidgePhase.MULTIPLY
    model = steps.advance(state, model, all_rows.sums(state, model), 1.0, alpha=ALPHA, tol=1e-12, has_intercept=True)
    assert state.phase is RidgePhase.LOOK
    model, _ = all_rows.run(state, model)
    np.testing.assert_allclose(model, all_rows.solution(), rtol=1e-6)


def test_tasks_that_were_interrupted_make_the_pass_again():
    """Their sums lack rows."""
    rows, model = Rows(), np.zeros(6)
    state = RidgeState.fresh(5, is_sparse=False, is_rough=False, has_factor=True)
    before = state.encode()
    sums = rows.sums(state, model)
    sums[0] = 1.0
    assert steps.advance(state, model, sums, 1.0, alpha=ALPHA, tol=0.1, has_intercept=True) is model
    np.testing.assert_array_equal(state.encode(), before)


def test_directions_of_several_tasks_are_averaged():
    """What each processor's factor makes of a residual differs in the last digits; the step is the mean's."""
    rows, model = Rows(), np.zeros(6)
    state = RidgeState.fresh(5, is_sparse=False, is_rough=False, has_factor=True)
    for _ in range(2):
        model = steps.advance(state, model, rows.sums(state, model), 1.0, alpha=ALPHA, tol=1e-12, has_intercept=True)
    assert state.phase is RidgePhase.MULTIPLY
    sums = rows.sums(state, model)
    sums[-5:] *= 2.0  # two tasks send it, and the products of their rows add up to those of all
    model = steps.advance(state, model, sums, 2.0, alpha=ALPHA, tol=1e-12, has_intercept=True)
    np.testing.assert_allclose(model, rows.solution(), rtol=1e-9)


def test_a_matrix_that_rounding_has_made_indefinite_is_no_error():
    """The factor is then an estimate, and products do the rest."""
    state = RidgeState.fresh(2, is_sparse=False, is_rough=False, has_factor=True)
    state.phase, state.num_rows, state.total_weight = RidgePhase.EVALUATE, 3.0, 3.0
    sums = np.concatenate([[0.0, 3.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 2.0, 1.0]])  # eigenvalues 3 and -1
    steps.advance(state, np.zeros(3), sums, 1.0, alpha=1e-9, tol=1e-9, has_intercept=True)
    assert state.phase is RidgePhase.MULTIPLY
    assert np.isfinite(state.direction).all()
    assert state.direction @ state.residual > 0


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


def test_parameters_and_data_that_cannot_be_are_refused():
    """By the trainer, too, which scripts use without an estimator."""
    for params in ({"alpha": 0.0}, {"alpha": np.inf}, {"alpha": np.nan}, {"tol": -1.0}):
        with pytest.raises(UsageError, match="needs alpha > 0 and tol >= 0"):
            RidgeTrainer(**params)
    labels = ArraySource(np.ones((4, 2)), np.array([0, 1, 0, 1]))
    with pytest.raises(UsageError, match="a regression needs real targets"):
        InProcess(num_tasks=1).run(Job(trainer=RidgeTrainer(), source=labels, max_iterations=3))


def test_the_sums_begin_with_a_head():
    """Every phase has one, so that a task can always say that it was interrupted."""
    for phase in RidgePhase:
        state = RidgeState.fresh(3, is_sparse=False, is_rough=False, has_factor=True)
        state.phase = phase
        assert state.sums_size >= HEAD
