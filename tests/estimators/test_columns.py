"""Empty columns of sparse rows: a fit goes over the others, and nothing shows it but the time."""

import numpy as np
import pytest
from joblib import parallel_config
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV

from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleRidge, ChicleSVM
from estimators.checks import Columns
from tests.estimators.test_every_linear import EVERY, MODELS

NUM_COLUMNS = 4000
PLACES = np.sort(np.random.default_rng(1).choice(np.arange(1, NUM_COLUMNS), 40, replace=False))


def with_seed(model, **params):
    """Return a copy that draws the same, where it draws, and has a penalty that leaves weights."""
    usual = {"random_state": 0, "C": 1.0, "alpha": 0.01}
    return clone(model).set_params(**params, **{name: usual[name] for name in usual.keys() & vars(model).keys()})


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


@EVERY
@pytest.mark.parametrize(
    ("num_classes", "num_tasks", "is_weighted"), [(2, 1, False), (3, 1, True), (2, 3, True), (3, 3, False)]
)
def test_a_fit_is_that_without_the_empty_columns(model, num_classes, num_tasks, is_weighted):
    """With weights of the rows, with several tasks, and for a regressor with other targets."""
    wide, narrow, y = data(num_classes)
    weights = np.random.default_rng(2).uniform(0.5, 2.0, len(y)) if is_weighted else None
    model = with_seed(model, runtime=InProcess(num_tasks=num_tasks))
    assert_equal_fits(clone(model).fit(wide, y, weights), model.fit(narrow, y, weights), wide, narrow)


@EVERY
def test_rows_without_any_value_are_fitted(model):
    """An intercept is all that can be learned."""
    X, y = sparse.csr_matrix((200, 300)), data()[2]
    model = with_seed(model).fit(X, y)
    assert model.coef_.shape[-1] == 300
    assert not model.coef_.any()


@pytest.mark.parametrize("model", [model for model in MODELS if hasattr(model, "warm_start")], ids=str)
def test_a_warm_start_goes_on_from_weights_of_all_columns(model):
    """Those of the last fit, whose data had values in columns that are empty now."""
    wide, narrow, y = data(3)
    last, last_y = sparse.random(200, NUM_COLUMNS, 0.01, "csr", rng=np.random.default_rng(3)), y[::-1].copy()
    warm, cold = (with_seed(model, warm_start=True) for _ in range(2))
    warm.fit(last, last_y)
    assert np.setdiff1d(np.nonzero(warm.coef_)[-1], PLACES).size
    cold.fit(last[:, PLACES], last_y)
    cold.coef_, cold.intercept_ = warm.coef_[..., PLACES], warm.intercept_
    assert_equal_fits(warm.fit(wide, y), cold.fit(narrow, y), wide, narrow)
    assert_equal_fits(warm.fit(wide, y), cold.fit(narrow, y), wide, narrow)


@pytest.mark.parametrize(
    ("model", "parameter"), [(ChicleSVM(), "C"), (ChicleLogisticRegression(), "C"), (ChicleRidge(), "alpha")]
)
def test_a_search_has_weights_of_all_columns(model, parameter):
    """From one job for all fits, or from fits in turn, to the bit where these are jobs."""
    wide, narrow, y = data()
    runtime = InProcess() if isinstance(model, ChicleRidge) else None
    searches = [GridSearchCV(with_seed(model, runtime=runtime), {parameter: [0.1, 1.0]}, cv=3) for _ in range(2)]
    with parallel_config("chicle"):
        found, expected = (each.fit(X, y) for each, X in zip(searches, (wide, narrow), strict=True))
    np.testing.assert_allclose(found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])
    assert_equal_fits(found.best_estimator_, expected.best_estimator_, wide, narrow)


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


@pytest.mark.parametrize("index", [-1, NUM_COLUMNS, 10**6])
def test_an_index_that_is_no_column_is_refused(index):
    """The look at the columns writes to no foreign memory."""
    wide, _, y = data()
    wide.indices[45] = index
    with pytest.raises(ValueError, match=f"the index {index}, but {NUM_COLUMNS} columns"):
        ChicleSVM().fit(wide, y)
