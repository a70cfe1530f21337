"""Data that is awkward for an optimiser: a fit ends with a true gap, and below tol or with a warning that says why."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

LOSSES = ["hinge", "squared_hinge", "logistic"]
ROWS, FEATURES = 120, 5
MAX_ITER = 400


def plain(rows=ROWS, features=FEATURES):
    """Rows and labels of classes that overlap."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features))
    return X, (X @ rng.normal(size=features) + 0.7 * rng.normal(size=rows) > 0).astype(int)


def with_column(column, values):
    """One column is something else."""
    X, y = plain()
    X[:, column] = values
    return X, y


def random_labels():
    """Every row is a support vector."""
    X, _ = plain()
    return X, np.random.default_rng(1).integers(0, 2, size=ROWS)


def single(classes):
    """The last of so many classes has one sample."""
    X, y = plain()
    y = np.zeros(ROWS, dtype=int) if classes == 2 else y
    y[17] = classes - 1
    return X, y


def zero_row():
    """One, and 0 is as good a row as any."""
    X, y = plain()
    X[5] = 0.0
    return X, y


def three_classes():
    """At random."""
    X, _ = plain()
    return X, np.random.default_rng(1).integers(0, 3, size=ROWS)


def wide():
    """More features than rows."""
    rng = np.random.default_rng(2)
    return rng.normal(size=(25, 60)), rng.integers(0, 2, size=25)


def separable():
    """By one feature."""
    X, _ = plain()
    return X, (X[:, 0] > 0).astype(int)


def scaled(factor):
    """One feature on another scale."""
    return with_column(3, factor * np.random.default_rng(3).normal(size=ROWS))


CASES = {
    "plain": (plain(), {}),
    "a constant column": (with_column(2, 3.7), {}),
    "a column of zeros": (with_column(2, 0.0), {}),
    "a row of zeros": (zero_row(), {}),
    "nothing but zeros": ((np.zeros((ROWS, FEATURES)), plain()[1]), {}),
    "duplicated rows": (tuple(np.repeat(part[:24], 5, axis=0) for part in plain()), {}),
    "each row in both classes": ((np.repeat(plain()[0][:60], 2, axis=0), np.tile([0, 1], 60)), {}),
    "equal columns": ((plain()[0][:, [0, 1, 2, 3, 1, 1]], plain()[1]), {}),
    "a feature of scale 1e8": (scaled(1e8), {}),
    "a feature of scale 1e-8": (scaled(1e-8), {}),
    "one value of 1e12": (with_column(3, np.where(np.arange(ROWS) == 7, 1e12, 1.0)), {}),
    "far from the origin": ((plain()[0] + 1e4, plain()[1]), {}),
    "random labels": (random_labels(), {}),
    "a class of one sample": (single(2), {}),
    "one of three classes has one sample": (single(3), {}),
    "weights of zero": (plain(), {"weights": np.arange(ROWS) % 3.0}),
    "a class without weight": (three_classes(), {"weights": np.where(three_classes()[1] == 1, 0.0, 1.0)}),
    "a class of weight 0": (three_classes(), {"class_weight": {0: 1.0, 1: 0.0, 2: 2.0}}),
    "more features than rows": (wide(), {}),
    "two rows": ((plain()[0][:2], np.array([0, 1])), {}),
    "C = 1e-12": (plain(), {"C": 1e-12}),
    "C = 1e8": (plain(), {"C": 1e8}),
    "separable and C = 1e8": (separable(), {"C": 1e8}),
    "wide and C = 1e8": (wide(), {"C": 1e8}),
}
SEPARABLE = "the classes look separable, and C is so large that the regularisation is negligible"
DIAGNOSES = {
    ("a feature of scale 1e8", "hinge", 1): "column 3 reaches",
    ("one value of 1e12", "hinge", 1): "column 3 reaches",
    ("separable and C = 1e8", "squared_hinge", 1): SEPARABLE,
    ("separable and C = 1e8", "squared_hinge", 4): SEPARABLE,
    ("separable and C = 1e8", "hinge", 1): SEPARABLE,
    ("separable and C = 1e8", "hinge", 4): SEPARABLE,
    ("wide and C = 1e8", "hinge", 1): SEPARABLE,
    ("wide and C = 1e8", "squared_hinge", 1): SEPARABLE,
    ("wide and C = 1e8", "squared_hinge", 4): SEPARABLE,
}
"""What a fit says of data on which it may not converge; on all other data of this file it has to."""


def fit(loss, X, y, num_tasks, *, weights=None, **params):
    """The fitted estimator, and the texts of its warnings of convergence; any other warning is an error."""
    params = {"random_state": 0, "store_duals": True, "n_threads": 1, "max_iter": MAX_ITER} | params
    params["runtime"] = InProcess(num_tasks=num_tasks)
    model = ChicleLogisticRegression(**params) if loss == "logistic" else ChicleSVM(loss=loss, **params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(X, y, sample_weight=weights)
    return model, [str(warning.message) for warning in caught]


def assert_gap_is_true(model, X, y, weights):
    """P at `coef_` and D of the duals by NumPy; what rounding of the margins does to P is granted."""
    weights = np.ones(len(y)) if weights is None else weights
    if model.class_weight is not None:
        weights = weights * np.array([model.class_weight[label] for label in y])
    counts = weights > 0
    assert not model.duals_[~counts].any()
    model.duals_ = model.duals_[counts]
    found = problems.recomputed_gaps(model, X[counts], y[counts], weights[counts], is_converged=False).max()
    sizes = np.abs(X[counts]) @ np.abs(model.coef_).T + np.abs(model.intercept_) + 1.0
    rounding = 1e-15 * model.C * (weights[counts] @ sizes).max() / model.objective_.min()
    assert abs(model.duality_gap_ - found) <= rounding + 1e-9 * max(1.0, found)


@pytest.mark.parametrize("num_tasks", [1, 4])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CASES)
def test_a_fit_converges_or_says_what_the_data_looks_like(name, loss, num_tasks):
    """Never NaN, never a gap that NumPy does not find."""
    (X, y), params = CASES[name]
    model, texts = fit(loss, X, y, num_tasks, **params)
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.intercept_).all()
    assert_gap_is_true(model, X, y, params.get("weights"))
    if model.duality_gap_ <= model.tol:
        assert not texts
        return
    assert (name, loss, num_tasks) in DIAGNOSES, texts
    [text] = texts
    assert "The data looks like this: " in text
    assert DIAGNOSES[name, loss, num_tasks] in text
