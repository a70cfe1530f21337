"""One side of the benchmark of searches, in a process of its own: it loads and warms up, then it searches."""

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import LinearSVC

from benchmarks.datasets import DataSet
from benchmarks.real import load_real
from estimators import ChicleSearchCV, ChicleSVM

LOADED: dict[str, DataSet] = {}
CS = np.logspace(-3, 1, 8)
FOLDS = 5
JOBS = 2
WARM_ROWS = {"a9a": 20_000, "fashion": 2_000}
"""Rows of a first small search, which compiles and loads what the measured one needs: kernels, worker processes."""
OURS, HALVING = "ChicleSearchCV", "ChicleSearchCV, factor=3"
CHICLE, LINEAR_SVC = "GridSearchCV, ChicleSVM", "GridSearchCV, LinearSVC"
THREADS = "GridSearchCV, ChicleSVM on threads"


def search(side: str, loss: Any, tol: float, Cs: Any) -> Any:
    """The search of one side."""
    grid, cv = {"C": list(Cs)}, StratifiedKFold(FOLDS)
    if side == LINEAR_SVC:
        return GridSearchCV(LinearSVC(loss=loss, random_state=0), grid, cv=cv, n_jobs=JOBS)
    estimator = ChicleSVM(loss=loss, tol=tol, random_state=0)
    if side.startswith("GridSearchCV"):
        return GridSearchCV(estimator.set_params(n_threads=1), grid, cv=cv, n_jobs=JOBS)
    return ChicleSearchCV(estimator, grid, cv=cv, n_jobs=JOBS, factor=3 if side == HALVING else None)


def run(side: str, loss: str, tol: float, Cs: Any, data: DataSet) -> Any:
    """Fit it."""
    from joblib import parallel_config

    found = search(side, loss, tol, Cs)
    with parallel_config("threading" if side == THREADS else "loky"):
        return found.fit(data.X, data.y)


def prepare(spec: dict[str, Any]) -> tuple[int, int]:
    """Load the data and search a part of it, so that all is compiled and started; process id, bytes of the data."""
    warnings.simplefilter("ignore")
    data = LOADED["data"] = load_real(spec["data"], Path(spec["folder"]), quick=spec["quick"])
    rows = slice(0, WARM_ROWS[spec["data"]])
    run(spec["side"], spec["loss"], spec["tol"], CS[-2:], DataSet("warm", "warm", data.X[rows], data.y[rows]))
    return os.getpid(), sum(part.nbytes for part in data.parts())


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Search, in a process that is ready."""
    wall_s = time.perf_counter()
    found = run(spec["side"], spec["loss"], spec["tol"], CS, LOADED["data"])
    return {
        "wall_s": time.perf_counter() - wall_s,
        "refit_s": found.refit_time_,
        "best_C": float(found.best_params_["C"]),
        "best_score": float(found.best_score_),
        "Cs": [float(params["C"]) for params in found.cv_results_["params"]],
        "scores": found.cv_results_["mean_test_score"].tolist(),
        "fit_s": found.cv_results_["mean_fit_time"].tolist(),
    }
