"""Newton steps of one task over narrow rows: exact, duals stay feasible and consistent, and when they are worth it."""

import dataclasses

import numpy as np
import pytest

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear.objectives import Loss, primal_losses
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.wide.finish import WideFinish, WideHinge
from chicle_elastic.solvers.linear.wide.rows import WideRows
from chicle_elastic.solvers.local_chunk import Gate
from tests.solvers.click_rows import fit
from tests.solvers.reference import primal_and_dual
from tests.solvers.test_newton_passes import rows_of

INTERCEPT = 0.5
OPEN = Gate("the test")
OPEN.open(1)


class Case:
    """Three chunks of correlated rows with noisy labels; C_i differ, and one is 0."""

    def __init__(self, loss, kind="dense", num_rows=90, num_features=6, *, is_small=True):
        rng = np.random.default_rng(0)
        self.loss = loss
        self.X = rng.normal(size=(num_rows, num_features)) @ rng.normal(size=(num_features, num_features))
        self.signs = np.where(self.X[:, 0] + rng.normal(size=num_rows) > 0, 1.0, -1.0)
        self.upper = rng.uniform(1, 20, size=num_rows)
        self.upper[3] = 0.0
        self.rows = rows_of(self.X, "merged " * is_small + kind, INTERCEPT, (0, 40, 41, num_rows))
        kind = WideHinge if loss is Loss.HINGE else WideFinish
        exact, alpha = WideRows(self.rows, self.X.size, is_exact=True), np.zeros(num_rows)
        self.finish = kind(exact, loss, self.signs, self.upper, alpha, outside=np.zeros(num_features + 1))

    def augmented(self):
        """X with the intercept column."""
        return np.column_stack([self.X, np.full(len(self.X), INTERCEPT)])

    def relative_gap(self):
        """(P - D) / P from first principles."""
        w, alpha = self.finish.w, self.finish.alpha
        np.testing.assert_allclose(w, self.augmented().T @ (alpha * self.signs), rtol=1e-9, atol=1e-9)
        primal, dual = primal_and_dual(self.loss, self.augmented() @ w, self.signs, alpha, self.upper, float(w @ w))
        return (primal - dual) / primal


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("loss", list(Loss))
def test_a_few_steps_reach_the_optimum(loss, kind, is_small):
    """Gaps of 1e-7 and less in few runs, with w = w(alpha) after each and every dual in its box."""
    case = Case(loss, kind, is_small=is_small)
    for _ in range(6):
        case.finish.run(lambda: False)
        duals = case.finish.alpha
        assert (duals >= 0).all()
        assert loss is Loss.SQUARED_HINGE or (duals <= loss.most_slope * case.upper).all()
        if case.relative_gap() < 1e-7:
            break
    assert case.relative_gap() < 1e-7
    w = case.finish.w
    primal = 0.5 * w @ w + primal_losses(loss, case.signs * (case.augmented() @ w), case.upper).sum()
    assert abs(case.finish.gap / primal) < 1e-6


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("num_features", [6, 200])
def test_the_direction_solves_the_dense_system(kind, num_features):
    """Few curved rows are solved for in the space of rows, many in that of features; both are -H^-1 g."""
    case = Case(Loss.HINGE, kind, num_features=num_features)
    curvatures = np.where(np.arange(90) % 3 == 0, 0.0, 0.05 * case.upper)
    Z = case.augmented() * np.sqrt(curvatures)[:, None]
    gradient = np.ones(num_features + 1)
    expected = -np.linalg.solve(np.eye(num_features + 1) + Z.T @ Z, gradient)
    direction = WideRows(case.rows, 1, is_exact=True).direction(curvatures, gradient, lambda: False)
    np.testing.assert_allclose(direction, expected, rtol=1e-7, atol=1e-9)


def test_a_spent_budget_leaves_duals_and_w_consistent():
    """One step is made in any case, and what there is fits together."""
    case = Case(Loss.HINGE)
    case.finish.run(lambda: True)
    assert 1e-7 < case.relative_gap() <= 1


def weakly_regularised():
    """A problem on which 300 passes of coordinate descent leave a gap of more than 1e-3."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2000, 12)) @ (np.eye(12) + 0.5)
    y = (X[:, 0] - X[:, 1] + rng.logistic(size=2000) > 0).astype(np.int32)
    return X, y


def test_one_task_finishes_with_newton_where_coordinate_descent_crawls():
    """40 iterations certify 1e-6; as many of coordinate descent alone do not."""
    X, y = weakly_regularised()
    trainer = LinearTrainer(C=10.0, tol=1e-6, loss="hinge")
    outcome = fit(trainer, InProcess(), X, y, 40)
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-6
    signs = np.where(y == 1, 1.0, -1.0)
    w = np.column_stack([X, np.ones(len(X))]).T @ (outcome.state[:, 0, 0] * signs)
    np.testing.assert_allclose(outcome.model, w, rtol=1e-7, atol=1e-9)
    trainer = dataclasses.replace(trainer, algorithm="cocoa")
    crawling = fit(trainer, InProcess(), X, y, 40)
    assert trainer.relative_gap(crawling.model, crawling.certificate) > 1e-6
