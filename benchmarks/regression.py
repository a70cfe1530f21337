"""The regressors against scikit-learn, in the same run: objectives within the certified gap, and time.

Targets are real where the data has some, else the labels as numbers. Peers are the solvers of Ridge, Lasso, ElasticNet
and LinearSVR, and skglm's Lasso and ElasticNet where it is installed. Of each the loosest setting counts that comes
within tol (1e-6, of support vectors 1e-3) of the best objective that any side found. Fits take turns; a time is the
median of the processor time of whole fits, which other processes of the machine change less than wall time. A peer that
takes ten times as long as ours is not asked for more.

    python -m benchmarks.regression [--quick] [--parts ridge l1 svr] [--repeats N] [--data FOLDER] [--json FILE]

Exit code 1 if a gate is missed: an objective that is not within tol of the best one, a dual objective above it, or a
fit that takes more than 1.5 times as long as the best peer and 10 ms.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_diabetes
from sklearn.linear_model import ElasticNet, Lasso, Ridge
from sklearn.svm import LinearSVR

from benchmarks.bars import Bar, Row
from benchmarks.datasets import DataSet
from benchmarks.fits import Seconds, median, timed_fit
from benchmarks.glm_real import FILES, load_real
from benchmarks.glm_shapes import tfidf_text
from benchmarks.peers import Peer
from benchmarks.report import finish
from estimators import ChicleElasticNet, ChicleLasso, ChicleRidge, ChicleSVR

FOLDER = Path(__file__).parents[1] / ".." / "shared" / "data"
TOL = 1e-6
TIMES, SLACK_S = 1.5, 0.01
HOPELESS = 10.0
SVR_TOL, SVR_TOLS = 1e-3, (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
MOST_SVR_VALUES = 1 << 24
"""Values of X beyond which LinearSVR takes minutes."""
MOST_FEATURES = 2047
"""What ChicleSVR takes with the loss that is not squared."""
L1_TOLS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
"""Of scikit-learn relative to the squared length of y, of skglm slopes that may be left; both find the loosest."""
MOST_PRECOMPUTED = 2048
"""Columns up to which the products of all of them are a peer's option."""
PARTS = ("ridge", "l1", "svr")
PEER_TOLS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10)
DENSE_SOLVERS, SPARSE_SOLVERS = ("cholesky", "svd", "lsqr", "sparse_cg", "sag"), ("lsqr", "sparse_cg", "sag")
MOST_VALUES = {"sag": 1 << 18, "svd": 1 << 26}
"""Values of X beyond which a solver takes minutes."""
HEADER = (
    "| data, problem | tol | ours, ms | best peer, ms | ratio | gate | target | |\n|---|---|---|---|---|---|---|---|"
)


def shaped(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """28 correlated float32 columns and a target with noise, as HIGGS has them."""
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((num_samples, 28)) @ rng.standard_normal((28, 28)) + 3.0).astype(np.float32)
    return X, X @ rng.standard_normal(28) + 10.0 * rng.standard_normal(num_samples)


def text(num_samples: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """TF-IDF of made-up words, and a grade that some of them move."""
    X, _ = tfidf_text(num_samples)
    rng = np.random.default_rng(1)
    w = rng.standard_normal(X.shape[1]) * (rng.random(X.shape[1]) < 0.1)
    return X, 3.0 + 2.0 * (X @ w) + rng.standard_normal(X.shape[0])


def real(name: str, folder: Path, *, quick: bool) -> DataSet:
    """A real data set with labels as numbers; of HIGGS the last column from the others."""
    data = load_real(name, folder, quick=quick)
    if name == "higgs-real":
        return DataSet(data.key, "HIGGS sample, 27 dense", np.ascontiguousarray(data.X[:, :-1]), data.X[:, -1].copy())
    return DataSet(data.key, data.title, data.X, data.y.astype(np.float64))


def data_sets(folder: Path, *, quick: bool) -> dict[str, Callable[[], DataSet]]:
    """What makes each data set."""
    rows, words = (20_000, 2_000) if quick else (500_000, 20_000)
    return {
        "diabetes": lambda: DataSet("diabetes", "diabetes, 10 dense", *load_diabetes(return_X_y=True)),
        **{name: lambda name=name: real(name, folder, quick=quick) for name in FILES},  # type: ignore[misc]
        "shaped": lambda: DataSet("shaped", f"HIGGS-shaped, 28 dense float32, {rows} rows", *shaped(rows)),
        "text": lambda: DataSet("text", f"TF-IDF text, 50000 sparse, {words} rows", *text(words)),
    }


@dataclass(frozen=True, slots=True)
class Regression:
    """One problem on one data set.

    Attributes:
        name: Part of the table, and the problem in words.
        ours: Estimator to be fitted.
        peers: Estimators of scikit-learn by name of the solver, from the loosest setting to the finest.
        objective: Of coefficients and an intercept, from (residuals, coefficients, intercept).
    """

    name: str
    ours: Any
    peers: dict[str, list[Any]]
    objective: Callable[[np.ndarray, np.ndarray, float], float]

    def of(self, model: Any, data: DataSet) -> float:
        """The function that both sides minimise, in float64."""
        coef = np.asarray(model.coef_, dtype=np.float64).ravel()
        rows = data.X if data.is_sparse else np.asarray(data.X, dtype=np.float64)
        intercept = float(np.ravel(model.intercept_)[0])
        return self.objective(data.y - rows @ coef - intercept, coef, intercept)


def ridge(data: DataSet, alpha: float) -> Regression:
    """Ridge, whose intercept is not penalised."""
    values = data.X.nnz if data.is_sparse else data.X.size
    peers = {}
    for solver in SPARSE_SOLVERS if data.is_sparse else DENSE_SOLVERS:
        if values <= MOST_VALUES.get(solver, values):
            tols = (1e-4,) if solver in ("cholesky", "svd") else PEER_TOLS
            peers[solver] = [Ridge(alpha=alpha, solver=solver, tol=tol, max_iter=5000, random_state=0) for tol in tols]

    def objective(residuals: np.ndarray, coef: np.ndarray, intercept: float) -> float:
        return float(residuals @ residuals + alpha * coef @ coef)

    return Regression(f"alpha {alpha:.4g}", ChicleRidge(alpha=alpha, tol=TOL), peers, objective)


def l1(data: DataSet, share: float, l1_ratio: float) -> Regression:
    """Lasso or elastic net, with this share of the least alpha that leaves no weight."""
    n = data.num_samples
    least = float(np.max(np.abs(np.asarray(data.X.T @ (data.y - data.y.mean()))))) / n
    alpha = share * least / l1_ratio
    is_lasso = l1_ratio == 1.0
    ratio: dict[str, Any] = {} if is_lasso else {"l1_ratio": l1_ratio}
    kind = Lasso if is_lasso else ElasticNet
    peers: dict[str, list[Any]] = {
        f"precompute={precompute}": [
            kind(alpha=alpha, **ratio, tol=tol, precompute=precompute, max_iter=20_000) for tol in L1_TOLS
        ]
        for precompute in ((False, True) if data.num_features <= MOST_PRECOMPUTED else (False,))
    }
    if importlib.util.find_spec("skglm"):
        import skglm

        other = skglm.Lasso if is_lasso else skglm.ElasticNet
        peers["skglm"] = [other(alpha=alpha, **ratio, tol=tol * least, max_iter=100) for tol in L1_TOLS]

    def objective(residuals: np.ndarray, coef: np.ndarray, intercept: float) -> float:
        penalty = l1_ratio * np.abs(coef).sum() + 0.5 * (1 - l1_ratio) * coef @ coef
        return float(0.5 * residuals @ residuals / n + alpha * penalty)

    ours = ChicleLasso(alpha=alpha, tol=TOL) if is_lasso else ChicleElasticNet(alpha=alpha, l1_ratio=l1_ratio, tol=TOL)
    return Regression(f"{'lasso' if is_lasso else 'elastic net'}, {share:g} of the largest", ours, peers, objective)


def svr(data: DataSet, loss: str, C: float) -> Regression:
    """Support vector regression with a tube of a tenth of the targets' deviation."""
    epsilon = 0.1 * float(data.y.std())
    shared: dict[str, Any] = {"loss": loss, "C": C, "epsilon": epsilon}
    is_squared = loss.startswith("squared")
    peers = {
        f"dual={dual}": [LinearSVR(**shared, dual=dual, tol=tol, max_iter=100_000, random_state=0) for tol in SVR_TOLS]
        for dual in ((True, False) if is_squared else (True,))
    }

    def objective(residuals: np.ndarray, coef: np.ndarray, intercept: float) -> float:
        excess = np.maximum(np.abs(residuals) - epsilon, 0.0)
        losses = excess @ excess if is_squared else excess.sum()
        return float(0.5 * (coef @ coef + intercept**2) + C * losses)

    return Regression(
        f"{'squared' if is_squared else 'plain'}, C {C:.4g}", ChicleSVR(**shared, tol=SVR_TOL), peers, objective
    )


def problems(data: DataSet, parts: Sequence[str] = PARTS) -> Iterator[Regression]:
    """All that is asked of a data set."""
    n = data.num_samples
    if "ridge" in parts:
        for alpha in (1.0, n / 100):
            yield ridge(data, alpha)
    if "l1" in parts:
        # Of wide data a hundredth of the largest alpha would leave more weights than a working set takes.
        for share in (0.1, 0.01) if data.num_features <= MOST_FEATURES else (0.3, 0.1):
            yield l1(data, share, 1.0)
        yield l1(data, 0.1, 0.5)
    if "svr" not in parts or (not data.is_sparse and data.X.size > MOST_SVR_VALUES):
        return
    for loss in ("epsilon_insensitive", "squared_epsilon_insensitive"):
        if loss.startswith("squared") or data.num_features <= MOST_FEATURES:
            for C in (100 / n, 1.0):
                yield svr(data, loss, C)


class Compared(Protocol):
    """A problem that both sides solve: see `Regression`."""

    @property
    def name(self) -> str:
        """Part of the table, and the problem in words."""
        ...

    @property
    def ours(self) -> Any:
        """Estimator to be fitted."""
        ...

    @property
    def peers(self) -> dict[str, list[Any]]:
        """Estimators by name of the solver, from the loosest setting to the finest."""
        ...

    def of(self, model: Any, data: DataSet) -> float:
        """The function that both sides minimise, in float64; infinite for a model that makes no sense."""
        ...


def compare(data: DataSet, problem: Compared, repeats: int) -> Row:
    """Objective and time of one problem."""
    ours = problem.ours
    timed_fit(ours, data)  # the first one compiles kernels
    patience_s = HOPELESS * timed_fit(ours, data).cpu + SLACK_S
    found = problem.of(ours, data)
    tried: dict[str, list[tuple[Any, float]]] = {}
    for solver, settings in problem.peers.items():
        tried[solver] = []
        for model in settings:
            seconds, value = timed_fit(model, data).cpu, problem.of(model, data)
            if seconds > patience_s and not tried[solver]:
                seconds = timed_fit(model, data).cpu  # the first one may have compiled something
            if seconds > patience_s:
                break
            tried[solver].append((model, value))
            if value <= found * (1 + 0.5 * ours.tol):
                break
    best = min([found, *(value for models in tried.values() for _, value in models)])
    chosen: dict[str, Any] = {}
    for solver, models in tried.items():
        good = [model for model, value in models if value <= best * (1 + ours.tol)]
        if good:
            chosen[solver] = good[0]
    times: dict[str, list[Seconds]] = {name: [] for name in ("ours", *chosen)}
    for _ in range(repeats):
        for name, model in {"ours": ours, **chosen}.items():
            times[name].append(timed_fit(model, data))
    cpu = {name: median(each, "cpu") for name, each in times.items()}
    fastest = min(chosen, key=lambda name: cpu[name], default=None)
    excess, dual_excess = found / best - 1.0, float(np.sum(ours.dual_objective_)) / best - 1.0
    is_right = excess <= ours.tol and dual_excess <= 1e-10 and ours.duality_gap_ <= ours.tol
    details = {
        "objective": found,
        "best": best,
        "gap": ours.duality_gap_,
        "iterations": ours.n_iter_,
        "cpu_s": cpu,
        "wall_s": {name: median(each, "wall") for name, each in times.items()},
        "tols": {solver: getattr(model, "tol", None) for solver, model in chosen.items()},
        "excess": excess,
        "dual_excess": dual_excess,
    }
    best_s = patience_s if fastest is None else cpu[fastest]
    return Row(
        part=type(ours).__name__,
        what=f"{data.title}, {problem.name}",
        tol=ours.tol,
        measured=f"{1e3 * cpu['ours']:.1f}",
        against=f"more than {1e3 * best_s:.0f}" if fastest is None else f"{1e3 * best_s:.1f} ({fastest})",
        value=cpu["ours"] / best_s if is_right else np.inf,
        bar=Bar(gate=TIMES + SLACK_S / best_s, target=1.0, at_most=True),
        details=details,
    )


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data, nothing is judged")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which regressors")
    parser.add_argument("--repeats", type=int, default=5, help="timed fits of each side")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    started_s = time.perf_counter()
    rows: list[Row] = []
    notes = []
    print(HEADER)
    for name, make in data_sets(options.data, quick=options.quick).items():
        try:
            data = make()
        except FileNotFoundError as error:
            notes.append(f"without {name}: {error}")
            continue
        for problem in problems(data, options.parts):
            rows.append(compare(data, problem, options.repeats))
            print(rows[-1].as_markdown(judged=not options.quick), flush=True)
    peers = [Peer("Ridge, Lasso, ElasticNet and LinearSVR", "scikit-learn", make=lambda problem, iterations: Ridge())]
    if importlib.util.find_spec("skglm"):
        peers.append(Peer("Lasso and ElasticNet", "skglm", make=lambda problem, iterations: Lasso()))
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
