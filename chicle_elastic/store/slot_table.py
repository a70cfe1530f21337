"""The book of a chunk store: which chunk lies in which slot, how large, and at which version. Pure: no memory, no lock.

A slot is in one of three states:

    FREE      -- reserve -->  RESERVED   the bytes of a chunk are arriving; it has no version yet
    RESERVED  -- commit  -->  USED       it holds a chunk, which has a version
    RESERVED  -- free    -->  FREE       the copy was abandoned
    USED      -- free    -->  FREE       the chunk is gone

Every slot is free or has one chunk, and every chunk in the book has one slot. Who reads a slot is not counted: the
scheduler frees a chunk at its source only after the copy at the target is committed.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from chicle_elastic.errors import CapacityError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import StateVersion


class SlotAddress(NamedTuple):
    """Where a chunk lies on its node."""

    arena: int  # number of the arena in its store, from 0
    slot: int  # number of the slot in its arena, from 0

    def __str__(self) -> str:
        return f"slot {self.slot} of arena {self.arena}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStats:
    """How many slots are in which state (see `slot_table`); their sum is `total`."""

    total: int
    free: int
    reserved: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEntry:
    """One line of the book."""

    address: SlotAddress  # where the chunk lies
    size_bytes: int  # bytes that are reserved for it, or that it has
    version: StateVersion | None = None  # version of its state; None until it is committed


class SlotTable:
    """Chunk id -> slot, size and version; gives out the lowest free address. Not thread-safe: its owner locks.

    Args:
        max_slots: Slots that there may ever be.
    """

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self._num_arenas = 0
        self._num_committed = 0
        self._free: list[SlotAddress] = []  # a heap
        self._entries: dict[ChunkId, SlotEntry] = {}

    def add_arena(self, num_slots: int) -> int:
        """Add the slots of a new arena, all free; returns its number."""
        if num_slots < 1:
            raise UsageError(f"an arena of {num_slots} slots cannot be; give it at least 1")
        arena = self._num_arenas
        self._num_arenas += 1
        for slot in range(num_slots):
            heapq.heappush(self._free, SlotAddress(arena, slot))
        return arena

    def num_slots_to_add(self, wanted: int, least: int = 1) -> int:
        """Slots of the next arena while fewer than `least` are free: `wanted`, or what is left of `max_slots`."""
        stats = self.slot_stats()
        return 0 if stats.free >= least else min(wanted, self.max_slots - stats.total)

    def slot_stats(self) -> SlotStats:
        """Slots so far, by state."""
        free, held, used = len(self._free), len(self._entries), self._num_committed
        return SlotStats(total=free + held, free=free, reserved=held - used, used=used)

    def inventory(self) -> dict[ChunkId, StateVersion]:
        """Committed chunks and their versions."""
        return {chunk_id: entry.version for chunk_id, entry in self._entries.items() if entry.version is not None}

    def holds(self, chunk_id: ChunkId) -> bool:
        """Whether a chunk is committed."""
        entry = self._entries.get(chunk_id)
        return entry is not None and entry.version is not None

    def entry(self, chunk_id: ChunkId) -> SlotEntry:
        """The line of a chunk, reserved or committed. Raises UsageError when there is none."""
        if chunk_id not in self._entries:
            raise UsageError(
                f"chunk {chunk_id} is not on this node, which holds {len(self._entries)} others; it was freed, or "
                "never came"
            )
        return self._entries[chunk_id]

    def committed(self, chunk_id: ChunkId) -> tuple[SlotEntry, StateVersion]:
        """The line of a committed chunk, and its version. Raises UsageError when there is none, or the chunk is only
        reserved."""
        entry = self.entry(chunk_id)
        if entry.version is None:
            raise UsageError(f"chunk {chunk_id} is only reserved in {entry.address}; commit it first")
        return entry, entry.version

    def reserved(self, chunk_id: ChunkId) -> SlotEntry:
        """The line of a reserved chunk. Raises UsageError when there is none, or the chunk is committed."""
        entry = self.entry(chunk_id)
        if entry.version is not None:
            raise UsageError(f"chunk {chunk_id} in {entry.address} is committed already; commit it once")
        return entry

    def require_absent(self, chunk_id: ChunkId) -> None:
        """Refuse a second slot for one chunk. Raises UsageError when the chunk is here, reserved or committed."""
        if chunk_id in self._entries:
            entry = self._entries[chunk_id]
            verb = "reserved" if entry.version is None else "held"
            raise UsageError(f"chunk {chunk_id} is {verb} in {entry.address} already; free it first")

    def reserve(self, chunk_id: ChunkId, size_bytes: int) -> SlotEntry:
        """Take a slot for a chunk. Raises UsageError when the chunk is here, CapacityError when no slot is free."""
        self.require_absent(chunk_id)
        if not self._free:
            stats = self.slot_stats()
            raise CapacityError(
                f"chunk {chunk_id} needs a slot, but all {stats.total} slots of this store are taken: {stats.used} "
                f"hold chunks, {stats.reserved} wait for theirs; free chunks, raise capacity_bytes or add nodes"
            )
        entry = SlotEntry(address=heapq.heappop(self._free), size_bytes=size_bytes)
        self._entries[chunk_id] = entry
        return entry

    def commit(self, chunk_id: ChunkId, size_bytes: int, version: StateVersion) -> SlotEntry:
        """The bytes of a reserved chunk are there, and this many. Raises UsageError when the chunk is not reserved."""
        address = self.reserved(chunk_id).address
        self._num_committed += 1
        self._entries[chunk_id] = SlotEntry(address=address, size_bytes=size_bytes, version=version)
        return self._entries[chunk_id]

    def advance(self, version: StateVersion, chunks: Iterable[ChunkId]) -> None:
        """Raise committed chunks to `version`. Raises UsageError when a chunk is newer than that, or not committed; no
        version is changed."""
        held = {chunk_id: self.committed(chunk_id)[1] for chunk_id in chunks}
        for chunk_id, old in held.items():
            if old > version:
                raise UsageError(f"chunk {chunk_id} is at {old}, newer than {version}; versions only rise")
        for chunk_id in held:
            entry = self._entries[chunk_id]
            self._entries[chunk_id] = SlotEntry(address=entry.address, size_bytes=entry.size_bytes, version=version)

    def free(self, chunk_id: ChunkId) -> None:
        """Give up a chunk or a reservation. Raises UsageError when the chunk is not here."""
        entry = self.entry(chunk_id)
        heapq.heappush(self._free, entry.address)
        self._num_committed -= entry.version is not None
        del self._entries[chunk_id]
