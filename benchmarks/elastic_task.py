"""What the nodes of Chicle run in the elastic benchmark: CoCoA on small data, with iterations of a chosen length."""

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.elastic_laps import LapWriter
from benchmarks.paced import PacedCocoa
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.sources import ArraySource, ChunkSource
from chicle_elastic.chunks.views import Array
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Action, Report, Verdict

NUM_ROWS, NUM_FEATURES = 4096, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedCocoa(PacedCocoa):
    """CoCoA that takes down when its iterations end, and that ends when the benchmark says so.

    Attributes:
        laps: Takes the end of each iteration.
        end_file: Holds the iteration that is the last one, once there is one.
        certifies: Whether certificates come at intervals as usual: with large data each is an iteration of another
            length, at a moment that has nothing to do with what is measured.
    """

    laps: LapWriter
    end_file: Path
    certifies: bool = True

    def verdict(self, model: Array, report: Report) -> Verdict:
        """CoCoA's, and the end; every task comes to the same verdict, because the end is named ahead of time."""
        if not report.is_certificate:
            self.laps.ended(report.num_tasks)
        if self.end_file.exists() and report.iteration >= int(self.end_file.read_text()):
            return Verdict(action=Action.STOP if report.is_certificate else Action.CERTIFY, reason="it is over")
        return PacedCocoa.verdict(self, model, report) if self.certifies else Verdict(action=Action.GO_ON)


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
    trainer = NotedCocoa(
        C=1.0,
        tol=0.0,
        algorithm="cocoa",  # other methods read all rows in each iteration: longer ones, which are no stall
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
