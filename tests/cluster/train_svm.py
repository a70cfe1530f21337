"""A script as a user would write it, started by agents: an SVM on a small data set, with iterations of a chosen length.

python -m chicle_elastic.launch ... tests/cluster/train_svm.py --out FOLDER --min-ms 20 --tol 1e-6
"""

import argparse
import functools
import importlib.util
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import NO_PROGRESS, Budget, Context, Solver, Update
from chicle_elastic.solvers.linear.trainer import LinearTrainer

POLL_S = 0.001
Solve = Callable[[Array, Budget], Update]


class ChangedLinear(LinearTrainer):
    """A linear trainer whose solvers do something else, or more, in their iterations."""

    def change(self, ctx: Context, solve: Solve, model: Array, budget: Budget) -> Update:
        """One iteration; `solve` is what the solver does by itself."""
        raise NotImplementedError

    def solver(self, ctx: Context) -> Solver:
        """The solver of a linear model, changed."""
        solver = LinearTrainer.solver(self, ctx)
        solver.solve = functools.partial(self.change, ctx, solver.solve)  # type: ignore[method-assign]
        return solver


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedLinear(ChangedLinear):
    """Iterations take at least `min_s`, so that faults find one in flight, until the file `until` exists."""

    min_s: float = 0.0
    until: str = ""

    def change(self, ctx: Context, solve: Solve, model: Array, budget: Budget) -> Update:
        """Slowed down."""
        end_s = time.monotonic() + self.min_s
        update = solve(model, budget)
        while time.monotonic() < end_s and not budget.is_spent() and not (self.until and os.path.exists(self.until)):
            time.sleep(POLL_S)
        return update


class PacedCocoa(PacedLinear):
    """The same by CoCoA, with any number of tasks: w = w(alpha) at every boundary."""

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """No progress, which is coordinate descent."""
        return NO_PROGRESS


def breast_cancer() -> tuple[Array, Array]:
    """scikit-learn's data set, standardised; its import would take a second of every task."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    table = np.loadtxt(Path(spec.origin).parent / "datasets/data/breast_cancer.csv", delimiter=",", skiprows=1)
    X, y = table[:, :-1], table[:, -1]
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def main() -> None:
    """Train, and write down what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--min-ms", type=float, default=20.0)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--cocoa", action="store_true", help="not the method that several tasks take by default")
    parser.add_argument("--newton", action="store_true", help="Newton's method, however few the rows are")
    parser.add_argument("--max-iterations", type=int, default=100_000)
    parser.add_argument("--raise-at", type=int, default=0, help="raise after this iteration")
    parser.add_argument("--cut-file", default="", help="sums are cut once this file has appeared, without a reset")
    parser.add_argument("--end-file", default="", help="the job ends at an iteration after this file appeared")
    options = parser.parse_args()
    X, y = breast_cancer()
    runtime = cluster_runtime()
    paced = PacedCocoa if options.cocoa else PacedLinear
    algorithm: Any = "newton" if options.newton else "auto"
    trainer = paced(C=1.0, tol=options.tol, min_s=options.min_ms / 1e3, algorithm=algorithm)

    cuts: list[int] = []

    def is_over(record: IterationRecord) -> bool:
        if record.iteration == options.raise_at:
            raise ValueError("the user's code is at fault")
        if options.cut_file and not cuts and Path(options.cut_file).exists():
            from tests.harness.cut_sockets import cut_all  # only where the tests start the script

            cuts.append(cut_all())
        return bool(options.end_file) and Path(options.end_file).exists()

    source = ArraySource(X, y.astype(np.int32), max_tasks=runtime.most_tasks())
    outcome = runtime.run(
        Job(trainer=trainer, source=source, max_iterations=options.max_iterations, on_iteration=is_over)
    )
    certificate = outcome.certificate
    result = {
        "reason": outcome.reason,
        "iterations": len(outcome.history),
        "gap": None if certificate is None else trainer.relative_gap(outcome.model, certificate),
        "norm": float(np.linalg.norm(outcome.model)),
    }
    (options.out / f"{os.getpid()}.result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
