"""Jobs of the benchmark of policies: CoCoA as in the paper, and virtual tasks with speeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.clock import VirtualClock
from chicle_elastic.evaluate.cocoa import CertifiedCocoa
from chicle_elastic.monitoring.history import History
from chicle_elastic.policies.base import Policy
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Budget, Context, Solver, Trainer, Update

ROWS_PER_CHUNK = 10
SEED = 1


def cocoa_gaps(
    X: Array, y: Array, *, C: float, num_tasks: int, tol: float, most: int, policies: Sequence[Policy]
) -> np.ndarray:
    """Certified relative gap after each iteration, shape (iterations,), float64; the last one is <= `tol`, or `most`
    were too few."""
    source = ArraySource(X, y.astype(np.int32), max_tasks=num_tasks, seed=SEED)
    job = Job(
        trainer=CertifiedCocoa(C=C, tol=tol), source=source, max_iterations=most, seed=SEED, policies=tuple(policies)
    )
    return InProcess(num_tasks=num_tasks).run(job).history.column("duality_gap")


class ChargedSolver(Solver):
    """Reads every row, and moves the clock by what they are said to cost on this task."""

    def __init__(self, ctx: Context, trainer: "Charged") -> None:
        super().__init__(ctx)
        self._cost_s = trainer.costs_s[int(ctx.name.removeprefix("task-"))]
        self._noise, self._clock, self._rng = trainer.noise, trainer.clock, ctx.rng

    def solve(self, model: Array, budget: Budget) -> Update:
        """One iteration."""
        for chunk in self.chunks.values():
            chunk.read()
        samples = sum(chunk.num_rows for chunk in self.chunks.values())
        self._clock.advance(samples * self._cost_s * max(0.1, 1 + self._noise * self._rng.standard_normal()))
        return Update(delta=np.zeros_like(model), samples=samples, weight=samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged(Trainer):
    """Learns nothing.

    Attributes:
        costs_s: Seconds per sample, by task.
        noise: Relative standard deviation of the time of an iteration.
        clock: That of the runtime.
    """

    costs_s: tuple[float, ...]
    noise: float
    clock: VirtualClock

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros."""
        return np.zeros(1)

    def state(self, schema: DataSchema) -> StateSpec:
        """One number per row."""
        return StateSpec(outputs=1, width=1, dtype="int32")

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """None."""
        return ()

    def solver(self, ctx: Context) -> Solver:
        """A solver."""
        return ChargedSolver(ctx, self)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """The same."""
        return model


def charged(
    costs_s: Sequence[float], *, num_chunks: int, iterations: int, policies: Sequence[Policy], noise: float = 0.0
) -> History:
    """Run tasks of these speeds on a clock that only they move; what they did."""
    clock, num_rows = VirtualClock(), num_chunks * ROWS_PER_CHUNK
    # The rows as they lie in a chunk: a feature, a target of 8 bytes and a row id of 8 bytes.
    source = ArraySource(
        np.zeros((num_rows, 1)), np.zeros(num_rows), max_tasks=len(costs_s), chunk_bytes=ROWS_PER_CHUNK * 8 * 3
    )
    job = Job(
        trainer=Charged(costs_s=tuple(costs_s), noise=noise, clock=clock),
        source=source,
        max_iterations=iterations,
        seed=SEED,
        policies=tuple(policies),
    )
    return InProcess(num_tasks=len(costs_s)).run(job, clock=clock).history
