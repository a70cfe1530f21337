"""The memory of one node, as the ledger sees it: copies of chunks, each in one phase.

A copy takes the chunk's bytes from the moment it is ordered until it is freed, so capacities hold for reservations too:

    (order to load)  -> LOADING -> LOADED -> OWNED         LOADED waits for a boundary
    (order to copy)  -> COPYING -> COPIED -> OWNED         COPIED waits for a round to be formed; then comes the commit
    (order to pre-copy) -> PRECOPYING -> PRECOPIED -> COPYING or FREEING      rows without state, not owned
    LOADING -> UNWANTED -> FREEING                         the load is not wanted any more, and cannot be called back
    (inventory)      -> STRAY -> OWNED or FREEING          a copy that the ledger did not know
    OWNED            -> FREEING -> (nothing)               void since another copy was committed

On a node that is being closed nothing is freed: a void copy is (nothing) at once, because its node leaves.
"""

from collections.abc import Sequence
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
class NodeChunks:
    """The memory of one node."""

    capacity_bytes: int | None  # memory for chunks; None where it is not accounted
    used_bytes: int = 0  # bytes of all copies here
    num_rows: int = 0  # samples of the chunks that are owned here or being loaded here
    copies: dict[ChunkId, Phase] = field(default_factory=dict)  # phase of every copy here
    owned: dict[ChunkId, None] = field(default_factory=dict)  # the chunks among them that are owned, as keys
    # chunks that came into its possession since its task was told last, as keys
    added: dict[ChunkId, None] = field(default_factory=dict)
    # chunks that its task was told of and that left its possession since, as keys
    removed: dict[ChunkId, None] = field(default_factory=dict)
    is_closing: bool = False
    owned_rows: int = 0  # samples of the owned chunks
    owned_bytes: int = 0  # bytes of the owned chunks
    least_rows: int = 0  # no chunk that is owned here has fewer samples; one that had as few may have gone
    least_bytes: int = 0  # no chunk that is owned here has fewer bytes, likewise

    @property
    def room_bytes(self) -> int | None:
        """Bytes that are neither used nor reserved; None for no limit."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes

    def put_all(self, infos: Sequence[ChunkInfo], new: Phase) -> bool:
        """Put copies here, or from one phase, that is theirs in common, into another one; as `put` for each of them.
        Returns whether it was done; where it was not, they have to be put one by one."""
        chunks = [info.id for info in infos]
        olds = list(map(self.copies.get, chunks))
        if not olds or olds.count(olds[0]) < len(olds) or olds[0] in (Phase.OWNED, Phase.FREEING):
            return False
        rows, sizes = [info.num_rows for info in infos], [info.size_bytes for info in infos]
        was_promised, is_promised = olds[0] in PROMISED, new in PROMISED
        if olds[0] is None:
            self.used_bytes += sum(sizes)
        if was_promised is not is_promised:
            self.num_rows += sum(rows) if is_promised else -sum(rows)
        self.copies.update(dict.fromkeys(chunks, new))
        if new is Phase.OWNED:
            self._set_least(min(rows), min(sizes))
            self.owned.update(dict.fromkeys(chunks))
            self.owned_rows += sum(rows)
            self.owned_bytes += sum(sizes)
        return True

    def put(self, info: ChunkInfo, new: Phase | None) -> Phase | None:
        """Put a copy here, into another phase, or (None) away. Returns the phase that it was in; None if it was not
        here."""
        chunk = info.id
        old = self.copies.get(chunk)
        if new is None:
            if old is None:
                return None
            del self.copies[chunk]
            self.used_bytes -= info.size_bytes
        else:
            if old is None:
                self.used_bytes += info.size_bytes
            self.copies[chunk] = new
        was_promised, is_promised = old in PROMISED, new in PROMISED
        if was_promised is not is_promised:
            self.num_rows += info.num_rows if is_promised else -info.num_rows
        if old is not new:
            if old is Phase.OWNED:
                del self.owned[chunk]
                self.owned_rows -= info.num_rows
                self.owned_bytes -= info.size_bytes
            elif new is Phase.OWNED:
                self._set_least(info.num_rows, info.size_bytes)
                self.owned[chunk] = None
                self.owned_rows += info.num_rows
                self.owned_bytes += info.size_bytes
        return old

    def _set_least(self, rows: int, size_bytes: int) -> None:
        if not self.owned:
            self.least_rows, self.least_bytes = rows, size_bytes
        elif rows < self.least_rows or size_bytes < self.least_bytes:
            self.least_rows, self.least_bytes = min(rows, self.least_rows), min(size_bytes, self.least_bytes)
