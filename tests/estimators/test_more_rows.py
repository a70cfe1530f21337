"""`partial_fit` of least squares: the model of all rows so far, from products of columns, with a true certificate."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import PolynomialFeatures, scale

from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleElasticNet, ChicleLasso, ChicleRidge
from tests.estimators.reference_fits import least_and_own, terms_of, value_at

MODELS = [ChicleRidge(alpha=0.5), ChicleLasso(alpha=0.05), ChicleElasticNet(alpha=0.05, l1_ratio=0.3)]


def rows(n=120, d=8, shift=3.0):
    """Columns far from 0 of unlike size, two targets, weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1, 1, d) + shift * np.arange(n)[:, None] / n
    return X, X @ rng.normal(size=(d, 2)) + rng.normal(size=(n, 2)) + 5.0, rng.uniform(0.5, 2.0, n)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, np.float32])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_parts_give_the_model_of_the_whole(model, fit_intercept, form):
    """Parts with other means, one of them with fewer rows than columns; objective and gap are those of all rows."""
    X, Y, weights = rows()
    X = np.asarray(form(X).astype(np.float64) @ np.eye(8))
    model = clone(model).set_params(fit_intercept=fit_intercept)
    for part in (slice(0, 3), slice(3, 90), slice(90, 120)):
        model.partial_fit(form(X[part]), Y[part, 0], weights[part])
    whole = clone(model).set_params(tol=1e-10).fit(X, Y[:, 0], weights)
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-3 * np.abs(whole.coef_).max())
    [(terms, w)] = terms_of(model, X, Y[:, 0], weights)
    least, own, _ = least_and_own(terms, w)
    assert model.objective_ == pytest.approx(own, rel=1e-9)
    assert own * (1 - model.duality_gap_) <= model.dual_objective_ * (1 + 1e-9) <= least * (1 + 2e-9)
    assert model.duality_gap_ <= model.tol
    assert model.n_samples_seen_ == 120


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_several_targets_another_penalty_and_a_pickle_go_on(model):
    """The penalty of the last call is that of the model; rows are not in the pickle."""
    X, Y, weights = rows(3000)
    model = clone(model).partial_fit(X[:2900], Y[:2900], weights[:2900])
    assert len(pickle.dumps(model)) < 20_000
    model = pickle.loads(pickle.dumps(model)).set_params(alpha=2.0).partial_fit(X[2900:], Y[2900:], weights[2900:])
    whole = clone(model).fit(X, Y, weights)
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-3 * np.abs(whole.coef_).max())
    np.testing.assert_allclose(model.intercept_, whole.intercept_, rtol=1e-3)


def test_what_cannot_go_on_is_refused(tmp_path):
    """By what differs; a fit begins anew."""
    X, Y, _ = rows()
    model = ChicleRidge().partial_fit(X, Y)
    with pytest.raises(UsageError, match="began with 2 targets and fit_intercept=True, and now there are 1 and True"):
        model.partial_fit(X, Y[:, 0])
    with pytest.raises(UsageError, match="there are 2 and False"):
        clone(model).partial_fit(X, Y).set_params(fit_intercept=False).partial_fit(X, Y)
    with pytest.raises(ValueError, match="7 features"):
        model.partial_fit(X[:, :7], Y)
    with pytest.raises(DataError, match="NaN in column 2, row 1"):
        model.partial_fit(np.where(np.arange(8) == 2, np.where(np.arange(120) == 1, np.nan, 0.0)[:, None], X), Y)
    with pytest.raises(UsageError, match="products of all 3000 columns"):
        ChicleLasso().partial_fit(sparse.csr_matrix((4, 3000)), np.arange(4.0))
    assert model.n_samples_seen_ == 120
    model.save(tmp_path / "model.npz")
    with pytest.raises(UsageError, match="fit and load keep none; begin with partial_fit of a new estimator"):
        ChicleRidge.load(tmp_path / "model.npz").partial_fit(X, Y)


@pytest.mark.parametrize("targets", [0, slice(None)], ids=["one", "two"])
@pytest.mark.parametrize("runtime", [None, InProcess()], ids=["at once", "job"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_fit_keeps_no_products(model, runtime, targets):
    """Neither those that it has made nor those of calls before it, also where it ends before all is well."""
    X, Y, _ = rows(d=100)
    y, model = Y[:, targets], clone(model).set_params(runtime=runtime)
    fitted = clone(model).fit(X, y)
    again = clone(model).partial_fit(X, y).fit(X, y)
    for one in (fitted, again):
        assert len(pickle.dumps(one)) < X.shape[1] ** 2 * 8 / 2
        assert not hasattr(one, "n_samples_seen_")
        with pytest.raises(UsageError, match="fit and load keep none"):
            one.partial_fit(X, y)
    assert clone(again).partial_fit(X, y).n_samples_seen_ == 120


@pytest.mark.parametrize("runtime", [None, InProcess()], ids=["at once", "job"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_partial_fit_goes_on_after_a_fit_that_failed(model, runtime):
    """The model is still that of the calls before, of as many columns."""
    X, Y, _ = rows()
    model = clone(model).set_params(runtime=runtime).partial_fit(X[:90], Y[:90, 0])
    with pytest.raises(DataError, match="NaN in column 2"):
        model.fit(np.where(np.arange(8) == 2, np.nan, X), Y[:, 0])
    with pytest.raises(DataError, match="NaN in column 0"):
        model.fit(np.full((120, 7), np.nan), Y[:, 0])
    model.partial_fit(X[90:], Y[90:, 0])
    assert model.n_samples_seen_ == 120
    whole = clone(model).partial_fit(X, Y[:, 0])
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-3 * np.abs(whole.coef_).max())


@pytest.mark.parametrize("kind", ["few directions", "cubes"])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
@pytest.mark.filterwarnings("error")
def test_columns_that_are_correlated_take_more_sweeps(kind, l1_ratio):
    """There is no job to go on with after a few."""
    if kind == "cubes":
        X, y = load_diabetes(return_X_y=True)
        X = scale(PolynomialFeatures(3, include_bias=False).fit_transform(scale(X)))
    else:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 60)) + 0.05 * rng.normal(size=(300, 60))
        y = X @ rng.normal(size=60) + rng.normal(size=300)
    model = ChicleElasticNet(alpha=1e-3, l1_ratio=l1_ratio).partial_fit(X[:-42], y[:-42])
    model.partial_fit(X[-42:], y[-42:])
    whole = clone(model).fit(X, y)
    assert model.duality_gap_ <= model.tol
    assert model.objective_ == pytest.approx(whole.objective_, rel=2e-6)


def equal_rows(rng, num_rows):
    """The rounding of their sums has one sign; a shift of 0, and rows one by one."""
    X = np.tile(rng.normal(size=3), (num_rows, 1))
    return X, X.sum(axis=1) + 1e-3 * (-1.0) ** np.arange(num_rows), 0.0, 1


def means_far_from_0(rng, num_rows):
    """Two parts whose means differ by less than 1e-7 of them; the shift takes no digit of a value."""
    X = np.round(np.sort(rng.normal(size=(num_rows, 3)), axis=0) * 2.0**24) / 2.0**24
    y = np.round((X.sum(axis=1) + 1e-3 * rng.normal(size=num_rows)) * 2.0**24) / 2.0**24
    return X, y, 2.0**24, num_rows // 2


@pytest.mark.parametrize("data", [equal_rows, means_far_from_0])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_rounding_of_the_parts_is_in_the_gap(model, data):
    """Of many parts as much as they may have, and of means far from 0 next to none."""
    X, y, shift, size = data(np.random.default_rng(0), 1500)
    model = clone(model).set_params(alpha=1e-7, fit_intercept=shift > 0)
    for begin in range(0, len(X), size):
        model.partial_fit(X[begin : begin + size] + shift, y[begin : begin + size] + shift)
    if shift:
        X, y = X - X.mean(axis=0), y - y.mean()
    [(terms, w)] = terms_of(model.set_params(fit_intercept=False), X, y)
    own = value_at(terms, w)
    assert abs(model.objective_ - own) <= model.duality_gap_ * own <= 1e-6 * own


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_parameters_that_have_changed_are_validated(model):
    """In every call, not only in the first one."""
    X, Y, _ = rows()
    for name in {"alpha", "l1_ratio"} & set(model.get_params()):
        with pytest.raises(ValueError, match=f"'{name}' parameter of {type(model).__name__} must be"):
            clone(model).partial_fit(X, Y).set_params(**{name: -1.0}).partial_fit(X, Y)


def test_rounding_that_hides_the_gap_is_warned_of():
    """Where `fit` would look at residuals, of which no row is left."""
    X, Y, _ = rows()
    with pytest.warns(ConvergenceWarning, match=r"rounding of the products leaves a relative duality gap of \d"):
        ChicleRidge(alpha=1e-6, tol=1e-9).partial_fit(X * 1e7, Y)
