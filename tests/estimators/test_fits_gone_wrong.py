"""Fits that went wrong for somebody: each a kind, with the right value from scikit-learn or from the optimum."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import BaggingClassifier
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LassoLars, LogisticRegression, Ridge
from sklearn.preprocessing import PolynomialFeatures, scale

from chicle_elastic.errors import DataError
from estimators import ChicleElasticNet, ChicleLasso, ChicleLogisticRegression, ChicleRidge, ChicleSVM, ChicleSVR


def wide(kind):
    """Rows and targets of more columns than rows."""
    rng = np.random.default_rng(3)
    if kind == "polynomials":
        X, y = load_diabetes(return_X_y=True)
        return scale(PolynomialFeatures(3, include_bias=False).fit_transform(X))[:80], y[:80]
    if kind == "repeated":
        X = np.hstack([rng.normal(size=(60, 30))] * 3)
    elif kind == "bits":
        X = (rng.random((40, 90)) < 0.2).astype(float)
    else:
        X = rng.normal(size=(60, 200))
    return X, X[:, 0] + 0.1 * rng.normal(size=len(X))


@pytest.mark.parametrize("kind", ["normal", "polynomials", "repeated", "bits"])
@pytest.mark.parametrize(("alpha", "l1_ratio"), [(1e-3, 1.0), (1e-7, 1.0), (1e-7, 0.5)])
def test_more_columns_than_rows_and_a_small_alpha(kind, alpha, l1_ratio):
    """A dependent set of columns is left one by one; the residuals' slopes are those of an optimum, in a few passes."""
    X, y = wide(kind)
    model = ChicleElasticNet(alpha=alpha, l1_ratio=l1_ratio).fit(X, y)
    assert model.n_iter_ < 10
    assert -1e-9 <= model.duality_gap_ <= 1e-6
    if l1_ratio == 1.0 and kind != "polynomials":
        theirs = LassoLars(alpha=alpha).fit(X, y)
        value = np.mean((y - theirs.predict(X)) ** 2) / 2 + alpha * np.abs(theirs.coef_).sum()
        assert model.objective_ <= value * (1 + 1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e6, 1e9 + 0.1])
@pytest.mark.parametrize("shift", [0.0, 1e5])
@pytest.mark.filterwarnings("error")
def test_a_constant_target_is_its_own_intercept(value, shift):
    """What is left is rounding: no warning, and a gap near 0 after a few passes."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 5)) + shift
    for weights in (None, rng.random(40), 10.0 ** rng.uniform(-6, 3, 40)):
        for model in ChicleRidge(), ChicleLasso(alpha=0.1), ChicleElasticNet(alpha=1e-6):
            model.fit(X, np.full(40, value), weights)
            assert model.n_iter_ < 10
            assert abs(model.duality_gap_) <= 1e-6
            np.testing.assert_allclose(model.predict(X), value, rtol=1e-9)
    assert ChicleSVR().fit(X, np.zeros(40)).intercept_ == 0


@pytest.mark.parametrize("C", [1e-4, 1e-6, 1e-8, 1e-30])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_a_small_C_gives_a_direction(C, fit_intercept):
    """0 is within tol of such an optimum, and predicts nothing."""
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    ours = ChicleLogisticRegression(C=C, fit_intercept=fit_intercept).fit(X, y)
    theirs = LogisticRegression(C=max(C, 1e-8), fit_intercept=fit_intercept, solver="newton-cholesky").fit(X, y)
    np.testing.assert_allclose(
        ours.coef_, theirs.coef_ * min(1.0, C / 1e-8), rtol=0.02, atol=1e-4 * abs(ours.coef_).max()
    )


@pytest.mark.parametrize("alpha", [1e6, 1e12, 1e20])
def test_a_large_alpha_gives_a_direction(alpha):
    """The same of regressions."""
    X, y = load_diabetes(return_X_y=True)
    np.testing.assert_allclose(ChicleRidge(alpha=alpha).fit(X, y).coef_, Ridge(alpha=alpha).fit(X, y).coef_, rtol=1e-3)
    net = ChicleElasticNet(alpha=alpha, l1_ratio=0.0).fit(X, y)
    theirs = Ridge(alpha=alpha * len(y)).fit(X, y)
    np.testing.assert_allclose(net.coef_, theirs.coef_, rtol=1e-3)


@pytest.mark.parametrize(
    "model",
    [
        ChicleSVM(),
        ChicleSVM(loss="squared_hinge", penalty="l1"),
        ChicleLogisticRegression(),
        ChicleLogisticRegression(l1_ratio=1.0),
    ],
)
def test_a_resample_without_a_class_trains(model):
    """By its bootstrap, sample weights, or class weights; the answer is what is there, as LinearSVC has it."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 5)), np.arange(200) < 5
    X[:5] += 3
    bagged = BaggingClassifier(model, n_estimators=8, max_samples=0.2, random_state=1).fit(X, y)
    assert bagged.score(X, y) > 0.95
    assert not model.fit(X, y, (~y).astype(float)).predict(X).any()
    assert model.n_iter_ < 50
    assert np.isfinite(model.duality_gap_)
    assert model.set_params(class_weight={False: 0.0}).fit(X, y).predict(X[y]).all()
    model.set_params(class_weight=None)


def test_a_class_without_weight_beside_two_others():
    """One-vs-rest with an l1 penalty: its output never says yes, and the others are as without it."""
    X, y = load_iris(return_X_y=True)
    model = ChicleLogisticRegression(l1_ratio=1.0).fit(X, y, (y != 2).astype(float))
    assert model.n_iter_ < 50
    assert model.duality_gap_ <= 1e-3
    np.testing.assert_array_equal(model.predict(X[y != 2]), y[y != 2])
    assert np.isfinite(model.predict_proba(X)).all()


KINDS = [
    ChicleSVM(),
    ChicleSVM(loss="squared_hinge"),
    ChicleSVM(loss="squared_hinge", penalty="l1"),
    ChicleLogisticRegression(),
    ChicleLogisticRegression(l1_ratio=1.0),
    ChicleRidge(),
    ChicleLasso(),
    ChicleElasticNet(),
    ChicleSVR(),
]


@pytest.mark.parametrize("as_matrix", [np.asarray, csr_matrix])
@pytest.mark.parametrize("exponent", [78, 160, 300])
@pytest.mark.parametrize("columns", [[1], [0, 1, 2]])
@pytest.mark.filterwarnings("error")
def test_squares_beyond_all_numbers_are_refused(exponent, columns, as_matrix):
    """By every estimator: the error names the column and its largest value, and nothing warns."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.integers(0, 2, 50)
    X[:, columns] *= 10.0**exponent
    worst = int(np.abs(X).max(axis=0).argmax())
    for model in KINDS:
        with pytest.raises(DataError, match=rf"column {worst} of X reaches .*e\+{exponent}"):
            model.fit(as_matrix(X), y)


@pytest.mark.filterwarnings("error")
def test_targets_and_weights_beyond_all_numbers_are_refused():
    """They are named as what they are."""
    X = np.random.default_rng(0).normal(size=(50, 3))
    for model in KINDS[5:]:
        with pytest.raises(DataError, match=r"y reaches .*e\+160"):
            model.fit(X, X[:, 0] * 1e160)
    for model in KINDS:
        with pytest.raises(DataError, match="weight"):
            model.fit(X, np.arange(50) % 2, np.full(50, 1e160))


def test_so_many_values_are_looked_at_after_the_fit(monkeypatch):
    """A look at a large X costs a tenth of a fit, so only one that went wrong pays for it."""
    monkeypatch.setattr("estimators.checks.MAX_VALUES_CHECKED_FIRST", 0)
    X = np.random.default_rng(0).normal(size=(50, 3)) * 1e160
    with np.errstate(all="ignore"), pytest.raises(DataError, match=r"column \d of X"):
        ChicleRidge().fit(X, X[:, 0] > 0)


@pytest.mark.parametrize("intercept", [None, 3.0])
@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize(
    "model",
    [
        ChicleLasso(alpha=0.1, tol=1e-8),
        ChicleElasticNet(alpha=0.1, l1_ratio=0.5, tol=1e-8),
        ChicleLogisticRegression(l1_ratio=1.0, tol=1e-8),
        ChicleSVM(penalty="l1", loss="squared_hinge", tol=1e-8),
        ChicleLogisticRegression(tol=1e-8),
        ChicleSVM(tol=1e-8),
    ],
    ids=str,
)
def test_a_warm_start_from_weights_set_by_hand(model, num_classes, intercept):
    """The optimum is that without them, and other shapes are passed over."""
    X, y = load_iris(return_X_y=True)
    X, y = X[y < num_classes], y[y < num_classes]
    best = clone(model).fit(X, y)
    for shape in best.coef_.shape, (7, 9):
        given = clone(model).set_params(warm_start=True)
        given.coef_ = np.ones(shape)
        if intercept is not None:
            given.intercept_ = np.full(np.shape(best.intercept_), intercept)
        np.testing.assert_allclose(given.fit(X, y).coef_, best.coef_, atol=2e-3)


@pytest.mark.parametrize(
    ("model", "is_l1"),
    [
        (ChicleLasso(alpha=0.1), True),
        (ChicleElasticNet(alpha=0.1, l1_ratio=1.0), True),
        (ChicleElasticNet(alpha=0.1, l1_ratio=0.5), False),
        (ChicleLogisticRegression(C=0.1, l1_ratio=1.0), True),
        (ChicleLogisticRegression(C=0.1), False),
        (ChicleSVM(C=0.1, penalty="l1", loss="squared_hinge"), True),
    ],
)
def test_select_from_model_keeps_the_weights_that_are_there(model, is_l1):
    """The threshold is that of an l1 penalty, where there is one; else the mean, as of the namesakes."""
    X, y = load_iris(return_X_y=True)
    selector = SelectFromModel(model).fit(scale(X), y == 2)
    assert (selector.threshold_ == 1e-5) == is_l1
