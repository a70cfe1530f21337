"""What to do, in the imperative: everything that a shell ever performs for the scheduler.

    for effect in scheduler.handle(event, now=now):
        dispatch(effect, shell)

A shell (the in-process runtime, the agent of a node, the simulators) has a method for each effect, named after it; a
test compares the methods of all shells with `METHODS`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.values import AddressedMessage, Happening, ResourceOffer


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRound:
    """Agree on a new round of these members, then say `RoundFormed`."""

    round: int
    members: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChunks:
    """Get chunks from their source into the memory of a node; say `ChunksLoaded` or `LoadFailed` with this `round`.

    The answers may come together or chunk by chunk. May also be ordered while an iteration runs; the task is not told
    of the chunks before the next boundary.
    """

    chunks: tuple[ChunkId, ...]
    node: NodeId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyChunks:
    """Copy chunks with their state; say `ChunksCopied` (verified) or `CopyFailed` for each. The source keeps them."""

    chunks: tuple[ChunkId, ...]
    source: NodeId
    target: NodeId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecopyChunks:
    """Copy the immutable part of chunks to where the whole chunks may be copied later; say `PrecopiesEnded`.

    Performed while iterations run: the source's task uses the chunks meanwhile. `CopyChunks` to the same target, or
    `FreeChunks`, may come before it has ended.
    """

    chunks: tuple[ChunkId, ...]
    source: NodeId
    target: NodeId
    round: int
    numbers: tuple[int, ...]  # of the order for each chunk, for its answer; no other order of the job has the same


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitChunks:
    """From now on `target` owns the chunks; the copies at `source` are void. (A source that was lost is not told.)"""

    chunks: tuple[ChunkId, ...]
    source: NodeId
    target: NodeId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeChunks:
    """Give back the slots of chunks that `node` holds and does not own; say `ChunksFreed`, also when it held none."""

    chunks: tuple[ChunkId, ...]
    node: NodeId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachChunks:
    """Tell the task of `node` which chunks were added and removed since it was told last. A chunk in both went away and
    came back: its memory is another one now. Remove first, then add."""

    node: NodeId
    added: tuple[ChunkId, ...]
    removed: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartIteration:
    """Let every member solve; then merge and say `IterationFinished`, or `IterationAborted`."""

    round: int
    iteration: int
    is_complete: bool  # false while chunks are missing (after a crash): the objective is partial, nothing is certified
    # what policies have set, by name; for `Budget.parameters`
    parameters: Mapping[str, float] = field(default_factory=dict)
    travelling: int = 0  # chunks on their way for decisions of policies
    wanted: int = 0  # nodes that a policy has asked for last; 0 for none
    must_rebuild: bool = False  # the model may lack state that chunks have: it is rebuilt from all state first
    # (chunks, samples) that a node has more when those on their way are there, or less; none of (0, 0)
    arriving: Mapping[NodeId, tuple[int, int]] = field(default_factory=dict)
    offer: ResourceOffer = field(default_factory=ResourceOffer)  # what the resource manager could give
    messages: tuple[AddressedMessage, ...] = ()  # of policies, to be delivered before the iteration begins
    memories: Mapping[str, Any] = field(default_factory=dict)  # what policies have remembered since the last one
    happened: tuple[Happening, ...] = ()  # since the last one, for policies


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeNode:
    """A policy lets this node go: from now on it is under notice, without a time at which it has to be gone."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNodes:
    """Tell the resource manager, if there is one, that the job wants so many nodes in all. It need not obey."""

    total: int  # nodes
    reason: str  # in words
    # of the request, from 1: every agent performs this effect, each at its time, and the newest one holds
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseNode:
    """The node under notice owns nothing any more: it may go."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """The job is about to pause, with every chunk in place: write a checkpoint, if the job has a place for one. Perhaps
    no further iteration comes: all nodes are under notice, for example, or too few are left."""

    round: int  # current round
    iteration: int  # last merged iteration
    nodes: tuple[NodeId, ...]  # those that own chunks, under notice or not; the first also writes what all tasks share


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseJob:
    """Nothing can be computed until something changes; the reason has the figures. The next round or iteration
    ends the pause."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob:
    """The job is over; every node may go."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A line for a person: a decision with its reason, or an event that was ignored and why."""

    text: str


Effect: TypeAlias = (
    FormRound
    | LoadChunks
    | CopyChunks
    | PrecopyChunks
    | CommitChunks
    | FreeChunks
    | AttachChunks
    | StartIteration
    | NoticeNode
    | RequestNodes
    | ReleaseNode
    | SaveCheckpoint
    | PauseJob
    | FinishJob
    | Log
)

METHODS = {kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Effect)}
"""Name of the method by class of the effect: `CopyChunks` is for `copy_chunks`."""


def dispatch(effect: Effect, shell: Any) -> None:
    """Let the shell perform an effect."""
    getattr(shell, METHODS[type(effect)])(effect)
