"""What virtual tasks do in an iteration: nothing but take time (`Cost`), or real solvers on real data (`Real`).

Either way the clock is charged by samples, and a node's samples follow from the chunks that it has. `Cost` says how
long a job takes and what it costs, for any number of nodes and chunks. How many iterations a model needs, and what a
policy does to that, only `Real` says.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from chicle_elastic.chunks.views import Array, StateSpec
from chicle_elastic.clock import Clock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import PARAMETERS_PREFIX, IterationRecord
from chicle_elastic.runtime.simulate.scenario import SimulatedJob
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.local_tasks import LocalTasks
from chicle_elastic.runtime.training.training import Evaluation, IterationResult, Training
from chicle_elastic.runtime.training.uni_task import Mailboxes
from chicle_elastic.scheduling.effects import StartIteration
from chicle_elastic.solvers.base import Action, Summed
from chicle_elastic.values import DEADLINE, ChunkInfo, TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An iteration whose update is merged."""

    effect: StartIteration  # the order to begin it
    samples: Mapping[NodeId, int]  # samples of each task that took part
    seconds: Mapping[str, float]  # seconds that each of them computed
    num_chunks: Mapping[str, int]  # chunks of every member
    lines: tuple[str, ...]  # what was said at the boundary before it
    now_s: float  # when it ended


class Cost:
    """Work that takes time and has no result: `epochs_per_iteration` passes over the samples of each task."""

    is_real = False  # a model is trained: else nothing is known of convergence
    may_be_cut = True  # tasks can end an iteration with a part of their samples

    def __init__(self, job: SimulatedJob, infos: tuple[ChunkInfo, ...] = ()) -> None:
        self.infos = infos or tuple(
            ChunkInfo(id=ChunkId(number), num_rows=job.rows_per_chunk, size_bytes=job.chunk_bytes)
            for number in range(job.chunks)
        )
        self.history = History()  # a record per merged iteration
        self.mailboxes = Mailboxes()  # of policies; tasks that only take time read no messages
        self._job = job
        self._rows = sum(info.num_rows for info in self.infos)
        self._samples = 0

    def state_bytes(self, chunk: ChunkId) -> int:
        """Count the bytes of the state in a chunk: what moves when the rows are there."""
        return self._job.state_bytes

    def join(self, node: NodeId) -> None:
        """Take a node that is there. The cluster knows where chunks are: this and the next five are for real work."""

    def leave(self, node: NodeId) -> None:
        """Forget a node that is gone, with all that it had."""

    def load(self, chunk: ChunkId, node: NodeId) -> None:
        """Give a node a chunk from its source, with fresh state."""

    def copy(self, chunk: ChunkId, source: NodeId, target: NodeId) -> None:
        """Give a node a chunk with the state that it has elsewhere."""

    def free(self, chunk: ChunkId, node: NodeId) -> None:
        """Let a node forget a chunk, if it has it."""

    def attach(self, node: NodeId, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Tell the task of a node of its chunks."""

    def begin(self, effect: StartIteration, rows: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
        """Compute an iteration. Returns the samples that each of these processes, one at least."""
        share = self._job.epochs_per_iteration
        return rows if share == 1.0 else {node: max(1, round(share * count)) for node, count in rows.items()}

    def end(self, ended: Ended) -> str | None:
        """Merge the iteration and keep its record. Returns why the job ends, or None where it goes on."""
        self._samples += sum(ended.samples.values())
        self.history.append(
            IterationRecord(
                iteration=ended.effect.iteration,
                epochs=self._samples / self._rows,
                time_s=ended.now_s,
                num_tasks=len(ended.samples),
                num_chunks=ended.num_chunks,
                seconds=ended.seconds,
                samples=sum(ended.samples.values()),
                figures={f"{PARAMETERS_PREFIX}{name}": value for name, value in ended.effect.parameters.items()},
                events=ended.lines,
            )
        )
        is_over = ended.effect.iteration >= self._job.iterations
        return f"all {self._job.iterations} iterations used" if is_over else None

    def state_for_policies(self, effect: StartIteration) -> TrainingState:
        """Say what policies see of the last iteration: times only, there is no model."""
        last = self.history[-1]
        before_s = self.history[-2].time_s if len(self.history) > 1 else 0.0
        return TrainingState(
            epochs=last.epochs,
            elapsed_s=last.time_s,
            duration_s=last.time_s - before_s,
            parameters={DEADLINE: 0.0, **effect.parameters},
        )


class Real:
    """Real solvers on real data; only the time is charged. Certificates are free of charge.

    An iteration is computed when it begins and merged when it ends, so one that a loss aborts leaves state without
    model behind, as on a cluster, and is followed by a recovery.

    Args:
        job: Trainer, source and limits. Its `policies` are not used: those of the simulation are.
    """

    is_real = True
    may_be_cut = False

    def __init__(self, job: Job, clock: Clock) -> None:
        self._job = job
        self._spec: StateSpec = job.trainer.state(job.source.schema).without_notes()
        self.infos = job.source.infos(self._spec)
        self._tasks = LocalTasks(job, clock)
        self.mailboxes = self._tasks.mailboxes
        self._training = Training(job, context=self._tasks.context, elapsed_s=clock.now)
        self._summed = Summed(delta=np.zeros(0), weight=0.0, metrics={}, num_tasks=0)
        self._is_dirty = False
        self._rows = {info.id: info.num_rows for info in self.infos}

    @property
    def history(self) -> History:
        """A record per merged iteration."""
        return self._training.history

    @property
    def model(self) -> Array:
        """ndarray of shape (num_parameters,)."""
        return self._training.model

    def state_bytes(self, chunk: ChunkId) -> int:
        """See `Cost`."""
        return self._spec.size_bytes(self._rows[chunk])

    def join(self, node: NodeId) -> None:
        """Give the node a task."""
        self._tasks.join(node)

    def leave(self, node: NodeId) -> None:
        """End its task."""
        # A node that was lost: the model has what its chunks said.
        self._is_dirty = self._is_dirty or self._tasks[node].num_chunks > 0
        self._tasks.leave(node)

    def load(self, chunk: ChunkId, node: NodeId) -> None:
        """See `Cost`."""
        self._tasks[node].hold(self._job.source.load(chunk, self._spec))

    def copy(self, chunk: ChunkId, source: NodeId, target: NodeId) -> None:
        """See `Cost`."""
        self._tasks.copy_chunk(chunk, source, target)

    def free(self, chunk: ChunkId, node: NodeId) -> None:
        """See `Cost`."""
        self._tasks[node].held.pop(chunk, None)

    def attach(self, node: NodeId, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """See `Cost`."""
        self._tasks[node].attach(added, removed)

    def begin(self, effect: StartIteration, rows: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
        """Let each task solve."""
        if self._is_dirty or effect.must_rebuild:
            self._tasks.rebuild(self._training)
        self._is_dirty = True  # until it is merged
        self._summed, reports = self._tasks.solve(self._training, list(rows), effect, may_be_cut=False)
        return {node: report.samples for node, report in reports.items()}

    def end(self, ended: Ended) -> str | None:
        """See `Cost`."""
        job, training, summed = self._job, self._training, self._summed
        job.trainer.converse(self._tasks.context)
        training.merge(summed)
        self._is_dirty = False
        result = IterationResult(
            iteration=ended.effect.iteration,
            samples=sum(ended.samples.values()),
            num_tasks=summed.num_tasks,
            metrics=summed.metrics,
            is_complete=ended.effect.is_complete,
            num_chunks=ended.num_chunks,
            seconds=ended.seconds,
            lines=ended.lines,
            parameters=ended.effect.parameters,
        )
        verdict = training.judge(result, self._evaluate, lambda record: job.is_ended_by_caller(record, training.model))
        return verdict.reason if verdict.action is Action.STOP else None

    def state_for_policies(self, effect: StartIteration) -> TrainingState:
        """See `Cost`; without a deadline, which virtual time cannot cut real work at."""
        state = self._training.state_for_policies(effect.parameters)
        return dataclasses.replace(
            state, parameters={name: value for name, value in state.parameters.items() if name != DEADLINE}
        )

    def _evaluate(self) -> Evaluation:
        return self._tasks.evaluate(self._training)


Work: TypeAlias = Cost | Real
