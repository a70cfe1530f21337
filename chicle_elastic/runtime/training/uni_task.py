"""The uni-task: one solver, the chunks of its node, and the gate between iterations.

It is the same object in process and in the task process of a node; it knows no sockets and no scheduler.
"""

import copy
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from chicle_elastic import waits
from chicle_elastic.chunks.views import Array, Chunk, DataSchema
from chicle_elastic.clock import Clock
from chicle_elastic.errors import ContractError, UsageError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.solvers.base import Budget, Solver, Trainer, Update
from chicle_elastic.solvers.local_chunk import Gate, LocalChunk, check_full_pass
from chicle_elastic.values import EVERYONE, POLICY_PREFIX, TRAINER, AddressedMessage, Message

__all__ = ["EVERYONE", "TRAINER", "Exchange", "LocalContext", "Mailboxes", "UniTask", "require_json"]

KEPT_FOR_POLICIES = 4096  # messages


class Mailboxes:
    """Messages between the parties of one process; usable from several threads (`deque` operations are atomic).

    Args:
        policies: Names of all policies of the job; None where they are not known.
    """

    def __init__(self, policies: Iterable[str] | None = None) -> None:
        self._boxes: dict[str, deque[Message]] = {TRAINER: deque()}
        self._told: set[str] | None = None if policies is None else set()  # policies that are not, of which a line told
        self._delivered: dict[str, int] = {}  # iteration that last brought messages of policies, by party
        for name in policies or ():
            self.add(f"{POLICY_PREFIX}{name}")

    def add(self, name: str) -> None:
        """Give a party a mailbox. That of a policy keeps the newest messages alone: a policy may be asked no more."""
        self._boxes.setdefault(name, deque(maxlen=KEPT_FOR_POLICIES if name.startswith(POLICY_PREFIX) else None))

    def remove(self, name: str) -> None:
        """Remove a mailbox; its messages are lost, as those of a node that leaves."""
        self._boxes.pop(name, None)
        self._delivered.pop(name, None)

    def post(self, sender: str, to: str, payload: Any) -> None:
        """Deliver a message. One for a policy that the job does not have is dropped, the first one with a line. Raises
        UsageError when the payload is not made of JSON values, or there is no such party."""
        require_json(payload)
        if to == EVERYONE:
            receivers = [name for name in list(self._boxes) if name != sender]
        elif to in self._boxes:
            receivers = [to]
        elif to.startswith(POLICY_PREFIX):  # a job may have its trainer without the policy
            receivers = []
            if self._told is not None and to not in self._told:
                self._told.add(to)
                known = ", ".join(sorted(name for name in self._boxes if name.startswith(POLICY_PREFIX))) or "none"
                waits.tell(f"messages of {sender} to {to} are dropped: the policies of this job are {known}")
        else:
            raise UsageError(f"{sender!r} sent a message to {to!r}; the parties now are {sorted(self._boxes)}")
        for receiver in receivers:
            self._boxes[receiver].append(Message(sender=sender, payload=payload))

    def deliver(
        self, messages: Iterable[AddressedMessage], iteration: int, parties: Iterable[str] | None = None
    ) -> None:
        """Deliver the messages of policies that come with an iteration, each party's once: an iteration that was
        aborted begins again with them. To a party that has left they come no more.

        Args:
            parties: Those that are here; all by default.
        """
        for name in list(self._boxes) if parties is None else parties:
            if self._delivered.get(name) != iteration:
                self._delivered[name] = iteration
                for message in messages:
                    if message.to in (EVERYONE, name) and message.sender != name:
                        self._boxes[name].append(Message(sender=message.sender, payload=copy.deepcopy(message.payload)))

    def take(self, name: str) -> Message | None:
        """The oldest message of a party, or None."""
        box = self._boxes[name]
        return box.popleft() if box else None


def require_json(payload: Any) -> None:
    """Refuse a payload that could not be sent to another host without pickling."""
    if payload is None or isinstance(payload, bool | int | float | str):
        return
    if isinstance(payload, list):
        for item in payload:
            require_json(item)
        return
    if isinstance(payload, dict) and all(isinstance(key, str) for key in payload):
        for item in payload.values():
            require_json(item)
        return
    raise UsageError(
        f"a message may hold None, bool, int, float, str, lists and dicts with str keys, not {type(payload).__name__}; "
        "convert arrays with .tolist()"
    )


class Exchange(Protocol):
    """Routes messages to their receivers."""

    def post(self, sender: str, to: str, payload: Any) -> None:
        """Send a message."""
        ...

    def take(self, name: str) -> Message | None:
        """The oldest message of a party, or None."""
        ...


@dataclass(frozen=True)
class LocalContext:
    """The `Context` of a party whose mailbox is in this process."""

    name: str
    seed: Sequence[int] | int | np.random.Generator
    mailboxes: Exchange

    @cached_property
    def rng(self) -> np.random.Generator:
        """Generator of this party; most solvers draw nothing from it."""
        return np.random.default_rng(self.seed)

    def send(self, to: str, payload: Any) -> None:
        """Send `payload` (JSON values); arguments as in `Context.send`."""
        self.mailboxes.post(self.name, to, payload)

    def receive(self) -> Message | None:
        """The next message, or None when there is none."""
        return self.mailboxes.take(self.name)


class UniTask:
    """One solver and the chunks that its node holds.

    A held chunk is in memory; an attached chunk has been given to the solver. Between the two lies the commit. The task
    checks the solver's reads against its own list, not the solver's.

    Args:
        schema: Of the data, by which the trainer names its metrics; None takes any metrics.
    """

    def __init__(
        self, node: NodeId, trainer: Trainer, context: LocalContext, clock: Clock, schema: DataSchema | None = None
    ) -> None:
        self.node = node
        self.held: dict[ChunkId, Chunk] = {}
        # rows processed per chunk in the last `solve`, counted where they were read
        self.reads: Counter[ChunkId] = Counter()
        self._attached: dict[ChunkId, LocalChunk] = {}
        self._gate = Gate(node)
        self._clock = clock
        self._trainer = trainer
        self._metric_names = None if schema is None else tuple(trainer.metric_names(schema))
        self._solver = trainer.solver(context)

    @property
    def num_chunks(self) -> int:
        """Chunks that the solver has been given."""
        return len(self._attached)

    @property
    def num_rows(self) -> int:
        """Samples in these chunks."""
        return sum(chunk.num_rows for chunk in self._attached.values())

    @property
    def attached(self) -> tuple[ChunkId, ...]:
        """Chunks that the solver has been given."""
        return tuple(self._attached)

    @property
    def chunks(self) -> list[Chunk]:
        """The same, with their rows and state."""
        return [self.held[chunk] for chunk in self._attached]

    def hold(self, chunk: Chunk) -> None:
        """Put a chunk into the memory of this node."""
        self.held[chunk.id] = chunk

    def free(self, chunk_id: ChunkId) -> None:
        """Free the memory of a chunk; after the commit, so it is neither attached nor about to be."""
        del self.held[chunk_id]

    def attach(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Tell the solver which chunks were added and removed; called at a boundary."""
        for chunk_id in removed:
            del self._attached[chunk_id]
        chunks = [LocalChunk(self.held[chunk_id], self._gate) for chunk_id in added]
        self._attached.update((chunk.id, chunk) for chunk in chunks)
        self._solver.attach(chunks, removed)

    def solve(self, model: Array, budget: Budget) -> tuple[Update, float]:
        """One iteration on the local chunks. Returns the update, and the seconds it took. Raises ContractError when the
        solver skipped a chunk, read one twice, counted wrong, or returned another shape, or metrics that the trainer
        does not name."""
        self._gate.open(budget.iteration)
        started = self._clock.now()
        try:
            update = self._solver.solve(model, budget)
        finally:
            reads = self.reads = self._gate.close()
        duration_s = self._clock.now() - started
        size = self._trainer.update_size(model, budget.progress)
        if update.delta.shape != (size,):
            raise ContractError(
                f"the solver of task {self.node!r} returned a delta of shape {update.delta.shape} in iteration "
                f"{budget.iteration}; the trainer sums updates of shape {(size,)}"
            )
        self._require_known_metrics(update)
        if update.samples != reads.total():
            raise ContractError(
                f"the solver of task {self.node!r} reports {update.samples} samples in iteration {budget.iteration}, "
                f"but {reads.total()} rows were read through its chunks; use chunk.read() or chunk.count()"
            )
        if budget.samples is None and not update.is_partial:
            check_full_pass(self._attached, reads, task=self.node, iteration=budget.iteration)
        return update, duration_s

    def recover(self, model: Array) -> Array:
        """This node's part of a rebuilt model."""
        self._gate.open(self._gate.iteration)
        try:
            return self._solver.recover(model)
        finally:
            self._gate.close()

    @property
    def without_evaluate(self) -> str:
        """The solver's class if it has `Solver.evaluate` alone, which returns no metrics; otherwise empty."""
        kind = type(self._solver)
        return kind.__name__ if kind.evaluate is Solver.evaluate else ""

    def evaluate(self, model: Array, progress: Array) -> Update:
        """This node's part of a rebuilt model, and local sums at a fixed model. Raises ContractError when the solver
        returned metrics that the trainer does not name."""
        self._gate.open(self._gate.iteration)
        try:
            update = self._solver.evaluate(model, progress)
        finally:
            self._gate.close()
        self._require_known_metrics(update)
        return update

    def _require_known_metrics(self, update: Update) -> None:
        if self._metric_names is None:
            return
        unknown = [name for name in update.metrics if name not in self._metric_names]
        if unknown:
            kind = type(self._trainer).__name__
            raise ContractError(
                f"the solver of task {self.node!r} returned the metrics {', '.join(map(repr, unknown))}, which the "
                f"trainer does not sum; name them in {kind}.metric_names(schema), which now returns "
                f"{self._metric_names}"
            )

    def close(self) -> None:
        """End the solver and drop the chunks."""
        self._solver.close()
        self.held.clear()
