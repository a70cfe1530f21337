"""Small odd tables through every linear estimator: finite models, gaps that are true, and no false warning."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.svm import LinearSVC, LinearSVR

from estimators import (
    ChicleElasticNet,
    ChicleLasso,
    ChicleLogisticRegression,
    ChicleRidge,
    ChicleSVM,
    ChicleSVR,
)

NUM_TABLES = 500


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


def pairs(seed):
    """Estimators of ours; a function of theirs, and whether targets are real."""
    rng = np.random.default_rng(seed)
    strength = 10.0 ** rng.uniform(-4, 4)
    ratio = float(rng.choice([0.3, 0.7, 1.0]))
    yield ChicleRidge(alpha=strength), Ridge(alpha=strength, solver="svd"), True
    yield ChicleLasso(alpha=strength), ElasticNet(alpha=strength, l1_ratio=1.0, max_iter=20_000, tol=1e-10), True
    net = ElasticNet(alpha=strength, l1_ratio=ratio, max_iter=20_000, tol=1e-10)
    yield ChicleElasticNet(alpha=strength, l1_ratio=ratio), net, True
    for loss, theirs in ("epsilon_insensitive", LinearSVR), ("squared_epsilon_insensitive", LinearSVR):
        yield ChicleSVR(C=strength, loss=loss), theirs(C=strength, loss=loss, tol=1e-8, random_state=0), True
    for loss in "hinge", "squared_hinge":
        yield ChicleSVM(C=strength, loss=loss), LinearSVC(C=strength, loss=loss, tol=1e-8, random_state=0), False
    ours = ChicleSVM(C=strength, loss="squared_hinge", penalty="l1")
    yield ours, LinearSVC(C=strength, penalty="l1", dual=False, tol=1e-8, random_state=0), False
    yield ChicleLogisticRegression(C=strength), LogisticRegression(C=strength, tol=1e-10), False
    yield ChicleLogisticRegression(C=strength, l1_ratio=1.0), None, False


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_TABLES, 50))
def test_no_table_ends_in_nan_or_in_a_false_warning(first):
    """Fifty tables through ten estimators."""
    bad = [problem for seed in range(first, first + 50) for problem in problems_of(seed)]
    assert not bad, "\n".join(map(str, bad))


def problems_of(seed):
    """What is wrong with the fits to a table."""
    X, y, labels, weights = table(seed)
    for ours, _, is_real in pairs(seed):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ours.fit(X, y if is_real else labels, weights)
        gap, primal = ours.duality_gap_, np.sum(ours.objective_)
        if not np.isfinite(ours.coef_).all() or not np.isfinite(ours.intercept_).all():
            yield seed, ours, "not finite"
        if not -1e-9 <= gap <= ours.tol and not said:
            yield seed, ours, "gap", gap
        if said:
            yield seed, ours, str(said[0].message)[:150], gap, primal
