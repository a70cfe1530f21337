"""The Newton finish of the hinge on wide sparse data."""

import numpy as np
import pytest
import scipy.sparse as sp

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.wide_finish import MOST_FRUITLESS, WideFinish
from chicle_elastic.solvers.linear.wide_rows import WideRows
from tests.solvers.click_rows import INTERCEPT, click_like, fit, tables_of, whole_of
from tests.solvers.reference import primal_and_dual


def finish_of(X, y, upper):
    """A finish that begins at 0, with X as an array that has the intercept column, and the signs."""
    rows, columns = WideRows.of(tables_of(X), INTERCEPT)
    signs = np.where(y == 1, 1.0, -1.0)
    whole = whole_of(X)
    return WideFinish(rows, signs, upper, np.zeros(X.shape[0])), columns, whole, signs


def relative_gap(finish, columns, whole, signs, upper):
    """(P - D) / P from first principles; w must be that of the duals."""
    w = np.zeros(whole.shape[1])
    w[columns] = finish.w
    np.testing.assert_allclose(w, whole.T @ (finish.alpha * signs), rtol=1e-9, atol=1e-9)
    assert (finish.alpha >= 0).all()
    assert (finish.alpha <= upper).all()
    primal, dual = primal_and_dual(Loss.HINGE, whole @ w, signs, finish.alpha, upper, float(w @ w))
    return (primal - dual) / primal


def test_rows_are_all_there_without_the_empty_columns():
    """Products from either side are those of the whole matrix."""
    X, _ = click_like()
    rows, columns = WideRows.of(tables_of(X), INTERCEPT)
    whole = whole_of(X)
    rng = np.random.default_rng(1)
    w, a = rng.normal(size=whole.shape[1]), rng.normal(size=len(whole))
    np.testing.assert_array_equal(columns, np.flatnonzero(whole.any(axis=0)))
    np.testing.assert_allclose(rows.times(w[columns]), whole @ w)
    np.testing.assert_allclose(rows.weighted_sum(a), (whole.T @ a)[columns], atol=1e-9)


def test_directions_are_those_of_newton():
    """u solves the equations over the rows with curvature, and the heaviest columns have next to no residual."""
    X, _ = click_like()
    rows, columns = WideRows.of(tables_of(X), INTERCEPT)
    whole = whole_of(X)[:, columns]
    which = np.arange(0, 400, 3)
    gradient = np.random.default_rng(1).normal(size=len(columns))
    u = rows.solve(which, np.full(len(which), 0.1), gradient, lambda: False)
    part = whole[which]
    exact = np.linalg.solve(0.1 * np.eye(len(which)) + part @ part.T, part @ gradient)
    np.testing.assert_allclose(part.T @ u, part.T @ exact, atol=1e-3 * np.linalg.norm(part.T @ exact))


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_finish_converges_to_the_last_digits(scale):
    """Duals stay in their boxes, one of which is empty, and w is theirs."""
    X, y = click_like(scale=scale)
    upper = np.random.default_rng(2).uniform(0.5, 2, size=len(y))
    upper[3] = 0.0
    finish, *rest = finish_of(X, y, upper)
    for _ in range(100):
        finish.run(lambda: False)
    gap = relative_gap(finish, *rest, upper)
    assert gap <= 1e-8
    primal = finish.alpha.sum() - 0.5 * finish.w @ finish.w
    assert finish.gap / primal == pytest.approx(gap, rel=1e-3, abs=1e-12)


def test_rows_that_occur_twice_and_huge_values_lead_to_no_nan():
    """Steps are taken or given up; duals are feasible whatever comes of them."""
    X, y = click_like()
    X = sp.vstack([X[:200], X[:200]], format="csr")
    y = np.concatenate([y[:200], 1 - y[:200]])
    X.data[X.data > 50] *= 1e8
    upper = np.ones(len(y))
    finish, *rest = finish_of(X, y, upper)
    for _ in range(MOST_FRUITLESS):
        finish.run(lambda: False)
    assert np.isfinite(finish.gap)
    assert (finish.alpha >= 0).all()
    assert (finish.alpha <= upper).all()
    assert np.isfinite(finish.w).all()
    assert rest


def test_an_interrupted_finish_has_one_short_step():
    """What there is by then is feasible and consistent."""
    X, y = click_like()
    upper = np.ones(len(y))
    finish, *rest = finish_of(X, y, upper)
    finish.run(lambda: True)
    assert relative_gap(finish, *rest, upper) <= 1.0


def test_a_wide_fit_finishes_where_coordinate_descent_crawls(monkeypatch):
    """40 iterations certify 1e-6, and twice the same; without the finish as many do not certify 1e-2."""
    X, y = click_like()
    trainer = LinearTrainer(C=1.0, tol=1e-6, loss="hinge")
    outcome = fit(trainer, InProcess(), X, y, 40)
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-6
    signs = np.where(y == 1, 1.0, -1.0)
    w = np.column_stack([X.toarray(), np.ones(len(y))]).T @ (outcome.state[:, 0, 0] * signs)
    np.testing.assert_allclose(outcome.model, w, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(outcome.model, fit(trainer, InProcess(), X, y, 40).model)
    monkeypatch.setattr("chicle_elastic.solvers.linear.scd.MOST_WIDE_VALUES", 0)
    crawling = fit(trainer, InProcess(), X, y, 40)
    assert trainer.relative_gap(crawling.model, crawling.certificate) > 1e-2


def test_coordinate_descent_goes_on_where_a_wide_finish_left_off_when_tasks_join():
    """The best duals are in the chunks, and a start like any other."""
    X, y = click_like(scale=1.0)
    trainer = LinearTrainer(C=0.1, tol=1e-5, loss="hinge")
    outcome = fit(trainer, InProcess(num_tasks=1, changes=((4, 3), (8, 1))), X, y, 300)
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-5
