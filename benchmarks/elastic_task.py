"""What the nodes of Chicle run in the elastic benchmark: CoCoA on small data, with iterations of a chosen length."""

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.elastic_laps import LapWriter
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.sources import ArraySource, ChunkSource
from chicle_elastic.chunks.views import Array
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Action, Budget, Context, Report, Solver, Update, Verdict
from chicle_elastic.solvers.linear.trainer import LinearTrainer

NUM_ROWS, NUM_FEATURES = 4096, 32
POLL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedCocoa(LinearTrainer):
    """CoCoA whose iterations take a while, that takes down when they end, and that ends when the benchmark says so.

    Attributes:
        iteration_s: Shortest time of an iteration; the solver sleeps, because all nodes share the processors.
        laps: Takes the end of each iteration; None elsewhere than in a task.
        end_file: Holds the iteration that is the last one, once there is one.
        certifies: Whether certificates come at intervals as usual: with large data each is an iteration of another
            length, at a moment that has nothing to do with what is measured.
    """

    iteration_s: float
    laps: LapWriter
    end_file: Path
    certifies: bool = True

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA, slowed down."""
        solver = LinearTrainer.solver(self, ctx)
        solve = solver.solve

        def slow_solve(model: Array, budget: Budget) -> Update:
            end_s = time.perf_counter() + self.iteration_s
            update = solve(model, budget)
            while time.perf_counter() < end_s and not budget.is_spent():
                time.sleep(POLL_S)
            return update

        solver.solve = slow_solve  # type: ignore[method-assign]
        return solver

    def verdict(self, model: Array, report: Report) -> Verdict:
        """CoCoA's, and the end; every task comes to the same verdict, because the end is named ahead of time."""
        if not report.is_certificate:
            self.laps.ended(report.num_tasks)
        if self.end_file.exists() and report.iteration >= int(self.end_file.read_text()):
            return Verdict(action=Action.STOP if report.is_certificate else Action.CERTIFY, reason="it is over")
        if not self.certifies:
            return Verdict(action=Action.GO_ON)
        verdict = LinearTrainer.verdict(self, model, report)
        return Verdict(action=Action.GO_ON) if verdict.action is Action.STOP else verdict


def main() -> None:
    """Train, and write down what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("node")
    parser.add_argument("iteration_ms", type=float)
    parser.add_argument("--data", type=Path, help="a chunk folder; by default small arrays")
    options = parser.parse_args()
    runtime = cluster_runtime()
    source: ChunkSource
    if options.data is None:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((NUM_ROWS, NUM_FEATURES))
        y = (X[:, 0] + rng.standard_normal(NUM_ROWS) > 0).astype(np.int32)
        source = ArraySource(X, y, max_tasks=runtime.most_tasks())
    else:
        source = ChunkFolder(options.data)
    trainer = PacedCocoa(
        C=1.0,
        tol=0.0,
        iteration_s=options.iteration_ms / 1e3,
        laps=LapWriter(options.folder / f"{options.node}.laps"),
        end_file=options.folder / "end",
        certifies=options.data is None,
    )
    outcome = runtime.run(Job(trainer=trainer, source=source, max_iterations=1_000_000))
    certificate = outcome.certificate
    result = {
        "iterations": len(outcome.history),
        "gap": None if certificate is None else trainer.relative_gap(outcome.model, certificate),
        "norm": float(np.linalg.norm(outcome.model)),
    }
    (options.folder / f"{os.getpid()}.result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
