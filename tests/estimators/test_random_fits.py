"""Small odd tables through every linear estimator: finite models, true gaps, and no warning but where one is due."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from estimators import (
    ChicleElasticNet,
    ChicleLasso,
    ChicleLogisticRegression,
    ChicleRidge,
    ChicleSVM,
    ChicleSVR,
)

NUM_TABLES = 100


def table(seed):
    """X, real targets, labels and weights: of any scale, with constant and collinear columns."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(3, 40)), int(rng.integers(1, 60 if seed % 3 == 0 else 8))
    X = rng.normal(size=(n, d)) * 10.0 ** (rng.uniform(-8, 8) if seed % 2 else rng.uniform(-2, 2, d))
    if d > 2:
        X[:, 0] = rng.choice([0.0, 1.0, X[0, 0]])
        X[:, 1] = X[:, 2] * rng.choice([1.0, -3.0])
    y = X @ rng.normal(size=d) + rng.choice([0.0, 0.1, 1e3]) * rng.normal(size=n)
    if seed % 5 == 0:
        y = np.full(n, rng.choice([0.0, 0.1, 1e6, -1 / 3]))
    labels = rng.integers(0, 3 if seed % 4 == 0 else 2, n)
    labels[:2] = 0, 1
    weights = None if seed % 2 else rng.choice([0.0, 1e-6, 1.0, 1e3], n)
    if weights is not None:
        weights[2] = 1.0
    return X, y, labels, weights


def estimators_for(seed):
    """Each estimator, and whether its targets are real."""
    rng = np.random.default_rng(seed)
    strength, ratio = 10.0 ** rng.uniform(-4, 4), float(rng.choice([0.3, 0.7, 1.0]))
    yield ChicleRidge(alpha=strength), True
    yield ChicleLasso(alpha=strength), True
    yield ChicleElasticNet(alpha=strength, l1_ratio=ratio), True
    for loss in "epsilon_insensitive", "squared_epsilon_insensitive":
        yield ChicleSVR(C=strength, loss=loss), True
    for loss in "hinge", "squared_hinge":
        yield ChicleSVM(C=strength, loss=loss), False
    yield ChicleSVM(C=strength, loss="squared_hinge", penalty="l1"), False
    yield ChicleLogisticRegression(C=strength), False
    yield ChicleLogisticRegression(C=strength, l1_ratio=1.0), False


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_TABLES, 50))
def test_no_table_ends_in_nan_and_no_gap_is_negative(first):
    """Fifty tables through ten estimators; one that has not converged says so, and nothing else warns."""
    bad = [problem for seed in range(first, first + 50) for problem in problems_of(seed)]
    assert not bad, "\n".join(map(str, bad))


def problems_of(seed):
    """What is wrong with the fits to a table."""
    X, y, labels, weights = table(seed)
    for model, is_real in estimators_for(seed):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.fit(X, y if is_real else labels, weights)
        gap, has_warned = model.duality_gap_, any(w.category is ConvergenceWarning for w in said)
        if not np.isfinite(model.coef_).all() or not np.isfinite(model.intercept_).all():
            yield seed, model, "not finite"
        if not gap >= -1e-9 or (gap <= model.tol) == has_warned:
            yield seed, model, "gap", gap, has_warned
        yield from ((seed, model, str(w.message)) for w in said if w.category is not ConvergenceWarning)
