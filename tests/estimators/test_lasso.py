"""ChicleLasso and ChicleElasticNet: scikit-learn's objective, a gap that NumPy finds again, folders and bad input."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleElasticNet, ChicleLasso, ChicleRidge
from tests.estimators.test_ridge import diabetes, digits, wide

ROUNDING = 1e-11


def cancer():
    """569 samples, 30 features of scales from 1e-3 to 1e3; the class as a number."""
    X, y = load_breast_cancer(return_X_y=True)
    return X, y.astype(np.float64)


def wine():
    """178 samples, 13 features; one of them to be found from the others, which are not scaled."""
    X, _ = load_wine(return_X_y=True)
    return np.delete(X, 12, axis=1), X[:, 12]


def collinear():
    """Columns that add up to 1 for each of three groups, two that are equal, and a constant one."""
    rng = np.random.default_rng(5)
    groups = [np.eye(6)[rng.integers(0, 6, size=300)] for _ in range(3)]
    X = np.hstack([*groups, groups[0][:, :1], np.ones((300, 1))])
    return X, X @ rng.normal(size=X.shape[1]) + 0.3 * rng.normal(size=300)


SETS = (diabetes, digits, cancer, wine, collinear, wide)


def alpha_of(X, y, share, l1_ratio=1.0):
    """A share of the least alpha that leaves no weight."""
    return share * float(np.abs(X.T @ (y - y.mean())).max()) / len(y) / l1_ratio


def objective(coef, intercept, X, y, alpha, l1_ratio, weights=None):
    """scikit-learn's, written out."""
    s = np.ones(len(y)) if weights is None else weights
    r = y - X @ coef - intercept
    penalty = l1_ratio * np.abs(coef).sum() + 0.5 * (1 - l1_ratio) * coef @ coef
    return float(s @ r**2 / (2 * s.sum()) + alpha * penalty)


def recomputed_dual(coef, intercept, X, y, alpha, l1_ratio, weights=None):
    """A feasible dual value: the residual, centred, and scaled until every column is within the l1 penalty."""
    s = np.ones(len(y)) if weights is None else weights
    s, l1, l2 = s / s.sum(), alpha * l1_ratio, alpha * (1 - l1_ratio)
    r = y - X @ coef - intercept
    r = r - s @ r
    v = np.abs(np.asarray(X.T @ (s * r)))
    scales = [min(1.0, l1 / v.max()), min(s @ (r * y) / (s @ r**2), l1 / v.max())]
    scales += [1.0] if l2 else []
    excess = [np.maximum(c * v - l1, 0.0) for c in scales]
    quadratic = [0.5 * e @ e / l2 if l2 else 0.0 for e in excess]
    return max(c * (s @ (r * y)) - 0.5 * c**2 * (s @ r**2) - q for c, q in zip(scales, quadratic, strict=True))


def theirs(X, y, alpha, l1_ratio, weights=None, *, fit_intercept=True):
    """scikit-learn's objective, of coordinate descent that is given time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ElasticNet(alpha=alpha, l1_ratio=l1_ratio, fit_intercept=fit_intercept, tol=1e-10, max_iter=50_000)
        model.fit(X, y, sample_weight=weights)
    return objective(model.coef_, model.intercept_, X, y, alpha, l1_ratio, weights)


@pytest.mark.parametrize(
    ("l1_ratio", "share", "form", "num_tasks"),
    [(1.0, 0.01, np.asarray, 1), (0.5, 0.01, sparse.csr_matrix, 3), (1.0, 0.3, np.asarray, 3)],
)
@pytest.mark.parametrize("data", SETS)
def test_the_objective_is_that_of_scikit_learn_within_the_gap(data, l1_ratio, share, form, num_tasks):
    """On six data sets, and the dual objective is not above it; the certificate is that of NumPy."""
    X, y = data()
    rows = X if sparse.issparse(X) else form(X)
    alpha = alpha_of(X, y, share, l1_ratio)
    runtime = InProcess(num_tasks=num_tasks)
    model = ChicleElasticNet(alpha=alpha, l1_ratio=l1_ratio, runtime=runtime, chunk_size=9_000).fit(rows, y)
    arguments = (model.coef_, model.intercept_, X, y, alpha, l1_ratio)
    assert model.objective_ == pytest.approx(objective(*arguments), rel=1e-9)
    gap = 1 - recomputed_dual(*arguments) / model.objective_
    assert gap <= 1.5e-6
    assert model.duality_gap_ <= 1e-6
    best = theirs(X, y, alpha, l1_ratio)
    assert model.objective_ <= best * (1 + model.duality_gap_ + ROUNDING)
    assert model.dual_objective_ <= best * (1 + ROUNDING)
    assert set(model.history_.column("num_tasks").tolist()) == {num_tasks}


@pytest.mark.parametrize("num_tasks", [1, 3])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, lambda X: X.astype(np.float32)])
def test_the_model_is_that_of_lasso_with_weights(form, fit_intercept, num_tasks):
    """Weight by weight: of rows that do not depend on each other the solution is unique."""
    X, y = diabetes()
    rows = form(X)
    X = sparse.csr_matrix(rows).toarray().astype(np.float64)
    weights = np.random.default_rng(0).uniform(0.0, 2.0, size=len(y))
    params = {"alpha": 0.05, "fit_intercept": fit_intercept}
    runtime = InProcess(num_tasks=num_tasks)
    model = ChicleLasso(**params, tol=1e-9, runtime=runtime, chunk_size=9_000).fit(rows, y, weights)
    expected = Lasso(**params, tol=1e-12, max_iter=100_000).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5, atol=1e-5 * np.abs(expected.coef_).max())
    np.testing.assert_array_equal(model.coef_ != 0, expected.coef_ != 0)
    assert model.intercept_ == pytest.approx(expected.intercept_, rel=1e-6)
    np.testing.assert_array_equal(model.sparse_coef_.toarray()[0], model.coef_)


@pytest.mark.parametrize("l1_ratio", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize("data", [diabetes, digits, cancer, wine, collinear])
def test_little_data_is_fitted_without_a_job_as_with_one(data, is_weighted, l1_ratio):
    """Objective and certificate tell the same, and the duals are those of NumPy."""
    X, y = data()
    weights = np.random.default_rng(0).uniform(0.0, 2.0, size=len(y)) if is_weighted else None
    params = {"alpha": alpha_of(X, y, 0.02), "l1_ratio": l1_ratio}
    model = ChicleElasticNet(**params).fit(X, y, weights)
    job = ChicleElasticNet(**params, runtime=InProcess(num_tasks=1)).fit(X, y, weights)
    assert model.n_iter_ < job.n_iter_
    assert model.history_.method != job.history_.method
    assert model.objective_ == pytest.approx(job.objective_, rel=1e-6)
    assert model.objective_ == pytest.approx(objective(model.coef_, model.intercept_, X, y, *params.values(), weights))
    dual = recomputed_dual(model.coef_, model.intercept_, X, y, *params.values(), weights)
    assert dual >= model.dual_objective_ - 1e-9 * model.objective_
    assert 0 <= model.duality_gap_ <= 1e-6


def test_products_that_lose_digits_are_left_to_a_job():
    """Small columns beside large ones: their share of the products is rounding."""
    X, y = diabetes()
    X = X * 10.0 ** np.linspace(-9, 9, X.shape[1])
    model, job = (ChicleLasso(1e-15, runtime=runtime, max_iter=9) for runtime in (None, InProcess(num_tasks=1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y), job.fit(X, y)
    assert model.history_.method == job.history_.method
    np.testing.assert_array_equal(model.coef_, job.coef_)


def test_the_largest_alpha_leaves_no_weight():
    """The first evaluation says so."""
    X, y = diabetes()
    model = ChicleLasso(alpha=alpha_of(X, y, 1.001)).fit(X, y)
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(y.mean())
    assert ChicleLasso(alpha=alpha_of(X, y, 0.999)).fit(X, y).sparse_coef_.nnz == 1


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_without_l1_it_is_ridge_regression(num_tasks):
    """All weights at once; on wide data that is refused, and the message says what to use."""
    X, y = digits()
    runtime = InProcess(num_tasks=num_tasks)
    model = ChicleElasticNet(alpha=0.1, l1_ratio=0.0, runtime=runtime, chunk_size=9_000).fit(X, y)
    np.testing.assert_allclose(model.predict(X), ChicleRidge(alpha=0.1 * len(y)).fit(X, y).predict(X), rtol=1e-6)
    with pytest.raises(UsageError, match=r"l1_ratio=0 takes up to 2047 features.*use ChicleRidge\(alpha=alpha \* n"):
        ChicleElasticNet(l1_ratio=0.0).fit(*wide())


@pytest.mark.parametrize("scale", [1.0, 1e18, 1e-18])
def test_dense_float32_rows_come_within_tol_too(scale):
    """Their products are summed up in float32, if squares have room there, and further solutions repair the rest."""
    X, y = digits()
    X = (X * scale).astype(np.float32)
    X64 = X.astype(np.float64)
    alpha = alpha_of(X64, y, 0.001)
    model = ChicleLasso(alpha=alpha, tol=1e-10).fit(X, y)
    assert model.duality_gap_ <= 1e-10
    assert 1 - recomputed_dual(model.coef_, model.intercept_, X64, y, alpha, 1.0) / model.objective_ <= 1.1e-10


def test_columns_far_from_zero_keep_their_digits():
    """Rows are centred before they are multiplied."""
    X, y = diabetes()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = ChicleLasso(alpha=1.0).fit(X + 1e6, y)
    np.testing.assert_allclose(model.coef_, ChicleLasso(alpha=1.0).fit(X, y).coef_, rtol=1e-5)


def test_more_weights_than_a_working_set_takes_are_solved_for_in_turns():
    """An elastic net on wide data with a weight for nearly all of 3000 columns."""
    X, y = wide()
    params = {"alpha": alpha_of(X, y, 0.01, 0.05), "l1_ratio": 0.05}
    model = ChicleElasticNet(**params).fit(X, y)
    assert model.sparse_coef_.nnz > 2047
    assert model.duality_gap_ <= 1e-6
    assert model.objective_ <= theirs(X, y, **params) * (1 + model.duality_gap_)
    assert "a working set of columns" in model.history_.method


def test_a_warm_start_goes_on_from_the_last_weights():
    """Along a path of alpha on wide data, to the same objective in fewer iterations; other data begins anew."""
    X, y = wide()
    warm, num_cold, num_warm = ChicleLasso(warm_start=True), 0, 0
    for share in (0.2, 0.1, 0.05):
        alpha = alpha_of(X, y, share)
        cold = ChicleLasso(alpha=alpha).fit(X, y)
        warm.set_params(alpha=alpha).fit(X, y)
        assert warm.objective_ == pytest.approx(cold.objective_, rel=1e-6)
        num_cold, num_warm = num_cold + cold.n_iter_, num_warm + warm.n_iter_
    assert num_warm < num_cold
    assert warm.fit(X, y).n_iter_ == 2
    assert warm.fit(*diabetes()).n_features_in_ == 10


def test_pipelines_and_a_grid_search_find_what_those_of_scikit_learn_find():
    """A clone has the parameters, and a score is R^2."""
    X, y = diabetes()
    grid = {"alpha": [0.03, 0.3, 3.0], "l1_ratio": [0.2, 0.9]}
    ours, expected = (
        GridSearchCV(make_pipeline(StandardScaler(), model), {f"{name}__{key}": grid[key] for key in grid}, cv=3)
        for model, name in ((ChicleElasticNet(), "chicleelasticnet"), (ElasticNet(tol=1e-10), "elasticnet"))
    )
    ours.fit(X, y)
    expected.fit(X, y)
    assert list(ours.best_params_.values()) == list(expected.best_params_.values())
    np.testing.assert_allclose(ours.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-4)


def test_a_fit_that_is_cut_short_warns_and_says_how_far_it_came():
    """Its gap is true, and above tol."""
    X, y = wide()
    alpha = alpha_of(X, y, 0.01)
    with pytest.warns(ConvergenceWarning, match=r"after max_iter=6 iterations .* raise alpha"):
        model = ChicleLasso(alpha=alpha, max_iter=6).fit(X, y)
    dual = recomputed_dual(model.coef_, model.intercept_, X, y, alpha, 1.0)
    assert model.dual_objective_ == pytest.approx(dual, rel=1e-6)
    assert model.duality_gap_ > 1e-6
