"""A warm start goes on from the duals of the last fit, for the same data only."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

LOSSES = ["hinge", "squared_hinge", "logistic"]


def make(loss, **params):
    """An estimator that starts warm."""
    params = {"C": 0.05, "warm_start": True, "random_state": 0, "store_duals": True, "max_iter": 5000} | params
    return ChicleLogisticRegression(**params) if loss == "logistic" else ChicleSVM(loss=loss, **params)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_same_data_goes_on_where_it_ended(loss, form):
    """A second fit takes no more iterations to a smaller gap than a first one, also with a copy of the data."""
    X, y = problems.digits()
    model = make(loss).fit(form(X), y)
    cold = make(loss, tol=1e-4).fit(form(X), y).n_iter_
    warm = model.set_params(tol=1e-4).fit(form(X.copy()), y.copy()).n_iter_
    assert warm <= cold
    assert model.duality_gap_ <= 1e-4
    assert model.fit(form(X), y).n_iter_ <= cold


def test_a_fit_that_is_nearly_there_gets_there():
    """Passes estimated gaps of some classes below tol that were above it, and Newton steps left these classes alone."""
    X, y = problems.digits()
    model = make("hinge").fit(X, y)
    model.set_params(tol=1e-4).fit(X, y)
    for _ in range(3):
        assert model.fit(X, y).n_iter_ < 20
        assert model.duality_gap_ <= 1e-4


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("C", [0.001, 0.02, 5.0])
def test_c_may_change_in_between(loss, C):
    """The duals are carried into the new box: still feasible, and the certificate is true."""
    X, y = problems.cancer()
    model = make(loss).fit(X, y)
    model.set_params(C=C).fit(X, y)
    gaps = problems.recomputed_gaps(model, X, y)
    assert model.duality_gap_ == pytest.approx(gaps.max(), rel=1e-6)
    assert gaps.max() <= 1e-3


def test_a_small_step_of_c_costs_less_than_a_cold_start():
    """What a path over C is made of."""
    X, y = problems.digits()
    model = make("logistic").fit(X, y)
    warm = model.set_params(C=0.06).fit(X, y).n_iter_
    assert warm < make("logistic", C=0.06).fit(X, y).n_iter_


def test_weights_and_loss_may_change_in_between():
    """They move the bounds of the duals, and the certificate stays true."""
    X, y = problems.cancer()
    weights = np.random.default_rng(0).uniform(0.1, 3.0, size=len(y))
    model = make("squared_hinge").fit(X, y)
    model.set_params(loss="hinge", tol=1e-4).fit(X, y, weights)
    assert problems.recomputed_gaps(model, X, y, weights)[0] <= 1e-4


@pytest.mark.parametrize(
    "change",
    [
        lambda X, y: (X + 1e-9, y),
        lambda X, y: (X, 1 - y),
        lambda X, y: (X, np.array(["a", "b"])[y]),
        lambda X, y: (X[:-1], y[:-1]),
        lambda X, y: (X[:, :-1], y),
        lambda X, y: (X.astype(np.float32), y),
        lambda X, y: (X[::-1], y[::-1]),
    ],
    ids=["one digit", "swapped labels", "other labels", "a row less", "a column less", "dtype", "order"],
)
def test_other_data_starts_afresh(change):
    """The same model, bit by bit, as an estimator that has seen nothing before."""
    X, y = problems.cancer()
    other = change(X, y)
    model = make("hinge").fit(X, y).fit(*other)
    np.testing.assert_array_equal(model.coef_, make("hinge").fit(*other).coef_)


def test_a_warm_start_works_with_several_tasks():
    """Rows are shuffled there; the duals find theirs by global row number."""
    X, y = problems.cancer()
    model = make("hinge", runtime=InProcess(num_tasks=3)).fit(X, y)
    cold = model.n_iter_
    assert model.set_params(random_state=7).fit(X, y).n_iter_ <= cold / 4
    assert problems.recomputed_gaps(model, X, y)[0] <= 1e-3


def test_without_warm_start_nothing_is_kept():
    """A second fit is the first one again, and the duals of an earlier warm start are dropped."""
    X, y = problems.cancer()
    model = make("hinge").fit(X, y).set_params(warm_start=False).fit(X, y)
    np.testing.assert_array_equal(model.coef_, make("hinge", warm_start=False).fit(X, y).coef_)
    assert not hasattr(model, "_kept_duals")


def test_pickles_and_clones_start_afresh():
    """The duals are as long as the training set, so they stay where it is."""
    X, y = problems.digits()
    model = make("hinge", store_duals=False).fit(X, y)
    assert len(pickle.dumps(model)) < model.coef_.nbytes + 60_000
    cold = model.n_iter_
    assert pickle.loads(pickle.dumps(model)).fit(X, y).n_iter_ == cold
    assert clone(model).fit(X, y).n_iter_ == cold
    assert model.fit(X, y).n_iter_ < cold


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_rows_that_are_added_leave_the_others_their_duals(loss, form):
    """Rows without weight change nothing: the first certificate will do. With weight, the gap is that of the whole."""
    X, y = problems.cancer()
    n = 500
    model = make(loss, runtime=InProcess(num_tasks=3)).fit(form(X[:n]), y[:n])
    w = model.coef_
    model.fit(form(X), y, (np.arange(len(y)) < n) * 1.0)
    assert model.n_iter_ == 1
    np.testing.assert_allclose(model.coef_, w, rtol=1e-9, atol=1e-12)
    model = make(loss).fit(form(X[:n]), y[:n]).fit(form(X), y)
    assert problems.recomputed_gaps(model, X, y).max() <= 1e-3


@pytest.mark.parametrize("loss", LOSSES)
def test_a_class_among_added_rows_starts_afresh(loss):
    """The same model, bit by bit, as an estimator that has seen nothing before."""
    X, y = problems.digits()
    y = np.minimum(y, 2)
    order = np.argsort(y, kind="stable")
    X, y, n = X[order], y[order], np.count_nonzero(y < 2)
    model = make(loss, max_iter=50).fit(X[:n], y[:n]).fit(X, y)
    np.testing.assert_array_equal(model.coef_, make(loss, max_iter=50).fit(X, y).coef_)
