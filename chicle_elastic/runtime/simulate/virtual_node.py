"""A virtual node, and the clock that all of them share."""

from dataclasses import dataclass, field

from chicle_elastic.ids import ChunkId, NodeId


class VirtualClock:
    """The second of a simulation."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.now_s


@dataclass(slots=True, kw_only=True)
class VirtualNode:
    """A node."""

    name: NodeId
    speed: float  # relative to `row_s`
    bytes_per_s: float  # of its link, each way
    memory_bytes: int | None  # for chunks; None where it is not accounted
    price: float | None  # of a second; None for that of the supply
    grace_s: float  # from a notice to its end
    began_s: float  # since when it is paid for
    ended_s: float | None = None  # until when; None while it is there
    has_joined: bool = False  # whether the scheduler knows it
    is_noticed: bool = False  # whether it was given notice
    # when its links are free again: of copies out and in, of pre-copies out and in, of loads
    lanes_s: dict[str, float] = field(default_factory=dict)
    num_chunks: int = 0  # chunks that its task has been told of
    num_rows: int = 0  # samples in them
    rows: set[ChunkId] = field(default_factory=set)  # chunks whose rows were pre-copied to it

    @property
    def is_there(self) -> bool:
        """Whether it has not been lost or let go."""
        return self.ended_s is None
