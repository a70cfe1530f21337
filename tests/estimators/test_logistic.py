"""Probabilities of the logistic regression."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from estimators import ChicleLogisticRegression
from tests.estimators import problems


def test_binary_probabilities_are_those_of_liblinear():
    """The same function is minimised, so they agree."""
    X, y = problems.cancer()
    ours = ChicleLogisticRegression(tol=1e-10).fit(X, y)
    peer = LogisticRegression(solver="liblinear", tol=1e-10).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), peer.predict_proba(X), atol=1e-4)
    np.testing.assert_array_equal(ours.predict_proba(X)[:, 1], np.exp(ours.predict_log_proba(X))[:, 1])


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
