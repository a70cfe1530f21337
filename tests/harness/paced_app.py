"""What agents run when nodes are to differ in speed: a solver whose iterations cost so much per sample.

    python -m chicle_elastic.launch ... tests/harness/paced_app.py --out FOLDER \
        --cost n0=200 --cost n1=100 --change n1=150@60 --noise 0.05 --part 0.1

Costs are microseconds per sample, by node; `--change` sets another one from an iteration on. Solvers sleep, so nodes of
one host do not hinder each other. With `--part` they process such a share of their rows in an iteration, as local SGD.
With `--skip-from` they leave a chunk out from an iteration on, and say that the budget was spent: a breach of the
contract that their own task cannot see. Each task that stays to the end writes PID.paced.json: for each iteration its
end in seconds since the job began, the chunks of each node, and what was said at the boundary before it.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Budget, Context, Solver, Trainer, Update
from chicle_elastic.values import Decision, Observations

ROWS_PER_CHUNK = 16
SUFFIX = ".paced.json"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds per sample of a node, from an iteration on."""

    node: str
    seconds: float
    since: int = 0


@dataclass(frozen=True, slots=True)
class Faulty(Policy):
    """Raises when it is asked for the third time or so."""

    def decide(self, observations: Observations, /) -> Decision | None:
        """Nothing, then an error."""
        if observations.iteration >= 3:
            raise RuntimeError("out of ideas")
        return None


class PacedSolver(Solver):
    """Reads its share of the rows, and sleeps as long as that is to take."""

    def __init__(self, ctx: Context, trainer: "PacedTrainer") -> None:
        super().__init__(ctx)
        self._costs = [cost for cost in trainer.costs if cost.node == ctx.name]
        self._trainer, self._rng, self._part = trainer, ctx.rng, trainer.part

    def solve(self, model: Array, budget: Budget) -> Update:
        """One iteration."""
        trainer, end_s = self._trainer, time.monotonic() + self._trainer.min_s
        is_lazy = 0 < trainer.skip_from <= budget.iteration
        samples = 0
        for chunk in sorted(self.chunks.values(), key=lambda chunk: chunk.id)[is_lazy:]:
            rows = max(1, round(self._part * chunk.num_rows))
            chunk.count(rows)
            samples += rows
        cost_s = [cost.seconds for cost in self._costs if cost.since <= budget.iteration]
        end_s += samples * (cost_s[-1] if cost_s else 0.0) * max(0.1, 1 + trainer.noise * self._rng.standard_normal())
        time.sleep(max(0.0, end_s - time.monotonic()))
        is_partial = is_lazy or self._part < 1.0
        return Update(
            delta=np.ones_like(model), samples=samples, weight=samples, metrics={"rows": samples}, is_partial=is_partial
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedTrainer(Trainer):
    """Its model counts iterations."""

    costs: tuple[Cost, ...]  # of all nodes; later ones of a node take the place of earlier ones
    noise: float  # relative standard deviation of the time of an iteration
    part: float = 1.0  # share of its rows that a task processes in an iteration, > 0 and <= 1
    min_s: float = 0.0  # an iteration takes so long at least, and the rows on top
    skip_from: int = 0  # iteration from which on a task leaves its first chunk out; 0 for none

    @property
    def takes_parts(self) -> bool:
        """Whether it does not process all of them."""
        return self.part < 1.0

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros."""
        return np.zeros(8)

    def state(self, schema: DataSchema) -> StateSpec:
        """One number per row."""
        return StateSpec(outputs=1, width=1, dtype="int32")

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Rows."""
        return ("rows",)

    def solver(self, ctx: Context) -> Solver:
        """A solver."""
        return PacedSolver(ctx, self)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """The mean."""
        return model + weighted_sum / total_weight

    def figures(self, model: Array, report: object) -> dict[str, float]:
        """The model itself."""
        return {"objective": float(model[0])}


def cost_of(text: str) -> Cost:
    """NODE=MICROSECONDS or NODE=MICROSECONDS@ITERATION."""
    node, _, rest = text.partition("=")
    microseconds, _, since = rest.partition("@")
    return Cost(node, 1e-6 * float(microseconds), int(since or 0))


def main() -> None:
    """Train, and write down how it went."""
    parser = argparse.ArgumentParser(description="A job on nodes of chosen speeds.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cost", type=cost_of, action="append", default=[], dest="costs")
    parser.add_argument("--change", type=cost_of, action="append", default=[], dest="changes")
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--part", type=float, default=1.0)
    parser.add_argument("--min-ms", type=float, default=0.0)
    parser.add_argument("--skip-from", type=int, default=0)
    parser.add_argument("--end-file", type=Path, help="the job ends at an iteration after this file appeared")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--no-policy", action="store_true", help="leave the chunks where they are")
    parser.add_argument("--bad-policy", action="store_true", help="have one that raises, too")
    options = parser.parse_args()
    num_rows, num_features = options.chunks * ROWS_PER_CHUNK, 4
    X = np.zeros((num_rows, num_features))
    # The rows as they lie in a chunk: features, a target of 8 bytes and a row id of 8 bytes.
    source = ArraySource(
        X, np.zeros(num_rows), max_tasks=4, chunk_bytes=ROWS_PER_CHUNK * 8 * (num_features + 2), shuffle=True
    )
    policies: tuple[Policy, ...] = () if options.no_policy else (Rebalance(),)
    if options.bad_policy:
        policies = (Faulty(), *policies)
    job = Job(
        trainer=PacedTrainer(
            costs=(*options.costs, *options.changes),
            noise=options.noise,
            part=options.part,
            min_s=options.min_ms / 1e3,
            skip_from=options.skip_from,
        ),
        source=source,
        max_iterations=options.iterations,
        policies=policies,
        on_iteration=None if options.end_file is None else lambda record: options.end_file.exists(),
    )
    outcome = cluster_runtime().run(job)
    told = [
        {"time_s": record.time_s, "chunks": dict(record.num_chunks), "lines": list(record.events)}
        for record in outcome.history
    ]
    (options.out / f"{os.getpid()}{SUFFIX}").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
