"""ChicleRidge: scikit-learn's objective, a gap that NumPy finds again, folders, files, clusters, and bad input."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import Ridge

from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.errors import DataError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleRidge
from estimators.regression.targets import Products, Samples
from tests.estimators.test_folder import rows_of

ALPHA = 0.5


def diabetes():
    """442 samples, 10 features; targets of mean 152."""
    return load_diabetes(return_X_y=True)


def digits():
    """1797 samples, 64 features on another scale, and weights; the label as a number."""
    X, y = load_digits(return_X_y=True)
    return X + 3.0, y.astype(np.float64)


def wide():
    """200 samples, 3000 features, mostly zeros: no second derivatives of all columns."""
    rng = np.random.default_rng(3)
    X = sparse.random(200, 3000, density=0.02, format="csr", random_state=3)
    return X, X @ rng.normal(size=3000) + rng.normal(size=200) + 5.0


def objective(model, X, y, weights=None):
    """Sum of weighted squared residuals, and the penalty."""
    residuals = y - X @ model.coef_ - model.intercept_
    weights = np.ones(len(y)) if weights is None else weights
    return float(weights @ residuals**2 + model.alpha * model.coef_ @ model.coef_)


def recomputed_gap(model, X, y, weights=None):
    """(P - D) / P with the dual written out, from duals a_i = 2 s_i r_i whose sum is 0."""
    X = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=np.float64)
    s = np.ones(len(y)) if weights is None else weights
    r = y - X @ model.coef_ - model.intercept_
    if model.fit_intercept:
        r = r - (s @ r) / s.sum()
    a = 2.0 * s * r
    conjugates = np.where(s > 0, a**2 / (4.0 * np.where(s > 0, s, 1.0)), 0.0).sum()
    dual = a @ y - conjugates - (X.T @ a) @ (X.T @ a) / (4.0 * model.alpha)
    P = objective(model, X, y, weights)
    return (P - dual) / P


@pytest.mark.parametrize(
    ("has_weights", "fit_intercept", "num_tasks"), [(False, True, 1), (True, True, 3), (True, False, 1)]
)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("data", [diabetes, digits])
def test_the_model_is_that_of_scikit_learn(data, form, has_weights, fit_intercept, num_tasks):
    """To many digits, whatever the form of the rows and the number of tasks."""
    X, y = data()
    weights = np.random.default_rng(0).uniform(0.0, 2.0, size=len(y)) if has_weights else None
    params = {"alpha": ALPHA, "fit_intercept": fit_intercept}
    model = ChicleRidge(**params, chunk_size=9_000, runtime=InProcess(num_tasks=num_tasks)).fit(form(X), y, weights)
    expected = Ridge(**params).fit(X, y, weights)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-7, atol=1e-7 * np.abs(expected.coef_).max())
    assert model.intercept_ == pytest.approx(expected.intercept_, rel=1e-8)
    assert model.objective_ == pytest.approx(objective(expected, X, y, weights), rel=1e-12)
    assert model.duality_gap_ <= 1e-6
    assert recomputed_gap(model, X, y, weights) <= 1e-6
    np.testing.assert_allclose(model.predict(X), expected.predict(X), rtol=1e-6)
    assert model.score(X, y) == pytest.approx(expected.score(X, y), rel=1e-9)
    assert set(model.history_.column("num_tasks").tolist()) == {num_tasks}


@pytest.mark.parametrize("num_tasks", [1, 3])
@pytest.mark.parametrize("form", [sparse.csr_matrix, lambda X: X.toarray().astype(np.float32)])
def test_wide_data_is_solved_by_conjugate_gradients(form, num_tasks):
    """The gap is the one that is certified, and the objective within it of scikit-learn's."""
    X, y = wide()
    rows = form(X)
    X = sparse.csr_matrix(rows).astype(np.float64)
    model = ChicleRidge(alpha=ALPHA, tol=1e-6, runtime=InProcess(num_tasks=num_tasks), chunk_size=9_000).fit(rows, y)
    assert "conjugate gradients" in model.history_.method
    gap = recomputed_gap(model, X, y)
    assert gap <= 1e-6
    assert model.duality_gap_ == pytest.approx(gap, rel=1e-3, abs=1e-12)
    best = objective(Ridge(alpha=ALPHA, solver="cholesky").fit(X.toarray(), y), X, y)
    assert best * (1 - 1e-12) <= model.objective_ <= best * (1 + gap + 1e-12)
    assert model.dual_objective_ <= best * (1 + 1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e18, 1e-18])
def test_dense_float32_rows_come_within_tol_too(scale):
    """Their second derivatives are summed up in float32, if squares have room there, and products repair the rest."""
    X, y = digits()
    X = (X * scale).astype(np.float32)
    alpha = ALPHA * scale**2
    model = ChicleRidge(alpha=alpha, tol=1e-10).fit(X, y)
    assert recomputed_gap(model, X, y) <= 1e-10
    expected = Ridge(alpha=alpha).fit(X.astype(np.float64), y)
    np.testing.assert_allclose(model.predict(X), expected.predict(X), rtol=1e-3, atol=1e-3)


def test_columns_far_from_zero_keep_their_digits():
    """Products repair what a mean of a million has taken from the second derivatives."""
    X, y = diabetes()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = ChicleRidge(alpha=ALPHA, tol=1e-11).fit(X + 1e6, y)
    np.testing.assert_allclose(model.coef_, ChicleRidge(alpha=ALPHA).fit(X, y).coef_, rtol=1e-5)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize("data", [diabetes, wide, lambda: (wide()[0].toarray(), wide()[1])])
def test_small_data_is_fitted_without_a_job_as_with_one(data, is_weighted, fit_intercept):
    """Model, certificate, history and ledger tell the same."""
    X, y = data()
    weights = np.random.default_rng(0).uniform(0.0, 2.0, size=len(y)) if is_weighted else None
    params = {"alpha": ALPHA, "fit_intercept": fit_intercept, "tol": 1e-9}
    model = ChicleRidge(**params).fit(X, y, weights)
    job = ChicleRidge(**params, runtime=InProcess(num_tasks=1)).fit(X, y, weights)
    assert model.history_.method != job.history_.method
    np.testing.assert_allclose(model.coef_, job.coef_, atol=1e-4 * np.abs(job.coef_).max())
    assert model.objective_ == pytest.approx(job.objective_, rel=1e-9)
    assert recomputed_gap(model, X, y, weights) <= model.duality_gap_ + 1e-14 <= 1e-9
    assert type(model.intercept_) is type(job.intercept_)
    assert type(model.objective_) is type(job.objective_)
    assert model.history_[-1].figures == pytest.approx(
        {"objective": model.objective_, "dual_objective": model.dual_objective_, "duality_gap": model.duality_gap_}
    )
    assert model.n_iter_ == len(model.history_) == 1
    (account,) = model.ledger_
    assert (account.rows, account.owner) == (len(y), job.ledger_[0].owner)


def test_where_products_lose_digits_it_is_a_job():
    """Small columns beside large ones: their share of the products is rounding."""
    X, y = diabetes()
    X = X * 10.0 ** np.linspace(-9, 9, X.shape[1])
    model, job = (ChicleRidge(1e-20, runtime=runtime).fit(X, y) for runtime in (None, InProcess(num_tasks=1)))
    np.testing.assert_array_equal(model.coef_, job.coef_)
    assert model.history_.method == job.history_.method


def test_a_fit_that_is_cut_short_warns_and_says_how_far_it_came():
    """Its gap is true, and above tol."""
    X, y = wide()
    with pytest.warns(match="has not converged: after max_iter=4 iterations the relative duality gap is"):
        model = ChicleRidge(alpha=ALPHA, tol=1e-12, max_iter=4, runtime=InProcess(num_tasks=1)).fit(X, y)
    assert model.n_iter_ == 4
    assert model.duality_gap_ == pytest.approx(min(recomputed_gap(model, X, y), 1.0), rel=1e-6)
    assert model.duality_gap_ > 1e-12


@pytest.mark.parametrize("num_tasks", [1, 2])
@pytest.mark.filterwarnings("error")
def test_next_to_no_penalty_is_certified(num_tasks):
    """More columns than rows: rounding of the residual, divided by alpha, is no small gap; digits beside w make it one.

    A step that a certificate has refused is not repeated as it is: products follow it.
    """
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 200)), rng.normal(size=50)
    model = ChicleRidge(alpha=1e-12, max_iter=40, runtime=InProcess(num_tasks=num_tasks)).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-9)
    assert -1e-9 <= model.duality_gap_ <= 1e-6


def test_a_first_iteration_alone_leaves_the_mean():
    """max_iter=1 has only looked at the data."""
    X, y = diabetes()
    with pytest.warns(match="has not converged"):
        model = ChicleRidge(max_iter=1, runtime=InProcess(num_tasks=1)).fit(X, y)
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(y.mean())
    assert model.duality_gap_ == pytest.approx(min(recomputed_gap(model, X, y), 1.0), rel=1e-9)


def write(path, X, y, *, weights=None):
    """A chunk folder of X and real targets y, in small chunks."""
    kind = "csr" if sparse.issparse(X) else "dense"
    with ChunkFolderWriter(
        path, kind=kind, dtype=str(X.dtype), num_features=X.shape[1], has_weights=weights is not None, chunk_bytes=9_000
    ) as writer:
        writer.add(rows_of(X), y, weights)
        return writer.finish()


def test_data_that_cannot_be_is_refused():
    """Targets that are no numbers, and weights that leave nothing."""
    X, y = diabetes()
    with pytest.raises(ValueError, match="y holds text, as 'a' in row 0"):
        ChicleRidge().fit(X, np.array(["a"] * len(y), dtype=object))
    with pytest.raises(ValueError, match="Input y contains infinity"):
        ChicleRidge().fit(X, np.where(np.arange(len(y)) == 2, np.inf, y))
    with pytest.raises(ValueError, match=r"non-zero number|all weights are 0"):
        ChicleRidge().fit(X, y, np.zeros(len(y)))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_the_dual_objective_is_below_the_best_one_where_products_cancel(form):
    """Columns far from 0 without intercept: P is a small difference of large products, and the gap counts that."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(300, 5))
    X, y = Z + 1e4, 100 * Z @ np.array([1, -1, 2, -2, 0.0]) + 0.3 * rng.normal(size=300)
    model = ChicleRidge(alpha=100.0, fit_intercept=False).fit(form(X), y)
    exact = np.longdouble
    r = y - X.astype(exact) @ model.coef_.astype(exact)
    P = float(r @ r + model.alpha * model.coef_ @ model.coef_)  # of w to rounding, and so the best one
    assert model.dual_objective_ <= P
    assert abs(model.objective_ - P) <= model.duality_gap_ * P <= model.tol * P


def test_means_far_from_zero_are_those_of_the_rows():
    """Rounding of a sum of many large values is a part of no certificate, so it is taken away."""
    X = 1e11 + np.random.default_rng(0).normal(size=(50_000, 2))
    products = Products(Samples(X=X, Y=X[:, :1], weights=None), has_intercept=True)
    assert np.abs(products.adjoint(np.ones((len(X), 1)))).max() < 1e-6


def test_wide_rows_are_copied_where_they_are_few_alone():
    """A copy as float64 would be eight times as large as these bytes."""
    X = np.random.default_rng(0).integers(0, 3, size=(100, 50_000), dtype=np.uint8)
    assert "conjugate gradients" in ChicleRidge(alpha=1e3).fit(X, X[:, 0].astype(float)).history_.method


@pytest.mark.filterwarnings("error")
def test_rows_of_unlike_length_are_named():
    """A list has no shape to be asked for before it is validated."""
    with pytest.raises((DataError, ValueError), match="row"):
        ChicleRidge().fit([[1.0, 2.0], [3.0]], [1.0, 2.0])
