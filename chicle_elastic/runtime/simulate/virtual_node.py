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
    """A node.

    Attributes:
        name: Its name.
        speed: Relative to `row_s`.
        bytes_per_s: Of its link, each way.
        memory_bytes: For chunks; None where it is not accounted.
        price: Of a second; None for that of the supply.
        grace_s: From a notice to its end.
        began_s: Since when it is paid for.
        ended_s: Until when; None while it is there.
        has_joined: Whether the scheduler knows it.
        is_noticed: Whether it was given notice.
        lanes_s: When its links are free again: of copies out and in, of pre-copies out and in, of loads.
        num_chunks: Chunks that its task has been told of.
        num_rows: Samples in them.
        rows: Chunks whose rows were pre-copied to it.
    """

    name: NodeId
    speed: float
    bytes_per_s: float
    memory_bytes: int | None
    price: float | None
    grace_s: float
    began_s: float
    ended_s: float | None = None
    has_joined: bool = False
    is_noticed: bool = False
    lanes_s: dict[str, float] = field(default_factory=dict)
    num_chunks: int = 0
    num_rows: int = 0
    rows: set[ChunkId] = field(default_factory=set)

    @property
    def is_there(self) -> bool:
        """Whether it has not been lost or let go."""
        return self.ended_s is None
