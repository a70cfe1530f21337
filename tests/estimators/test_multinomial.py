"""ChicleLogisticRegression with one softmax of all classes, against scikit-learn's LogisticRegression."""

import inspect
import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import scale
from sklearn.utils import compute_class_weight

from chicle_elastic.errors import UsageError
from estimators import ChicleLogisticRegression
from tests.estimators import problems
from tests.estimators.test_folder import write


def few_digits():
    """Scaled digits, 600 of them."""
    X, y = problems.digits()
    return X[:600], y[:600]


def wine():
    """178 samples of three classes."""
    X, y = load_wine(return_X_y=True)
    return scale(X), y


def documents():
    """300 sparse rows of 2,000 columns and five classes: more columns than blocks of second derivatives have."""
    rng = np.random.default_rng(5)
    X = sparse.random(300, 2000, density=0.02, random_state=5, format="csr")
    return X, (X[:, :200] @ rng.normal(size=(200, 5)) + 0.5 * rng.gumbel(size=(300, 5))).argmax(axis=1)


DATA = {"iris": lambda: load_iris(return_X_y=True), "wine": wine, "digits": few_digits, "documents": documents}


def peer(X, y, weights=None, **params):
    """scikit-learn's, with nothing left to do."""
    params = {"solver": "newton-cg", "tol": 1e-7, "max_iter": 2000, **params}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its line search ends at rounding
        return LogisticRegression(**params).fit(X, y, sample_weight=weights)


# The model.


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("data", DATA)
def test_log_loss_is_that_of_scikit_learn(data, C):
    """Within 1e-4 on unseen rows, and the weights are its weights; the gap can be recomputed from X and y."""
    X, y = DATA[data]()
    train, test = np.arange(len(y)) % 3 > 0, np.arange(len(y)) % 3 == 0
    ours = ChicleLogisticRegression(C=C, tol=1e-7, store_duals=True).fit(X[train], y[train])
    theirs = peer(X[train], y[train], C=C)
    assert ours.multi_class_ == "multinomial"
    expected = log_loss(y[test], theirs.predict_proba(X[test]))
    assert log_loss(y[test], ours.predict_proba(X[test])) == pytest.approx(expected, abs=1e-4)
    np.testing.assert_allclose(ours.predict_proba(X[test]), theirs.predict_proba(X[test]), atol=2e-3)
    assert ours.duality_gap_ <= 1e-7
    assert problems.recomputed_gaps(ours, X[train], y[train]).max() == pytest.approx(ours.duality_gap_, abs=1e-9)
    assert ours.objective_.shape == ours.dual_objective_.shape == (1,)


PARAMS = {
    "sample_weight": {},
    "class_weight": {"class_weight": {0: 0.2, 1: 3.0, 2: 1.0}},
    "balanced": {"class_weight": "balanced"},
    "no intercept": {"fit_intercept": False},
}


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("name", PARAMS)
def test_parameters_mean_what_they_mean_in_scikit_learn(name, form):
    """Weights of samples and classes, and no intercept; dense rows and sparse ones."""
    if name == "balanced" and "sample_weight" not in inspect.signature(compute_class_weight).parameters:
        pytest.skip("this scikit-learn balances classes without the weights of samples")
    X, y = load_iris(return_X_y=True)
    weights = np.random.default_rng(0).integers(0, 4, size=len(y)).astype(float)
    ours = ChicleLogisticRegression(tol=1e-9, **PARAMS[name]).fit(form(X), y, weights)
    theirs = peer(X, y, weights, **PARAMS[name])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_ - ours.intercept_.mean(), theirs.intercept_, atol=1e-3)


def test_probabilities_are_a_softmax_of_the_scores():
    """Their logarithms, too, and labels are those of the largest."""
    X, y = few_digits()
    model = ChicleLogisticRegression().fit(X, np.array(list("abcdefghij"))[y])
    scores = X @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), scores, rtol=1e-12)
    np.testing.assert_allclose(model.predict_proba(X), softmax(scores, axis=1), rtol=1e-9)
    np.testing.assert_allclose(model.predict_log_proba(X), log_softmax(scores, axis=1), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), np.array(list("abcdefghij"))[scores.argmax(axis=1)])


def test_one_vs_rest_has_a_sigmoid_per_class():
    """Each output is the model of its class against the rest, intercept and all."""
    X, y = wine()
    model = ChicleLogisticRegression(multi_class="ovr", tol=1e-8).fit(X, y)
    assert model.multi_class_ == "ovr"
    assert model.objective_.shape == (3,)
    for k in range(3):
        alone = ChicleLogisticRegression(tol=1e-8).fit(X, y == k)
        np.testing.assert_allclose(model.coef_[k], alone.coef_[0], atol=1e-4)


@pytest.mark.parametrize("multi_class", ["auto", "multinomial", "ovr"])
def test_two_classes_have_one_sigmoid_whatever_is_asked_for(multi_class):
    """As scikit-learn has it since 1.8: a softmax is for three classes and more."""
    X, y = problems.cancer()
    params = {"random_state": 0, "n_threads": 1}
    model = ChicleLogisticRegression(multi_class=multi_class, **params).fit(X, y)
    np.testing.assert_array_equal(model.coef_, ChicleLogisticRegression(**params).fit(X, y).coef_)
    assert model.multi_class_ == "binary"
    assert model.coef_.shape == (1, 30)


# Data that is awkward.


def test_a_large_c_is_hardly_a_penalty():
    """To the same tolerance, while the objective has digits for it."""
    X, y = wine()
    model = ChicleLogisticRegression(C=1e6).fit(X, y)
    assert model.duality_gap_ <= 1e-3
    assert model.score(X, y) == 1.0


def test_a_c_without_any_digits_left_ends_with_a_warning():
    """It names what is wrong, and the model is as good as any."""
    X, y = wine()
    with pytest.warns(ConvergenceWarning, match="the classes look separable, and C is so large"):
        model = ChicleLogisticRegression(C=1e14, max_iter=60).fit(X, y)
    assert model.score(X, y) == 1.0


def test_every_sample_may_have_a_class_of_its_own():
    """And there may be more columns than samples."""
    X = np.random.default_rng(0).normal(size=(25, 40))
    y = np.arange(25)
    ours, theirs = ChicleLogisticRegression(tol=1e-9).fit(X, y), peer(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    assert ours.predict(X).tolist() == y.tolist()


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_classes_without_samples_are_never_predicted(tmp_path, fit_intercept):
    """A folder may name more classes than it has samples: with intercepts their probability is 0."""
    X, y = load_iris(return_X_y=True)
    chosen = np.arange(150) % 10 == 0
    folder = write(tmp_path / "few", X[chosen], 2 * y[chosen], classes=tuple(f"class {k}" for k in range(20)))
    model = ChicleLogisticRegression(tol=1e-8, fit_intercept=fit_intercept).fit(folder)
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (150, 20)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert set(model.predict(X)) <= {"class 0", "class 2", "class 4"}
    if fit_intercept:
        theirs = peer(X[chosen], 2 * y[chosen])
        np.testing.assert_allclose(probabilities[:, [0, 2, 4]], theirs.predict_proba(X), atol=1e-4)
        assert not np.delete(probabilities, [0, 2, 4], axis=1).any()


def test_a_class_whose_samples_have_no_weight_has_probability_zero():
    """In the exported model and in one that goes on from it, too."""
    X, y = wine()
    weights = np.where(y == 1, 0.0, 1.0)
    model = ChicleLogisticRegression(warm_start=True).fit(X, y, weights)
    assert not model.predict_proba(X)[:, 1].any()
    assert not model.to_logistic_regression().predict_proba(X)[:, 1].any()
    model.fit(X, y)
    assert model.score(X, y) == 1.0
    np.testing.assert_allclose(model.objective_, ChicleLogisticRegression().fit(X, y).objective_, rtol=2e-3)


def test_an_l1_penalty_is_one_vs_rest_or_refused():
    """There is no softmax with one; two classes do not ask for any."""
    X, y = wine()
    model = ChicleLogisticRegression(l1_ratio=1.0, C=0.1, warm_start=True).fit(X, y)
    assert model.multi_class_ == "ovr"
    with pytest.raises(UsageError, match="multi_class='multinomial' has no l1 penalty, got l1_ratio=1 and 3 classes"):
        model.set_params(multi_class="multinomial").fit(X, y)
    assert model.fit(X[y < 2], y[y < 2]).multi_class_ == "binary"


# Tasks.


# Between fits.


def test_a_path_of_c_goes_on_from_the_last_weights():
    """Fewer iterations than cold fits, to the same gaps; other classes start afresh."""
    X, y = few_digits()
    warm, cold_iterations, warm_iterations = ChicleLogisticRegression(warm_start=True), 0, 0
    for C in np.logspace(-2, 1, 7):
        cold_iterations += ChicleLogisticRegression(C=C).fit(X, y).n_iter_
        warm_iterations += warm.set_params(C=C).fit(X, y).n_iter_
        assert problems.recomputed_gaps(warm, X, y).max() <= 1e-3
    assert warm_iterations < 0.8 * cold_iterations
    again = warm.fit(X[y < 5], y[y < 5])
    assert again.coef_.shape == (5, 64)
    assert again.n_iter_ == clone(again).fit(X[y < 5], y[y < 5]).n_iter_


@pytest.mark.parametrize(("before", "l1_ratio"), [("ovr", 0.0), ("binary", 0.0), ("ovr", 1.0)])
def test_another_kind_of_model_is_nothing_to_begin_with(before, l1_ratio):
    """A warm start takes up what the last fit was made of, or nothing."""
    X, y = wine()
    model = ChicleLogisticRegression(multi_class="ovr", l1_ratio=l1_ratio, warm_start=True)
    model.fit(*((X, y) if before == "ovr" else (X[y < 2], y[y < 2])))
    assert model.multi_class_ == before
    model.set_params(multi_class="auto", l1_ratio=0.0).fit(X, y)
    assert model.n_iter_ == ChicleLogisticRegression().fit(X, y).n_iter_
    model.set_params(multi_class="ovr", l1_ratio=l1_ratio).fit(X, y)
    assert model.duality_gap_ <= 1e-3
    assert model.n_iter_ == ChicleLogisticRegression(multi_class="ovr", l1_ratio=l1_ratio).fit(X, y).n_iter_


def test_a_model_that_was_put_together_by_hand_is_one_vs_rest():
    """It lacks the attribute that a fit sets."""
    X, y = wine()
    model = ChicleLogisticRegression(multi_class="ovr").fit(X, y)
    expected = model.predict_proba(X)
    del model.multi_class_
    np.testing.assert_array_equal(model.predict_proba(X), expected)
    assert isinstance(model.to_logistic_regression(), OneVsRestClassifier)


def test_a_fit_that_ends_early_says_how_far_it_came():
    """The gap is true, and there are remedies."""
    X, y = few_digits()
    with pytest.warns(ConvergenceWarning, match="after max_iter=4 iterations the relative duality gap is"):
        model = ChicleLogisticRegression(C=10.0, max_iter=4, tol=1e-6).fit(X, y)
    assert model.duality_gap_ == pytest.approx(problems.recomputed_gaps(model, X, y).max(), rel=1e-6)
    assert "multinomial loss" in model.history_.method
