"""Jobs of every linear trainer on every layout and number of tasks, disturbed and not: what no change may lose.

    python -m tests.solvers.golden_runs [NAME ...]

writes what they come to into `tests/golden/linear_runs.json`: per trainer and layout the objective at the optimum, and
per run the most iterations that it takes (see `COPIES`). With names (`ridge`, `ridge/wide`) only those are made anew. A
family whose objective changes on purpose is made anew in the commit that changes it, which says why.

The tasks are those of a virtual cluster: real solvers, the real scheduler, and seconds that cost none.
"""

import dataclasses
import itertools
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, xlogy

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.runtime.simulate.result import SimulationResult
from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedNetwork, SimulatedNode
from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster
from chicle_elastic.runtime.simulate.work import Real
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear import methods
from chicle_elastic.solvers.linear.losses import (
    EpsilonInsensitive,
    Huber,
    Poisson,
    SmoothLoss,
    SquaredEpsilonInsensitive,
)
from chicle_elastic.solvers.linear.methods import FEW_VALUES
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.trainer import L1Trainer, MultinomialTrainer, RegressionTrainer
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.race import ITERATION_VALUES
from chicle_elastic.solvers.linear.trainer import LinearTrainer

FILE = Path(__file__).parents[1] / "golden" / "linear_runs.json"
TOL, TOL_OF_FLOAT32 = 1e-7, 1e-5
MOST_ITERATIONS = 2000
COPIES = {"hinge": 24, "epsilon-insensitive": 24, "squared hinge, l1": 12}
"""Jobs of trainers that last digits lead other ways, of which the most iterations are recorded: the same rows but for
the last digit of each value. What a kernel of BLAS rounds otherwise changes such a run as much: 28 to 48 iterations on
five kernels, 26 to 48 of 60 copies."""
STEADY, JOINS, LEAVES, DIES = (SimulatedNode(name=name) for name in ("steady", "joins", "leaves", "dies"))
NETWORK = SimulatedNetwork()
AMID = 1.5
"""Seconds at which something happens: amid the second iteration, each of which takes a second."""

NODES = {
    "1": (STEADY,),
    "3": (dataclasses.replace(STEADY, count=3),),
    "5": (dataclasses.replace(STEADY, count=5),),
    "join": (STEADY, dataclasses.replace(JOINS, count=2, joins_s=AMID)),
    "leave": (dataclasses.replace(STEADY, count=2), dataclasses.replace(LEAVES, notice_s=AMID)),
    "crash": (dataclasses.replace(STEADY, count=2), dataclasses.replace(DIES, dies_s=AMID)),
}

LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": {"rows": 240, "features": 7},
    "float32": {"rows": 240, "features": 7, "dtype": "float32"},
    "few rows": {"rows": 40, "features": 60},
    "csr": {"rows": 240, "features": 12, "density": 0.3},
    "wide": {"rows": 150, "features": 2500, "density": 0.01},
}

SQUARED_HINGE = SmoothLoss(Loss.SQUARED_HINGE)
LASSO = RegressionTrainer(
    loss=SquaredEpsilonInsensitive(), C=0.5, alpha=0.03, l1_ratio=1.0, is_mean=True, tol=1e-6, penalises_intercept=False
)
TRAINERS: dict[str, Any] = {
    "hinge": LinearTrainer(loss="hinge"),
    "squared hinge": LinearTrainer(loss="squared_hinge"),
    "modified huber": LinearTrainer(loss="modified_huber"),
    "logistic": LinearTrainer(loss="logistic", intercept_scaling=0.0),
    "logistic with an intercept": LinearTrainer(loss="logistic", penalises_intercept=False),
    "squared hinge, l1": L1Trainer(loss=SQUARED_HINGE),
    "squared hinge, elastic net": L1Trainer(loss=SQUARED_HINGE, l1_ratio=0.5, penalises_intercept=True),
    "logistic, l1": L1Trainer(),
    "logistic, elastic net": L1Trainer(l1_ratio=0.5),
    "softmax": MultinomialTrainer(),
    "ridge": RegressionTrainer(loss=SquaredEpsilonInsensitive(), alpha=2.0, tol=1e-6, penalises_intercept=False),
    "lasso": LASSO,
    "elastic net": dataclasses.replace(LASSO, l1_ratio=0.5),
    "epsilon-insensitive": RegressionTrainer(loss=EpsilonInsensitive(0.1)),
    "squared epsilon-insensitive": RegressionTrainer(loss=SquaredEpsilonInsensitive(0.1)),
    "huber": RegressionTrainer(loss=Huber(), penalises_intercept=False),
    "poisson": RegressionTrainer(loss=Poisson(), penalises_intercept=False),
    "poisson, elastic net": RegressionTrainer(loss=Poisson(), alpha=4.0, l1_ratio=0.5, penalises_intercept=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job.

    Attributes:
        trainer: One of `TRAINERS`.
        layout: One of `LAYOUTS`.
        nodes: One of `NODES`.
        copy: 0 for the rows as they are; others differ in last digits.
    """

    trainer: str
    layout: str
    nodes: str
    copy: int = 0

    @property
    def tol(self) -> float:
        """The gap that is asked for."""
        return TOL_OF_FLOAT32 if self.layout == "float32" else TOL

    def job(self, tol: float) -> Job:
        """To a gap of `tol`."""
        trainer = dataclasses.replace(TRAINERS[self.trainer], tol=tol)
        X, y = data(self.trainer, self.layout, self.copy)
        source = ArraySource(X, y, max_tasks=5, chunk_bytes=1024, seed=1)
        return Job(trainer=trainer, source=source, max_iterations=MOST_ITERATIONS, seed=2)

    def result(
        self, tol: float, *, nodes: tuple[SimulatedNode, ...] | None = None, network: SimulatedNetwork = NETWORK
    ) -> tuple[SimulationResult, Array]:
        """Run it; return its result, and its model, shape (outputs, num_features + 1)."""
        job = self.job(tol)
        simulated = SimulatedJob(iterations=MOST_ITERATIONS, row_s=1e-9, iteration_s=1.0)
        cluster = VirtualCluster(
            Scenario(nodes=nodes or NODES[self.nodes], job=simulated, network=network),
            make_work=lambda clock: Real(job, clock),
        )
        most = FEW_VALUES if self.layout == "wide" else 0  # narrow rows stand for many
        # One pass an iteration, so that little data is not done with before anything happens.
        passes = ITERATION_VALUES if self.nodes == "1" else 0
        with mock.patch.object(methods, "FEW_VALUES", most), mock.patch.object(steps, "ITERATION_VALUES", passes):
            result = cluster.run()
        assert isinstance(cluster.work, Real)
        return result, cluster.work.model.reshape(-1, LAYOUTS[self.layout]["features"] + 1)


@cache
def data(trainer: str, layout: str, copy: int = 0) -> tuple[Any, Array]:
    """Rows that are hard to tell apart, and their classes or real targets."""
    shape = LAYOUTS[layout]
    n, d, density = int(shape["rows"]), int(shape["features"]), float(shape.get("density", 1.0))
    rng = np.random.default_rng([n, d])
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < density)
    scores = X @ rng.normal(size=(d, 3)) / np.sqrt(d * density) + rng.normal(size=(n, 3))
    if trainer.startswith("poisson"):
        y = rng.poisson(np.exp(0.5 * scores[:, 0])).astype(np.float64)
    elif not getattr(TRAINERS[trainer], "is_of_classes", True):
        y = scores[:, 0] + 0.5
    elif trainer == "softmax":
        y = np.argmax(scores, axis=1).astype(np.int32)
    else:
        y = (scores[:, 0] > 0.3).astype(np.int32)
    X = X.astype(shape.get("dtype", "float64"))
    digits = np.random.default_rng(copy).integers(-1, 2, size=X.shape) if copy else 0
    X *= (1 + digits * np.finfo(X.dtype).eps).astype(X.dtype)
    return (scipy.sparse.csr_matrix(X) if density < 1 else X), y


def objective(name: str, layout: str, model: Array) -> float:
    """P of a model, from X and y and the formulas of docs/linear.md."""
    trainer = TRAINERS[name]
    X, y = data(name, layout)
    Z = (X.toarray() if scipy.sparse.issparse(X) else X).astype(np.float64)
    w, b = model[:, :-1], model[:, -1]
    if isinstance(trainer, MultinomialTrainer):
        scores = Z @ w.T + b
        losses = logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]
        return float(trainer.C * losses.sum() + 0.5 * (w * w).sum())
    w = w[0]
    scores = Z @ w + trainer.intercept_scaling * b[0]
    is_of_classes = getattr(trainer, "is_of_classes", True)
    if not is_of_classes and trainer.l1_ratio:
        penalty = trainer.alpha * (trainer.l1_ratio * np.abs(w).sum() + 0.5 * (1 - trainer.l1_ratio) * w @ w)
        if isinstance(trainer.loss, Poisson):
            return float((np.exp(scores) - y * scores - y + xlogy(y, y)).sum() + penalty)
        return float(0.5 * ((y - scores) ** 2).mean() + penalty)
    all_weights = np.append(w, b)
    if not is_of_classes:
        if isinstance(trainer.loss, Huber):  # the best scale there is
            losses = lambda log: trainer.loss.values(scores, y, np.exp(log)).sum()  # noqa: E731
            found = minimize_scalar(losses, bounds=(-40, 5), options={"xatol": 1e-9})
            return float(found.fun + 0.5 * w @ w)
        if isinstance(trainer.loss, Poisson):
            return float((np.exp(scores) - y * scores - y + xlogy(y, y)).sum() + 0.5 * w @ w)
        assert isinstance(trainer.loss, EpsilonInsensitive | SquaredEpsilonInsensitive)
        losses = np.maximum(np.abs(y - scores) - trainer.loss.epsilon, 0.0)
        losses = losses if isinstance(trainer.loss, EpsilonInsensitive) else losses**2
        weights = all_weights if trainer.penalises_intercept else w
        return float(trainer.C * losses.sum() + 0.5 * trainer.alpha * weights @ weights)
    margins = np.where(y == 1, 1.0, -1.0) * scores
    hinge = np.maximum(1.0 - margins, 0.0)
    losses = {
        "hinge": hinge,
        "squared_hinge": hinge**2,
        "logistic": np.logaddexp(0.0, -margins),
        "modified_huber": np.where(margins < -1.0, -4.0 * margins, hinge**2),
    }[trainer.loss if isinstance(trainer.loss, str) else trainer.loss.loss.name.lower()]
    penalised = all_weights if trainer.penalises_intercept else w
    if isinstance(trainer, L1Trainer):
        share = trainer.l1_ratio
        penalty = share * np.abs(penalised).sum() + 0.5 * (1 - share) * penalised @ penalised
        return float(trainer.C * losses.sum() + penalty)
    return float(trainer.C * losses.sum() + 0.5 * penalised @ penalised)


def cells() -> list[tuple[str, str]]:
    """Trainers and layouts, but for those of which other tests have what last digits decide."""
    left_out = {("epsilon-insensitive", "wide"), ("huber", "few rows")}
    return [cell for cell in itertools.product(TRAINERS, LAYOUTS) if cell not in left_out]


def measured(trainer: str, layout: str) -> dict[str, Any]:
    """Run a cell; return what the file says of it."""
    iterations: dict[str, list[int]] = {}
    objectives = []
    for nodes, copy in itertools.product(NODES, range(COPIES.get(trainer, 1))):
        run = Run(trainer=trainer, layout=layout, nodes=nodes, copy=copy)
        results = [run.result(tol) for tol in (TRAINERS[trainer].tol, run.tol)]
        counts = [len(result.history) for result, _ in results]
        iterations[nodes] = [max(pair) for pair in zip(counts, iterations.get(nodes, counts), strict=True)]
        objectives.append(objective(trainer, layout, results[-1][1]))
    return {"objective": float(f"{min(objectives):.12g}"), "iterations": iterations}


def main(names: list[str]) -> None:
    """Write the file."""
    golden = json.loads(FILE.read_text()) if names else {}
    for trainer, layout in cells():
        key = f"{trainer}/{layout}"
        if not names or any(key.startswith(name) for name in names):
            golden[key] = measured(trainer, layout)
            print(key, golden[key], flush=True)
    keys = [key for trainer, layout in cells() if (key := f"{trainer}/{layout}") in golden]
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(golden[key])}" for key in keys)
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
