"""Regressions where they differ from classifiers, or from each other: wide and badly scaled rows, odd targets, paths.

That objectives are the least ones, whatever the rows, weights and tasks, is in `test_optimum`.
"""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import xlogy
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, PoissonRegressor
from sklearn.preprocessing import scale

from chicle_elastic import InProcess
from chicle_elastic.errors import DataError
from chicle_elastic.solvers.linear.newton.directions import RowProducts
from estimators import ChicleElasticNet, ChicleHuber, ChicleLasso, ChiclePoisson, ChicleRidge, ChicleSVR
from estimators.regression.targets import Products, Samples
from tests.estimators.problems import diabetes, digits, wide, write
from tests.estimators.reference_fits import least_and_own, require_certified, terms_of

JOB = InProcess(num_tasks=1)


def alpha_of(X, y, share, l1_ratio=1.0):
    """Return a share of the least alpha that leaves no weight."""
    return share * float(np.abs(X.T @ (y - y.mean())).max()) / len(y) / l1_ratio


def counts():
    """Return rows and targets of a Poisson distribution."""
    X = scale(diabetes()[0])
    return X, np.random.default_rng(0).poisson(np.exp(0.3 * X[:, :5].sum(axis=1))).astype(float)


def far_from_0():
    """Return columns of unlike size, one far from 0, as the targets are, some of them outliers."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4)) * [1e-2, 1.0, 30.0, 1.0] + [0.0, 100.0, 0.0, 0.0]
    return X, np.abs(X @ [100.0, 0.1, 0.0, 0.3] + rng.standard_t(3, size=500) + 100.0).round()


# Rows.

NO_ROOM = "few_rows.MOST_BLOCK_VALUES", "trainer.FEW_VALUES"


@pytest.mark.parametrize("num_tasks", [1, 3])
@pytest.mark.parametrize("form", [sparse.csr_matrix, lambda X: X.toarray().astype(np.float32)])
@pytest.mark.parametrize(
    ("model", "bound", "has_products"),
    [(model, bound, not bound) for model in (ChicleSVR(C=0.5), ChiclePoisson()) for bound in ("", *NO_ROOM)]
    + [(model, "", False) for model in (ChicleRidge(alpha=0.5), ChicleSVR(C=0.5, loss="squared_epsilon_insensitive"))],
    ids=str,
)
def test_wide_rows_take_products_of_rows_or_conjugate_gradients(
    model, bound, has_products, form, num_tasks, monkeypatch
):
    """To the gap that is certified: the least objective is that of the rows in coordinates of their own space. With no
    room for products of rows, or for the rows in a message, it is as with more rows."""
    X, y = wide()
    steps, solver = [], RowProducts.solver
    monkeypatch.setattr(RowProducts, "solver", lambda *arguments: steps.append(1) or solver(*arguments))
    if bound:
        monkeypatch.setattr(f"chicle_elastic.solvers.linear.newton.{bound}", 0)
    rows, y = form(X[:60]), np.abs(y[:60]).round()
    model = clone(model).set_params(fit_intercept=False, runtime=InProcess(num_tasks=num_tasks), chunk_size=9_000)
    model.fit(rows, y)
    assert bool(steps) == has_products
    if bound == NO_ROOM[1]:
        assert "alone" not in model.history_.method
    narrow = np.linalg.qr(sparse.csr_matrix(rows).toarray().astype(float).T)[1].T
    [(terms, _)] = terms_of(model, narrow, y)
    least, _, _ = least_and_own(terms, np.zeros(len(y)))
    assert model.dual_objective_ <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= model.objective_ <= least * (1 + model.duality_gap_ + 1e-9)
    assert model.duality_gap_ <= model.tol


@pytest.mark.parametrize("factor", [1.0, 1e18, 1e-18])
@pytest.mark.parametrize("kind", [ChicleRidge, ChicleLasso])
def test_dense_float32_rows_come_within_tol_too(kind, factor):
    """Products are summed up in float32, if squares have room there, and further ones repair the rest."""
    X, y = digits()
    X, y = ((X + 3.0) * factor).astype(np.float32), y.astype(float)
    alpha = 0.5 * factor**2 if kind is ChicleRidge else alpha_of(X.astype(float), y, 0.001)
    require_certified(kind(alpha=alpha, tol=1e-9).fit(X, y), X, y)


@pytest.mark.parametrize("model", [ChicleRidge(alpha=0.5, tol=1e-11), ChicleLasso(alpha=1.0)], ids=str)
def test_columns_far_from_zero_keep_their_digits(model):
    """Products repair what a mean of a million has taken from the second derivatives."""
    X, y = diabetes()
    X = scale(X)
    np.testing.assert_allclose(clone(model).fit(X + 1e6, y).coef_, clone(model).fit(X, y).coef_, rtol=1e-5)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize(
    ("model", "data"),
    [
        (ChicleRidge(alpha=0.5), diabetes),
        (ChicleRidge(alpha=0.5), wide),
        (ChicleRidge(alpha=0.5), lambda: (wide()[0].toarray(), wide()[1])),
        *(
            (ChicleElasticNet(alpha=0.1, l1_ratio=share), data)
            for share in (1.0, 0.5, 0.0)
            for data in (diabetes, digits)
        ),
    ],
)
def test_little_data_is_fitted_without_a_job_as_with_one(model, data, is_weighted, fit_intercept):
    """Model, certificate, history and ledger tell the same."""
    X, y = data()
    weights = np.random.default_rng(0).uniform(0.0, 2.0, size=len(y)) if is_weighted else None
    model = clone(model).set_params(fit_intercept=fit_intercept, tol=1e-9).fit(X, y.astype(float), weights)
    job = clone(model).set_params(runtime=JOB).fit(X, y.astype(float), weights)
    assert model.history_.method != job.history_.method
    assert model.n_iter_ < job.n_iter_
    np.testing.assert_allclose(model.coef_, job.coef_, atol=1e-4 * np.abs(job.coef_).max())
    assert model.objective_ == pytest.approx(job.objective_, rel=1e-9)
    assert -1e-14 <= model.duality_gap_ <= 1e-9
    assert type(model.intercept_) is type(job.intercept_)
    assert type(model.objective_) is type(job.objective_)
    assert model.history_[-1].figures.items() >= {"objective": model.objective_}.items()
    (account,) = model.ledger_
    assert (account.rows, account.owner) == (len(y), job.ledger_[0].owner)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", [ChicleRidge(1e-20), ChicleLasso(1e-15, max_iter=9)], ids=str)
def test_products_that_lose_digits_are_left_to_a_job(model):
    """Small columns beside large ones: their share of the products is rounding."""
    X, y = diabetes()
    X = X * 10.0 ** np.linspace(-9, 9, X.shape[1])
    here, job = (clone(model).set_params(runtime=runtime).fit(X, y) for runtime in (None, JOB))
    assert here.history_.method == job.history_.method
    np.testing.assert_array_equal(here.coef_, job.coef_)


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


# Penalties.


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


def test_the_largest_alpha_leaves_no_weight():
    """The first evaluation says so."""
    X, y = diabetes()
    model = ChicleLasso(alpha=alpha_of(X, y, 1.001)).fit(X, y)
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(y.mean())
    assert ChicleLasso(alpha=alpha_of(X, y, 0.999)).fit(X, y).sparse_coef_.nnz == 1


def test_without_l1_it_is_ridge_regression():
    """On any number of columns."""
    X, y = digits()
    model = ChicleElasticNet(alpha=0.1, l1_ratio=0.0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), ChicleRidge(alpha=0.1 * len(y)).fit(X, y).predict(X), rtol=1e-6)
    X, y = wide()
    model = ChicleElasticNet(alpha=0.1, l1_ratio=0.0, tol=1e-9).fit(X, y)
    np.testing.assert_allclose(model.predict(X), ChicleRidge(alpha=0.1 * len(y)).fit(X, y).predict(X), rtol=1e-3)


@pytest.mark.parametrize("num_tasks", [1, 3])
def test_more_weights_than_a_working_set_takes_are_solved_for_in_turns(num_tasks):
    """An elastic net on wide data with a weight for nearly all of 3000 columns."""
    X, y = wide()
    params = {"alpha": alpha_of(X, y, 0.01, 0.05), "l1_ratio": 0.05}
    model = ChicleElasticNet(**params, runtime=InProcess(num_tasks=num_tasks), chunk_size=9_000).fit(X, y)
    assert model.sparse_coef_.nnz > 2047
    assert model.duality_gap_ <= 1e-6
    r, w = y - model.predict(X), model.coef_
    penalty = 0.05 * np.abs(w).sum() + 0.475 * w @ w
    assert model.objective_ == pytest.approx(r @ r / (2 * len(y)) + params["alpha"] * penalty, rel=1e-9)
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


def test_large_C_and_targets_on_the_edge_of_the_tube():
    """Whole numbers with epsilon 0.5: many residuals are at the corner at once, and steps have to be short."""
    X, y = digits()
    model = ChicleSVR(C=100.0, epsilon=0.5).fit(X / 16, y)
    assert model.duality_gap_ <= 1e-3
    assert model.n_iter_ < 300


@pytest.mark.parametrize(
    ("model", "data", "advice"),
    [
        (ChicleRidge(alpha=0.5, tol=1e-12, max_iter=4, runtime=JOB), wide, "raise"),
        (ChicleRidge(max_iter=1, runtime=JOB), diabetes, "raise"),
        (ChicleLasso(alpha=1e-3, max_iter=6), wide, "raise alpha"),
        (ChicleSVR(C=10.0, max_iter=2, tol=1e-9, runtime=JOB), far_from_0, "lower C"),
        (ChiclePoisson(max_iter=2), counts, "raise"),
    ],
)
def test_a_fit_that_is_cut_short_warns_and_says_how_far_it_came(model, data, advice):
    """Its gap is true, and above tol; a first iteration has only looked at the data, and leaves the mean."""
    X, y = data()
    words = rf"has not converged: after max_iter={model.max_iter} iterations? the relative duality gap is .*{advice}"
    with pytest.warns(ConvergenceWarning, match=words):
        model.fit(X, y)
    assert model.duality_gap_ > model.tol
    if data is not wide:
        require_certified(model, X, y, tol=np.inf)
    if model.max_iter == 1:
        assert not model.coef_.any()
        assert model.intercept_ == pytest.approx(y.mean())


# Huber and Poisson.


def huber_objective(model, X, y, weights):
    """Return scikit-learn's objective, written out."""
    r = np.abs(y - model.predict(X)) / model.scale_
    h = np.where(r < model.epsilon, r**2, 2 * model.epsilon * r - model.epsilon**2)
    return weights @ (model.scale_ * (1 + h)) + model.alpha * model.coef_ @ model.coef_


def poisson_objective(model, X, y, weights):
    """Return scikit-learn's objective, written out."""
    mu = model.predict(X)
    losses = weights @ (mu - xlogy(y, mu) - y + xlogy(y, y)) / weights.sum()
    return losses + 0.5 * model.alpha * model.coef_ @ model.coef_


@pytest.mark.filterwarnings("ignore:.*lbfgs failed to converge")
@pytest.mark.parametrize(
    ("data", "form", "runtime"),
    [
        (counts, np.asarray, None),
        (far_from_0, sparse.csr_matrix, None),
        (far_from_0, np.asarray, InProcess(num_tasks=2, changes=((3, 5), (6, 1)))),
    ],
)
@pytest.mark.parametrize(
    ("model", "peer", "objective"),
    [
        (ChicleHuber(alpha=0.1), HuberRegressor(alpha=0.1, tol=1e-9, max_iter=20_000), huber_objective),
        (
            ChiclePoisson(alpha=0.01),
            PoissonRegressor(alpha=0.01, solver="newton-cholesky", tol=1e-9, max_iter=1000),
            poisson_objective,
        ),
    ],
    ids=["huber", "poisson"],
)
def test_other_losses_come_to_the_optimum_of_scikit_learn(model, peer, objective, data, form, runtime):
    """With weights, on any tasks; outliers are those of the scale."""
    X, y = data()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    model = clone(model).set_params(tol=1e-7, runtime=runtime).fit(form(X), y, weights)
    assert model.duality_gap_ <= 1e-7
    assert model.objective_ == pytest.approx(objective(model, X, y, weights), rel=1e-9)
    assert model.objective_ <= objective(peer.fit(X, y, weights), X, y, weights) * (1 + 1e-6)
    if isinstance(model, ChicleHuber):
        assert model.outliers_.tolist() == (np.abs(y - model.predict(X)) > 1.35 * model.scale_).tolist()


@pytest.mark.parametrize("kind", [ChicleHuber, ChiclePoisson])
def test_the_certificate_is_true_without_an_intercept_and_on_wide_rows(kind):
    """The dual from `coef_` alone bounds what any other model comes to."""
    rng = np.random.default_rng(0)
    X = sparse.random(4000, 2500, 0.01, "csr", random_state=0)
    y = rng.poisson(np.exp(0.5 * np.asarray(X[:, :50].sum(axis=1)).ravel())).astype(float)
    model = kind(alpha=1.0, fit_intercept=False).fit(X, y)
    assert model.intercept_ == 0
    assert model.duality_gap_ <= 1e-3
    assert kind(alpha=1.0, fit_intercept=False, tol=1e-7).fit(X, y).objective_ >= model.dual_objective_


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(15, 30), (90, 30), (200, 3)])
def test_targets_without_noise_are_certified_and_bring_the_scale_to_0(shape, seed):
    """Of the models without residuals it is the one with the least weights, whatever the intercept is."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=shape) * 10.0 ** rng.integers(-2, 3)
    y = X @ rng.normal(size=shape[1]) + 10.0 * rng.normal()
    model = ChicleHuber(alpha=10.0 ** rng.integers(-5, 0)).fit(X, y)
    least = np.linalg.pinv(X - X.mean(axis=0)) @ (y - y.mean())
    assert model.duality_gap_ <= model.tol
    assert model.scale_ < 1e-4 * np.abs(y).max()
    assert model.objective_ <= (1.0 + model.tol) * model.alpha * least @ least


@pytest.mark.parametrize("num_tasks", [1, 3])
def test_an_objective_that_is_rounding_of_the_targets_ends_the_fit(num_tasks):
    """Duals are rounding, too, but those of 0 are as good as any: no steps are taken in vain."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 300)) * (rng.random((40, 300)) < 0.1)
    model = ChicleHuber(runtime=InProcess(num_tasks=num_tasks), max_iter=40, chunk_size=9_000)
    model.fit(X, 1e-20 * rng.normal(size=40))
    assert model.duality_gap_ <= model.tol
    assert model.n_iter_ < 30


def test_a_scale_that_changes_nothing_stays():
    """With epsilon=1 and residuals beyond the scale the objective does not know of it."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 100)), np.sign(rng.normal(size=40))
    model = ChicleHuber(epsilon=1.0, alpha=1e3, fit_intercept=False, runtime=InProcess(num_tasks=3)).fit(X, y)
    assert model.duality_gap_ <= model.tol
    assert model.n_iter_ <= 5


def test_counts_of_0_alone_have_a_mean_of_0():
    """Whose logarithm is no number: the model is finite, and says next to nothing."""
    X = np.random.default_rng(0).normal(size=(50, 3))
    model = ChiclePoisson(max_iter=60).fit(X, np.zeros(50))
    assert np.isfinite(model.intercept_)
    assert model.predict(X).max() < 1e-3


# Targets that cannot be.


@pytest.mark.filterwarnings("error")
def test_targets_and_weights_that_cannot_be_are_refused(tmp_path):
    """By name and value, of arrays and folders; rows of weight 0 do not count."""
    X, y = counts()
    with pytest.raises(ValueError, match="y holds text, as 'a' in row 0"):
        ChicleRidge().fit(X, np.array(["a"] * len(y), dtype=object))
    with pytest.raises(ValueError, match="Input y contains infinity"):
        ChicleRidge().fit(X, np.where(np.arange(len(y)) == 2, np.inf, y))
    with pytest.raises(ValueError, match=r"non-zero number|all weights are 0"):
        ChicleRidge().fit(X, y, np.zeros(len(y)))
    with pytest.raises(DataError, match=r"takes targets y >= 0, and the data has -1"):
        ChiclePoisson().fit(X, y - 1.0)
    with pytest.raises(DataError, match=r"takes targets y >= 0"):
        ChiclePoisson(runtime=InProcess(num_tasks=2)).fit(write(tmp_path / "data", X, y - 1.0))
    assert ChiclePoisson().fit(X, y - 1.0, (y > 0).astype(float)).duality_gap_ <= 1e-3
    with pytest.raises((DataError, ValueError), match="row"):
        ChicleRidge().fit([[1.0, 2.0], [3.0]], [1.0, 2.0])  # a list has no shape to be asked for


@pytest.mark.parametrize("kind", [ChicleHuber, ChiclePoisson])
def test_targets_that_are_all_the_same_and_a_constant_feature(kind):
    """The intercept says it all."""
    X = np.column_stack([np.ones(50), np.random.default_rng(0).normal(size=50)])
    model = kind(alpha=1.0).fit(X, np.full(50, 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0, rtol=1e-3)
    assert np.isfinite(model.coef_).all()
