"""The classifiers with an l1 penalty against other libraries, in the same run: objectives within the gap, and time.

For each data set two values of C: those that leave about a tenth and half of the weights, or 256 and 4096 times the
least C that leaves any where that are fewer. Peers of the logistic loss with a free intercept are liblinear (whose
intercept is penalised, by as little as a constant column of 1000 makes it) and saga of scikit-learn, and skglm and
cyanure where they are installed; without an intercept celer and Snap ML as well, which have none or penalise it. Of the
squared hinge, whose intercept is penalised, liblinear is the only one. Of each peer the loosest setting counts that
comes within tol of the best objective that any side found, which no peer knows itself. The rest is as in
`benchmarks.regression`.

    python -m benchmarks.l1_classifiers [--quick] [--sets NAMES] [--tols T] [--repeats N] [--data FOLDER] [--json FILE]

Exit code 1 if a gate is missed: an objective that is not within tol of the best one, a dual objective above it, or a
fit that takes more than 1.5 times as long as the best peer and 10 ms.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC

from benchmarks.bars import Row
from benchmarks.datasets import DataSet
from benchmarks.fits import coef_of, intercept_of
from benchmarks.glm_real import load_real
from benchmarks.glm_shapes import tfidf_text
from benchmarks.peers import Peer
from benchmarks.problems import one_vs_rest_loss
from benchmarks.regression import FOLDER, HEADER, compare
from benchmarks.report import finish
from estimators import ChicleLogisticRegression, ChicleSVM

TOLS = (1e-3, 1e-6)
SETTINGS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
"""Tolerances of peers, in their own measures."""
SHARES = {0.1: 8.0, 0.5: 12.0}
"""Shares of the weights, and log2 of C as a multiple of the least one that leaves a weight, at most."""
ICPT_SCALING = 1e3
MOST_SAGA_VALUES = 1 << 22
"""Values of X beyond which saga takes minutes."""
LEAST_DOCUMENTS = 5
"""Documents that have a word of the text, at least, as TfidfVectorizer(min_df=5) has it."""


def shaped(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """28 correlated float32 columns, of which some decide, as HIGGS has them."""
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((num_samples, 28)) @ rng.standard_normal((28, 28)) / 5).astype(np.float32)
    score = X @ (rng.standard_normal(28) * (rng.random(28) < 0.5))
    return X, (score + 2.0 * rng.logistic(size=num_samples) > 0.5).astype(np.int64)


def text(num_samples: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """TF-IDF of made-up words that are not too rare."""
    X, y = tfidf_text(num_samples)
    kept = np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]) >= LEAST_DOCUMENTS)
    return X[:, kept], y


def real(name: str, folder: Path, *, quick: bool) -> DataSet:
    """A real data set; of Fashion-MNIST the first 10,000 rows."""
    data = load_real(name, folder, quick=quick)
    if name == "fashion" and not quick:
        X = np.ascontiguousarray(data.X[:10_000])
        return DataSet("fashion-10000", "Fashion-MNIST, 784 dense float32, 10000 rows", X, data.y[:10_000])
    return data


def data_sets(folder: Path, *, quick: bool) -> dict[str, Callable[[], DataSet]]:
    """What makes each data set."""
    rows, words = (20_000, 1_000) if quick else (500_000, 20_000)

    def cancer() -> DataSet:
        X, y = load_breast_cancer(return_X_y=True)
        return DataSet("cancer", "breast_cancer, 30 dense, 569 rows", scale(X), y)

    def words_of() -> DataSet:
        X, y = text(words)
        return DataSet("text", f"TF-IDF text, {X.shape[1]} sparse, {words} rows", X, y)

    return {
        "cancer": cancer,
        **{
            name: lambda name=name: real(name, folder, quick=quick)  # type: ignore[misc]
            for name in ("digits", "a9a", "higgs-real", "fashion")
        },
        "shaped": lambda: DataSet("shaped", f"HIGGS-shaped, 28 dense float32, {rows} rows", *shaped(rows)),
        "text": words_of,
    }


@dataclass(frozen=True, slots=True)
class Classification:
    """One problem on one data set.

    Attributes:
        name: Part of the table, and the problem in words.
        ours: Estimator to be fitted.
        peers: Estimators by name of the solver, from the loosest setting to the finest.
    """

    name: str
    ours: Any
    peers: dict[str, list[Any]]

    def of(self, model: Any, data: DataSet) -> float:
        """The function that both sides minimise, of all outputs, in float64; a sign that is the other way is mended."""
        coef = np.asarray(coef_of(model, data), dtype=np.float64)
        intercept = intercept_of(model) if self.ours.fit_intercept else np.zeros(len(coef))
        is_svm = isinstance(self.ours, ChicleSVM)
        loss = one_vs_rest_loss("squared_hinge" if is_svm else "logistic", data.X @ coef.T + intercept, data.y)
        penalty = float(np.abs(coef).sum()) + (float(np.abs(intercept).sum()) if is_svm else 0.0)
        total = self.ours.C * loss + penalty
        return total if np.isfinite(total) else np.inf


class ForSigns(BaseEstimator):
    """A model of another library that wants its own form of X, or labels of -1 and 1, whose conversion counts."""

    def __init__(self, model: Any, make: Callable[[Any], Any] | None = None, *, has_signs: bool = True) -> None:
        self.model = model
        self.make = make
        self.has_signs = has_signs

    @property
    def tol(self) -> Any:
        """Of the model."""
        return getattr(self.model, "tol", None)

    def fit(self, X: Any, y: np.ndarray) -> "ForSigns":
        """Convert and fit."""
        classes = np.unique(y)
        labels = np.where(y == classes[1], 1, -1) if self.has_signs else y
        self.model.fit(X if self.make is None else self.make(X), labels)
        self.coef_, self.intercept_ = self.model.coef_, getattr(self.model, "intercept_", 0.0)
        return self


def by_columns(X: Any) -> Any:
    """X as skglm and celer want it."""
    return X.tocsc() if sp.issparse(X) else np.asfortranarray(X, dtype=np.float64)


def logistic_peers(data: DataSet, C: float, *, fit_intercept: bool) -> dict[str, list[Any]]:
    """Those that have a logistic loss with an l1 penalty."""
    values, n = data.X.nnz if data.is_sparse else data.X.size, data.num_samples
    shared = {"C": C, "l1_ratio": 1.0, "random_state": 0, "fit_intercept": fit_intercept}
    peers: dict[str, list[Any]] = {
        "liblinear": [
            LogisticRegression(solver="liblinear", intercept_scaling=ICPT_SCALING, tol=tol, max_iter=1000, **shared)
            for tol in SETTINGS
        ]
    }
    if values <= MOST_SAGA_VALUES:
        peers["saga"] = [LogisticRegression(solver="saga", tol=tol, max_iter=3000, **shared) for tol in SETTINGS]
    if data.num_classes > 2:
        return {name: [OneVsRestClassifier(model) for model in models] for name, models in peers.items()}
    if importlib.util.find_spec("skglm"):
        from skglm.datafits import Logistic
        from skglm.estimators import GeneralizedLinearEstimator
        from skglm.penalties import L1
        from skglm.solvers import ProxNewton

        peers["skglm"] = []
        for tol in SETTINGS:
            solver = ProxNewton(tol=tol / (n * C), fit_intercept=fit_intercept, max_iter=100)
            model = GeneralizedLinearEstimator(Logistic(), L1(1.0 / (n * C)), solver)
            peers["skglm"].append(ForSigns(model, by_columns))
    if importlib.util.find_spec("cyanure"):
        from cyanure.estimators import Classifier

        settings = {"loss": "logistic", "penalty": "l1", "lambda_1": 1.0 / (n * C), "fit_intercept": fit_intercept}
        peers["cyanure"] = [
            ForSigns(Classifier(tol=tol, max_iter=1000, verbose=False, **settings), has_signs=False) for tol in SETTINGS
        ]
    if fit_intercept:
        return peers
    if importlib.util.find_spec("celer"):
        import celer

        peers["celer"] = [
            ForSigns(celer.LogisticRegression(C=C, tol=tol, max_iter=100, fit_intercept=False), by_columns)
            for tol in SETTINGS
        ]
    if importlib.util.find_spec("snapml"):
        import snapml

        peers["Snap ML"] = [
            snapml.LogisticRegression(
                penalty="l1", dual=False, regularizer=1.0 / C, tol=tol, max_iter=3000, fit_intercept=False, n_jobs=1
            )
            for tol in SETTINGS
        ]
    return peers


def estimator(kind: str, C: float, tol: float) -> Any:
    """Ours, of "logistic", "no intercept" or "squared hinge"."""
    if kind == "squared hinge":
        return ChicleSVM(penalty="l1", loss="squared_hinge", C=C, tol=tol, random_state=0, n_threads=1)
    fit_intercept = kind == "logistic"
    return ChicleLogisticRegression(
        l1_ratio=1.0, C=C, tol=tol, fit_intercept=fit_intercept, random_state=0, n_threads=1
    )


def least(data: DataSet, kind: str) -> float:
    """The least C that leaves a weight of some output."""
    slopes = []
    for label in np.unique(data.y)[1 if data.num_classes == 2 else 0 :]:
        is_mine = (data.y == label).astype(np.float64)
        share = is_mine.mean() if kind == "logistic" else 0.5
        columns = np.abs(np.asarray(data.X.T @ (is_mine - share)))
        most = max(float(columns.max()), abs(float((is_mine - share).sum())) if kind == "squared hinge" else 0.0)
        slopes.append((4.0 if kind == "squared hinge" else 1.0) * most)
    return 1.0 / max(slopes)


def strength(data: DataSet, kind: str, share: float) -> float:
    """C at which about this share of the weights is not 0, or the largest C that is tried."""
    low, high, most = 0.0, max(SHARES.values()), SHARES[share]
    first = least(data, kind)
    model = estimator(kind, first, 1e-3).set_params(warm_start=True)
    for _ in range(6):
        middle = 0.5 * (low + high)
        model.set_params(C=first * 2.0**middle)
        if middle < most and np.mean(model.fit(data.X, data.y).coef_ != 0) < share:
            low = middle
        else:
            high = middle
    return float(f"{first * 2.0 ** min(high, most):.3g}")


def problems(data: DataSet, tols: list[float]) -> Iterator[Classification]:
    """All that is asked of a data set."""
    for kind in ("logistic", "no intercept", "squared hinge"):
        if kind == "no intercept" and data.num_classes > 2:
            continue
        for share in SHARES if kind != "no intercept" else list(SHARES)[:1]:
            C = strength(data, kind, share)
            for tol in tols:
                ours = estimator(kind, C, tol)
                if kind == "squared hinge":
                    settings = {"C": C, "penalty": "l1", "dual": False, "random_state": 0, "max_iter": 3000}
                    peers: dict[str, list[Any]] = {"liblinear": [LinearSVC(tol=tol, **settings) for tol in SETTINGS]}
                else:
                    peers = logistic_peers(data, C, fit_intercept=kind == "logistic")
                kept = np.mean(estimator(kind, C, 1e-4).fit(data.X, data.y).coef_ != 0)
                yield Classification(f"{kind}, C {C:.3g}, {100 * kept:.0f} % of the weights", ours, peers)


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data, nothing is judged")
    parser.add_argument("--sets", nargs="+", help="names of data sets; all")
    parser.add_argument("--tols", nargs="+", type=float, default=list(TOLS), help="relative gaps of ours")
    parser.add_argument("--repeats", type=int, default=3, help="timed fits of each side")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    started_s = time.perf_counter()
    rows: list[Row] = []
    notes = []
    print(HEADER)
    for name, make in data_sets(options.data, quick=options.quick).items():
        if options.sets and name not in options.sets:
            continue
        try:
            data = make()
        except FileNotFoundError as error:
            notes.append(f"without {name}: {error}")
            continue
        for problem in problems(data, options.tols):
            rows.append(compare(data, problem, options.repeats))
            print(rows[-1].as_markdown(judged=not options.quick), flush=True)
    packages = {"skglm": "skglm", "celer": "celer", "cyanure": "cyanure", "Snap ML": "snapml"}
    peers = [Peer("liblinear and saga", "scikit-learn", make=lambda problem, iterations: LogisticRegression())]
    for title, package in packages.items():
        if importlib.util.find_spec(package):
            peers.append(Peer(title, package, make=lambda problem, iterations: LogisticRegression()))
    return finish(
        rows,
        peers=peers,
        notes=notes,
        quick=options.quick,
        repeats=options.repeats,
        started_s=started_s,
        path=options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
