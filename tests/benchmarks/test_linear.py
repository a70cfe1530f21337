"""The benchmark of linear models: what it calls the objective, who minimises it, and what misses a gate."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_diabetes, load_iris

from benchmarks import linear
from benchmarks.bars import MISSED
from benchmarks.datasets import DataSet
from benchmarks.fits import timed_fit
from benchmarks.linear_problems import MODELS, OF_NUMBERS
from benchmarks.real import REAL

BINARY = ("l1 logistic without intercept",)
SLOW = {"saga": 1e-2, "sag": 1e-2, "Snap ML": 2e-3}
"""How far above the best objective those are that stand still, or take more iterations than they may."""


def data_of(model: str, *, sparse: bool = False) -> DataSet:
    """Numbers, two classes that overlap, or three."""
    X, y = load_diabetes(return_X_y=True) if model in OF_NUMBERS else load_iris(return_X_y=True)
    if model in BINARY:
        X, y = X[50:], y[50:]
    elif model in OF_NUMBERS:
        X, y = 20 * X, y / 50
    return DataSet("", "", sp.csr_matrix(X) if sparse else X, y)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_the_objective_is_that_of_our_estimator(model: str, sparse: bool) -> None:
    """Up to the scale that scikit-learn gives to ridge; and infinite for a model that is none."""
    data = data_of(model, sparse=sparse)
    problem = MODELS[model](data, "0.3", 1e-3)
    ours = problem.ours.fit(data.X, data.y)
    scale = 2.0 if model == "ridge" else 1.0
    assert scale * problem.objective.of(ours, data) == pytest.approx(float(np.sum(ours.objective_)), rel=1e-9)
    ours.coef_ = np.full_like(ours.coef_, np.nan)
    assert problem.objective.of(ours, data) == np.inf


@pytest.mark.parametrize("model", MODELS)
def test_every_peer_minimises_the_same_function(model: str) -> None:
    """With a fine `tol` of its own each comes as close to the least as ours is certified to be; none comes below."""
    data = data_of(model)
    problem = MODELS[model](data, "0.3", 1e-6)
    timed_fit(problem.ours, data)
    found = problem.objective.of(problem.ours, data)
    assert problem.peers
    for name, make in problem.peers.items():
        peer = make(tol=1e-8)
        timed_fit(peer, data)
        excess = problem.objective.of(peer, data) / found - 1.0
        assert -1e-6 <= excess <= SLOW.get(name, 2e-5), name


def measured(monkeypatch: pytest.MonkeyPatch, **parameters: Any) -> linear.Row:
    """The row of a cell that has been measured here, with these parameters of ours."""
    data, make = data_of("svr"), MODELS["svr"]

    def problem(*arguments: Any) -> Any:
        found = make(*arguments)
        found.ours.set_params(**parameters)
        return found

    monkeypatch.setattr(linear, "loaded", lambda *_: data)
    monkeypatch.setitem(MODELS, "svr", problem)
    cell = linear.Cell("svr", "diabetes", "1", 1e-3, with_tasks=False)
    first = linear.measure(cell, Path(), True, 1, None)
    second = linear.measure(cell, Path(), True, 1, first)
    return linear.speed_row(cell, {"as typed": first, "one thread": second})


def test_a_peer_is_charged_for_the_loosest_tolerance_that_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before is not enough, and both columns have the same one."""
    row = measured(monkeypatch)
    assert row.value is not None
    assert np.isfinite(row.value)
    first, second = row.details["columns"].values()
    assert first["tols"] == second["tols"]
    data = data_of("svr")
    problem = MODELS["svr"](data, "1", 1e-3)
    loosest = linear.PEER_TOLS.index(first["tols"]["liblinear dual"])
    assert loosest > 0
    peer = problem.peers["liblinear dual"](tol=linear.PEER_TOLS[loosest - 1]).fit(data.X, data.y)
    assert problem.objective.of(peer, data) > first["best"] * (1 + 1e-3)


def test_a_model_that_is_not_the_best_misses_its_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast it was."""
    assert measured(monkeypatch, tol=0.5).verdict(judged=True) == MISSED


def test_cells_name_models_and_data_that_there_are() -> None:
    """Whatever is asked for; all cells of a data set follow each other."""
    sets = [*REAL, *linear.SHAPED]
    for models, settings, names in linear.TABLE:
        assert set(models) <= MODELS.keys()
        assert set(names) <= set(sets)
        assert settings
    order = [cell.data for cell in linear.cells(list(MODELS), sets, quick=False)]
    assert len(set(order)) == len(list(itertools.groupby(order)))
