"""The public pair: a `Trainer` owns the model, one `Solver` per uni-task improves it on the chunks of its node.

Theory of operation. In an iteration every task solves on its local chunks, the updates are summed, the
trainer merges the sum into the model. Between two iterations lies the boundary, where the scheduler owns every chunk.

    attach(added, removed)      boundary     the solver is told what is local now; it must not read yet
    solve(model, budget)        iteration    may read all local rows and write their state; returns an Update
    merge(model, sum, weight)   boundary     the trainer sees the sum of `weight * delta`, never the parts
    advance(...)                boundary     the same for a trainer that keeps progress besides the model
    verdict(model, report)      boundary     go on, certify, or stop
    certified(...)              boundary     what a trainer of several problems does after one of them is certified
    recover(model)              iteration    the solver's part of a model rebuilt from state alone
    evaluate(model)             iteration    what a certificate needs: `recover`, and local sums at a fixed model

`recover` makes model and state consistent after a crash. A certificate is `evaluate` on all tasks, `rebuild` of the
summed parts, `verdict`: it holds for the model that was evaluated, together with the state as it is.

The model is one flat vector (float64 or float32), so that one all-reduce carries it whatever the algorithm. A trainer
of several phases keeps what belongs to the present one in its *progress*, a vector of any length that is the same in
every task: solvers see it in their budget, it travels with the model to nodes that join and into checkpoints. What
solvers return may then be something else than a change of the model (sums of second derivatives, say): `update_size`.
Invariant: the same objects run in process and on a cluster; nothing here knows sockets, clocks of the machine or torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol

import numpy as np

from chicle_elastic.chunks.views import NO_STATE, Array, DataSchema, StateSpec
from chicle_elastic.clock import Clock
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.local_chunk import LocalChunk
from chicle_elastic.values import Message

NO_PROGRESS: Array = np.zeros(0)
"""Of a trainer that keeps everything in its model, and of every trainer before the first iteration."""


class StopFlag:
    """One byte of memory that asks a solver to return early; kernels poll it without the GIL.

    Args:
        memory: ndarray of shape (1,), uint8, to use (shared memory, say); by default its own.
    """

    def __init__(self, memory: Array | None = None) -> None:
        self.memory: Array = np.zeros(1, dtype=np.uint8) if memory is None else memory

    def set(self) -> None:
        """Ask the solver to return at its next look, with what it has."""
        self.memory[0] = 1

    def clear(self) -> None:
        """Take the request back before the next iteration."""
        self.memory[0] = 0

    def is_set(self) -> bool:
        """Whether the solver should return."""
        return bool(self.memory[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much a solver may do in one iteration. Partial work is valid work.

    Attributes:
        samples: Samples to process; by default (None) every local sample once.
        deadline_s: Instant of `clock` at which to return; None for no deadline.
        stop: Set from outside to end the iteration early.
        clock: The clock that `deadline_s` is read on.
        num_tasks: Tasks in this round, K; CoCoA's sigma' comes from it.
        iteration: Number of this iteration, from 1.
        on_device: The update may be left on the trainer's `update_device`.
        progress: What the trainer knows besides its model, see `Trainer.advance`; not to be written.
        rank: Position of this task among the members of the round, from 0.
        num_ranks: Members of the round, those without chunks included.
        is_complete: No chunk is missing; one that was lost comes back within a few iterations.
        parameters: What policies have set of `Trainer.tunables`, by name; the same in every task.
    """

    clock: Clock
    num_tasks: int
    iteration: int
    samples: int | None = None
    deadline_s: float | None = None
    stop: StopFlag = field(default_factory=StopFlag)
    on_device: bool = False
    progress: Array = field(default_factory=lambda: NO_PROGRESS)
    rank: int = 0
    num_ranks: int = 1
    is_complete: bool = True
    parameters: Mapping[str, float] = field(default_factory=dict)

    def is_spent(self) -> bool:
        """Whether the stop flag is set or the deadline has passed."""
        return self.stop.is_set() or (self.deadline_s is not None and self.clock.now() >= self.deadline_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a solver returns.

    Attributes:
        delta: What is summed, ndarray of shape (`Trainer.update_size`,): by default a change of the model, of its
            dtype. It belongs to the runtime from now on. Where the budget says `on_device`, a tensor on the trainer's
            `update_device` will do.
        samples: Samples processed.
        weight: Factor of `delta` in the sum that the trainer merges: the samples processed for an averaging trainer,
            1 for one that adds.
        metrics: Local sums, by the names in `Trainer.metric_names`; missing names count as 0.
        is_partial: The budget ended the work early; rows may be left over.
    """

    delta: Array
    samples: int
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """The updates of an iteration, added up.

    Attributes:
        delta: Sum over tasks of `weight * delta`, shape (`Trainer.update_size`,), float64; may be overwritten.
        weight: Sum of the weights, > 0.
        metrics: Sums of the metrics, by name.
        num_tasks: Tasks that had chunks.
    """

    delta: Array
    weight: float
    metrics: Mapping[str, float]
    num_tasks: int


class Context(Protocol):
    """What the runtime offers a solver or trainer, at any time and not only at boundaries."""

    @property
    def name(self) -> str:
        """Name of this party, which is the node of a task, or "trainer"."""
        ...

    @property
    def rng(self) -> np.random.Generator:
        """Seeded generator of this party."""
        ...

    def send(self, to: str, payload: Any) -> None:
        """Send `payload` (JSON values) to a task by name, to "trainer", to a policy as "policy:" and its name, or to
        "*" (everyone else)."""
        ...

    def receive(self) -> Message | None:
        """The next message, or None when there is none."""
        ...


class Solver(ABC):
    """Improves the model on the chunks of one node. One per uni-task, built by `Trainer.solver`."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.chunks: dict[ChunkId, LocalChunk] = {}

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Learn what is local from now on. Called at a boundary: reading a chunk here is a breach of contract."""
        for chunk_id in removed:
            del self.chunks[chunk_id]
        for chunk in added:
            self.chunks[chunk.id] = chunk

    @abstractmethod
    def solve(self, model: Array, budget: Budget) -> Update:
        """Improve `model` (not to be written) on the local chunks within `budget`."""

    def recover(self, model: Array) -> Array:
        """This node's part of a model rebuilt from chunk state alone; parts are summed, then `Trainer.rebuild`.

        A solver without state of its own returns zeros: its trainer keeps the model.
        """
        return np.zeros_like(model)

    def evaluate(self, model: Array, progress: Array) -> Update:
        """What a certificate needs of this node, in one look at its samples.

        Args:
            model: The model to evaluate (not to be written).
            progress: What the trainer knows besides, see `Trainer.advance`; not to be written.

        Returns:
            As `delta` this node's part of the model rebuilt from state (`recover`), and as metrics local sums at the
            fixed `model`, by the names in `Trainer.metric_names`. Samples and weight are not looked at. By default what
            `recover` returns, and no metrics: a solver whose trainer has some and certifies needs its own.
        """
        return Update(delta=self.recover(model), samples=0, weight=1.0)

    def close(self) -> None:  # noqa: B027 - most solvers hold nothing to release
        """Release threads and buffers; called once, after the last iteration."""


class Action(Enum):
    """What a trainer wants next."""

    GO_ON = "go on"
    CERTIFY = "certify"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A trainer's decision, with its reason."""

    action: Action
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the trainer's verdict is based on.

    Attributes:
        iteration: Iterations merged so far.
        epochs: Passes over the data so far (samples processed / samples in the data set).
        samples: Samples processed in this iteration by all tasks.
        num_tasks: Tasks in this iteration.
        metrics: Sums over the tasks; of `solve` after an iteration, of `evaluate` after a certification pass.
        is_certificate: The metrics are of `evaluate`: sums over all samples at the fixed model.
        is_complete: No chunk was missing; without that nothing is certified.
        max_iterations: Iterations the caller allows.
        last_certificate: Iteration after which the last certification pass ran; 0 for none yet.
        last_figures: `Trainer.figures` of that iteration, before and after the certification pass; empty for none.
        rebuilt: At a certificate, the sum of what `Solver.evaluate` returned as delta: the model rebuilt from the state
            of all samples, as far as a solver does that.
        progress: What the trainer knows besides the model, see `Trainer.advance`.
        parameters: As the budgets of the iteration had them; what policies have set.
    """

    iteration: int
    epochs: float
    samples: int
    num_tasks: int
    metrics: Mapping[str, float]
    is_certificate: bool
    max_iterations: int
    is_complete: bool = True
    last_certificate: int = 0
    last_figures: Mapping[str, float] = field(default_factory=dict)
    rebuilt: Array | None = None
    progress: Array = field(default_factory=lambda: NO_PROGRESS)
    parameters: Mapping[str, float] = field(default_factory=dict)


class Trainer(ABC):
    """Owns the model and how updates merge. A value: small, with JSON-able fields, so that it can travel.

    A whole pair, for the mean of all rows, on two tasks:

    >>> import numpy as np
    >>> from chicle_elastic import ArraySource, InProcess, Job, Solver, Trainer, Update
    >>> class MeanTrainer(Trainer):
    ...     def init(self, schema, rng):
    ...         return np.zeros(schema.num_features)
    ...     def solver(self, ctx):
    ...         return MeanSolver(ctx)
    ...     def merge(self, model, weighted_sum, total_weight):
    ...         return weighted_sum / total_weight
    >>> class MeanSolver(Solver):
    ...     def solve(self, model, budget):
    ...         rows = np.concatenate([chunk.read().rows for chunk in self.chunks.values()])
    ...         return Update(delta=rows.mean(axis=0), samples=len(rows), weight=len(rows))
    >>> source = ArraySource(np.arange(40.0).reshape(20, 2), np.zeros(20), max_tasks=2)
    >>> InProcess(num_tasks=2).run(Job(trainer=MeanTrainer(), source=source, max_iterations=1)).model
    array([19., 20.])

    Attributes:
        uses_blas_threads: Whether BLAS may have several threads while the trainer and its solvers compute. False for
            those that make many small calls, which take longer on several threads than on one.
    """

    uses_blas_threads: ClassVar[bool] = True

    @abstractmethod
    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """The first model: ndarray of shape (num_parameters,), float64 or float32."""

    @abstractmethod
    def solver(self, ctx: Context) -> Solver:
        """A new solver for one uni-task."""

    @abstractmethod
    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """The next model from the sum over tasks of `weight * delta`; called only when `total_weight` > 0.

        The present model must stay as it is (tasks may still look at it); `weighted_sum` may be overwritten and
        returned.
        """

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """Prepare an iteration; by default the progress stays as it is.

        Every task calls it with the same arguments before it solves, so the answer must follow from them alone. It
        becomes valid with the iteration: if that is cut off, the next one begins from the `progress` given here.

        Args:
            schema: Of the data set.
            model: The present model.
            progress: As the last `advance` returned it; empty before the first iteration.
            num_tasks: Tasks that have chunks in this iteration.

        Returns:
            The progress of this iteration, ndarray of any length, float64; or an object of which `numpy.asarray` makes
            that vector where a task sends or keeps it.
        """
        return progress

    def update_size(self, model: Array, progress: Array) -> int:
        """Length of the `Update.delta` of an iteration with this progress; by default that of the model."""
        return len(model)

    def advance(self, model: Array, progress: Array, summed: Summed) -> tuple[Array, Array]:
        """The next model and progress from the sum of an iteration; by default `merge`, and the progress stays.

        Every task calls it with the same sum. What follows from rounding must not decide anything: tasks may run on
        processors that add in another order, and all of them have to come to the same phase.

        Args:
            model: The present model, which must stay as it is.
            progress: Of this iteration, as `begin` returned it.
            summed: Over all tasks.
        """
        return self.merge(model, summed.delta.astype(model.dtype, copy=False), summed.weight), progress

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """How such data is solved for on so many tasks, and why so, in words for the user; by default nothing."""
        return ""

    def settled(self, model: Array, progress: Array, contribution: Array, num_tasks: int) -> Array | None:
        """The model to certify, after `Solver.evaluate` has written the state; by default None, which means `model`.

        Called when a model is to be certified. Where it returns another one, that one is evaluated and certified.

        Args:
            model: The present model.
            progress: What the trainer knows besides.
            contribution: Sum of the deltas of `Solver.evaluate`.
            num_tasks: Tasks of the last iteration.
        """
        return None

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Names of the sums that solvers report; fixed, because they ride in the iteration's one all-reduce."""
        return ()

    def tunables(self, schema: DataSchema) -> Mapping[str, float]:
        """What policies may set while the job runs, by name, with the values of this trainer; by default nothing.

        A value that is positive stays positive, whatever a policy wants.

        Solvers find values that were set in `Budget.parameters`, and others here. What a trainer computes beside its
        solvers does not see them.
        """
        return {}

    def state(self, schema: DataSchema) -> StateSpec:
        """Per-sample state that chunks carry for this trainer; by default none."""
        return NO_STATE

    def kept_bytes(self, schema: DataSchema, num_tasks: int) -> int:
        """Return how much memory the solvers of so many tasks in one process take beside chunks and their state; by
        default it is 0, which means that rows and state are all that counts.
        """
        return 0

    def identity(self) -> Mapping[str, Any]:
        """What a checkpoint and its trainer must agree on, as JSON values; by default the class.

        A checkpoint is used only by a trainer that returns the same. What may change on the way, like a tolerance, is
        left out. A trainer that lays its model out in another way than an earlier release says so as "model_version",
        from 2 on; then the refusal names both versions.
        """
        return {"trainer": type(self).__qualname__}

    def may_be_cut(self, progress: Array) -> bool:
        """Whether an iteration may be merged with the rows that its tasks have read until a deadline; by default not.

        Say yes where `merge` of partial updates makes progress, and solvers return soon after `Budget.is_spent`.

        Args:
            progress: What the trainer knows besides the model, see `advance`.
        """
        return False

    def reads_all(self, progress: Array) -> bool:
        """Whether solvers process all of their samples in an iteration, unless they are cut short; by default yes.

        Say no for iterations that read none, where a task works on what others have sent.

        Args:
            progress: What the trainer knows besides the model, see `advance`.
        """
        return True

    @property
    def takes_parts(self) -> bool:
        """Whether a solver takes a part of its samples in an iteration, as its rule; by default it takes them all."""
        return False

    @property
    def update_device(self) -> str:
        """The torch device where solvers leave their updates, such as `"cuda"`; `"cpu"`, host memory, by default."""
        return "cpu"

    def rebuild(self, model: Array, contribution: Array, progress: Array) -> Array:
        """The model made of the summed `Solver.recover` parts; by default the model is kept."""
        return model

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Go on, certify or stop. By default: go on until the caller's iterations are used up."""
        return Verdict(action=Action.GO_ON)

    def certified(self, model: Array, progress: Array, report: Report) -> tuple[Array, Array]:
        """Model and progress after a certificate that did not end the job; by default as they are.

        Every task calls it with the same arguments.

        Args:
            model: That was certified; must stay as it is.
            progress: What the trainer knows besides.
            report: The certificate; its sums are of all samples only if it is complete.
        """
        return model, progress

    def converse(self, ctx: Context) -> None:
        """Read messages of solvers and answer; called before every merge. By default messages are left alone."""
        return

    def parallelism(self, num_tasks: int) -> int:
        """For how many tasks solvers damp their steps (`Budget.num_tasks`), at least `num_tasks`, the default.

        CoCoA's sigma' follows it. A larger one makes steps more careful and emulates no micro-tasks: for these, run as
        many tasks in one process.
        """
        return num_tasks

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """Named figures to show for a report, e.g. {"objective": ..., "gap": ...}; by default the metrics."""
        return dict(report.metrics)
