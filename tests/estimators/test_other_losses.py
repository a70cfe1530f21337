"""ChicleHuber and ChiclePoisson: optima of scikit-learn, gaps recomputed, elasticity, parameters and data."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import xlogy
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import HuberRegressor, PoissonRegressor

from chicle_elastic import InProcess
from chicle_elastic.errors import DataError
from estimators import ChicleHuber, ChiclePoisson
from tests.estimators.test_ridge import write


def diabetes():
    """Few columns, all alike."""
    return load_diabetes(return_X_y=True)


def digits():
    """Columns that hang together, and targets of ten values."""
    X, y = load_digits(return_X_y=True)
    return X / 16, y.astype(float)


def counts():
    """Of a Poisson distribution."""
    X, _ = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, np.random.default_rng(0).poisson(np.exp(0.3 * X[:, :5].sum(axis=1))).astype(float)


def outliers():
    """One row in ten."""
    X, y = diabetes()
    y = y + 0.0
    y[::10] += 2000.0
    return X, y


def far_from_0():
    """Columns of unlike size, one far from 0, as the targets are."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4)) * [1e-2, 1.0, 30.0, 1.0] + [0.0, 100.0, 0.0, 0.0]
    return X, np.abs(X @ [100.0, 0.1, 0.0, 0.3] + rng.standard_t(3, size=500) + 100.0).round()


CASES = pytest.mark.parametrize(
    ("data", "form", "runtime"),
    [
        (diabetes, np.asarray, None),
        (digits, sparse.csr_matrix, None),
        (counts, np.asarray, InProcess(num_tasks=4)),
        (outliers, sparse.csr_matrix, InProcess(num_tasks=2, changes=((3, 5), (6, 1)))),
        (far_from_0, np.asarray, None),
    ],
)
"""Each data in one form on one runtime; `test_golden_runs.py` has every loss in all of them."""


def huber_objective(model, X, y, weights):
    """scikit-learn's, written out."""
    r = np.abs(y - model.predict(X)) / model.scale_
    h = np.where(r < model.epsilon, r**2, 2 * model.epsilon * r - model.epsilon**2)
    return weights @ (model.scale_ * (1 + h)) + model.alpha * model.coef_ @ model.coef_


def poisson_objective(model, X, y, weights):
    """scikit-learn's, written out."""
    mu = model.predict(X)
    return (
        weights @ (mu - xlogy(y, mu) - y + xlogy(y, y)) / weights.sum() + 0.5 * model.alpha * model.coef_ @ model.coef_
    )


def least(peers, objective, X, y, weights):
    """Objective of the best of scikit-learn's solvers."""
    return min(objective(peer.fit(X, y, weights), X, y, weights) for peer in peers)


@pytest.mark.filterwarnings("ignore:.*lbfgs failed to converge")
@CASES
def test_huber_comes_to_the_optimum_of_scikit_learn(data, runtime, form):
    """With weights, on any tasks; the scale and the outliers are those of its model."""
    X, y = data()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    model = ChicleHuber(alpha=0.1, tol=1e-7, runtime=runtime).fit(form(X), y, weights)
    peer = HuberRegressor(alpha=0.1, tol=1e-9, max_iter=20_000)
    best = least([peer], huber_objective, X, y, weights)
    assert model.duality_gap_ <= 1e-7
    assert model.objective_ == pytest.approx(huber_objective(model, X, y, weights), rel=1e-9)
    assert model.objective_ <= best * (1 + 1e-6)
    assert model.outliers_.tolist() == (np.abs(y - model.predict(X)) > 1.35 * model.scale_).tolist()


@CASES
def test_poisson_comes_to_the_optimum_of_scikit_learn(data, runtime, form):
    """With weights, on any tasks; the score is the share of the deviance."""
    X, y = data()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    model = ChiclePoisson(alpha=0.01, tol=1e-7, runtime=runtime).fit(form(X), y, weights)
    peer = PoissonRegressor(alpha=0.01, solver="newton-cholesky", tol=1e-9, max_iter=1000)
    best = least([peer], poisson_objective, X, y, weights)
    assert model.duality_gap_ <= 1e-7
    assert model.objective_ == pytest.approx(poisson_objective(model, X, y, weights), rel=1e-9)
    assert model.objective_ <= best * (1 + 1e-6)
    assert model.score(X, y) == pytest.approx(peer.score(X, y), abs=1e-4)


@pytest.mark.parametrize("kind", [ChicleHuber, ChiclePoisson])
def test_the_certificate_is_true_without_an_intercept_and_on_wide_rows(kind):
    """The dual from `coef_` alone bounds what any other model comes to."""
    rng = np.random.default_rng(0)
    X = sparse.random(4000, 2500, 0.01, "csr", random_state=0)
    y = rng.poisson(np.exp(0.5 * np.asarray(X[:, :50].sum(axis=1)).ravel())).astype(float)
    model = kind(alpha=1.0, fit_intercept=False).fit(X, y)
    assert model.intercept_ == 0
    assert model.duality_gap_ <= 1e-3
    assert kind(alpha=1.0, fit_intercept=False, tol=1e-7).fit(X, y).objective_ >= model.dual_objective_


def test_a_negative_count_and_other_targets_that_cannot_be_are_refused(tmp_path):
    """By name and value, of arrays and folders."""
    X, y = counts()
    with pytest.raises(DataError, match=r"takes targets y >= 0, and the data has -1"):
        ChiclePoisson().fit(X, y - 1.0)
    with pytest.raises(DataError, match=r"takes targets y >= 0"):
        ChiclePoisson(runtime=InProcess(num_tasks=2)).fit(write(tmp_path / "data", X, y - 1.0))
    assert ChiclePoisson().fit(X, y - 1.0, (y > 0).astype(float)).duality_gap_ <= 1e-3, "rows of weight 0 do not count"


@pytest.mark.parametrize("kind", [ChicleHuber, ChiclePoisson])
def test_targets_that_are_all_the_same_and_a_constant_feature(kind):
    """The intercept says it all."""
    X = np.column_stack([np.ones(50), np.random.default_rng(0).normal(size=50)])
    model = kind(alpha=1.0).fit(X, np.full(50, 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0, rtol=1e-3)
    assert np.isfinite(model.coef_).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", [(15, 30), (90, 30), (200, 3)])
def test_targets_without_noise_are_certified_and_bring_the_scale_to_0(shape, seed):
    """Of the models without residuals it is the one with the least weights, whatever the intercept is."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=shape) * 10.0 ** rng.integers(-2, 3)
    y = X @ rng.normal(size=shape[1]) + 10.0 * rng.normal()
    model = ChicleHuber(alpha=10.0 ** rng.integers(-5, 0)).fit(X, y)
    least = np.linalg.pinv(X - X.mean(axis=0)) @ (y - y.mean())
    assert model.duality_gap_ <= model.tol
    assert model.scale_ < 1e-4 * np.abs(y).max()
    assert model.objective_ <= (1.0 + model.tol) * model.alpha * least @ least


def test_counts_of_0_alone_have_a_mean_of_0():
    """Whose logarithm is no number: the model is finite, and says next to nothing."""
    X = np.random.default_rng(0).normal(size=(50, 3))
    model = ChiclePoisson(max_iter=60).fit(X, np.zeros(50))
    assert np.isfinite(model.intercept_)
    assert model.predict(X).max() < 1e-3
