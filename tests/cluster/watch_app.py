"""A job whose solver may break the contract in a way that its own task cannot see; started by agents.

python -m chicle_elastic.launch ... tests/cluster/watch_app.py FOLDER [SKIP_FROM]

An iteration of a node takes 20 ms, or WATCH_APP_S of its environment in seconds.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Budget, Context, Solver, Trainer, Update

ITERATION_S = float(os.environ.get("WATCH_APP_S", "0.02"))


class LazySolver(Solver):
    """Reads every chunk but the first, and says that the budget was spent, from one iteration on."""

    def __init__(self, ctx: Context, skip_from: int) -> None:
        super().__init__(ctx)
        self._skip_from = skip_from

    def solve(self, model: Array, budget: Budget) -> Update:
        """Sum up nothing, slowly."""
        time.sleep(ITERATION_S)
        is_lazy = 0 < self._skip_from <= budget.iteration
        chunks = sorted(self.chunks.values(), key=lambda chunk: chunk.id)[is_lazy:]
        samples = sum(len(chunk.read().targets) for chunk in chunks)
        return Update(delta=np.ones_like(model), samples=samples, weight=samples, is_partial=is_lazy)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTrainer(Trainer):
    """Counts iterations; one figure."""

    skip_from: int = 0

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """One parameter."""
        return np.zeros(1)

    def solver(self, ctx: Context) -> Solver:
        """One that may be lazy."""
        return LazySolver(ctx, self.skip_from)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """One more."""
        return model + weighted_sum / total_weight

    def figures(self, model: Array, report: object) -> dict[str, float]:
        """The model itself."""
        return {"objective": float(model[0])}


def main(folder: Path, skip_from: int = 0) -> None:
    """Train until the file FOLDER/end is there."""
    runtime = cluster_runtime()
    source = ArraySource(np.zeros((640, 3)), np.arange(640.0), max_tasks=runtime.most_tasks())
    trainer = WatchedTrainer(skip_from=skip_from)
    end_file = folder / "end"
    runtime.run(
        Job(trainer=trainer, source=source, max_iterations=100_000, on_iteration=lambda record: end_file.exists())
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
