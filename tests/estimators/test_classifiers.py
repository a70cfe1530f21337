"""Linear classifiers where they differ from regressions, or from each other: classes, weights, probabilities.

That objectives are the least ones, whatever the rows, weights and tasks, is in `test_optimum`.
"""

import inspect
import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC
from sklearn.utils import compute_class_weight

from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems
from tests.estimators.reference_fits import require_certified


def wine(num_classes=3):
    """Return scaled samples of the first classes."""
    X, y = load_wine(return_X_y=True)
    return scale(X)[y < num_classes], y[y < num_classes]


def documents():
    """Return 300 sparse rows of 2,000 columns and five classes: too many for blocks of second derivatives."""
    rng = np.random.default_rng(5)
    X = sparse.random(300, 2000, density=0.02, random_state=5, format="csr")
    return X, (X[:, :200] @ rng.normal(size=(200, 5)) + 0.5 * rng.gumbel(size=(300, 5))).argmax(axis=1)


def peer(X, y, weights=None, **params):
    """Return scikit-learn's logistic regression, with nothing left to do."""
    params = {"solver": "newton-cg", "tol": 1e-7, "max_iter": 2000, **params}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its line search ends at rounding
        return LogisticRegression(**params).fit(X, y, sample_weight=weights)


L2 = [ChicleSVM(C=0.05), ChicleSVM(C=0.05, loss="squared_hinge"), ChicleLogisticRegression(C=0.05)]
L1 = [
    ChicleSVM(C=0.3, loss="squared_hinge", penalty="l1", tol=1e-6),
    ChicleLogisticRegression(C=0.3, l1_ratio=1.0, tol=1e-6),
]


# One softmax of all classes.


@pytest.mark.parametrize("C", [0.01, 100.0])
@pytest.mark.parametrize("data", [wine, documents])
def test_a_softmax_is_that_of_scikit_learn(data, C):
    """Its probabilities of unseen rows, too; `test_optimum` recomputes the gap."""
    X, y = data()
    train, test = np.arange(len(y)) % 3 > 0, np.arange(len(y)) % 3 == 0
    ours = ChicleLogisticRegression(C=C, tol=1e-7, store_duals=True).fit(X[train], y[train])
    theirs = peer(X[train], y[train], C=C)
    assert ours.multi_class_ == "multinomial"
    np.testing.assert_allclose(ours.predict_proba(X[test]), theirs.predict_proba(X[test]), atol=2e-3)
    assert problems.recomputed_gaps(ours, X[train], y[train]).max() == pytest.approx(ours.duality_gap_, abs=1e-9)
    assert ours.objective_.shape == ours.dual_objective_.shape == (1,)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize(
    "params",
    [{}, {"class_weight": {0: 0.2, 1: 3.0, 2: 1.0}}, {"class_weight": "balanced"}, {"fit_intercept": False}],
)
def test_parameters_mean_what_they_mean_in_scikit_learn(params, form):
    """Weights of samples and classes, and no intercept; dense rows and sparse ones."""
    if "balanced" in params.values() and "sample_weight" not in inspect.signature(compute_class_weight).parameters:
        pytest.skip("this scikit-learn balances classes without the weights of samples")
    X, y = load_iris(return_X_y=True)
    weights = np.random.default_rng(0).integers(0, 4, size=len(y)).astype(float)
    ours = ChicleLogisticRegression(tol=1e-9, **params).fit(form(X), y, weights)
    theirs = peer(X, y, weights, **params)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_ - ours.intercept_.mean(), theirs.intercept_, atol=1e-3)


@pytest.mark.parametrize("multi_class", ["multinomial", "ovr"])
def test_probabilities_and_labels_are_those_of_the_scores(multi_class):
    """A softmax, or a sigmoid of each class divided by their sum; labels are those of the largest."""
    X, codes = wine()
    y = np.array(["a", "b", "c"])[codes]
    model = ChicleLogisticRegression(multi_class=multi_class, tol=1e-8).fit(X, y)
    scores = X @ model.coef_.T + model.intercept_
    sigmoids = expit(scores)
    expected = softmax(scores, axis=1) if multi_class == "multinomial" else sigmoids / sigmoids.sum(1, keepdims=True)
    np.testing.assert_allclose(model.decision_function(X), scores, rtol=1e-12)
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-9)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(expected), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), np.array(["a", "b", "c"])[scores.argmax(axis=1)])
    if multi_class == "multinomial":
        np.testing.assert_allclose(model.predict_log_proba(X), log_softmax(scores, axis=1), rtol=1e-9, atol=1e-12)
        return
    for k in range(3):  # each output is the model of its class against the rest, intercept and all
        alone = ChicleLogisticRegression(tol=1e-8).fit(X, codes == k)
        np.testing.assert_allclose(model.coef_[k], alone.coef_[0], atol=1e-4)


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


@pytest.mark.parametrize("multi_class", ["auto", "multinomial", "ovr"])
def test_two_classes_have_one_sigmoid_whatever_is_asked_for(multi_class):
    """As scikit-learn has it since 1.8: a softmax is for three classes and more."""
    X, y = problems.cancer()
    params = {"random_state": 0, "n_threads": 1}
    model = ChicleLogisticRegression(multi_class=multi_class, **params).fit(X, y)
    np.testing.assert_array_equal(model.coef_, ChicleLogisticRegression(**params).fit(X, y).coef_)
    assert model.multi_class_ == "binary"
    assert model.coef_.shape == (1, 30)


@pytest.mark.parametrize("form", [np.asarray, lambda X: np.tile(X, (1, 500))])
@pytest.mark.parametrize("runtime", [None, InProcess(num_tasks=2, changes=((2, 5), (4, 1)))])
def test_the_intercept_costs_nothing(form, runtime):
    """The objective of scikit-learn, narrow and wide, whoever comes and goes; features far from 0 need a large one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5)) + 100.0
    y = (X[:, 0] + 0.3 * rng.normal(size=600) > 102.2).astype(int)
    X, weights = form(X), np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    ours = ChicleLogisticRegression(C=0.5, tol=1e-6, runtime=runtime).fit(X, y, weights)
    per_copy = 500 if X.shape[1] > 5 else 1  # copies of a column share its weight
    theirs = LogisticRegression(C=0.5 * per_copy, tol=1e-10, solver="newton-cholesky").fit(X[:, :5], y, weights)
    losses = weights @ np.logaddexp(0.0, -np.where(y == 1, 1, -1) * theirs.decision_function(X[:, :5]))
    assert ours.objective_[0] <= (0.5 * losses + 0.5 * (theirs.coef_**2).sum() / per_copy) * (1 + 1e-5)
    assert abs(ours.intercept_[0]) > 10


# Classes that are rare, or not there.


def test_a_c_without_any_digits_left_ends_with_a_warning():
    """It names what is wrong, and the model is as good as any; a smaller one is fitted to the same tolerance."""
    X, y = wine()
    assert ChicleLogisticRegression(C=1e6).fit(X, y).duality_gap_ <= 1e-3
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
    classes = tuple(f"class {k}" for k in range(20))
    folder = problems.write(tmp_path / "few", X[chosen], 2 * y[chosen], classes=classes)
    model = ChicleLogisticRegression(tol=1e-8, fit_intercept=fit_intercept).fit(folder)
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (150, 20)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert set(model.predict(X)) <= {"class 0", "class 2", "class 4"}
    if fit_intercept:
        theirs = peer(X[chosen], 2 * y[chosen])
        np.testing.assert_allclose(probabilities[:, [0, 2, 4]], theirs.predict_proba(X), atol=1e-4)
        assert not np.delete(probabilities, [0, 2, 4], axis=1).any()


@pytest.mark.parametrize(("num_classes", "multi_class"), [(2, "auto"), (3, "ovr"), (3, "multinomial")])
def test_a_class_without_weight_has_no_probability(num_classes, multi_class):
    """Nor in the exported model; its labels stay in classes_, and once it has weight, a model goes on from there."""
    X, y = wine(num_classes)
    model = ChicleLogisticRegression(multi_class=multi_class, warm_start=True).fit(X, y, (y != 1).astype(float))
    assert model.classes_.tolist() == list(range(num_classes))
    assert not model.predict_proba(X)[:, 1].any()
    assert not model.to_sklearn().predict_proba(X)[:, 1].any()
    assert model.fit(X, y).duality_gap_ <= 1e-3
    expected = ChicleLogisticRegression(multi_class=multi_class).fit(X, y)
    np.testing.assert_allclose(model.objective_, expected.objective_, rtol=2e-3)
    svm = ChicleSVM(class_weight="balanced").fit(X, y, (y != 1).astype(float))
    assert num_classes == 2 or 1 not in svm.predict(X)
    assert np.isfinite(svm.coef_).all()


def test_a_model_that_was_put_together_by_hand_is_one_vs_rest():
    """It lacks the attribute that a fit sets."""
    X, y = wine()
    model = ChicleLogisticRegression(multi_class="ovr").fit(X, y)
    expected = model.predict_proba(X)
    del model.multi_class_
    np.testing.assert_array_equal(model.predict_proba(X), expected)
    assert isinstance(model.to_sklearn(), OneVsRestClassifier)


# Weights.


@pytest.mark.parametrize("model", [*L2, *L1], ids=str)
def test_weights_of_samples_and_classes_multiply_c(model):
    """On both sides of an output; a sample of weight 0 changes nothing, and 2.0 is twice the C; labels are words."""
    X, y = wine(2)
    labels = np.array(["no", "yes"])[y]
    weights = np.random.default_rng(0).uniform(0, 2, size=len(y)) * (np.arange(len(y)) % 5 > 0)
    class_weight = {"no": 2.0, "yes": 0.5}
    model = clone(model).set_params(tol=1e-6, class_weight=class_weight, random_state=0)
    far = np.where((weights > 0)[:, None], X, 1e6 * X)
    model.fit(far, labels, weights)
    require_certified(model, X, labels, weights * np.where(y, 0.5, 2.0))
    twice = clone(model).fit(X, labels, 2.0)
    once = clone(model).set_params(C=2 * model.C).fit(X, labels)
    np.testing.assert_allclose(twice.objective_, once.objective_, rtol=2e-6)


def test_balanced_means_the_weights_of_scikit_learn():
    """n_samples / (n_classes * count), with the sample weights as counts where there are some."""
    X, y = problems.cancer()
    weights = np.random.default_rng(0).uniform(0.1, 2.0, size=len(y))
    for sample_weight, totals in ((None, np.bincount(y)), (weights, np.bincount(y, weights=weights))):
        by_name = ChicleSVM(C=0.1, class_weight="balanced", random_state=0).fit(X, y, sample_weight)
        by_hand = dict(enumerate(totals.sum() / (2 * totals)))
        by_dict = ChicleSVM(C=0.1, class_weight=by_hand, random_state=0).fit(X, y, sample_weight)
        np.testing.assert_array_equal(by_name.coef_, by_dict.coef_)


def test_more_classes_weigh_otherwise_than_in_linear_svc():
    """The difference that the docstring names: there the weight of a class does not count in the "rest" of another."""
    X, y = problems.digits()
    params = {"C": 0.01, "loss": "squared_hinge"}
    ours = ChicleSVM(tol=1e-6, class_weight={3: 100.0}, **params).fit(X, y)
    theirs = LinearSVC(dual=False, tol=1e-9, class_weight={3: 100.0}, **params).fit(X, y)
    weighted = ChicleSVM(tol=1e-6, **params).fit(X, y == 8, np.where(y == 3, 100.0, 1.0))
    np.testing.assert_allclose(ours.coef_[8], weighted.coef_[0], atol=3e-3)
    assert np.abs(ours.coef_[8] - theirs.coef_[8]).max() > 3e-2


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


# An l1 penalty.


def least(model, X, y):
    """Return the least C that leaves a weight, for two classes."""
    if isinstance(model, ChicleSVM):
        signs = np.where(y, 1.0, -1.0)
        return 0.5 / max(np.abs(X.T @ signs).max(), abs(signs.sum()))
    return 1.0 / np.abs(X.T @ (y - y.mean())).max()


@pytest.mark.parametrize("model", L1, ids=str)
def test_a_small_c_leaves_the_intercept_alone(model):
    """The best one there is, of a loss that does not penalise it: the logarithm of the odds; below the least C only."""
    X, y = problems.cancer()
    C = least(model, X, y)
    for factor in (1e-6, 0.999):
        model = clone(model).set_params(C=factor * C).fit(X, y)
        assert not model.coef_.any()
        if isinstance(model, ChicleLogisticRegression):
            assert model.intercept_[0] == pytest.approx(np.log(y.mean() / (1 - y.mean())), rel=1e-14)
        assert abs(model.duality_gap_) <= 1e-14
        assert model.n_iter_ == 2
    model.set_params(C=1.001 * C).fit(X, y)
    assert model.sparse_coef_.nnz + isinstance(model, ChicleSVM) >= 1


@pytest.mark.parametrize("max_iter", [1, 2, 3])
@pytest.mark.parametrize("model", [L2[2], *L1], ids=str)
def test_a_fit_that_is_cut_short_warns_and_its_gap_is_true(model, max_iter):
    """After every number of iterations; the first ones have looked at the data, and certify nothing but 0."""
    X, y = problems.cancer()
    model = clone(model).set_params(C=10.0, tol=1e-12, max_iter=max_iter, algorithm="auto", runtime=InProcess())
    with pytest.warns(ConvergenceWarning, match=rf"after max_iter={max_iter} iterations? the relative duality gap"):
        model.fit(X, y)
    require_certified(model, X, y, tol=np.inf)
    assert model.duality_gap_ > model.tol


def test_an_intercept_that_is_not_penalised_moves_with_the_features():
    """By a constant that is added to all of them; what `intercept_scaling` is makes no difference."""
    X, y = problems.cancer()
    one = clone(L1[1]).set_params(tol=1e-8).fit(X, y)
    other = clone(one).set_params(intercept_scaling=7.0).fit(X + 4.0, y)
    np.testing.assert_allclose(other.coef_, one.coef_, atol=1e-7)
    assert other.intercept_[0] == pytest.approx(one.intercept_[0] - 4.0 * one.coef_.sum(), rel=1e-6)


def test_more_weights_than_a_working_set_takes_are_found_by_one_task(monkeypatch):
    """And several tasks, which take them in turns, say that one will do when they have not converged."""
    rng = np.random.default_rng(0)
    X = sparse.random(400, 3000, density=0.02, random_state=0, format="csr")
    y = (X @ rng.normal(size=3000) > 0).astype(np.int64)
    monkeypatch.setattr("chicle_elastic.solvers.linear.methods.MOST_COLUMNS", 129)
    model = clone(L1[0]).set_params(C=30.0, tol=1e-4)
    assert model.fit(X, y).duality_gap_ <= 1e-4
    assert model.sparse_coef_.nnz > 129
    with pytest.warns(ConvergenceWarning, match=r"on 2 tasks .* use fewer tasks"):
        model.set_params(max_iter=20, runtime=InProcess(num_tasks=2)).fit(X, y)


def test_the_method_is_said_for_each_shape_of_the_data():
    """In words, with what decides it."""
    X, y = problems.cancer()
    svm, logistic = L1
    assert "on chunks, because products of 31 columns and 1 output" in clone(logistic).fit(X, y).history_.method
    wide = problems.widened(X, 3000)
    assert "on the columns of one task, because" in clone(svm).fit(wide, y).history_.method
    several = clone(svm).set_params(runtime=InProcess(num_tasks=2)).fit(wide, y)
    assert "with a working set of columns, because products of 3031 columns" in several.history_.method


# Algorithms, and parameters that do not go together.


@pytest.mark.parametrize(("num_tasks", "changes"), [(1, ()), (4, ((2, 3), (6, 1)))])
@pytest.mark.parametrize("model", L2, ids=str)
def test_cocoa_comes_to_its_gap_on_any_number_of_tasks(model, num_tasks, changes):
    """Coordinate descent to the end, with a certified gap; the intercept is penalised, as liblinear does it."""
    X, y = problems.cancer()
    runtime = InProcess(num_tasks=num_tasks, changes=changes)
    model = clone(model).set_params(algorithm="cocoa", runtime=runtime, max_iter=3000, store_duals=True).fit(X, y)
    assert problems.recomputed_gaps(model, X, y).max() <= 1e-3
    require_certified(model, X, y)
    assert list(model.history_.methods.values()) == ["coordinate descent (CoCoA), because of algorithm='cocoa'"]


def test_newton_is_taken_where_coordinate_descent_would_be():
    """The hinge on one task; the history says why."""
    X, y = problems.cancer()
    model = ChicleSVM(C=0.1, algorithm="newton", store_duals=True).fit(X, y)
    assert list(model.history_.methods.values()) == ["Newton's method on chunks, because of algorithm='newton'"]
    assert problems.recomputed_gaps(model, X, y).max() <= 1e-3


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (ChicleLogisticRegression(l1_ratio=1.0, algorithm="cocoa"), "algorithm='cocoa' does not go with an l1 penalty"),
        (ChicleLogisticRegression(algorithm="newton"), "multi_class='ovr'"),
        (ChicleSVM(algorithm="sgd"), "algorithm"),
        (ChicleSVM(penalty="elasticnet"), "penalty='elasticnet' needs loss='squared_hinge'"),
        (
            ChicleLogisticRegression(multi_class="multinomial", l1_ratio=1.0),
            "multi_class='multinomial' has no l1 penalty, got l1_ratio=1 and 3 classes",
        ),
    ],
)
def test_parameters_that_do_not_go_together_are_refused(model, complaint):
    """By the name of the parameter."""
    with pytest.raises(ValueError, match=complaint):
        model.fit(*wine())
    svm = ChicleSVM(loss="squared_hinge", penalty="elasticnet").fit(*wine(2))
    with pytest.raises(UsageError, match=r"'penalty' parameter of LinearSVC .* 'elasticnet'"):
        svm.to_sklearn()
