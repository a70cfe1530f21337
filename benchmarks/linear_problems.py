"""The problems of the benchmark of linear models: our estimator, the objective, and every peer that has the same one.

A peer is a function from its own `tol` to an unfitted estimator. liblinear penalises the intercept as `ChicleSVM` does;
with the free one of `ChicleLogisticRegression` its constant column is 1000, which leaves next to no penalty. Snap ML
penalises it too, celer has none. Libraries that are not installed do not take part.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC, LinearSVR

from benchmarks.datasets import DataSet
from benchmarks.objectives import Objective
from estimators import ChicleElasticNet, ChicleLasso, ChicleLogisticRegression, ChicleRidge, ChicleSVM, ChicleSVR

PACKAGES = ("scikit-learn", "scikit-learn-intelex", "snapml", "cyanure", "skglm", "celer")
LARGE_CONSTANT = 1e3
MANY, SOME = 100_000, 1000
"""Iterations that do not stop a peer before its `tol` does."""
MOST_CHOLESKY = 5000
"""Weights of all classes up to which newton-cholesky is asked: its matrix has their square."""
MOST_SAGA, MOST_SVD = 1 << 22, 1 << 26
"""Values of X beyond which a solver takes minutes."""
MOST_PRECOMPUTED = 2048
"""Columns up to which the products of all of them are a peer's option."""
Peers = dict[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Say what is asked on a data set.

    Attributes:
        words: The strength in words.
        ours: Our estimator.
        objective: What all sides minimise.
        peers: Functions from `tol` to estimators, by name.
    """

    words: str
    ours: Any
    objective: Objective
    peers: Peers


def has(module: str) -> bool:
    """Say whether a library is installed."""
    return importlib.util.find_spec(module) is not None


def amount(strength: str, data: DataSet) -> float:
    """A strength as a number: "100/n", "n/100" or the number itself."""
    n = data.num_samples
    return {"100/n": 100 / n, "n/100": n / 100}.get(strength) or float(strength)


def num_values(data: DataSet) -> int:
    """Values that are stored."""
    return int(data.X.nnz if data.is_sparse else data.X.size)


def one_vs_rest(kind: Callable[..., Any], **parameters: Any) -> Any:
    """A model of each class."""
    return OneVsRestClassifier(kind(**parameters))


class Adapted(BaseEstimator):
    """A model of a library that wants columns, or labels of -1 and 1, whose conversion counts."""

    def __init__(self, model: Any, *, by_columns: bool = False) -> None:
        self.model = model
        self.by_columns = by_columns

    def fit(self, X: Any, y: np.ndarray) -> "Adapted":
        """Convert and fit."""
        if self.by_columns:
            X = X.tocsc() if sp.issparse(X) else np.asfortranarray(X, dtype=np.float64)
        self.model.fit(X, np.where(y == np.unique(y)[1], 1, -1))
        self.coef_, self.intercept_ = self.model.coef_, getattr(self.model, "intercept_", 0.0)
        return self


def svm(loss: str, data: DataSet, strength: str, tol: float) -> Problem:
    """Hinge or squared hinge with an l2 penalty."""
    C, name = amount(strength, data), loss.replace(" ", "_")
    ours = ChicleSVM(loss=name, C=C, tol=tol, random_state=0)  # type: ignore[arg-type]
    shared: dict[str, Any] = {"loss": name, "C": C, "max_iter": MANY, "random_state": 0}
    peers: Peers = {
        f"liblinear {'dual' if dual else 'primal'}": partial(LinearSVC, dual=dual, **shared)
        for dual in ((True,) if loss == "hinge" else (True, False))
    }
    if has("snapml"):
        import snapml

        shared = {"loss": name, "regularizer": 1 / C, "fit_intercept": True, "max_iter": MANY, "random_state": 0}
        peers["Snap ML"] = partial(snapml.SupportVectorMachine, **shared)
    return Problem(f"C = {strength}", ours, Objective(loss, C), peers)


def logistic(data: DataSet, strength: str, tol: float) -> Problem:
    """Logistic loss, one class against the rest."""
    C = amount(strength, data)
    ours = ChicleLogisticRegression(multi_class="ovr", C=C, tol=tol, random_state=0)
    peers = solvers(data, C, ("lbfgs", "newton-cg", "newton-cholesky"), 1)
    shared: dict[str, Any] = {"C": C, "max_iter": MANY, "random_state": 0}
    peers["liblinear"] = partial(LogisticRegression, solver="liblinear", intercept_scaling=LARGE_CONSTANT, **shared)
    if has("sklearnex") and not data.is_sparse:
        from sklearnex.linear_model import LogisticRegression as Intelex

        peers["intelex lbfgs"] = partial(Intelex, C=C, max_iter=MANY)
    if data.num_classes > 2:
        peers = {name: partial(one_vs_rest, make) for name, make in peers.items()}
    if has("cyanure"):
        peers["cyanure"] = cyanure("l2", 1 / (data.num_samples * C))
    return Problem(f"C = {strength}", ours, Objective("logistic", C, intercept="free"), peers)


def softmax(data: DataSet, strength: str, tol: float) -> Problem:
    """One softmax of all classes."""
    C = amount(strength, data)
    ours = ChicleLogisticRegression(C=C, tol=tol, random_state=0)
    names = ("lbfgs", "newton-cg", "newton-cholesky", "saga", "sag")
    peers = solvers(data, C, names, data.num_classes)
    return Problem(f"C = {strength}", ours, Objective("softmax", C, intercept="free"), peers)


def solvers(data: DataSet, C: float, names: tuple[str, ...], outputs: int) -> Peers:
    """Those of scikit-learn's logistic regression that make sense for the size."""
    suits = {
        "newton-cholesky": outputs * (data.num_features + 1) <= MOST_CHOLESKY,
        "saga": num_values(data) <= MOST_SAGA,
        "sag": num_values(data) <= MOST_SAGA,
    }
    shared: dict[str, Any] = {"C": C, "max_iter": SOME, "random_state": 0}
    return {name: partial(LogisticRegression, solver=name, **shared) for name in names if suits.get(name, True)}


def cyanure(penalty: str, weight: float) -> Callable[..., Any]:
    """Cyanure's classifier with the logistic loss and a free intercept."""
    from cyanure.estimators import Classifier

    shared = {"loss": "logistic", "penalty": penalty, "lambda_1": weight, "fit_intercept": True, "max_iter": SOME}
    return partial(Classifier, multi_class="ovr", random_state=0, verbose=False, **shared)


def largest(data: DataSet, loss: str) -> float:
    """The largest factor of the l1 penalty that leaves a weight, for a factor of 1 of the losses."""
    slopes = []
    for label in np.unique(data.y)[1 if data.num_classes == 2 else 0 :]:
        slope = (data.y == label).astype(np.float64)
        slope -= slope.mean() if loss == "logistic" else 0.5
        slopes.append(max(float(np.abs(np.asarray(data.X.T @ slope)).max()), abs(float(slope.sum()))))
    return max(slopes) * (4.0 if loss == "squared hinge" else 1.0)


def sparse_svm(data: DataSet, strength: str, tol: float) -> Problem:
    """Squared hinge with an l1 penalty; the strength is a share of the largest penalty."""
    C = 1.0 / (float(strength) * largest(data, "squared hinge"))
    shared: dict[str, Any] = {"C": C, "penalty": "l1", "loss": "squared_hinge", "random_state": 0}
    peers: Peers = {"liblinear": partial(LinearSVC, dual=False, max_iter=SOME, **shared)}
    return Problem(
        f"{strength} of the largest", ChicleSVM(tol=tol, **shared), Objective("squared hinge", C, 1, 0), peers
    )


def sparse_logistic(data: DataSet, strength: str, tol: float, *, fit_intercept: bool = True) -> Problem:
    """Logistic loss with an l1 penalty."""
    C, n = 1.0 / (float(strength) * largest(data, "logistic")), data.num_samples
    shared: dict[str, Any] = {"C": C, "l1_ratio": 1.0, "random_state": 0, "fit_intercept": fit_intercept}
    multi: dict[str, Any] = {"multi_class": "ovr"} if data.num_classes > 2 else {}
    ours = ChicleLogisticRegression(tol=tol, **shared, **multi)
    objective = Objective("logistic", C, 1, 0, intercept="free" if fit_intercept else "none")
    peers: Peers = {
        "liblinear": partial(
            LogisticRegression, solver="liblinear", intercept_scaling=LARGE_CONSTANT, max_iter=SOME, **shared
        )
    }
    if num_values(data) <= MOST_SAGA:
        peers["saga"] = partial(LogisticRegression, solver="saga", max_iter=3 * SOME, **shared)
    if data.num_classes > 2:
        peers = {name: partial(one_vs_rest, make) for name, make in peers.items()}
    elif has("skglm"):
        peers["skglm"] = lambda tol: Adapted(skglm_logistic(1 / (n * C), tol, fit_intercept), by_columns=True)
    if has("cyanure") and fit_intercept:
        peers["cyanure"] = cyanure("l1", 1 / (n * C))
    if has("celer") and not fit_intercept:
        import celer

        peers["celer"] = lambda tol: Adapted(
            celer.LogisticRegression(C=C, tol=tol, max_iter=100, fit_intercept=False), by_columns=True
        )
    if has("snapml") and not fit_intercept:
        import snapml

        more = {"penalty": "l1", "dual": False, "regularizer": 1 / C, "max_iter": 3 * SOME, "fit_intercept": False}
        peers["Snap ML"] = partial(snapml.LogisticRegression, **more)
    return Problem(f"{strength} of the largest", ours, objective, peers)


def skglm_logistic(alpha: float, tol: float, fit_intercept: bool) -> Any:
    """A model of skglm."""
    from skglm.datafits import Logistic
    from skglm.estimators import GeneralizedLinearEstimator
    from skglm.penalties import L1
    from skglm.solvers import ProxNewton

    solver = ProxNewton(tol=tol * alpha, fit_intercept=fit_intercept, max_iter=100)
    return GeneralizedLinearEstimator(Logistic(), L1(alpha), solver)


def ridge(data: DataSet, strength: str, tol: float) -> Problem:
    """Squares with an l2 penalty."""
    alpha = amount(strength, data)
    names = ("lsqr", "sparse_cg", "sag") if data.is_sparse else ("cholesky", "svd", "lsqr", "sparse_cg", "sag")
    most = {"sag": MOST_SAGA >> 4, "svd": MOST_SVD}
    shared: dict[str, Any] = {"alpha": alpha, "max_iter": 5000, "random_state": 0}
    peers: Peers = {
        name: partial(Ridge, solver=name, **shared) for name in names if num_values(data) <= most.get(name, 1 << 60)
    }
    objective = Objective("squares", l2=alpha, intercept="free")
    return Problem(f"alpha = {strength}", ChicleRidge(alpha=alpha, tol=tol), objective, peers)


def lasso(data: DataSet, strength: str, tol: float, *, l1_ratio: float = 1.0) -> Problem:
    """Squares with an l1 penalty, or both; the strength is a share of the largest penalty that leaves a weight."""
    n = data.num_samples
    most = float(np.max(np.abs(np.asarray(data.X.T @ (data.y - data.y.mean()))))) / n
    alpha = float(strength) * most / l1_ratio
    ratio: dict[str, Any] = {} if l1_ratio == 1.0 else {"l1_ratio": l1_ratio}
    peers: Peers = {
        f"precompute={precompute}": partial(
            ElasticNet if ratio else Lasso, alpha=alpha, precompute=precompute, max_iter=20_000, **ratio
        )
        for precompute in ((False, True) if data.num_features <= MOST_PRECOMPUTED else (False,))
    }
    if has("skglm"):
        import skglm

        other = skglm.ElasticNet if ratio else skglm.Lasso
        peers["skglm"] = lambda tol: other(alpha=alpha, tol=tol * most, max_iter=100, **ratio)
    ours: Any = (ChicleElasticNet if ratio else ChicleLasso)(alpha=alpha, tol=tol, **ratio)
    objective = Objective("squares", 1 / n, alpha * l1_ratio, alpha * (1 - l1_ratio), intercept="free")
    return Problem(f"{strength} of the largest", ours, objective, peers)


def svr(loss: str, data: DataSet, strength: str, tol: float) -> Problem:
    """A tube of a tenth of the target's deviation."""
    C, epsilon = amount(strength, data), 0.1 * float(data.y.std())
    name: Any = "epsilon_insensitive" if loss == "tube" else "squared_epsilon_insensitive"
    shared: dict[str, Any] = {"loss": name, "C": C, "epsilon": epsilon, "random_state": 0}
    peers: Peers = {
        f"liblinear {'dual' if dual else 'primal'}": partial(LinearSVR, dual=dual, max_iter=MANY, **shared)
        for dual in ((True,) if loss == "tube" else (True, False))
    }
    return Problem(f"C = {strength}", ChicleSVR(tol=tol, **shared), Objective(loss, C, epsilon=epsilon), peers)


MODELS: dict[str, Callable[[DataSet, str, float], Problem]] = {
    "hinge": partial(svm, "hinge"),
    "squared hinge": partial(svm, "squared hinge"),
    "logistic": logistic,
    "softmax": softmax,
    "l1 squared hinge": sparse_svm,
    "l1 logistic": sparse_logistic,
    "l1 logistic without intercept": partial(sparse_logistic, fit_intercept=False),
    "ridge": ridge,
    "lasso": lasso,
    "elastic net": partial(lasso, l1_ratio=0.5),
    "svr": partial(svr, "tube"),
    "squared svr": partial(svr, "squared tube"),
}
OF_NUMBERS = ("ridge", "lasso", "elastic net", "svr", "squared svr")
