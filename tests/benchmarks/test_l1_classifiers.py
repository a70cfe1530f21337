"""The benchmark of l1 penalties: what it calls the objective, the strength it looks for, and who is compared."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits

from benchmarks.datasets import DataSet
from benchmarks.l1_classifiers import (
    SHARES,
    Classification,
    estimator,
    logistic_peers,
    problems,
    shaped,
    strength,
    text,
)
from benchmarks.regression import compare

KINDS = ("logistic", "no intercept", "squared hinge")


def little() -> DataSet:
    """A few rows of eight columns."""
    X, y = shaped(300)
    return DataSet("little", "little", X[:, :8].astype(np.float64), y)


@pytest.mark.parametrize("kind", KINDS)
def test_the_objective_is_that_of_our_estimator(kind: str) -> None:
    """Of two classes and of three, and infinite for a model that is none."""
    X, y = load_digits(n_class=3, return_X_y=True)
    for data in (little(), DataSet("digits", "digits", sp.csr_matrix(X), y)):
        ours = estimator(kind, 0.05, 1e-6).fit(data.X, data.y)
        problem = Classification("", ours, {})
        assert problem.of(ours, data) == pytest.approx(ours.objective_.sum(), rel=1e-10)
        ours.coef_ = np.full_like(ours.coef_, np.nan)
        assert problem.of(ours, data) == np.inf


@pytest.mark.parametrize("kind", KINDS)
def test_a_strength_leaves_about_that_share_of_the_weights(kind: str) -> None:
    """As nearly as eight columns let it."""
    data = little()
    kept = [
        np.mean(estimator(kind, strength(data, kind, share), 1e-6).fit(data.X, data.y).coef_ != 0) for share in SHARES
    ]
    assert 0.1 <= kept[0] <= 0.3
    assert 0.4 <= kept[1] <= 0.7


def test_a_comparison_has_the_certified_gap() -> None:
    """Of sparse data, with a peer that is always there."""
    X, y = text(100)
    data = DataSet("text", "text", X, y)
    found = list(problems(data, [1e-3]))
    assert [problem.name.split(",")[0] for problem in found] == [KINDS[k] for k in (0, 0, 1, 2, 2)]
    for problem in found[2:4]:
        row = compare(data, replace(problem, peers={"liblinear": problem.peers["liblinear"][2:4]}), 1)
        assert row.details["gap"] <= 1e-3
        assert row.details["excess"] <= 1e-3
        assert row.details["dual_excess"] <= 1e-10


def test_peers_of_the_free_intercept_are_not_those_that_penalise_it() -> None:
    """Whatever is installed; of ten classes only those that go one against the rest."""
    names = set(logistic_peers(little(), 1.0, fit_intercept=True))
    assert {"liblinear", "saga"} <= names
    assert not {"celer", "Snap ML"} & names
    digits = DataSet("digits", "digits", *load_digits(return_X_y=True))
    assert set(logistic_peers(digits, 1.0, fit_intercept=True)) == {"liblinear", "saga"}
