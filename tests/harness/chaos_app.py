"""What agents run while chaos strikes: jobs that leave evidence of every sample, and a solver that counts.

    python -m chicle_elastic.launch ... tests/harness/chaos_app.py --out FOLDER --work count

`--work svm` is CoCoA, where w = w(alpha) always: its duals at the end have to give w and the certified gap. `--work
newton` is Newton's method, which the end finds amid its steps: its duals have to give the gap. `--work count` counts:
the model has one number per chunk, which each merged iteration with that chunk raises by 1, and the state of every
sample is

    COUNT  iterations that this state went through and that were merged
    SEEN   1 + the chunk's number in the model when the sample was last processed; 0 for fresh state
    BASE   what the model had counted before this state began: COUNT + BASE is the model's number

The model decides whether the last attempt was merged: it counts SEEN then, and SEEN - 1 otherwise. Any other number
means that iterations were merged which this state knows nothing of: it begins anew, with another BASE. That may be
after a loss, when the chunk was loaded again; at any other time the state is stale.
"""

import argparse
import faulthandler
import json
import signal
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chicle_elastic.chunks.rows import RowRange
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, CsrRows, DataSchema, StateSpec
from chicle_elastic.ids import ChunkId
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.cluster_task.warmup import NAME as PRACTICE
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import NO_PROGRESS, Action, Budget, Context, Report, Solver, Trainer, Update, Verdict
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.local_chunk import LocalChunk, RowBlock

COUNT, SEEN, BASE = range(3)
POLL_S = 0.001
NUM_ROWS, NUM_FEATURES = 600, 12
MAX_NODES = 8
C = 10.0
"""Large enough that the gap is not closed within minutes."""


def data() -> tuple[Array, Array]:
    """X of shape (600, 12), float64, and class codes y of shape (600,), int32; always the same."""
    rng = np.random.default_rng(20)
    X = rng.standard_normal((NUM_ROWS, NUM_FEATURES))
    noise = rng.standard_normal(NUM_ROWS)
    return X, (X @ rng.standard_normal(NUM_FEATURES) + noise > 0).astype(np.int32)


def source() -> ArraySource:
    """The chunks of `data`."""
    X, y = data()
    return ArraySource(X, y, max_tasks=MAX_NODES)


def checksum(block: Any) -> int:
    """CRC of rows, targets and row ids; of a chunk or of a block of all its rows."""
    rows = block.rows
    arrays = (rows.indptr, rows.indices, rows.values) if isinstance(rows, CsrRows) else (rows,)
    row_ids = block.row_ids
    if isinstance(row_ids, RowRange):
        row_ids = np.asarray(row_ids)
    crc = 0
    for array in (*arrays, block.targets, row_ids):
        crc = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), crc)
    return crc


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTrainer(Trainer):
    """Counts the merged iterations of every chunk; see the top of the module."""

    num_chunks: int

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros, shape (num_chunks,), float64."""
        return np.zeros(self.num_chunks)

    def state(self, schema: DataSchema) -> StateSpec:
        """COUNT, SEEN and BASE of every sample."""
        return StateSpec(outputs=1, width=3, dtype="float64")

    def solver(self, ctx: Context) -> Solver:
        """The solver that counts."""
        return CountSolver(ctx)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """The numbers of those chunks that took part are higher by 1."""
        return model + weighted_sum


class CountSolver(Solver):
    """See the top of the module."""

    def solve(self, model: Array, budget: Budget) -> Update:
        """Count every local sample once."""
        delta = np.zeros_like(model)
        samples = 0
        for chunk in self.chunks.values():
            block = chunk.read()
            state = block.state[:, 0, :]
            before = float(model[chunk.id])
            settle(state, before)
            state[:, COUNT] += 1
            state[:, SEEN] = before + 1
            delta[chunk.id] = 1
            samples += chunk.num_rows
        return Update(delta=delta, samples=samples, weight=1.0)


def settle(state: Array, merged: float) -> None:
    """Make COUNT of each row what was merged: take back an attempt that was not, and begin anew after a jump.

    Args:
        state: ndarray of shape (n, 3), float64; changed in place.
        merged: Number of the chunk in the model.
    """
    seen = state[:, SEEN]
    state[(seen > 0) & (seen == merged + 1), COUNT] -= 1
    has_jumped = (seen == 0) | ((seen != merged) & (seen != merged + 1))
    state[has_jumped, BASE] = merged - state[has_jumped, COUNT]


class Witness:
    """Looks over the shoulder of a solver: what it has in the end, with checksums; and makes its iterations longer.

    Args:
        solver: Whose methods are wrapped.
        min_s: Shortest time of an iteration.
    """

    def __init__(self, solver: Solver, *, min_s: float) -> None:
        self.checksums: dict[ChunkId, int] = {}
        self._chunks: dict[ChunkId, LocalChunk] = {}
        self._min_s = min_s
        self._attach, self._solve, self._evaluate = solver.attach, solver.solve, solver.evaluate
        solver.attach, solver.solve, solver.evaluate = self.attach, self.solve, self.evaluate  # type: ignore[method-assign]

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Keep the list of local chunks."""
        for chunk_id in removed:
            self._chunks.pop(chunk_id, None)
        self._chunks.update((chunk.id, chunk) for chunk in added)
        self._attach(added, removed)

    def solve(self, model: Array, budget: Budget) -> Update:
        """Solve, and wait for the end of `min_s`, or for an interrupt."""
        end_s = time.monotonic() + self._min_s
        update = self._solve(model, budget)
        while time.monotonic() < end_s and not budget.is_spent():
            time.sleep(POLL_S)
        return update

    def evaluate(self, model: Array, progress: Array) -> Update:
        """Note what lies in the chunks."""
        blocks: dict[ChunkId, RowBlock] = {chunk_id: chunk.peek() for chunk_id, chunk in self._chunks.items()}
        self.checksums = {chunk_id: checksum(block) for chunk_id, block in blocks.items()}
        return self._evaluate(model, progress)

    def held(self) -> dict[ChunkId, int]:
        """Checksum by chunk of what is local now; -1 for what came after the last evaluation."""
        return {chunk_id: self.checksums.get(chunk_id, -1) for chunk_id in self._chunks}


_witnesses: dict[str, Witness] = {}
"""By task; in this process there is one, and the one that practises."""


def watched(solver: Solver, min_s: float) -> Solver:
    """The same solver, with a witness."""
    _witnesses[solver.ctx.name] = Witness(solver, min_s=min_s)
    return solver


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCount(CountTrainer):
    """Counting, with a witness."""

    min_s: float = 0.0

    def solver(self, ctx: Context) -> Solver:
        """A solver with a witness."""
        return watched(CountTrainer.solver(self, ctx), self.min_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedNewton(LinearTrainer):
    """A trainer whose solvers have a witness."""

    min_s: float = 0.0

    def solver(self, ctx: Context) -> Solver:
        """A solver with a witness."""
        return watched(LinearTrainer.solver(self, ctx), self.min_s)

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Certify now and then, and never stop: even a gap of nothing does not end the churn."""
        verdict = LinearTrainer.verdict(self, model, report)
        return Verdict(action=Action.GO_ON) if verdict.action is Action.STOP else verdict


class WatchedCocoa(WatchedNewton):
    """CoCoA with any number of tasks: w follows from the duals alone, so that a stale one shows."""

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """No progress, which is coordinate descent."""
        return NO_PROGRESS


def main() -> None:
    """Run the job, and write down what came of it: NODE.outcome.json."""
    faulthandler.register(signal.SIGUSR2)  # where it hangs, if it does
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--end-file", type=Path, required=True, help="the job ends after this file appeared")
    parser.add_argument("--work", choices=("svm", "newton", "count"), default="count")
    parser.add_argument("--min-ms", type=float, default=20.0)
    options = parser.parse_args()
    chunks, min_s = source(), options.min_ms / 1e3
    trainer: LinearTrainer | CountTrainer
    if options.work == "svm":
        trainer = WatchedCocoa(C=C, tol=0.0, min_s=min_s)
    elif options.work == "newton":
        trainer = WatchedNewton(C=C, tol=0.0, min_s=min_s)
    else:
        trainer = WatchedCount(num_chunks=chunks.num_chunks, min_s=min_s)

    def is_over(record: IterationRecord) -> bool:
        return bool(options.end_file.exists())

    outcome = cluster_runtime().run(
        Job(trainer=trainer, source=chunks, max_iterations=10**7, on_iteration=is_over, keep_state=True)
    )
    [(node, witness)] = [(name, witness) for name, witness in _witnesses.items() if name != PRACTICE]
    assert outcome.state is not None
    certificate = outcome.certificate
    result = {
        "node": node,
        "reason": outcome.reason,
        "iterations": len(outcome.history),
        "model": outcome.model.tolist(),
        "state": outcome.state.tolist(),
        "gap": None
        if certificate is None or not isinstance(trainer, LinearTrainer)
        else trainer.relative_gap(outcome.model, certificate),
        "held": witness.held(),
    }
    (options.out / f"{node}.outcome.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
