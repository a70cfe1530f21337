"""The memory of one node, as the book sees it: copies of chunks, each in one phase.

A copy takes the chunk's bytes from the moment it is ordered until it is freed, so capacities hold for reservations too:

    (order to load)  -> LOADING -> LOADED -> OWNED         LOADED waits for a boundary
    (order to copy)  -> COPYING -> COPIED -> OWNED         COPIED waits for a round to be formed; then comes the commit
    (order to pre-copy) -> PRECOPYING -> PRECOPIED -> COPYING or FREEING      rows without state, nobody's chunk
    LOADING -> UNWANTED -> FREEING                         the load is not wanted any more, and cannot be called back
    (inventory)      -> STRAY -> OWNED or FREEING          a copy that the book did not know
    OWNED            -> FREEING -> (nothing)               void since another copy was committed

On a shelf that is being closed nothing is freed: a void copy is (nothing) at once, because its node leaves.
"""

from dataclasses import dataclass, field
from enum import Enum

from chicle_elastic.ids import ChunkId
from chicle_elastic.values import ChunkInfo


class Phase(Enum):
    """What a copy of a chunk is; see the theory above."""

    OWNED = "owned"
    LOADING = "loading"
    LOADED = "loaded"
    COPYING = "copying"
    COPIED = "copied"
    PRECOPYING = "precopying"
    PRECOPIED = "precopied"
    UNWANTED = "unwanted"
    STRAY = "stray"
    FREEING = "freeing"


PROMISED = (Phase.OWNED, Phase.LOADING, Phase.LOADED)
"""Copies that are, or will be without another decision, the owner's: they count for the balance."""


@dataclass(slots=True)
class Shelf:
    """The memory of one node.

    Attributes:
        capacity_bytes: Memory for chunks; None where it is not accounted.
        weight: Share of the samples relative to other nodes.
        used_bytes: Bytes of all copies here.
        num_rows: Samples of the chunks that are owned here or being loaded here.
        copies: Phase of every copy here.
        owned: The chunks among them that are owned, as keys.
        added: Chunks that came into its possession since its task was told last, as keys.
        removed: Chunks that its task was told of and that left its possession since, as keys.
        is_closing: The node leaves.
    """

    capacity_bytes: int | None
    weight: float
    used_bytes: int = 0
    num_rows: int = 0
    copies: dict[ChunkId, Phase] = field(default_factory=dict)
    owned: dict[ChunkId, None] = field(default_factory=dict)
    added: dict[ChunkId, None] = field(default_factory=dict)
    removed: dict[ChunkId, None] = field(default_factory=dict)
    is_closing: bool = False

    @property
    def room_bytes(self) -> int | None:
        """Bytes that are neither used nor reserved; None for no limit."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes

    def put(self, info: ChunkInfo, new: Phase | None) -> Phase | None:
        """Put a copy here, into another phase, or (None) away.

        Returns:
            The phase that it was in; None if it was not here.
        """
        chunk = info.id
        old = self.copies.get(chunk)
        self.used_bytes += info.size_bytes * ((new is not None) - (old is not None))
        self.num_rows += info.num_rows * ((new in PROMISED) - (old in PROMISED))
        if old is Phase.OWNED:
            del self.owned[chunk]
        if new is Phase.OWNED:
            self.owned[chunk] = None
        if new is None:
            self.copies.pop(chunk, None)
        else:
            self.copies[chunk] = new
        return old
