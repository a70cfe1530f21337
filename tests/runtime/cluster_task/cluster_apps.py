"""Applications for tests of the task: `python -m tests.runtime.cluster_task.cluster_apps NAME OUT`, as agents start it.

Each builds a job, runs it on the cluster, and writes what came out to the file OUT.
"""

import json
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.training.job import Job, Runtime
from chicle_elastic.solvers.base import NO_PROGRESS, Budget, Context, Solver, Trainer, Update
from chicle_elastic.solvers.linear.trainer import LinearTrainer

WORK = bytes(1 << 16)


def cancer() -> tuple[Array, Array]:
    """Standardised features and codes of the breast cancer data."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, y.astype(np.int32)


class CountingSolver(Solver):
    """Adds 1 to the state of every sample; how long it takes is told by `seconds` per iteration."""

    def __init__(self, ctx: Context, trainer: "CountingTrainer") -> None:
        super().__init__(ctx)
        self.trainer = trainer

    def solve(self, model: Array, budget: Budget) -> Update:
        if self.trainer.fails_in == budget.iteration:
            raise ValueError("this solver was told to fail")
        if self.trainer.chats and budget.iteration == 1:
            self.ctx.send("*", {"hello from": self.ctx.name})
        while self.trainer.chats and (message := self.ctx.receive()) is not None:
            print(f"{self.ctx.name} heard {message.payload} from {message.sender}", flush=True)
        samples = 0
        deadline = budget.clock.now() + self.trainer.seconds
        while budget.clock.now() < deadline and not budget.is_spent():
            zlib.crc32(WORK)  # keeps a core busy without the GIL, as a kernel does
        is_partial = budget.is_spent() and self.trainer.seconds > 1
        for number, chunk in enumerate(self.chunks.values()):
            if is_partial and number % 2:
                continue
            chunk.read().state[...] += 1
            samples += chunk.num_rows
        return Update(
            delta=np.ones_like(model), samples=samples, weight=samples, metrics={"rows": samples}, is_partial=is_partial
        )


@dataclass(frozen=True, kw_only=True)
class CountingTrainer(Trainer):
    """Its model is the number of merged iterations, in every parameter."""

    seconds: float = 0.0
    fails_in: int = 0
    chats: bool = False
    size: int = 3

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        return np.zeros(self.size)

    def state(self, schema: DataSchema) -> StateSpec:
        return StateSpec(outputs=1, width=1, dtype="int32")

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        return ("rows",)

    def solver(self, ctx: Context) -> CountingSolver:
        return CountingSolver(ctx, self)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        return model + weighted_sum / total_weight

    def converse(self, ctx: Context) -> None:
        while self.chats and (message := ctx.receive()) is not None:
            print(f"trainer heard {message.payload} from {message.sender}", flush=True)
            ctx.send(message.sender, "welcome")


def counting_job(runtime: Runtime, **options: Any) -> Job:
    """A job that counts; `on_iteration` and `max_iterations` are the job's, other options the trainer's."""
    source = ArraySource(np.zeros((200, 3)), np.arange(200.0), max_tasks=runtime.most_tasks(), seed=1)
    own = {name: options.pop(name) for name in ("on_iteration", "max_iterations") if name in options}
    own = {"max_iterations": 1000, **own}
    return Job(trainer=CountingTrainer(**options), source=source, keep_state=True, policies=(), **own)


@dataclass(frozen=True, kw_only=True)
class Ascent(LinearTrainer):
    """Coordinate ascent with any number of tasks: w follows from the duals alone, and keeps whatever it lacks."""

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        return NO_PROGRESS


def cocoa_job(runtime: Runtime, trainer: type[LinearTrainer] = LinearTrainer) -> Job:
    """CoCoA on breast cancer, to a certificate."""
    source = ArraySource(*cancer(), max_tasks=runtime.most_tasks(), seed=3)
    return Job(
        trainer=trainer(tol=1e-3, C=0.1), source=source, max_iterations=500, seed=5, keep_state=True, policies=()
    )


JOBS: dict[str, Callable[[Runtime], Job]] = {
    "cocoa": cocoa_job,
    "ascent": lambda runtime: cocoa_job(runtime, Ascent),
    "count": counting_job,
    "short": lambda runtime: counting_job(runtime, max_iterations=3),
    "slow": lambda runtime: counting_job(runtime, seconds=60.0),
    "failing": lambda runtime: counting_job(runtime, fails_in=2),
    "chatty": lambda runtime: counting_job(runtime, chats=True),
    "called": lambda runtime: counting_job(runtime, on_iteration=lambda record: record.iteration == 2),
    "steady": lambda runtime: counting_job(runtime, seconds=0.02, size=4096),
}


def main(name: str, out: str) -> None:
    """Run a job, and write its outcome."""
    try:
        outcome = cluster_runtime().run(JOBS[name](cluster_runtime()))
    except SystemExit:
        print(f"leaves with niceness {os.nice(0)}", flush=True)
        raise
    certificate, certified, rebuilt = outcome.certificate, None, None
    if certificate is not None:
        assert certificate.rebuilt is not None
        certified, rebuilt = [certificate.iteration, dict(certificate.metrics)], certificate.rebuilt.tolist()
    data = {
        "pid": os.getpid(),
        "reason": outcome.reason,
        "model": outcome.model.tolist(),
        "address": outcome.model.ctypes.data,
        "history": outcome.history.to_dict(),
        "certified": certified,
        "rebuilt": rebuilt,
        "state": None if outcome.state is None else outcome.state.ravel().tolist(),
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(data, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
