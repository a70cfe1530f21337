"""Fitted estimators of scikit-learn made of ours: equal predictions, and the same model after a fit of their own."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import linear_model, svm
from sklearn.base import clone, is_classifier
from sklearn.model_selection import KFold

from chicle_elastic.errors import UsageError
from estimators import (
    ChicleElasticNet,
    ChicleHuber,
    ChicleLasso,
    ChicleLogisticRegression,
    ChiclePoisson,
    ChicleRidge,
    ChicleRidgeClassifier,
    ChicleRidgeCV,
    ChicleSVM,
    ChicleSVR,
    LinearRegressor,
)

TWINS = [
    (ChicleRidge(alpha=0.5, fit_intercept=False), linear_model.Ridge),
    (ChicleRidgeCV(alphas=[0.1, 10.0], store_cv_results=True), linear_model.RidgeCV),
    (ChicleRidgeCV(alphas=[0.1, 10.0], cv=KFold(3), scoring="r2"), linear_model.RidgeCV),
    (ChicleRidgeClassifier(alpha=0.5, class_weight="balanced"), linear_model.RidgeClassifier),
    (ChicleLasso(alpha=0.1), linear_model.Lasso),
    (ChicleElasticNet(alpha=0.1, l1_ratio=0.8), linear_model.ElasticNet),
    (ChicleSVR(C=0.1, epsilon=0.3), svm.LinearSVR),
    (ChicleSVR(C=0.1, loss="squared_epsilon_insensitive"), svm.LinearSVR),
    (ChicleHuber(alpha=0.1, epsilon=1.5), linear_model.HuberRegressor),
    (ChiclePoisson(alpha=0.1), linear_model.PoissonRegressor),
    (ChicleSVM(C=0.1, intercept_scaling=2.0), svm.LinearSVC),
    (ChicleSVM(C=0.1, loss="squared_hinge", penalty="l1", class_weight={0: 2.0}), svm.LinearSVC),
    (ChicleLogisticRegression(C=0.1, class_weight={1: 2.0}), linear_model.LogisticRegression),
    (ChicleLogisticRegression(C=0.1, l1_ratio=0.8), linear_model.LogisticRegression),
]
METHODS = "decision_function", "predict_proba", "predict_log_proba"


def data(model, num_classes=2):
    """Few columns of unlike size; targets of a regression are counts."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)) * [1.0, 2.0, 0.5, 1.0]
    scores = X @ [0.5, -0.3, 0.2, 0.0] + 0.3 * rng.normal(size=200)
    y = np.digitize(scores, np.quantile(scores, np.arange(1, num_classes) / num_classes))
    return pd.DataFrame(X, columns=list("abcd")), y if is_classifier(model) else rng.poisson(np.exp(scores)) * 1.0


def require_equal(twin, model, X):
    """Every method that both have, on both kinds of float; a pickle and a clone work."""
    names = [name for name in METHODS if hasattr(model, name) and hasattr(twin, name)]
    for frame in (X, X.astype(np.float32)):
        if is_classifier(model):
            np.testing.assert_array_equal(twin.predict(frame), model.predict(frame))
        for name in names if is_classifier(model) else ["predict"]:
            np.testing.assert_allclose(getattr(twin, name)(frame), getattr(model, name)(frame), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(twin)).predict(X), twin.predict(X))
    for name in ("n_features_in_", "feature_names_in_", *(["classes_"] if is_classifier(model) else [])):
        np.testing.assert_array_equal(getattr(twin, name), getattr(model, name))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "error:X does not have valid feature")
@pytest.mark.parametrize(("model", "kind"), TWINS, ids=lambda it: str(it) if hasattr(it, "fit") else None)
def test_the_twin_predicts_the_same_and_has_the_same_parameters(model, kind):
    """A fit of its own to the same data comes to the same model, and has attributes of the same shapes."""
    X, y = data(model)
    model = clone(model).set_params(tol=1e-9).fit(X, y)
    twin = model.to_sklearn()
    assert type(twin) is kind
    require_equal(twin, model, X)
    assert twin.coef_ is not model.coef_
    again = clone(twin)
    again = (again.set_params(tol=1e-9, max_iter=100_000) if hasattr(again, "tol") else again).fit(X, y)
    again_weights, weights = (np.append(each.coef_, each.intercept_) for each in (again, twin))
    np.testing.assert_allclose(again_weights, weights, atol=1e-3 * np.abs(weights).max())
    for name, value in vars(again).items():
        if hasattr(twin, name) and isinstance(value, np.ndarray) and name != "n_iter_":
            assert np.squeeze(getattr(twin, name)).shape == np.squeeze(value).shape, name


@pytest.mark.parametrize(
    "model",
    [
        ChicleSVM(),
        ChicleRidgeClassifier(),
        ChicleLogisticRegression(),
        ChicleLogisticRegression(multi_class="ovr", class_weight="balanced"),
    ],
    ids=str,
)
def test_the_twin_of_a_classifier_knows_several_classes(model):
    """With their labels, which are text here."""
    X, y = data(model, num_classes=3)
    model = clone(model).fit(X, np.array(["a", "b", "c"])[y])
    require_equal(model.to_sklearn(), model, X)


@pytest.mark.parametrize("model", [ChicleRidge(), ChicleRidgeCV(alpha_per_target=True), ChicleLasso(alpha=0.01)])
def test_the_twin_of_a_regressor_knows_several_targets(model):
    """As many columns as there were."""
    X, y = data(model)
    model = clone(model).fit(X, np.column_stack([y, y**2, X["a"]]))
    require_equal(model.to_sklearn(), model, X)


class Own(LinearRegressor):
    """A regressor of a user."""

    def _trainer(self):
        raise NotImplementedError

    def _advice(self):
        return ""


def test_an_estimator_without_a_twin_says_so():
    """Of a user's own, and with parameters that scikit-learn has not."""
    own = Own()
    own.coef_ = np.zeros(1)
    with pytest.raises(UsageError, match="no estimator like Own"):
        own.to_sklearn()
    X, y = data(ChicleSVM())
    with pytest.raises(UsageError, match=r"ChicleSVM has no twin .* 'modified_huber'.*save"):
        ChicleSVM(loss="modified_huber").fit(X, y).to_sklearn()
