"""What every linear estimator promises in the same words: of folders, of model files, of values that are none."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError

from chicle_elastic.errors import DataError, UsageError
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
from tests.estimators import problems

TOL = 1e-7
MODELS = [
    ChicleRidge(alpha=0.5),
    ChicleLasso(alpha=0.1, fit_intercept=False),
    ChicleElasticNet(alpha=0.1, l1_ratio=0.8),
    ChicleSVR(C=0.1, epsilon=0.3),
    ChicleHuber(alpha=0.1),
    ChiclePoisson(alpha=0.1),
    ChicleSVM(C=0.01, store_duals=True),
    ChicleSVM(C=0.01, loss="squared_hinge"),
    ChicleSVM(C=0.01, loss="modified_huber"),
    ChicleSVM(C=0.01, loss="squared_hinge", penalty="l1"),
    ChicleLogisticRegression(C=0.1, store_duals=True),
    ChicleLogisticRegression(C=0.1, multi_class="ovr"),
    ChicleLogisticRegression(C=0.1, l1_ratio=0.8),
]
EVERY = pytest.mark.parametrize("model", MODELS, ids=str)


def data_of(model):
    """Some digits, whose labels are numbers to a regression."""
    X, y = problems.digits()
    return X[:400], y[:400] if is_classifier(model) else y[:400].astype(float)


@EVERY
def test_a_folder_and_its_arrays_give_the_same_model(model, tmp_path):
    """With targets, labels and weights of the folder, and everything in the order of the rows that it was made from."""
    (X, y), form = data_of(model), sparse.csr_matrix if MODELS.index(model) % 2 else np.asarray
    weights = np.random.default_rng(0).uniform(0.1, 2.0, size=len(y))
    labels = problems.write(tmp_path / "labels", form(X), y, classes=tuple(range(10)), weights=weights)
    targets = problems.write(tmp_path / "targets", form(X), y.astype(float), weights=weights)
    folder, other = (labels, targets) if is_classifier(model) else (targets, labels)
    expected = clone(model).set_params(tol=TOL).fit(X, y, weights)
    found = clone(model).set_params(tol=TOL).fit(folder)
    np.testing.assert_allclose(found.objective_, expected.objective_, rtol=2 * TOL)
    assert not np.array_equal(np.concatenate([chunk.row_ids for chunk in folder]), np.arange(len(y)))
    for name in {"predict", "decision_function", "predict_proba"} & {*dir(expected)}:
        np.testing.assert_allclose(getattr(expected, name)(folder), getattr(expected, name)(X), rtol=1e-9, atol=1e-12)
    assert expected.score(folder) == pytest.approx(expected.score(X, y, weights), rel=1e-9)
    if hasattr(expected, "duals_"):
        assert problems.recomputed_gaps(found, X, y, weights).max() <= 2 * TOL
    with pytest.raises(UsageError, match="needs class labels" if is_classifier(model) else "needs real targets"):
        clone(model).fit(other)
    with pytest.raises(UsageError, match="leave y out"):
        clone(model).fit(folder, y)


@EVERY
def test_a_model_file_and_a_pickle_bring_all_back(model, tmp_path):
    """Parameters, attributes and history; and not in place of another estimator's."""
    X, y = data_of(model)
    model = clone(model).fit(X, y)
    model.save(tmp_path / "model.npz")
    loaded = type(model).load(tmp_path / "model.npz")
    for each in (loaded, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(each.predict(X), model.predict(X))
        assert each.get_params() == model.get_params()
        for name, value in vars(model).items():
            if name in ("outliers_", "n_samples_seen_") and each is loaded:
                continue  # they are about rows, or products of rows, that a file does not have
            if name.endswith("_") and isinstance(value, int | float | str | np.ndarray):
                np.testing.assert_array_equal(getattr(each, name), value, err_msg=name)
    assert loaded.history_.method == model.history_.method
    stranger = next(type(other) for other in MODELS if type(other) is not type(model))
    with pytest.raises(UsageError, match=f"holds a {type(model).__name__}, not a {stranger.__name__}"):
        stranger.load(tmp_path / "model.npz")


@EVERY
def test_values_that_are_not_finite_are_named(model):
    """With column and row."""
    X, y = data_of(model)
    X = X.copy()
    X[5, 1] = np.nan
    with pytest.raises(DataError, match="NaN in column 1, row 5"):
        clone(model).fit(X, y)


@EVERY
def test_a_second_fit_leaves_no_trace_of_the_first(model, tmp_path):
    """Other classes, features and names: the attributes are those of a fresh fit, before which nothing is exported."""
    X, y = data_of(model)
    usual = {"store_duals": False, "random_state": 0}
    fresh = clone(model).set_params(**{name: usual[name] for name in usual.keys() & model.get_params().keys()})
    with pytest.raises(NotFittedError):
        fresh.save(tmp_path / "model.npz")
    with pytest.raises(NotFittedError):
        fresh.to_sklearn()
    again = clone(model).fit(pd.DataFrame(X).add_prefix("pixel "), y).set_params(**fresh.get_params())
    few = y < 2
    fresh.fit(X[few, :30], y[few])
    again.fit(X[few, :30], y[few])
    assert vars(again).keys() == vars(fresh).keys()
    assert again.coef_.shape == fresh.coef_.shape
    np.testing.assert_array_equal(again.predict(X[:, :30]), fresh.predict(X[:, :30]))
