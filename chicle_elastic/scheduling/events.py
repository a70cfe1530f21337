"""What happened, in the past tense: everything that the scheduler ever learns.

A recorded stream of these is a whole job: replaying it gives the same effects (`story`).

What a shell promises:

* Every order is answered once by a node that lives. An answer repeats the `round` of its order, so that answers of an
  earlier life of a node (it was lost and joined again) can be told apart.
* What one node says of its memory comes in the order in which it said it: an `InventoryReported` is never overtaken
  by an answer that the node gave later.
* An iteration that was started ends, by `IterationFinished` or `IterationAborted`, also when members were lost.
* A round that was asked for is formed, or `NodeLost` says who prevents it.
* A node that joins again has ended whatever its earlier life had begun, and reports its inventory before the round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.values import ChunkInfo, StateVersion
from chicle_elastic.values import TaskReport as TaskReport  # a part of IterationFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksDeclared:
    """The data set of the job is known. Comes once, first.

    Attributes:
        chunks: All of it.
        merged: Iteration of the checkpoint that the job goes on from; 0 where it begins.
    """

    chunks: tuple[ChunkInfo, ...]
    merged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node is hot and asks to take part; it gets chunks after the current iteration.

    Attributes:
        node: Its name.
        capacity_bytes: Memory for chunks; None where memory is not accounted (in process).
        weight: Share of the samples it should hold relative to the others, > 0.
    """

    node: NodeId
    capacity_bytes: int | None = None
    weight: float = 1.0


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
    """The members of a new round are agreed upon (in a cluster: by torchrun's rendezvous)."""

    round: int
    members: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryReported:
    """What a node really holds, told at each new round before its `RoundFormed`; it wins over the book.

    Attributes:
        node: Who reports.
        chunks: Version of every whole copy; what is still being loaded or copied is left out. Round 0 means that no
            task was ever told of the copy.
        round: Of the `FormRound` that this belongs to; None where nodes never come back.
    """

    node: NodeId
    chunks: Mapping[ChunkId, StateVersion]
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLoaded:
    """A node holds a chunk from its source, with fresh state.

    Attributes:
        chunk: The chunk.
        node: Who holds it.
        round: Of the `LoadChunk` that this answers; None where nodes never come back, as in one process.
    """

    chunk: ChunkId
    node: NodeId
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    """A node could not get a chunk from its source; it holds nothing of it. `round` as in `ChunkLoaded`."""

    chunk: ChunkId
    node: NodeId
    reason: str
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCopied:
    """The target holds a verified copy; the source still owns the chunk until the commit."""

    chunk: ChunkId
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
    """A node has fetched the immutable parts of chunks, or could not. Several at once: each event is a boundary.

    Attributes:
        node: The target.
        whole: Numbers of the orders whose bytes are there and verified.
        failed: Numbers of those of which nothing is there.
    """

    node: NodeId
    whole: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverDue:
    """A node under notice waits no longer for its chunks to be copied ahead: it leaves at the next boundary."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFreed:
    """A node has given back the slot of a chunk it no longer owns. `round` as in `ChunkLoaded`."""

    chunk: ChunkId
    node: NodeId
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksLoaded:
    """`ChunkLoaded` of several chunks at once: each event costs every agent the same, however much it says."""

    chunks: tuple[ChunkId, ...]
    node: NodeId
    round: int | None = None

    @property
    def parts(self) -> "tuple[ChunkLoaded, ...]":
        """One event per chunk."""
        return tuple(ChunkLoaded(chunk=chunk, node=self.node, round=self.round) for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksCopied:
    """`ChunkCopied` of several chunks at once, all from one source."""

    chunks: tuple[ChunkId, ...]
    source: NodeId
    target: NodeId
    round: int

    @property
    def parts(self) -> "tuple[ChunkCopied, ...]":
        """One event per chunk."""
        return tuple(
            ChunkCopied(chunk=chunk, source=self.source, target=self.target, round=self.round) for chunk in self.chunks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksFreed:
    """`ChunkFreed` of several chunks at once."""

    chunks: tuple[ChunkId, ...]
    node: NodeId
    round: int | None = None

    @property
    def parts(self) -> "tuple[ChunkFreed, ...]":
        """One event per chunk."""
        return tuple(ChunkFreed(chunk=chunk, node=self.node, round=self.round) for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFinished:
    """All tasks of the round have finished an iteration and its update is merged: the boundary begins."""

    round: int
    iteration: int
    reports: Mapping[NodeId, TaskReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationAborted:
    """An iteration ended without a merge, because a member was lost: the boundary begins, the model is the old one."""

    round: int
    iteration: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecided:
    """A policy wants chunks moved at the next boundary; ignored when what it saw is not so any more.

    Attributes:
        policy: Its name.
        generation: Round whose observations it saw.
        moves: Number of chunks to move, by (source, target).
        reason: In words, for the log.
        iteration: Last iteration that it saw; no chunk may have moved since. None is not judged.
    """

    policy: str
    generation: int
    moves: Mapping[tuple[NodeId, NodeId], int]
    reason: str
    iteration: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDisabled:
    """A policy raised, decided nonsense or does not answer: it is heard no more, and training goes on.

    Attributes:
        policy: Its name.
        reason: What it did, as the end of a sentence: "raised ValueError: ...".
    """

    policy: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The trainer, the user or a limit ends the job at the next boundary."""

    reason: str


Event: TypeAlias = (
    ChunksDeclared
    | NodeJoined
    | LeaveNoticed
    | NodeLost
    | RoundFormed
    | InventoryReported
    | ChunkLoaded
    | LoadFailed
    | ChunkCopied
    | CopyFailed
    | PrecopiesEnded
    | HandoverDue
    | ChunkFreed
    | ChunksLoaded
    | ChunksCopied
    | ChunksFreed
    | IterationFinished
    | IterationAborted
    | PolicyDecided
    | PolicyDisabled
    | StopRequested
)

SEVERAL: Mapping[type, Callable[..., Event]] = {
    ChunkLoaded: ChunksLoaded,
    ChunkCopied: ChunksCopied,
    ChunkFreed: ChunksFreed,
}
"""Answers about one chunk, and the event that says the same of several."""
