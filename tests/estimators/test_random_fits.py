"""Small odd tables through every linear estimator: finite models, true gaps, and no warning but where one is due."""

import warnings

import numpy as np
import pytest
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning

from estimators import (
    ChicleElasticNet,
    ChicleLasso,
    ChicleLogisticRegression,
    ChicleRidge,
    ChicleSVM,
    ChicleSVR,
)
from tests.estimators.reference_fits import Terms, least_and_own

NUM_TABLES = 100
MOST_WARNED, MOST_FALSE = 0.05, 0.02
"""Share of the fits of classifiers: the hinges crawl on some tables with features of 1e6, or weights from 1e-6 to 1e3.
Share of the fits of regressors with a warning that is false: of 500 tables 0.24 %, by the last digits of a certificate,
so that on each processor they are others."""
FALSE = "a warning that is false"


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
@pytest.mark.parametrize("first", range(0, NUM_TABLES, 25))
def test_fits_to_odd_tables_are_those_of_a_reference_solver(first):
    """Ten estimators: finite, true gaps, an objective within tol of the reference's, or a warning that is not false."""
    require_sound(range(first, first + 25), most_warned=MOST_WARNED)


def test_fits_to_tables_that_went_wrong():
    """Certificates of rounding, corners without curvature, singular second derivatives, duals of 1e-6 to 1e9."""
    require_sound((4, 11, 28, 66, 69, 89, 111), most_warned=0.1)


def require_sound(seeds, *, most_warned):
    """Fit all estimators to these tables, and ask that nothing is wrong and few fits do not converge."""
    problems, warned, false, num_classifiers, num_regressors = [], [], [], 0, 0
    for seed in seeds:
        X, y, labels, weights = table(seed)
        for model, is_real in estimators_for(seed):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model.fit(X, y if is_real else labels, weights)
            problem = problem_of(model, X, y if is_real else labels, weights, said)
            if problem == FALSE:
                false.append((seed, model))
            elif problem:
                problems.append((seed, model, problem))
            num_classifiers, num_regressors = num_classifiers + (not is_real), num_regressors + is_real
            warned += [(seed, model)] if said and not is_real else []
    assert not problems, "\n".join(map(str, problems))
    assert len(warned) <= most_warned * num_classifiers, warned
    assert len(false) <= max(1, MOST_FALSE * num_regressors), false


def problem_of(model, X, y, weights, said):
    """Say what is wrong with a fit; None where nothing is."""
    if not np.isfinite(model.coef_).all() or not np.isfinite(model.intercept_).all():
        return "not finite"
    gap, has_warned = model.duality_gap_, bool(said)
    if not gap >= -1e-9 or (gap <= model.tol) == has_warned:
        return f"gap {gap}, warned {has_warned}"
    if any(w.category is not ConvergenceWarning for w in said):
        return [str(w.message) for w in said]
    is_good = []
    for terms, w in objectives_of(model, X, y, np.ones(len(X)) if weights is None else weights):
        least, own, at_zero = least_and_own(terms, w)
        rounding = (1e-10 if terms[0].f == "abs" else 1e-20) * at_zero  # see ROUNDING in linear.certified
        is_good.append(own - least <= model.tol * max(least, rounding) + 1e-12 * least)
    if not has_warned and not all(is_good):
        return f"the objective is {own}, the least {least}"
    return FALSE if has_warned and is_regressor(model) and all(is_good) else None


def objectives_of(model, X, y, weights):
    """Yield terms and weights of each output; those of the unit vectors are the penalties."""
    n, d = X.shape
    X = np.column_stack([X, np.ones(n)])
    found = np.column_stack([np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)])

    def penalties(factor, f, count):
        return Terms(np.eye(d + 1)[:count], np.zeros(count), np.full(count, factor), f)

    if isinstance(model, ChicleRidge):
        yield [Terms(X, y, weights, "square"), penalties(model.alpha, "square", d)], found[0]
    elif isinstance(model, ChicleLasso | ChicleElasticNet):
        l1 = getattr(model, "l1_ratio", 1.0)
        net = [penalties(model.alpha * l1, "abs", d), penalties(model.alpha * (1 - l1) / 2, "square", d)]
        yield [Terms(X, y, weights / (2 * weights.sum()), "square"), *net], found[0]
    elif isinstance(model, ChicleSVR):
        f = "abs" if model.loss == "epsilon_insensitive" else "square"
        yield [Terms(X, y, model.C * weights, f), penalties(0.5, "square", d + 1)], found[0]
    elif isinstance(model, ChicleSVM) or model.penalty == "l1" or len(found) == 1:
        f = model.loss if isinstance(model, ChicleSVM) else "logistic"
        is_l1 = model.penalty == "l1"
        count = d if f == "logistic" else d + 1
        for k, w in enumerate(found):
            signs = np.where(y == model.classes_[k if len(found) > 1 else 1], 1.0, -1.0)
            rows = Terms(-signs[:, None] * X, np.full(n, 0.0 if f == "logistic" else -1.0), model.C * weights, f)
            yield [rows, penalties(1.0 if is_l1 else 0.5, "abs" if is_l1 else "square", count)], w
