"""The benchmark of the regressors: what it calls the objective, and what it would not let pass."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from benchmarks.datasets import DataSet
from benchmarks.regression import compare, l1, problems, ridge, shaped, svr, text


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_the_objective_is_least_at_the_model_of_ridge(form: object) -> None:
    """Whatever the form of the rows; a step aside in any direction is worse."""
    X, y = load_diabetes(return_X_y=True)
    data = DataSet("diabetes", "diabetes", form(X), y)  # type: ignore[operator]
    problem = ridge(data, 0.3)
    model = Ridge(alpha=0.3).fit(X, y)
    least = problem.of(model, data)
    for direction in np.random.default_rng(0).standard_normal((5, X.shape[1])):
        aside = Ridge(alpha=0.3).fit(X, y)
        aside.coef_ = model.coef_ + 1e-2 * direction
        assert problem.of(aside, data) > least


def test_a_peer_of_the_lasso_finds_the_same_objective() -> None:
    """At the least alpha that leaves no weight there is none."""
    data = DataSet("diabetes", "diabetes", *load_diabetes(return_X_y=True))
    for share, is_empty in ((1.001, True), (0.5, False)):
        problem = l1(data, share, 1.0)
        model = problem.ours.fit(data.X, data.y)
        assert problem.of(model, data) == pytest.approx(model.objective_, rel=1e-12)
        assert (not model.coef_.any()) == is_empty


def test_a_comparison_has_the_certified_gap_and_all_peers_that_arrive() -> None:
    """On little data of both kinds, for some of each problem's kinds."""
    for data in (DataSet("shaped", "shaped", *shaped(200)), DataSet("text", "text", *text(100))):
        for problem in list(problems(data))[::7]:
            row = compare(data, problem, 1)
            assert row.details["gap"] <= problem.ours.tol
            assert row.details["excess"] <= problem.ours.tol
            assert row.value is not None
            assert np.isfinite(row.value)


def test_a_model_that_is_not_the_best_misses_the_gate() -> None:
    """However fast it was."""
    data = DataSet("diabetes", "diabetes", *load_diabetes(return_X_y=True))
    problem = svr(data, "epsilon_insensitive", 100.0)
    problem.ours.set_params(max_iter=1)
    assert compare(data, problem, 1).verdict(judged=True) == "GATE MISSED"
