"""Small values that more than one floor speaks of."""

from collections.abc import Mapping
from dataclasses import dataclass

from chicle_elastic.ids import ChunkId, NodeId

HISTORY_LENGTH = 32
"""Iterations whose reports policies see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkInfo:
    """What the scheduler knows of a chunk: never its bytes.

    Attributes:
        id: The chunk.
        num_rows: Samples in it, >= 1.
        size_bytes: Memory it takes on a node, state included; capacities are counted in these.
    """

    id: ChunkId
    num_rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class StateVersion:
    """Orders copies of a chunk's state: a committed round beats an older one, then the last merged iteration.

    Attributes:
        round: Membership round in which the copy was last committed.
        iteration: Last *merged* iteration that the state contains; raised only after the merge.
    """

    round: int = 0
    iteration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAccount:
    """What became of one chunk in a job, as the ledger has it.

    Attributes:
        chunk: The chunk.
        rows: Samples in it.
        owner: Node that owns it at the end; None while it is missing.
        iterations: Merged iterations that processed it, by the node that did.
        replays: How often its state was started afresh after it had been processed, because its owner was lost. Its
            samples may have been processed more often than others within an epoch.
    """

    chunk: ChunkId
    rows: int
    owner: NodeId | None
    iterations: Mapping[NodeId, int]
    replays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What one task says of its iteration (a part of `IterationFinished`).

    Attributes:
        samples: Samples it processed.
        duration_s: Seconds it computed.
    """

    samples: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What a policy sees at a boundary. All mappings have the same nodes: the members of the round that stay.

    Attributes:
        round: The round; a decision is good for this round only.
        iteration: Last merged iteration.
        num_chunks: Chunks that each node owns.
        samples: Samples in them.
        capacity_bytes: Memory for chunks; None where it is not accounted.
        used_bytes: Memory taken by chunks, reservations included.
        reports: Reports of the last iterations of each node, oldest first; fewer for a node that joined lately.
    """

    round: int
    iteration: int
    num_chunks: Mapping[NodeId, int]
    samples: Mapping[NodeId, int]
    capacity_bytes: Mapping[NodeId, int | None]
    used_bytes: Mapping[NodeId, int]
    reports: Mapping[NodeId, tuple[TaskReport, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy wants, with its reason.

    Attributes:
        moves: Number of chunks to move at this boundary, by (source, target); which ones is drawn at random.
        reason: In words, for the log: "n2 takes 1.8x the median time per sample; shed 3 of 12 chunks".
    """

    moves: Mapping[tuple[NodeId, NodeId], int]
    reason: str
