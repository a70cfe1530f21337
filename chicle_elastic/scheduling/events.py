"""What happened, in the past tense: everything that the scheduler ever learns.

A recorded stream of these is a whole job: replaying it gives the same effects (`recording`).

What a shell promises:

* Every order is answered once by a node that lives. An answer repeats the `round` of its order, so that answers of an
  earlier life of a node (it was lost and joined again) can be told apart.
* What one node says of its memory comes in the order in which it said it: an `InventoryReported` is never overtaken
  by an answer that the node gave later.
* An iteration that was started ends, by `IterationFinished` or `IterationAborted`, also when members were lost.
* A round that was asked for is formed, or `NodeLost` says who prevents it.
* A node that joins again has ended whatever its earlier life had begun, and reports its inventory before the round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.values import ChunkInfo, ResourceOffer, StateVersion
from chicle_elastic.values import Proposal as Proposal  # what a policy wants is an event as it is
from chicle_elastic.values import TaskReport as TaskReport  # a part of IterationFinished
from chicle_elastic.values import TrainingState as TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksDeclared:
    """The data set of the job is known. Comes once, first."""

    chunks: tuple[ChunkInfo, ...]  # all of it
    merged: int = 0  # iteration of the checkpoint that the job goes on from; 0 where it begins
    parameters: Mapping[str, float] = field(default_factory=dict)  # what policies had set then, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node is ready and asks to take part; it gets chunks after the current iteration."""

    node: NodeId
    capacity_bytes: int | None = None  # memory for chunks; None where memory is not accounted (in process)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveNoticed:
    """A node will be taken away: its chunks are handed over at the next boundary. Idempotent."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node is gone without notice, and everything it held with it."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFormed:
    """The members of a new round are agreed upon."""

    round: int
    members: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryReported:
    """What a node really holds, told at each new round before its `RoundFormed`; it wins over the ledger."""

    node: NodeId  # who reports
    # version of every whole copy; what is still being loaded or copied is left out. Round 0 means that no task was ever
    # told of the copy
    chunks: Mapping[ChunkId, StateVersion]
    round: int | None = None  # of the `FormRound` that this belongs to; None where nodes never come back
    # the node holds every chunk that it owns as far as it has folded the log, in the version that the ledger gives;
    # `chunks` leaves these out, and has other copies only. No owner changes while a round is formed, so that is what
    # every other agent's ledger says when it learns this. With hundreds of nodes it makes the news after a loss
    # hundreds of times shorter
    is_as_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksLoaded:
    """A node holds chunks from their source, with fresh state. Several at once: an event costs every agent the same."""

    chunks: tuple[ChunkId, ...]
    node: NodeId  # which node holds them
    # of the `LoadChunks` that this answers; None where nodes never come back, as in one process
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    """A node could not get a chunk from its source; it holds nothing of it. `round` as in `ChunksLoaded`."""

    chunk: ChunkId
    node: NodeId
    reason: str
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksCopied:
    """The target holds verified copies, all from one source, which still owns the chunks until the commit."""

    chunks: tuple[ChunkId, ...]
    source: NodeId
    target: NodeId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFailed:
    """A copy did not arrive whole; the source still owns the chunk."""

    chunk: ChunkId
    source: NodeId
    target: NodeId
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecopiesEnded:
    """A node has fetched the immutable parts of chunks, or could not. Several at once: each event is a boundary."""

    node: NodeId  # the target
    whole: tuple[int, ...] = ()  # numbers of the orders whose bytes are there and verified
    failed: tuple[int, ...] = ()  # numbers of those of which nothing is there


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverDue:
    """A node under notice waits no longer for its chunks to be copied ahead: it leaves at the next boundary."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksFreed:
    """A node has given back the slots of chunks it no longer owns. `round` as in `ChunksLoaded`."""

    chunks: tuple[ChunkId, ...]
    node: NodeId
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFinished:
    """All tasks of the round have finished an iteration and its update is merged: the boundary begins."""

    round: int
    iteration: int  # of the job
    reports: Mapping[NodeId, TaskReport]  # of its tasks
    # what policies see that the scheduler asks itself, one; none where a task asks them
    training: tuple[TrainingState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationAborted:
    """An iteration ended without a merge, because a member was lost: the boundary begins, the model is the old one."""

    round: int
    iteration: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDisabled:
    """A policy raised, decided nonsense or does not answer: it is not asked again, and training goes on."""

    policy: str
    reason: str  # what it did, as the end of a sentence: "raised ValueError: ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesOffered:
    """The resource manager says what it could give, for the observations of policies."""

    offer: ResourceOffer  # the offer; it holds until the next one
    number: int  # of the offer, from 1: every agent may hear of it, and one that comes twice or late is ignored
    text: str = ""  # a line about it for a person; empty for none


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is complete."""

    iteration: int  # last merged iteration in it
    size_bytes: int
    duration_s: float
    is_resumed: bool = False  # nodes that come when none is left go on from it


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The trainer, the user or a limit ends the job at the next boundary."""

    reason: str


Acknowledgement: TypeAlias = ChunksLoaded | ChunksCopied | ChunksFreed
"""Answers about chunks: those that differ in nothing but their `chunks` may come as one event."""

Event: TypeAlias = (
    ChunksDeclared
    | NodeJoined
    | LeaveNoticed
    | NodeLost
    | RoundFormed
    | InventoryReported
    | ChunksLoaded
    | LoadFailed
    | ChunksCopied
    | CopyFailed
    | PrecopiesEnded
    | HandoverDue
    | ChunksFreed
    | IterationFinished
    | IterationAborted
    | Proposal
    | PolicyDisabled
    | ResourcesOffered
    | CheckpointSaved
    | StopRequested
)


def is_quiet(event: Event) -> bool:
    """Whether no line says that an event came after the end of the job: of a decision its author says so (the agent, in
    a cluster), and a checkpoint that was saved then is no news for a policy."""
    return isinstance(event, CheckpointSaved | Proposal)


def is_patient(event: Event) -> bool:
    """Whether an event can wait for a boundary that comes anyway."""
    return isinstance(event, CheckpointSaved) or (isinstance(event, Proposal) and event.is_patient)
