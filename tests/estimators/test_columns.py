"""Empty columns of sparse rows: a fit goes over the others, and nothing shows it but the time."""

from functools import partial

import numpy as np
import pytest
from joblib import parallel_config
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.model_selection import GridSearchCV

from chicle_elastic.errors import DataError
from chicle_elastic.runtime.in_process import InProcess
from estimators import (
    ChicleElasticNet,
    ChicleHuber,
    ChicleLasso,
    ChicleLogisticRegression,
    ChiclePoisson,
    ChicleRidge,
    ChicleSVM,
    ChicleSVR,
)
from estimators.checks import Columns

NUM_COLUMNS = 4000
PLACES = np.sort(np.random.default_rng(1).choice(np.arange(1, NUM_COLUMNS), 40, replace=False))
FITS = {
    "hinge": partial(ChicleSVM, loss="hinge"),
    "squared hinge": ChicleSVM,
    "modified Huber": partial(ChicleSVM, loss="modified_huber"),
    "SVM, l1": partial(ChicleSVM, loss="squared_hinge", penalty="l1"),
    "logistic": ChicleLogisticRegression,
    "one-vs-rest": partial(ChicleLogisticRegression, multi_class="ovr"),
    "logistic, l1": partial(ChicleLogisticRegression, l1_ratio=1.0, multi_class="ovr"),
    "ridge": ChicleRidge,
    "lasso": partial(ChicleLasso, alpha=0.01),
    "elastic net": partial(ChicleElasticNet, alpha=0.01),
    "SVR": ChicleSVR,
    "Huber": ChicleHuber,
    "Poisson": ChiclePoisson,
}
all_fits = pytest.mark.parametrize("name", FITS)


def data(num_classes=2, seed=0):
    """Rows with values in 40 of 4,000 columns, one of which has explicit zeros alone; the same 40 alone; labels."""
    rng = np.random.default_rng(seed)
    narrow = sparse.random(200, len(PLACES), 0.3, "csr", rng=rng)
    narrow.data[narrow.indices == 7] = 0.0
    y = (narrow @ rng.normal(size=(len(PLACES), num_classes))).argmax(axis=1)
    wide = sparse.csr_matrix((narrow.data, PLACES[narrow.indices], narrow.indptr), shape=(200, NUM_COLUMNS))
    return wide, narrow, y


def assert_equal_fits(wide, narrow, X_wide, X_narrow):
    """The same bits, and 0 elsewhere."""
    expected = np.zeros((*narrow.coef_.shape[:-1], NUM_COLUMNS))
    expected[..., PLACES] = narrow.coef_
    np.testing.assert_array_equal(wide.coef_, expected)
    for attribute in ("intercept_", "n_iter_", "duality_gap_", "objective_"):
        np.testing.assert_array_equal(getattr(wide, attribute), getattr(narrow, attribute))
    np.testing.assert_allclose(_scores(wide, X_wide), _scores(narrow, X_narrow), rtol=1e-12)
    assert wide.n_features_in_ == NUM_COLUMNS
    assert np.any(narrow.coef_)


def _scores(model, X):
    return model.decision_function(X) if is_classifier(model) else model.predict(X)


@all_fits
@pytest.mark.parametrize(
    ("num_classes", "num_tasks", "is_weighted"), [(2, 1, False), (3, 1, True), (2, 3, True), (3, 3, False)]
)
def test_a_fit_is_that_without_the_empty_columns(name, num_classes, num_tasks, is_weighted):
    """With weights of the rows, with several tasks, and for a regressor with other targets."""
    wide, narrow, y = data(num_classes)
    weights = np.random.default_rng(2).uniform(0.5, 2.0, len(y)) if is_weighted else None
    make = partial(FITS[name], random_state=0, runtime=InProcess(num_tasks=num_tasks))
    assert_equal_fits(make().fit(wide, y, weights), make().fit(narrow, y, weights), wide, narrow)


@all_fits
def test_rows_without_any_value_are_fitted(name):
    """An intercept is all that can be learned."""
    X, y = sparse.csr_matrix((200, 300)), data()[2]
    model = FITS[name](random_state=0).fit(X, y)
    assert model.coef_.shape[-1] == 300
    assert not model.coef_.any()


@pytest.mark.parametrize("make", [ChicleSVM, ChicleLogisticRegression, ChicleRidge, ChicleLasso])
def test_one_column_of_many(make):
    """The last one, which the intercept follows."""
    X, y = sparse.csr_matrix(data()[1].sum(axis=1)), data()[2]
    wide = sparse.csr_matrix((X.data, X.indices + 499, X.indptr), shape=(200, 500))
    found, expected = (make(random_state=0).fit(each, y) for each in (wide, X))
    np.testing.assert_allclose(found.coef_[..., -1:], expected.coef_, rtol=1e-9)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, rtol=1e-9)
    assert not found.coef_[..., :-1].any()


@pytest.mark.parametrize("name", ["hinge", "SVM, l1", "logistic", "one-vs-rest", "lasso", "elastic net"])
def test_a_warm_start_goes_on_from_weights_of_all_columns(name):
    """Those of the last fit, whose data had values in columns that are empty now."""
    wide, narrow, y = data(3)
    last, last_y = sparse.random(200, NUM_COLUMNS, 0.01, "csr", rng=np.random.default_rng(3)), y[::-1].copy()
    warm, cold = (FITS[name](warm_start=True, random_state=0) for _ in range(2))
    warm.fit(last, last_y)
    assert np.setdiff1d(np.nonzero(warm.coef_)[-1], PLACES).size
    cold.fit(last[:, PLACES], last_y)
    cold.coef_, cold.intercept_ = warm.coef_[..., PLACES], warm.intercept_
    assert_equal_fits(warm.fit(wide, y), cold.fit(narrow, y), wide, narrow)
    assert_equal_fits(warm.fit(wide, y), cold.fit(narrow, y), wide, narrow)


@pytest.mark.parametrize(("name", "parameter"), [("squared hinge", "C"), ("logistic", "C"), ("ridge", "alpha")])
def test_a_search_has_weights_of_all_columns(name, parameter):
    """From one job for all fits, or from fits in turn, to the bit where these are jobs."""
    wide, narrow, y = data()
    runtime = InProcess() if name == "ridge" else None
    searches = [
        GridSearchCV(FITS[name](random_state=0, runtime=runtime), {parameter: [0.1, 1.0]}, cv=3) for _ in range(2)
    ]
    with parallel_config("chicle"):
        found, expected = (each.fit(X, y) for each, X in zip(searches, (wide, narrow), strict=True))
    np.testing.assert_allclose(found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])
    assert_equal_fits(found.best_estimator_, expected.best_estimator_, wide, narrow)


@pytest.mark.parametrize("name", ["hinge", "logistic", "ridge"])
def test_callbacks_see_weights_of_all_columns(name):
    """At each iteration, with the X that was passed."""
    pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 and newer have callbacks")
    wide, _, y = data(3)
    seen = []

    class Recorder:
        def setup(self, estimator, context):
            pass

        teardown = setup

        def on_fit_task_begin(self, estimator, context, *, X=None, y=None):
            assert X.shape == wide.shape

        def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
            seen.append(fitted_estimator)

    model = FITS[name](random_state=0).set_callbacks(Recorder()).fit(wide, y)
    assert len(seen) > 1
    assert all(each.coef_.shape == model.coef_.shape for each in seen)
    np.testing.assert_array_equal(_scores(seen[-1], wide), _scores(model, wide))


def test_duals_and_names_are_those_of_the_rows_that_were_passed():
    """The weights are sums of rows times duals, and a warning names what it saw."""
    wide, _, y = data()
    model = ChicleSVM(store_duals=True, random_state=0).fit(wide, y)
    signs = np.where(y == 1, 1.0, -1.0)
    np.testing.assert_allclose(wide.T @ (model.duals_[:, 0] * signs), model.coef_[0], atol=1e-9)
    wide.data[5] = np.nan
    with pytest.raises(DataError, match=f"column {wide.indices[5]}, row"):
        ChicleSVM().fit(wide, y)


def test_only_indices_are_copied_and_only_where_that_pays():
    """Rows with hardly an empty column, dense rows, and an index that is no column are as they were."""
    wide, narrow, _ = data()
    columns = Columns.of(wide)
    rows = columns.rows(wide)
    assert rows.shape == narrow.shape
    assert np.shares_memory(rows.data, wide.data)
    assert np.shares_memory(rows.indptr, wide.indptr)
    np.testing.assert_array_equal(rows.indices, narrow.indices)
    many = sparse.csr_matrix(np.ones((1000, 30)))
    many.resize(1000, 31)
    bad = wide.copy()
    bad.indices[3] = NUM_COLUMNS
    for X in (narrow, narrow.toarray(), many, bad):
        assert Columns.of(X).rows(X) is X


def test_the_model_of_a_fit_and_its_weights_are_each_other():
    """There and back, for several outputs."""
    columns = Columns.of(data()[0])
    model = np.random.default_rng(0).normal(size=3 * (len(PLACES) + 1))
    assert columns.full(model).shape == (3, NUM_COLUMNS + 1)
    np.testing.assert_array_equal(columns.of_fit(columns.full(model)), model)


@pytest.mark.parametrize("index", [-1, NUM_COLUMNS, 10**6])
def test_an_index_that_is_no_column_is_refused(index):
    """The look at the columns writes to no foreign memory."""
    wide, _, y = data()
    wide.indices[45] = index
    with pytest.raises(ValueError, match=f"the index {index}, but {NUM_COLUMNS} columns"):
        ChicleSVM().fit(wide, y)
