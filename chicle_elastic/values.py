"""Small values that more than one floor speaks of."""

from dataclasses import dataclass

from chicle_elastic.ids import ChunkId


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
