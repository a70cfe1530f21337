"""The benchmark of ridge regression: what it calls the objective, and what it would not let pass."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from benchmarks import ridge
from benchmarks.datasets import DataSet
from benchmarks.ridge import compare, objective, shaped, text


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_the_objective_is_least_at_the_model_of_ridge(form: object) -> None:
    """Whatever the form of the rows; a step aside in any direction is worse."""
    X, y = load_diabetes(return_X_y=True)
    data = DataSet("diabetes", "diabetes", form(X), y)  # type: ignore[operator]
    model = Ridge(alpha=0.3).fit(X, y)
    least = objective(model, data, 0.3)
    for direction in np.random.default_rng(0).standard_normal((5, X.shape[1])):
        aside = Ridge(alpha=0.3).fit(X, y)
        aside.coef_ = model.coef_ + 1e-2 * direction
        assert objective(aside, data, 0.3) > least


def test_a_comparison_has_the_certified_gap_and_all_peers_that_arrive() -> None:
    """On little data of both kinds."""
    for data in (DataSet("shaped", "shaped", *shaped(500)), DataSet("text", "text", *text(300))):
        [row] = compare(data, 1.0, 1)
        assert row.details["gap"] <= ridge.TOL
        assert row.details["excess"] <= ridge.TOL
        assert row.value is not None
        assert np.isfinite(row.value)
        assert set(row.details["cpu_s"]) > {"ours"}


def test_a_model_that_is_not_the_best_misses_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast it was."""
    monkeypatch.setattr(ridge, "TOL", 1e-30)  # ours says that it is that good, and is not
    [row] = compare(DataSet("text", "text", *text(300)), 1.0, 1)
    assert row.verdict(judged=True) == "GATE MISSED"
