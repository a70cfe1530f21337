"""Several targets in one fit, the penalty that cross-validation finds, and classes as targets: as scikit-learn's."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Ridge, RidgeClassifier, RidgeCV

from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleElasticNet, ChicleLasso, ChicleRidge, ChicleRidgeClassifier, ChicleRidgeCV, ChicleSearchCV
from estimators.regression import targets
from tests.estimators.problems import write
from tests.estimators.reference_fits import least_and_own, terms_of

ALPHAS = np.logspace(-2, 3, 6)


def problem(is_wide=False):
    """Rows with zeros and without a mean of 0, four targets, the last one constant, and weights."""
    n, d = (30, 80) if is_wide else (150, 20)
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, d)) + 0.5
    X[np.abs(X) < 0.5] = 0.0
    Y = X @ rng.normal(size=(d, 4)) + 3.0 * rng.normal(size=(n, 4)) + 5.0
    Y[:, 3] = 2.5
    return X, Y, rng.uniform(0.0, 2.0, size=n)


def one_of(model, k):
    """The model of one target, for what looks at one."""
    part = type(model)(**model.get_params(deep=False))
    part.coef_, part.intercept_ = model.coef_[k], model.intercept_[k]
    return part


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, lambda X: X.astype(np.float32)])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("has_weights", [False, True])
def test_ridge_of_many_targets_is_that_of_each(is_wide, form, fit_intercept, has_weights):
    """Model, objectives and gaps, which are those of the model that is returned."""
    X, Y, weights = problem(is_wide)
    X, weights = np.asarray(form(X).astype(np.float64) @ np.eye(X.shape[1])), weights if has_weights else None
    model = ChicleRidge(alpha=0.7, fit_intercept=fit_intercept).fit(form(X), Y, weights)
    expected = Ridge(alpha=0.7, fit_intercept=fit_intercept).fit(X, Y, weights)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(model.predict(form(X)), expected.predict(X), rtol=1e-9, atol=1e-9)
    assert model.duality_gap_ <= 1e-6
    for k in range(3):
        [(terms, w)] = terms_of(one_of(model, k), X, Y[:, k], weights)
        least, own, _ = least_and_own(terms, w)
        assert model.objective_[k] == pytest.approx(own, rel=1e-9)
        assert own <= least * (1 + 1e-9)
        assert own * (1 - 1e-6) <= model.dual_objective_[k] <= least * (1 + 1e-9)


@pytest.mark.parametrize(("X_scale", "params"), [(1.0, {"tol": 1e-17}), (1e7, {"alpha": 1e-6, "tol": 1e-9})])
def test_targets_that_products_cannot_certify_are_fitted_by_themselves(X_scale, params):
    """Rounding counts as a gap, so that only residuals tell; the model is still good, and its gap the largest."""
    X, Y, _ = problem()
    X, model = X * X_scale, ChicleRidge(**{"max_iter": 20, **params})
    parts = [ChicleRidge(**model.get_params()).fit(X, y) for y in Y[:, :3].T]
    model.fit(X, Y[:, :3])
    np.testing.assert_allclose(model.coef_, [part.coef_ for part in parts], rtol=1e-6)
    assert model.duality_gap_ == max(part.duality_gap_ for part in parts)
    assert model.n_iter_ > 1


@pytest.mark.parametrize(
    "model",
    [
        ChicleRidge(runtime=InProcess(num_tasks=3), chunk_size=5_000, random_state=0),
        ChicleElasticNet(alpha=0.1),
        ChicleLasso(alpha=0.1, warm_start=True),
    ],
    ids=["ridge", "elastic_net", "lasso"],
)
def test_other_fits_find_what_a_fit_of_each_target_finds(model):
    """Each as if it were alone; a fit that goes on begins with the model of its target."""
    X, Y, weights = problem()
    model.fit(X, Y, weights)
    parts = [type(model)(**model.get_params(deep=False)).fit(X, y, weights) for y in Y.T]
    np.testing.assert_allclose(model.coef_, [part.coef_ for part in parts], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(model.intercept_, [part.intercept_ for part in parts])
    assert model.duality_gap_ == pytest.approx(max(part.duality_gap_ for part in parts))
    assert model.history_.method == parts[0].history_.method
    if getattr(model, "warm_start", False):
        first = model.coef_
        assert model.sparse_coef_.shape == first.shape
        np.testing.assert_allclose(model.fit(X, Y, weights).coef_, first, rtol=1e-6, atol=1e-9)


def test_shapes_are_those_of_scikit_learn():
    """A column for each target, and one of a target that is alone."""
    X, Y, _ = problem()
    for ours, theirs in ((ChicleRidge(), Ridge()), (ChicleElasticNet(), ElasticNet()), (ChicleRidgeCV(), RidgeCV())):
        for y in (Y, Y[:, 0]):
            ours.fit(X, y), theirs.fit(X, y)
            for name in ("coef_", "intercept_"):
                assert np.shape(getattr(ours, name)) == np.shape(getattr(theirs, name))
            assert ours.predict(X).shape == theirs.predict(X).shape
        assert ours.fit(X, Y[:, :3]).score(X, Y[:, :3]) == pytest.approx(theirs.fit(X, Y[:, :3]).score(X, Y[:, :3]))


def test_a_search_over_several_targets_is_that_of_scikit_learn():
    """Its fits share no rows, and are as fast as they are."""
    X, Y, _ = problem()
    search = ChicleSearchCV(ChicleRidge(), {"alpha": ALPHAS}, cv=3).fit(X, Y)
    model = ChicleRidgeCV(ALPHAS, cv=3).fit(X, Y)
    assert search.best_params_ == {"alpha": model.alpha_}
    assert search.best_score_ == pytest.approx(model.best_score_, rel=1e-9)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize(
    ("form", "has_weights", "num_targets"),  # each two of them once in each way
    [(np.asarray, False, 0), (np.asarray, True, 3), (sparse.csr_matrix, False, 3), (sparse.csr_matrix, True, 0)],
)
@pytest.mark.parametrize(
    ("params", "spectrum"),
    [
        ({"store_cv_results": True}, 1),
        ({"scoring": "neg_mean_absolute_error", "store_cv_results": True, "fit_intercept": False}, 1),
        ({"cv": 5}, 0),
        ({"cv": 5, "fit_intercept": False}, 0),
        ({"cv": 5}, 1e9),
        ({"cv": 3, "scoring": "neg_mean_squared_error"}, 0),
        ({"cv": 3, "scoring": "neg_mean_squared_error"}, 1e9),
    ],
    ids=str,
)
def test_cross_validation_finds_what_that_of_scikit_learn_finds(
    is_wide, form, has_weights, num_targets, params, spectrum, monkeypatch
):
    """The penalty, its score, the model, and what it was chosen by; of folds with one spectrum, or factors."""
    monkeypatch.setattr(targets, "SPECTRUM", spectrum)
    X, Y, weights = problem(is_wide)
    y, weights = Y[:, :num_targets] if num_targets else Y[:, 0], weights + 0.1 if has_weights else None
    model = ChicleRidgeCV(ALPHAS, **params).fit(form(X), y, weights)
    expected = RidgeCV(ALPHAS, **params).fit(X, y, weights)
    assert model.alpha_ == expected.alpha_
    assert model.best_score_ == pytest.approx(expected.best_score_, rel=1e-8)
    assert model.duality_gap_ <= 1e-6
    np.testing.assert_allclose(model.predict(form(X)), expected.predict(X), rtol=1e-8, atol=1e-8)
    if "cv" not in params:
        np.testing.assert_allclose(model.cv_results_, expected.cv_results_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scoring", [None, "neg_mean_absolute_error"])
def test_each_target_may_have_a_penalty_of_its_own(scoring):
    """As scikit-learn chooses them."""
    X, Y, weights = problem()
    Y[:, 1] = Y[::-1, 1]  # noise
    model = ChicleRidgeCV(ALPHAS, alpha_per_target=True, scoring=scoring).fit(X, Y[:, :3], weights + 0.1)
    expected = RidgeCV(ALPHAS, alpha_per_target=True, scoring=scoring).fit(X, Y[:, :3], weights + 0.1)
    assert len(set(model.alpha_.tolist())) > 1
    np.testing.assert_array_equal(model.alpha_, expected.alpha_)
    np.testing.assert_allclose(model.best_score_, expected.best_score_)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-8)


@pytest.mark.parametrize("num_tasks", [1, 2])
@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 2.0, 1: 1.0, 2: 0.5}])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_classifier_is_that_of_scikit_learn(num_tasks, class_weight, num_classes):
    """Targets are -1 and 1."""
    X, y = load_iris(return_X_y=True)
    X, y = X[20 : 50 * num_classes], y[20 : 50 * num_classes]
    model = ChicleRidgeClassifier(class_weight=class_weight, runtime=InProcess(num_tasks=num_tasks)).fit(X, y)
    expected = RidgeClassifier(class_weight=class_weight).fit(X, y)
    np.testing.assert_allclose(model.coef_, np.atleast_2d(expected.coef_), rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


def test_data_and_parameters_that_cannot_be_are_refused(tmp_path, monkeypatch):
    """With what to do instead."""
    from estimators import checks

    X, Y, weights = problem()
    folder = write(tmp_path / "folder", X, Y[:, 0])
    for model in (ChicleRidgeCV(), ChicleRidgeClassifier()):
        with pytest.raises(UsageError, match="in memory"):
            model.fit(folder, None)
    for model in (ChicleRidge(), ChicleRidgeCV()):
        with pytest.raises(ValueError, match=r"non-zero number|all weights are 0"):
            model.fit(X, Y, 0.0 * weights)
    for params in ({"alphas": [1.0, 0.0]}, {"alphas": []}, {"cv": 3, "store_cv_results": True}):
        with pytest.raises(UsageError, match=r"alphas|leave cv=None"):
            ChicleRidgeCV(**params).fit(X, Y)
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="ChicleSearchCV"):
        ChicleRidgeCV().fit(
            sparse.random(3000, 3000, density=1e-3, format="csr", random_state=rng), rng.normal(size=3000)
        )
    X[11, 2] = np.inf
    monkeypatch.setattr(checks, "MAX_VALUES_CHECKED_FIRST", 0)
    with np.errstate(invalid="ignore"), pytest.raises(DataError, match="infinity in column 2, row 11"):
        ChicleRidge().fit(X, Y)


def test_products_that_are_larger_than_the_data_are_not_made():
    """Sparse rows with many columns are fitted one target after the other, by conjugate gradients."""
    X = sparse.random(2500, 2600, density=2e-3, format="csr", random_state=0)
    Y = X @ np.random.default_rng(0).normal(size=(2600, 2))
    model = ChicleRidge().fit(X, Y)
    assert "conjugate gradients" in model.history_.method
    assert model.coef_.shape == (2, 2600)


@pytest.mark.parametrize("is_wide", [False, True])
def test_rows_that_are_left_out_are_those_of_fits_without_them(is_wide):
    """Also where squares lose what small columns say: one column is 1e7 times as large as the others."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 40 if is_wide else 6))
    X[:, 4] *= 1e7
    y = X @ (1 / X.std(axis=0)) + 0.3 * rng.normal(size=len(X))
    alphas = [0.1, 1.0, 10.0]
    model = ChicleRidgeCV(alphas, store_cv_results=True).fit(X, y)
    for i, alpha in enumerate(alphas):
        errors = []
        for row in range(len(X)):
            rest = np.arange(len(X)) != row
            means, mean = X[rest].mean(axis=0), y[rest].mean()
            augmented = np.vstack([X[rest] - means, np.sqrt(alpha) * np.eye(X.shape[1])])
            coef = np.linalg.lstsq(augmented, np.concatenate([y[rest] - mean, np.zeros(X.shape[1])]), rcond=None)[0]
            errors.append((y[row] - mean - (X[row] - means) @ coef) ** 2)
        np.testing.assert_allclose(model.cv_results_[:, i].mean(), np.mean(errors), rtol=1e-5)


def test_sparse_rows_whose_products_hide_the_penalty_are_refused():
    """They have no other way, and a wrong penalty would be chosen without a word."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)) * [1.0, 1.0, 1.0, 1e9]
    with pytest.raises(UsageError, match="scale the columns"):
        ChicleRidgeCV().fit(sparse.csr_matrix(X), X[:, 0])


@pytest.mark.parametrize("has_intercept", [True, False])
@pytest.mark.parametrize("has_weights", [True, False])
def test_products_of_a_fold_are_those_of_all_less_those_of_a_few(has_intercept, has_weights, monkeypatch):
    """But not of rows that are there twice, of less than half, or where next to nothing is left of a column."""
    X, Y, weights = problem()
    samples = targets.Samples(X=X, Y=Y, weights=weights if has_weights else None)
    products = targets.Products(samples, has_intercept=has_intercept)
    train = np.arange(150) % 5 > 0
    expected = targets.Products(samples.take(train), has_intercept=has_intercept)
    differences = products.of_fold(samples, train)
    for name in ("gram", "right", "means", "target_means", "total"):
        np.testing.assert_allclose(getattr(differences, name), getattr(expected, name), rtol=1e-10, atol=1e-10)
    X[0, 3] = 1e6
    outlier = targets.Products(samples, has_intercept=has_intercept)
    monkeypatch.setattr(targets.Products, "__init__", lambda self, samples, **_: setattr(self, "samples", samples))
    assert not hasattr(products.of_fold(samples, train), "samples")
    for rows in (np.repeat(np.arange(150), 2), np.arange(60)):
        assert len(products.of_fold(samples, rows).samples.Y) == len(rows)
    assert hasattr(outlier.of_fold(samples, train), "samples")


@pytest.mark.parametrize("spectrum", [0, 1e9])
def test_a_column_that_only_one_fold_has_and_a_constant_target(spectrum, monkeypatch):
    """Of one huge row nothing but rounding would be left in the other folds; R^2 of a constant is 1 or 0."""
    monkeypatch.setattr(targets, "SPECTRUM", spectrum)
    X, Y, _ = problem()
    X[10, 3], X[:, 5], X[140, 5] = 1e6, 0.0, 1.0
    for y in (Y, Y[:, :3]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = ChicleRidgeCV(ALPHAS, cv=5).fit(X, y)
        expected = RidgeCV(ALPHAS, cv=5).fit(X, y)
        assert model.alpha_ == expected.alpha_
        assert model.best_score_ == pytest.approx(expected.best_score_, rel=1e-6)


@pytest.mark.parametrize("spectrum", [0, 1e9])
def test_equal_columns_and_next_to_no_penalty_in_folds(spectrum, monkeypatch):
    """No factor of the products exists; scikit-learn chooses among such penalties, too."""
    monkeypatch.setattr(targets, "SPECTRUM", spectrum)
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(40, 3)), 2, axis=1)
    y = X[:, 0] + 0.1 * rng.normal(size=40)
    model = ChicleRidgeCV([1e-20, 1.0], cv=3).fit(X, y)
    assert model.best_score_ == pytest.approx(RidgeCV([1e-20, 1.0], cv=3).fit(X, y).best_score_, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, 1e200])
def test_cross_validation_names_the_column_of_a_value_that_cannot_be(value, monkeypatch):
    """Of large data, too, where values are looked at by their products."""
    monkeypatch.setattr("estimators.checks.MAX_VALUES_CHECKED_FIRST", 0)
    X = np.random.default_rng(0).normal(size=(30, 4))
    X[7, 2] = value
    with pytest.raises(DataError, match="column 2"):
        ChicleRidgeCV().fit(X, X[:, 0])


def test_certificates_of_columns_far_from_zero_are_true():
    """Rounding of the intercept counts: at 1e10 it is a part of the gap."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 40)) + 1e10, rng.normal(size=(20, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ChicleRidge(1e-6).fit(X, Y)
    wide = np.longdouble
    errors = Y - (X.astype(wide) @ model.coef_.T.astype(wide) + model.intercept_)
    true = (errors**2).sum(axis=0) + 1e-6 * (model.coef_.astype(wide) ** 2).sum(axis=1)
    assert (true - model.dual_objective_ <= model.duality_gap_ * true * (1 + 1e-6)).all()
