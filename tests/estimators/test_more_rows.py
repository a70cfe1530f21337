"""`partial_fit` of least squares: the model of all rows so far, from products of columns, with a true certificate."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleElasticNet, ChicleLasso, ChicleRidge
from tests.estimators.reference_fits import least_and_own, terms_of

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
    job = ChicleRidge(runtime=InProcess()).fit(X, Y[:, 0])
    for other in (job, ChicleRidge.load(tmp_path / "model.npz"), ChicleRidge().fit(X[:5], Y[:5])):
        with pytest.raises(UsageError, match="this model has none: it is one of load, or of a fit"):
            other.partial_fit(X, Y)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_fit_goes_on_and_a_second_fit_begins_anew(model):
    """Of data small enough, or of targets many enough, for products."""
    X, Y, weights = rows()
    model = clone(model).fit(X[:100], Y[:100], weights[:100]).partial_fit(X[100:], Y[100:], weights[100:])
    whole = clone(model).fit(X, Y, weights)
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-3 * np.abs(whole.coef_).max())
    assert model.fit(X[:50], Y[:50]).n_samples_seen_ == 50


def test_rounding_that_hides_the_gap_is_warned_of():
    """Where `fit` would look at residuals, of which no row is left."""
    X, Y, _ = rows()
    with pytest.warns(ConvergenceWarning, match=r"rounding of the products leaves a relative duality gap of \d"):
        ChicleRidge(alpha=1e-6, tol=1e-9).partial_fit(X * 1e7, Y)
