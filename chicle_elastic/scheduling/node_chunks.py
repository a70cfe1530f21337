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

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from chicle_elastic.ids import ChunkId
from chicle_elastic.scheduling.together import remove
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

InfosOf: TypeAlias = Callable[[Iterable[ChunkId]], list[ChunkInfo]]
_NUM_ROWS, _SIZE_BYTES = operator.attrgetter("num_rows"), operator.attrgetter("size_bytes")


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

    def put(self, chunks: Collection[ChunkId], old: Phase | None, new: Phase | None, infos_of: InfosOf) -> None:
        """Put copies, of which there is one at least, here or from one phase into another one, or (None) away."""
        if old is new:
            return
        if new is None:
            remove(self.copies, chunks)
        else:
            self.copies.update(zip(chunks, itertools.repeat(new)))
        come = (old is None) - (new is None)
        are_promised = (new in PROMISED) - (old in PROMISED)
        are_owned = (new is Phase.OWNED) - (old is Phase.OWNED)
        if not (come or are_promised or are_owned):
            return  # to look each chunk up takes longer than all the rest
        infos = infos_of(chunks)
        rows, sizes = list(map(_NUM_ROWS, infos)), list(map(_SIZE_BYTES, infos))
        num_rows, num_bytes = sum(rows), sum(sizes)
        self.used_bytes += num_bytes * come
        self.num_rows += num_rows * are_promised
        self.owned_rows += num_rows * are_owned
        self.owned_bytes += num_bytes * are_owned
        if are_owned < 0:
            remove(self.owned, chunks)
        elif are_owned:
            self._set_least(min(rows), min(sizes))
            self.owned.update(dict.fromkeys(chunks))

    def note_removed(self, chunks: Sequence[ChunkId]) -> None:
        """Note that chunks leave its possession."""
        unheard = [chunk for chunk in chunks if chunk in self.added]  # by its task, or it heard that they went
        self.removed.update(dict.fromkeys(chunk for chunk in chunks if chunk not in self.added))
        remove(self.added, unheard)

    def _set_least(self, rows: int, size_bytes: int) -> None:
        if not self.owned:
            self.least_rows, self.least_bytes = rows, size_bytes
        elif rows < self.least_rows or size_bytes < self.least_bytes:
            self.least_rows, self.least_bytes = min(rows, self.least_rows), min(size_bytes, self.least_bytes)
