"""What virtual tasks do in an iteration: nothing but take time (`Cost`), or real solvers on real data (`Real`).

Either way the clock is charged by samples, and a node's samples follow from the chunks that it has. `Cost` says how
long a job takes and what it costs, for any number of nodes and chunks. How many iterations a model needs, and what a
policy does to that, only `Real` says.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chicle_elastic.chunks.views import Array, StateSpec
from chicle_elastic.clock import Clock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import PARAMETERS_PREFIX, IterationRecord
from chicle_elastic.runtime.simulate.scenario import SimulatedJob
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.training import Evaluation, IterationResult, Training, evaluation_of
from chicle_elastic.runtime.training.uni_task import TRAINER, LocalContext, Mailboxes, UniTask
from chicle_elastic.scheduling.effects import StartIteration
from chicle_elastic.solvers.base import Action, Budget, Summed
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


class Work(ABC):
    """What tasks compute, and what a chunk is to them. The cluster calls it in the order of virtual time."""

    is_real = False  # a model is trained: else nothing is known of convergence
    may_be_cut = True  # tasks can end an iteration with a part of their samples
    infos: tuple[ChunkInfo, ...]  # the chunks of the job

    @property
    @abstractmethod
    def history(self) -> History:
        """A record per merged iteration."""

    @abstractmethod
    def state_bytes(self, chunk: ChunkId) -> int:
        """Bytes of the state in a chunk: what moves when the rows are there."""

    @abstractmethod
    def begin(self, effect: StartIteration, rows: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
        """Compute an iteration. Returns the samples that each of these processes."""

    @abstractmethod
    def end(self, ended: Ended) -> str | None:
        """Merge the iteration and keep its record; why the job ends, or None where it goes on."""

    @abstractmethod
    def state_for_policies(self, effect: StartIteration) -> TrainingState:
        """What policies see of the last iteration."""

    # The cluster knows where chunks are; these are for work that holds them itself.

    def join(self, node: NodeId) -> None:  # noqa: B027
        """A node is there."""

    def leave(self, node: NodeId) -> None:  # noqa: B027
        """A node is gone, with all that it had."""

    def load(self, chunk: ChunkId, node: NodeId) -> None:  # noqa: B027
        """A node has a chunk from its source, with fresh state."""

    def copy(self, chunk: ChunkId, source: NodeId, target: NodeId) -> None:  # noqa: B027
        """A node has a chunk with the state that it has elsewhere."""

    def free(self, chunk: ChunkId, node: NodeId) -> None:  # noqa: B027
        """A node forgets a chunk, if it has it."""

    def attach(self, node: NodeId, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:  # noqa: B027
        """The task of a node is told of its chunks."""


class Cost(Work):
    """Work that takes time and has no result: `epochs_per_iteration` passes over the samples of each task.

    Args:
        infos: Chunks that are not all alike; by default those of the job.
    """

    def __init__(self, job: SimulatedJob, infos: tuple[ChunkInfo, ...] = ()) -> None:
        self.infos = infos or tuple(
            ChunkInfo(id=ChunkId(number), num_rows=job.rows_per_chunk, size_bytes=job.chunk_bytes)
            for number in range(job.chunks)
        )
        self._history = History()
        self._job = job
        self._rows = sum(info.num_rows for info in self.infos)
        self._samples = 0

    @property
    def history(self) -> History:
        """See `Work`."""
        return self._history

    def state_bytes(self, chunk: ChunkId) -> int:
        """See `Work`."""
        return self._job.state_bytes

    def begin(self, effect: StartIteration, rows: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
        """As many samples as in each iteration, one at least."""
        share = self._job.epochs_per_iteration
        return rows if share == 1.0 else {node: max(1, round(share * count)) for node, count in rows.items()}

    def end(self, ended: Ended) -> str | None:
        """See `Work`."""
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
        """Times only: there is no model."""
        last = self.history[-1]
        before_s = self.history[-2].time_s if len(self.history) > 1 else 0.0
        return TrainingState(
            epochs=last.epochs,
            elapsed_s=last.time_s,
            duration_s=last.time_s - before_s,
            parameters={DEADLINE: 0.0, **effect.parameters},
        )


@dataclass(slots=True)
class _Sum:
    """The update of an iteration that has been computed and not merged."""

    delta: Array | None = None
    weight: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    num_tasks: int = 0


class Real(Work):
    """Real solvers on real data; only the time is charged. Certificates are free of charge.

    An iteration is computed when it begins and merged when it ends, so one that a loss aborts leaves state without
    model behind, as on a cluster, and is followed by a recovery.

    Args:
        job: Trainer, source and limits. Its `policies` are not used: those of the simulation are.
    """

    is_real = True
    may_be_cut = False

    def __init__(self, job: Job, clock: Clock) -> None:
        self._job, self._clock = job, clock
        self._spec: StateSpec = job.trainer.state(job.source.schema).without_notes()
        self.infos = job.source.infos(self._spec)
        self._mailboxes = Mailboxes()
        self._context = LocalContext(TRAINER, [job.seed, 0], self._mailboxes)
        self._training = Training(job, context=self._context, elapsed_s=clock.now)
        self._tasks: dict[NodeId, UniTask] = {}
        self._num_joined = 0
        self._sum = _Sum()
        self._is_dirty = False
        self._rows = {info.id: info.num_rows for info in self.infos}

    @property
    def history(self) -> History:
        """See `Work`."""
        return self._training.history

    @property
    def model(self) -> Array:
        """ndarray of shape (num_parameters,)."""
        return self._training.model

    def state_bytes(self, chunk: ChunkId) -> int:
        """See `Work`."""
        return self._spec.size_bytes(self._rows[chunk])

    def join(self, node: NodeId) -> None:
        """Give the node a task."""
        self._num_joined += 1
        self._mailboxes.add(node)
        context = LocalContext(node, [self._job.seed, self._num_joined], self._mailboxes)
        self._tasks[node] = UniTask(node, self._job.trainer, context, self._clock, self._job.source.schema)

    def leave(self, node: NodeId) -> None:
        """End its task."""
        task = self._tasks.pop(node)
        self._is_dirty = self._is_dirty or task.num_chunks > 0  # it was lost: the model has what its chunks said
        task.close()
        self._mailboxes.remove(node)

    def load(self, chunk: ChunkId, node: NodeId) -> None:
        """See `Work`."""
        self._tasks[node].hold(self._job.source.load(chunk, self._spec))

    def copy(self, chunk: ChunkId, source: NodeId, target: NodeId) -> None:
        """Rows never change, so the copy shares them; state does, and must not be shared."""
        held = self._tasks[source].held[chunk]
        self._tasks[target].hold(dataclasses.replace(held, state=held.state.copy()))

    def free(self, chunk: ChunkId, node: NodeId) -> None:
        """See `Work`."""
        self._tasks[node].held.pop(chunk, None)

    def attach(self, node: NodeId, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """See `Work`."""
        self._tasks[node].attach(added, removed)

    def begin(self, effect: StartIteration, rows: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
        """Let each task solve."""
        trainer, training = self._job.trainer, self._training
        if self._is_dirty or effect.must_rebuild:
            training.rebuild(self._contribution())
        self._is_dirty = True  # until it is merged
        num_tasks = trainer.parallelism(len(rows))
        training.begin(num_tasks)
        self._sum = _Sum(metrics=dict.fromkeys(training.metric_names, 0.0), num_tasks=len(rows))
        samples = {}
        for rank, node in enumerate(rows):
            budget = Budget(
                clock=self._clock,
                num_tasks=num_tasks,
                iteration=effect.iteration,
                progress=training.begun,
                rank=rank,
                num_ranks=len(rows),
                parameters=effect.parameters,
            )
            update, _ = self._tasks[node].solve(training.model, budget)
            weighted = update.delta * update.weight
            self._sum.delta = weighted if self._sum.delta is None else self._sum.delta + weighted
            self._sum.weight += update.weight
            for name, value in update.metrics.items():
                self._sum.metrics[name] += value
            samples[node] = update.samples
        return samples

    def end(self, ended: Ended) -> str | None:
        """See `Work`."""
        job, training, found = self._job, self._training, self._sum
        job.trainer.converse(self._context)
        if found.delta is not None:
            training.merge(
                Summed(delta=found.delta, weight=found.weight, metrics=found.metrics, num_tasks=found.num_tasks)
            )
        self._is_dirty = False
        result = IterationResult(
            iteration=ended.effect.iteration,
            samples=sum(ended.samples.values()),
            num_tasks=found.num_tasks,
            metrics=found.metrics,
            is_complete=ended.effect.is_complete,
            num_chunks=ended.num_chunks,
            seconds=ended.seconds,
            lines=ended.lines,
            parameters=ended.effect.parameters,
        )
        verdict = training.judge(result, self._evaluate, lambda record: job.is_ended_by_caller(record, training.model))
        return verdict.reason if verdict.action is Action.STOP else None

    def state_for_policies(self, effect: StartIteration) -> TrainingState:
        """See `Work`; without a deadline, which virtual time cannot cut real work at."""
        state = self._training.state_for_policies(effect.parameters)
        return dataclasses.replace(
            state, parameters={name: value for name, value in state.parameters.items() if name != DEADLINE}
        )

    def _contribution(self) -> Array:
        contribution = np.zeros_like(self._training.model)
        for task in self._tasks.values():
            contribution += task.recover(self._training.model)
        return contribution

    def _evaluate(self) -> Evaluation:
        return evaluation_of(self._training, self._tasks.values())
