"""One side of the benchmark of searches, in a process of its own: it loads and warms up, then it searches."""

import os
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import LinearSVC

from benchmarks.datasets import DataSet
from benchmarks.real import load_real
from estimators import ChicleLogisticRegression, ChicleRidgeCV, ChicleSearchCV, ChicleSVM

LOADED: dict[str, Any] = {}
CS = np.logspace(-3, 1, 8)
FOLDS = 5
JOBS = 2
WARM_ROWS = {"a9a": 20_000, "fashion": 2_000, "probe": 2_000, "targets": 500}
"""Rows of a first small search, which compiles and loads what the measured one needs: kernels, worker processes."""
OURS, HALVING = "ChicleSearchCV", "ChicleSearchCV, factor=3"
CHICLE, LINEAR_SVC = "GridSearchCV, ChicleSVM", "GridSearchCV, LinearSVC"
THREADS = "GridSearchCV, ChicleSVM on threads"
LBFGS, NEWTON_CG = "LogisticRegressionCV, lbfgs", "LogisticRegressionCV, newton-cg"
RIDGE_CV, HIMALAYA = "RidgeCV", "himalaya's RidgeCV"
PROBE_CS, PROBE_FOLDS = np.logspace(-1, 3, 5), 3
PEER_TOL = 1e-5
"""Of LogisticRegressionCV, at which it comes as close to the best objective as ours; at 1e-4 some C are not begun."""
ALPHAS = np.logspace(0, 4, 10)


def search(side: str, loss: Any, tol: float, Cs: Any) -> Any:
    """The search of one side."""
    grid, cv = {"C": list(Cs)}, StratifiedKFold(FOLDS)
    if loss == "squares":
        if side == HIMALAYA:
            how = {"local_alpha": False, "score_func": import_module("himalaya.scoring").r2_score}
            return import_module("himalaya.ridge").RidgeCV(Cs, fit_intercept=True, cv=FOLDS, solver_params=how)
        return ChicleRidgeCV(Cs, cv=FOLDS) if side == OURS else RidgeCV(Cs, cv=FOLDS)
    if loss == "softmax":
        cv = StratifiedKFold(PROBE_FOLDS)
        if side == OURS:
            return ChicleSearchCV(ChicleLogisticRegression(tol=tol), grid, cv=cv, n_jobs=JOBS)
        return LogisticRegressionCV(
            Cs=list(Cs),
            cv=cv,
            solver=side.split(", ")[1],
            tol=PEER_TOL,
            max_iter=10_000,
            l1_ratios=(0.0,),
            use_legacy_attributes=False,
            scoring="accuracy",
        )
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


def made(name: str, shape: tuple[int, int, int]) -> DataSet:
    """Rows like embeddings in float16, some of which have another label; or rows whose many targets are linear in them.

    Args:
        name: "probe" or "targets".
        shape: Rows, columns, and classes or targets.
    """
    rng, (n, d, K) = np.random.default_rng(0), shape
    spread = np.arange(1, d + 1) ** -0.5
    if name == "targets":
        X = rng.normal(size=(n, d)) * spread
        return DataSet(name, name, X, X @ rng.normal(size=(d, K)) + 2.0 * rng.normal(size=(n, K)))
    spread /= np.linalg.norm(spread)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    labels, centres = rng.integers(0, K, n), 1.5 * rng.normal(size=(K, d)) * spread
    X = np.empty((n, d), np.float16)
    for rows in np.array_split(np.arange(n), max(n // 4096, 1)):
        found = (2.0 * rng.normal(size=(len(rows), d)) * spread + centres[labels[rows]]) @ turn
        X[rows] = found / np.linalg.norm(found, axis=1, keepdims=True)
    return DataSet(name, name, X, np.where(rng.random(n) < 0.05, rng.integers(0, K, n), labels))


def values_of(name: str) -> Any:
    """Values of C, or of alpha."""
    return {"probe": PROBE_CS, "targets": ALPHAS}.get(name, CS)


def prepare(spec: dict[str, Any]) -> tuple[int, int]:
    """Load the data and search a part of it, so that all is compiled and started; process id, bytes of the data."""
    warnings.simplefilter("ignore")
    name = spec["data"]
    if "shape" in spec:
        data = LOADED["data"] = made(name, spec["shape"])
    else:
        data = LOADED["data"] = load_real(name, Path(spec["folder"]), quick=spec["quick"])
    rows = slice(0, WARM_ROWS[name])
    run(spec["side"], spec["loss"], spec["tol"], values_of(name)[:2], DataSet("warm", name, data.X[rows], data.y[rows]))
    return os.getpid(), sum(part.nbytes for part in data.parts()) + (data.y.nbytes if data.y.ndim == 2 else 0)


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Search, in a process that is ready."""
    wall_s = time.perf_counter()
    found = run(spec["side"], spec["loss"], spec["tol"], values_of(spec["data"]), LOADED["data"])
    wall_s = time.perf_counter() - wall_s
    if spec["loss"] == "squares":
        best_C, best_score = (
            (found.best_alphas_, found.cv_scores_) if spec["side"] == HIMALAYA else (found.alpha_, found.best_score_)
        )
        return {"wall_s": wall_s, "best_C": float(np.max(best_C)), "best_score": float(np.mean(best_score))}
    if spec["loss"] == "softmax":
        return {"wall_s": wall_s, **_probe(found)}
    return {
        "wall_s": wall_s,
        "refit_s": found.refit_time_,
        "best_C": float(found.best_params_["C"]),
        "best_score": float(found.best_score_),
        "Cs": [float(params["C"]) for params in found.cv_results_["params"]],
        "scores": found.cv_results_["mean_test_score"].tolist(),
        "fit_s": found.cv_results_["mean_fit_time"].tolist(),
    }


def _probe(found: Any) -> dict[str, Any]:
    """Hold what a probe has found, and its last model, whose objective `excess` compares with the best."""
    is_ours = isinstance(found, ChicleSearchCV)
    LOADED["model"] = model = found.best_estimator_ if is_ours else found
    scores = found.cv_results_["mean_test_score"] if is_ours else found.scores_.mean(axis=0).ravel()
    C = float(model.C if is_ours else np.ravel(found.C_)[0])
    LOADED["C"] = C
    return {"best_C": C, "best_score": float(scores.max()), "scores": scores.tolist()}


def excess(_: dict[str, Any]) -> float:
    """Return by how much, relatively, the objective of the last model is above the best one with its C."""
    data, C, model = LOADED["data"], LOADED["C"], LOADED["model"]
    best = ChicleLogisticRegression(C=C, tol=1e-6).fit(data.X, data.y)
    losses = []
    for rows in np.array_split(np.arange(len(data.y)), max(len(data.y) // 4096, 1)):
        scores = data.X[rows].astype(np.float64) @ model.coef_.T + model.intercept_
        places = np.searchsorted(model.classes_, data.y[rows])
        losses.append(logsumexp(scores, axis=1) - scores[np.arange(len(rows)), places])
    value = 0.5 * (model.coef_**2).sum() + C * np.concatenate(losses).sum()
    return float(value / best.objective_[0] - 1.0)
