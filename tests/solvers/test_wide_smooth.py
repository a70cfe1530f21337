"""The Newton finish of smooth losses on wide sparse data."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear.coordinates import CoordinatePasses
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.wide.rows import CopiedRows
from chicle_elastic.solvers.linear.wide.smooth import WideSmooth
from tests.solvers.click_rows import INTERCEPT, click_like, fit, tables_of, whole_of
from tests.solvers.reference import primal_and_dual

LOSSES = [Loss.SQUARED_HINGE, Loss.LOGISTIC]
NAMES = ["squared_hinge", "logistic"]


def finish_of(X, y, upper, loss, *, tol=0.0):
    """A finish that begins at 0, its columns, X as an array that has the intercept column, and the signs."""
    rows, columns = CopiedRows.of(tables_of(X), INTERCEPT)
    signs = np.where(y == 1, 1.0, -1.0)
    return WideSmooth(rows, loss, signs, upper, np.zeros(X.shape[0]), tol=tol), columns, whole_of(X), signs


def relative_gap(finish, loss, columns, whole, signs, upper):
    """(P - D) / P from first principles; w must be that of the duals, which must be feasible."""
    w = np.zeros(whole.shape[1])
    w[columns] = finish.w
    np.testing.assert_allclose(w, whole.T @ (finish.alpha * signs), rtol=1e-9, atol=1e-9)
    assert (finish.alpha >= 0).all()
    assert loss is Loss.SQUARED_HINGE or (finish.alpha <= upper).all()
    primal, dual = primal_and_dual(loss, whole @ w, signs, finish.alpha, upper, float(w @ w))
    return (primal - dual) / primal


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_finish_converges_to_the_last_digits(loss, scale):
    """Duals stay within their bounds, one of which leaves no room, and the gap is small by first principles, too."""
    X, y = click_like(scale=scale)
    upper = np.random.default_rng(2).uniform(0.5, 2, size=len(y))
    upper[3] = 0.0
    finish, *rest = finish_of(X, y, upper, loss)
    for _ in range(10):
        finish.run(lambda: False)
    assert finish.alpha[3] == 0.0
    assert relative_gap(finish, loss, *rest, upper) <= 1e-9
    assert finish.gap <= 1e-9 * finish.alpha.sum()


@pytest.mark.parametrize("loss", LOSSES)
def test_it_comes_back_where_the_gap_is_small_enough(loss):
    """And not much later: the next step would be for nothing."""
    X, y = click_like(scale=1.0)
    upper = np.ones(len(y))
    finish, *rest = finish_of(X, y, upper, loss, tol=1e-2)
    while not finish.is_stuck and relative_gap(finish, loss, *rest, upper) > 1e-2:
        finish.run(lambda: False)
    assert 1e-7 < relative_gap(finish, loss, *rest, upper) <= 1e-2


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("factor", [1e8, 1e200])
def test_rows_that_occur_twice_and_huge_values_lead_to_no_nan(factor, loss):
    """Steps are taken or given up, without a warning; duals are feasible whatever comes of them."""
    X, y = click_like()
    X = sp.vstack([X[:200], X[:200]], format="csr")
    y = np.concatenate([y[:200], 1 - y[:200]])
    X.data[X.data > 50] *= factor
    upper = np.ones(len(y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finish, *_ = finish_of(X, y, upper, loss)
        for _ in range(10):
            finish.run(lambda: False)
    assert np.isfinite(finish.gap)
    assert (finish.alpha >= 0).all()
    assert loss is Loss.SQUARED_HINGE or (finish.alpha <= upper).all()
    assert np.isfinite(finish.w).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_an_interrupted_finish_has_one_short_step(loss):
    """What there is by then is feasible and consistent."""
    X, y = click_like()
    upper = np.ones(len(y))
    finish, *rest = finish_of(X, y, upper, loss)
    finish.run(lambda: True)
    assert relative_gap(finish, loss, *rest, upper) <= 1.0


@pytest.mark.parametrize("loss", NAMES)
def test_a_wide_fit_finishes_where_coordinate_descent_crawls(loss, monkeypatch):
    """Few iterations certify 1e-6, and twice the same; without the finish as many do not certify 1e-4."""
    X, y = click_like()
    trainer = LinearTrainer(C=1.0, tol=1e-6, loss=loss)
    outcome = fit(trainer, InProcess(), X, y, 12)
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-6
    assert not NewtonState.is_of(outcome.certificate.progress)
    signs = np.where(y == 1, 1.0, -1.0)
    w = np.column_stack([X.toarray(), np.ones(len(y))]).T @ (outcome.state[:, 0, 0] * signs)
    np.testing.assert_allclose(outcome.model, w, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(outcome.model, fit(trainer, InProcess(), X, y, 12).model)
    monkeypatch.setattr(CoordinatePasses, "_may_finish", lambda *_: False)
    crawling = fit(trainer, InProcess(), X, y, 12)
    assert trainer.relative_gap(crawling.model, crawling.certificate) > 1e-4


@pytest.mark.parametrize("changes", [((2, 3),), ((2, 3), (5, 1))])
@pytest.mark.parametrize("loss", NAMES)
def test_a_run_goes_on_where_a_wide_finish_left_off_when_tasks_join_and_leave(loss, changes):
    """The best duals are in the chunks, and a start like any other, for Newton's method on chunks too."""
    X, y = click_like()
    trainer = LinearTrainer(C=0.1, tol=1e-6, loss=loss)
    outcome = fit(trainer, InProcess(num_tasks=1, changes=changes), X, y, 400)
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-6
    alone = fit(replace(trainer, tol=1e-8), InProcess(), X, y, 400)
    np.testing.assert_allclose(outcome.model, alone.model, atol=2e-2 * np.abs(alone.model).max())
