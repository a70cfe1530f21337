"""The Newton finish on wide sparse data."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear.coordinates import CoordinatePasses
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.wide.finish import WideFinish, WideHinge
from tests.solvers.click_rows import click_like, copied, fit, whole_of
from tests.solvers.reference import primal_and_dual

LOSSES = [Loss.HINGE, Loss.SQUARED_HINGE, Loss.LOGISTIC]
SMOOTH = LOSSES[1:]


def finish_of(loss, X, y, upper, *, tol=0.0):
    """A finish that begins at 0, its columns, X as an array that has the intercept column, and the signs."""
    signs, alpha, whole = np.where(y == 1, 1.0, -1.0), np.zeros(X.shape[0]), whole_of(X)
    rows, columns = copied(whole)
    kind, outside = WideHinge if loss is Loss.HINGE else WideFinish, np.zeros(len(columns))
    return kind(rows, loss, signs, upper, alpha, outside=outside, tol=tol), columns, whole, signs


def relative_gap(finish, columns, whole, signs, loss, upper):
    """(P - D) / P from first principles; w must be that of the duals, which must be feasible."""
    w = np.zeros(whole.shape[1])
    w[columns] = finish.w
    np.testing.assert_allclose(w, whole.T @ (finish.alpha * signs), rtol=1e-9, atol=1e-9)
    assert_feasible(loss, finish, upper)
    primal, dual = primal_and_dual(loss, whole @ w, signs, finish.alpha, upper, float(w @ w))
    return (primal - dual) / primal


def assert_feasible(loss, finish, upper):
    """Duals are within their bounds."""
    assert (finish.alpha >= 0).all()
    assert loss is Loss.SQUARED_HINGE or (finish.alpha <= upper).all()


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_finish_converges_to_the_last_digits(loss, scale):
    """Duals stay in their boxes, one of which is empty, and w is theirs: counts of 1e5 leave w with fewer digits."""
    X, y = click_like(scale=scale)
    upper = np.random.default_rng(2).uniform(0.5, 2, size=len(y))
    upper[3] = 0.0
    finish, *rest = finish_of(loss, X, y, upper)
    for _ in range(100 if loss is Loss.HINGE else 10):
        finish.run(lambda: False)
        if finish.gap <= 1e-10 * finish.alpha.sum():
            break
    gap = relative_gap(finish, *rest, loss, upper)
    assert finish.alpha[3] == 0.0
    if loss is Loss.HINGE:
        assert gap <= (1e-8 if scale == 1.0 else 1e-7)
        primal = finish.alpha.sum() - 0.5 * finish.w @ finish.w
        assert finish.gap / primal == pytest.approx(gap, rel=1e-3, abs=1e-12)
    else:
        assert gap <= 1e-9
        assert finish.gap <= 1e-9 * finish.alpha.sum()


@pytest.mark.parametrize("loss", SMOOTH)
def test_it_comes_back_where_the_gap_is_small_enough(loss):
    """And not much later: the next step would be for nothing."""
    X, y = click_like(scale=1.0)
    upper = np.ones(len(y))
    finish, *rest = finish_of(loss, X, y, upper, tol=1e-2)
    while not finish.is_stuck and relative_gap(finish, *rest, loss, upper) > 1e-2:
        finish.run(lambda: False)
    assert 1e-7 < relative_gap(finish, *rest, loss, upper) <= 1e-2


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
        finish, *_ = finish_of(loss, X, y, upper)
        for _ in range(10):
            finish.run(lambda: False)
    assert np.isfinite(finish.gap)
    assert np.isfinite(finish.w).all()
    assert_feasible(loss, finish, upper)


@pytest.mark.parametrize(("loss", "most"), [("hinge", 40), ("squared_hinge", 12), ("logistic", 12)])
def test_a_wide_fit_finishes_where_coordinate_descent_crawls(loss, most, monkeypatch):
    """Few iterations certify 1e-6, and twice the same; without the finish as many do not certify 1e-4."""
    X, y = click_like()
    trainer = LinearTrainer(C=1.0, tol=1e-6, loss=loss)
    outcome = fit(trainer, InProcess(), X, y, most)
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-6
    assert not NewtonState.is_of(outcome.certificate.progress)
    signs = np.where(y == 1, 1.0, -1.0)
    w = np.column_stack([X.toarray(), np.ones(len(y))]).T @ (outcome.state[:, 0, 0] * signs)
    np.testing.assert_allclose(outcome.model, w, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(outcome.model, fit(trainer, InProcess(), X, y, most).model)
    monkeypatch.setattr(CoordinatePasses, "_may_finish", False)
    crawling = fit(trainer, InProcess(), X, y, most)
    assert trainer.relative_gap(crawling.model, crawling.certificate) > 1e-4


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "logistic"])
def test_large_data_stays_where_it_is_and_comes_to_the_same(loss, monkeypatch):
    """As the copies of small data do, to the tolerance."""
    X, y = click_like()
    trainer = LinearTrainer(C=1.0, tol=1e-6, loss=loss)
    small = fit(trainer, InProcess(), X, y, 40)
    for name in ("rows", "finish"):
        monkeypatch.setattr(f"chicle_elastic.solvers.linear.wide.{name}.MOST_COPIED_VALUES", 0)
    monkeypatch.setattr("chicle_elastic.solvers.linear.rows.SMALL_VALUES", 0)
    large = fit(trainer, InProcess(), X, y, 40)
    assert trainer.relative_gap(large.model, large.certificate) <= 1e-6
    np.testing.assert_allclose(large.model, small.model, atol=5e-3 * np.abs(small.model).max())


def test_a_few_steps_are_enough_for_duals_that_are_good():
    """Clipping alone would leave w far off in the columns of counts, and the first candidates would be useless."""
    X, y = click_like()
    upper = np.full(len(y), 1e-3)
    finish, *rest = finish_of(Loss.HINGE, X, y, upper)
    for _ in range(3):
        finish.run(lambda: False)
    assert relative_gap(finish, *rest, Loss.HINGE, upper) <= 1e-3
