"""Probabilities of the logistic regression."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from chicle_elastic import InProcess
from estimators import ChicleLogisticRegression
from tests.estimators import problems


@pytest.mark.parametrize(("algorithm", "solver"), [("auto", "lbfgs"), ("cocoa", "liblinear")])
def test_binary_probabilities_are_those_of_scikit_learn(algorithm, solver):
    """The same function is minimised, so they agree; liblinear penalises the intercept, as coordinate descent does."""
    X, y = problems.cancer()
    ours = ChicleLogisticRegression(tol=1e-10, algorithm=algorithm, max_iter=20_000).fit(X, y)
    peer = LogisticRegression(solver=solver, tol=1e-10, max_iter=20_000).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), peer.predict_proba(X), atol=1e-4)
    np.testing.assert_array_equal(ours.predict_proba(X)[:, 1], np.exp(ours.predict_log_proba(X))[:, 1])


def unlike_classes(rng):
    """One sample in fifty of a class, and features far from 0."""
    X = rng.normal(size=(600, 5)) + 100.0
    return X, (X[:, 0] + 0.3 * rng.normal(size=600) > 102.2).astype(int)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, lambda X: np.tile(X, (1, 500))])
@pytest.mark.parametrize("runtime", [None, InProcess(num_tasks=4), InProcess(num_tasks=2, changes=((2, 5), (4, 1)))])
def test_the_intercept_costs_nothing(form, runtime):
    """The objective of scikit-learn, narrow and wide, whoever comes and goes; features far from 0 need a large one."""
    X, y = unlike_classes(np.random.default_rng(0))
    X, weights = form(X), np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    ours = ChicleLogisticRegression(C=0.5, tol=1e-6, runtime=runtime).fit(X, y, weights)
    per_copy = 500 if X.shape[1] > 5 else 1  # copies of a column share its weight
    peer = LogisticRegression(C=0.5 * per_copy, tol=1e-10, solver="newton-cholesky").fit(X[:, :5], y, weights)
    losses = weights @ np.logaddexp(0.0, -np.where(y == 1, 1, -1) * peer.decision_function(X[:, :5]))
    assert ours.objective_[0] <= (0.5 * losses + 0.5 * (peer.coef_**2).sum() / per_copy) * (1 + 1e-5)
    assert abs(ours.intercept_[0]) > 10


@pytest.mark.parametrize("multi_class", ["auto", "ovr"])
def test_a_class_without_weight_has_no_probability(multi_class):
    """Also in one-vs-rest, where other classes have some; and once it has weights, a model goes on from there."""
    X, y = load_iris(return_X_y=True)
    X, y = (X, y) if multi_class == "ovr" else (X[:100], y[:100])
    weights = (y != 1).astype(float)
    model = ChicleLogisticRegression(multi_class=multi_class, warm_start=True).fit(X, y, weights)
    assert not model.predict_proba(X)[:, 1].any()
    assert model.intercept_[-1 if multi_class == "auto" else 1] == -1e30
    model.fit(X, y)
    assert model.duality_gap_ <= 1e-3
    assert model.score(X, y) > 0.9


def test_duals_of_a_fit_without_an_intercept_certify_none():
    """They do not add up to 0, and an intercept of 0 is not the best one."""
    X, y = unlike_classes(np.random.default_rng(0))
    model = ChicleLogisticRegression(warm_start=True, fit_intercept=False, tol=1e-6).fit(X - 100.0, y)
    model.set_params(fit_intercept=True).fit(X - 100.0, y)
    assert model.intercept_[0] < -1.0
    expected = ChicleLogisticRegression(tol=1e-6).fit(X - 100.0, y)
    assert model.objective_[0] == pytest.approx(expected.objective_[0], rel=2e-6)


def test_a_fit_goes_on_from_duals_and_the_intercept():
    """Duals do not tell an intercept that is not penalised, so the last one comes along."""
    X, y = unlike_classes(np.random.default_rng(0))
    model = ChicleLogisticRegression(warm_start=True, tol=1e-6).fit(X, y)
    objective, iterations = model.objective_[0], model.n_iter_
    assert model.fit(X, y).n_iter_ <= 2 < iterations
    assert model.objective_[0] == pytest.approx(objective, rel=1e-6)


def test_more_classes_get_normalised_sigmoids_one_vs_rest():
    """Each output's sigmoid, divided by their sum; the largest is the prediction."""
    X, y = load_iris(return_X_y=True)
    model = ChicleLogisticRegression(C=10.0, multi_class="ovr", max_iter=5000).fit(X, y)
    sigmoids = expit(model.decision_function(X))
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities, sigmoids / sigmoids.sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(X))
    assert log_loss(y, probabilities) < 0.3


@pytest.mark.parametrize(("num_classes", "multi_class"), [(2, "auto"), (3, "ovr"), (3, "multinomial")])
def test_probabilities_far_from_the_boundary_stay_finite(num_classes, multi_class):
    """Where every probability is 0 as a float their ratio still is a number, and logarithms do not become -inf."""
    X = np.eye(num_classes)
    model = ChicleLogisticRegression(C=100.0, multi_class=multi_class).fit(X, np.arange(num_classes))
    far = 1e4 * np.vstack([X, -np.ones(num_classes)])
    with np.errstate(all="raise", under="ignore"):
        logs = model.predict_log_proba(far)
        probabilities = model.predict_proba(far)
    assert np.isfinite(logs).all()
    assert logs.min() < -1000
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-9)
