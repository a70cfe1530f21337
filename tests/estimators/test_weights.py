"""Weights of samples and of classes."""

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems


@pytest.fixture(params=["hinge", "squared_hinge", "logistic"])
def estimator(request):
    """One per loss."""
    if request.param == "logistic":
        return ChicleLogisticRegression(C=0.05, random_state=0)
    return ChicleSVM(C=0.05, loss=request.param, random_state=0)


@pytest.mark.parametrize("data", [problems.cancer, problems.digits], ids=["binary", "ten classes"])
def test_weighted_and_repeated_samples_reach_the_same_objective(estimator, data):
    """An integer weight is as good as that many copies, and weight 0 as good as no sample, within tol."""
    X, y = data()
    counts = np.random.default_rng(3).integers(0, 4, size=len(y))
    rows = np.repeat(np.arange(len(y)), counts)
    weighted = estimator.set_params(tol=1e-4, max_iter=5000).fit(X, y, sample_weight=counts)
    objective = weighted.objective_
    repeated = estimator.fit(X[rows], y[rows])
    np.testing.assert_allclose(objective, repeated.objective_, rtol=1e-4)


def test_the_gap_holds_with_weights_of_both_kinds(estimator):
    """Sample weight and class weight multiply C_i, on both sides of a one-vs-rest output."""
    X, y = problems.digits()
    weights = np.random.default_rng(0).uniform(0.1, 2.0, size=len(y))
    class_weight = {label: 0.5 + 0.25 * label for label in range(10)}
    estimator.set_params(tol=1e-4, class_weight=class_weight, store_duals=True).fit(X, y, weights)
    gaps = problems.recomputed_gaps(estimator, X, y, weights * (0.5 + 0.25 * y))
    assert estimator.duality_gap_ == pytest.approx(gaps.max(), rel=1e-6)
    assert gaps.max() <= 1e-4


def test_balanced_means_the_weights_of_scikit_learn():
    """n_samples / (n_classes * count), with the sample weights as counts where there are some."""
    X, y = problems.cancer()
    weights = np.random.default_rng(0).uniform(0.1, 2.0, size=len(y))
    for sample_weight, totals in ((None, np.bincount(y)), (weights, np.bincount(y, weights=weights))):
        by_name = ChicleSVM(C=0.1, class_weight="balanced", random_state=0).fit(X, y, sample_weight)
        by_hand = dict(enumerate(totals.sum() / (2 * totals)))
        by_dict = ChicleSVM(C=0.1, class_weight=by_hand, random_state=0).fit(X, y, sample_weight)
        np.testing.assert_array_equal(by_name.coef_, by_dict.coef_)


def test_two_classes_weigh_as_in_linear_svc():
    """For two classes class_weight means what it means in LinearSVC."""
    X, y = problems.cancer()
    params = {"C": 0.1, "loss": "squared_hinge", "class_weight": {0: 3.0, 1: 0.5}}
    ours = ChicleSVM(tol=1e-9, **params).fit(X, y)
    peer = LinearSVC(dual=False, tol=1e-10, **params).fit(X, y)
    np.testing.assert_allclose(ours.coef_, peer.coef_, atol=1e-4 * np.abs(peer.coef_).max())


def test_more_classes_weigh_otherwise_than_in_linear_svc():
    """The difference that the docstring names: there the weight of a class does not count in the "rest" of another."""
    X, y = problems.digits()
    params = {"C": 0.01, "loss": "squared_hinge"}
    weight_of_three = np.where(y == 3, 100.0, 1.0)
    ours = ChicleSVM(tol=1e-6, class_weight={3: 100.0}, **params).fit(X, y)
    peer = LinearSVC(dual=False, tol=1e-9, class_weight={3: 100.0}, **params).fit(X, y)
    eight = np.where(y == 8, 1, -1)
    weighted = ChicleSVM(tol=1e-6, **params).fit(X, eight, weight_of_three)
    unweighted = ChicleSVM(tol=1e-6, **params).fit(X, eight)
    np.testing.assert_allclose(ours.coef_[8], weighted.coef_[0], atol=3e-3)
    np.testing.assert_allclose(peer.coef_[8], unweighted.coef_[0], atol=3e-3)
    assert np.abs(ours.coef_[8] - peer.coef_[8]).max() > 3e-2


def test_a_scalar_weight_multiplies_c():
    """sample_weight=2.0 with C is 2 C without."""
    X, y = problems.cancer()
    weighted = ChicleSVM(C=0.05, random_state=0).fit(X, y, sample_weight=2.0)
    plain = ChicleSVM(C=0.1, random_state=0).fit(X, y)
    np.testing.assert_allclose(weighted.coef_, plain.coef_, rtol=1e-12)


def test_a_class_without_weight_keeps_its_column_and_is_never_predicted():
    """Labels stay in classes_ whatever their weight, so that the shape does not depend on the weights."""
    X, y = problems.digits()
    model = ChicleSVM(C=0.01).fit(X, y, sample_weight=(y != 7).astype(float))
    assert model.classes_.tolist() == list(range(10))
    assert model.coef_.shape == (10, 64)
    assert 7 not in model.predict(X)
    balanced = ChicleSVM(C=0.01, class_weight="balanced").fit(X, y, sample_weight=(y != 7).astype(float))
    assert np.isfinite(balanced.coef_).all()


def test_samples_of_weight_zero_change_nothing():
    """Not even values that would be an outlier of the worst kind."""
    X, y = problems.cancer()
    weights = np.ones(len(y))
    weights[:50] = 0.0
    moved = X.copy()
    moved[:50] *= 1e6
    a = ChicleSVM(C=0.1, random_state=0).fit(X, y, weights)
    b = ChicleSVM(C=0.1, random_state=0).fit(moved, y, weights)
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-9)  # they stand between rows that are rounded together


@pytest.mark.parametrize(
    ("weights", "class_weight", "message"),
    [
        (-1.0, None, "Negative values"),
        (0.0, None, "at least one non-zero|weight above 0"),  # scikit-learn 1.9 looks first
        (np.nan, None, "NaN"),
        (None, {0: 0.0, 1: 0.0}, r"weight above 0, but all samples of the classes \[0, 1\] weigh 0"),
        (None, {0: -1.0}, "must hold finite numbers >= 0"),
        (None, {"a": 2.0}, r"no weight for the classes \[0, 1\], but has weights for \['a'\]"),
        ("short", None, "shape"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(weights, class_weight, message):
    """Each with what is wrong and where to look."""
    X, y = problems.cancer()
    if isinstance(weights, str):
        weights = np.ones(len(y) - 1)
    elif weights is not None:
        weights = np.where(np.arange(len(y)) == 3, weights, 1.0) if weights else np.zeros(len(y))
    with pytest.raises(ValueError, match=message):
        ChicleSVM(class_weight=class_weight).fit(X, y, weights)
