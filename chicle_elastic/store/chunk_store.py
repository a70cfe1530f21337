"""The chunks of one node: chunk id -> slot, in arenas that are added as they are needed, up to a capacity.

The way of a chunk through a store:

    reserve  a slot is taken and its bytes arrive: read from a file, or fetched from a peer
    commit   the bytes are checked, and the chunk is here
    free     the chunk is gone, and its slot is used again

A chunk takes a whole slot whatever its size, and capacity is counted in slots. What `ChunkInfo.size_bytes` says to the
scheduler of a job with stores must therefore be `slot_bytes`, or a plan could need more slots than there are.

Versions. The scheduler's ledger raises the version of every chunk after a merge, which costs nothing per byte; the book
of the store has the version of each chunk as of when the chunk came, or as of the last `advance` or `seal`. `seal`
writes it into the chunk together with the CRC of the state, at the boundary at which the chunk moves. `commit` takes
the version that the source sealed.

The lock. One lock guards the book: which chunk, which slot, which version; agents seal chunks and fetch into slots in
worker threads. It does not guard bytes: only the fetch or load that a slot was reserved for writes the slot, and only
the task that owns a committed chunk (during an iteration) and `seal` (at the boundary) write the state of the chunk.
Copying and checking bytes happens outside the lock, adding an arena (rare) inside.
"""

import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from chicle_elastic.chunks import layout
from chicle_elastic.closing import Closing
from chicle_elastic.errors import CapacityError, ProtocolError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.arena import Arena, check_sizes, format_size
from chicle_elastic.store.slot_table import SlotAddress, SlotEntry, SlotStats, SlotTable
from chicle_elastic.values import StateVersion

DEFAULT_ARENA_BYTES = 64 << 20


class ChunkStore(Closing):
    """Holds the chunks of one node in shared memory. Thread-safe; a context manager that closes it. Raises UsageError
    when sizes that cannot be.

    Args:
        slot_bytes: Size of a slot, a positive multiple of 64; no chunk may be larger.
        capacity_bytes: Memory that it may take in all; rounded down to whole slots, of which there must be one.
    """

    def __init__(self, *, slot_bytes: int, capacity_bytes: int, arena_bytes: int = DEFAULT_ARENA_BYTES) -> None:
        check_sizes(1, slot_bytes)
        if capacity_bytes < slot_bytes:
            raise UsageError(f"capacity_bytes={capacity_bytes} is less than one slot of slot_bytes={slot_bytes}")
        self.slot_bytes = slot_bytes
        self._slots_per_arena = max(1, arena_bytes // slot_bytes)
        self._growth = threading.Lock()  # one at a time; before the other lock
        self._lock = threading.Lock()
        self._arenas: list[Arena] = []
        self._book = SlotTable(capacity_bytes // slot_bytes)
        self._is_closed = False

    @property
    def capacity_bytes(self) -> int:
        """Memory that the store may take: whole slots."""
        return self._book.max_slots * self.slot_bytes

    @property
    def arenas(self) -> tuple[Arena, ...]:
        """The arenas so far, by number, for tasks and transports. None is taken away before `close`."""
        with self._lock:
            return tuple(self._arenas)

    def slot_stats(self) -> SlotStats:
        """Slots of the arenas so far, by state."""
        with self._lock:
            return self._book.slot_stats()

    def inventory(self) -> dict[ChunkId, StateVersion]:
        """Every committed chunk and its version, for `InventoryReported`."""
        with self._lock:
            return self._book.inventory()

    def __contains__(self, chunk_id: ChunkId) -> bool:
        with self._lock:
            return self._book.holds(chunk_id)

    def reserve(self, chunk_id: ChunkId, size_bytes: int) -> memoryview:
        """Take a slot for a chunk whose bytes are about to arrive; end with `commit` or `free`. Raises CapacityError
        when the chunk is larger than a slot, or there is no slot left, UsageError when the chunk is here already, or
        `size_bytes` is not positive. Returns a writable memoryview of `size_bytes` bytes, to be filled."""
        if size_bytes < 1:
            raise UsageError(f"chunk {chunk_id} of size_bytes={size_bytes} cannot be; a chunk has a header at least")
        if size_bytes > self.slot_bytes:
            raise CapacityError(
                f"chunk {chunk_id} needs {format_size(size_bytes)} but slots hold {format_size(self.slot_bytes)}; "
                "raise slot_bytes or convert with smaller chunks"
            )
        while True:
            with self._lock:
                self._require_open()
                self._book.require_absent(chunk_id)
                if not self._book.num_slots_to_add(self._slots_per_arena):
                    return self._bytes(self._book.reserve(chunk_id, size_bytes))
            self.prepare()

    def prepare(self, num_bytes: int = 1) -> None:
        """Take memory ahead: it takes a while, and a shortage is known before anything depends on it. The store can be
        used by other threads meanwhile. Raises CapacityError when there is not so much, UsageError when the store is
        closed.

        Args:
            num_bytes: Of slots that are going to be needed; no more than the capacity is taken.
        """
        least = -(-num_bytes // self.slot_bytes)
        with self._growth:
            while True:
                with self._lock:
                    self._require_open()
                    num_slots = self._book.num_slots_to_add(self._slots_per_arena, least)
                if not num_slots:
                    return
                arena = Arena.create(num_slots, slot_bytes=self.slot_bytes)
                with self._lock:
                    if self._is_closed:
                        arena.close()
                    else:
                        self._arenas.append(arena)
                        self._book.add_arena(num_slots)

    def commit(self, chunk_id: ChunkId, *, where: str = "") -> SlotAddress:
        """Check the bytes that have arrived in a reserved slot; from now on the chunk is here. Raises ChunkCorruptError
        when the bytes are damaged, ProtocolError when the bytes are those of another chunk, UsageError when the chunk
        is not reserved. The slot of damaged bytes stays reserved: fill it again, or free it.

        Args:
            where: Where the bytes come from, for messages; by default the slot.
        """
        with self._lock:
            self._require_open()
            entry = self._book.reserved(chunk_id)
            content = self._bytes(entry)
        where = where or str(entry.address)
        header = layout.read_header(content, where=where)
        if header.chunk_id != chunk_id:
            raise ProtocolError(
                f"{where}: expected the bytes of chunk {chunk_id}, got those of chunk {header.chunk_id}; "
                "ask the source again"
            )
        layout.verify_immutable(content, where=where)
        layout.verify_state(content, where=where)
        state_header = layout.read_state_header(content, header, where=where)
        return self.commit_verified(chunk_id, header.encoded_bytes(state_header.spec), state_header.version)

    def commit_verified(self, chunk_id: ChunkId, size_bytes: int, version: StateVersion) -> SlotAddress:
        """`commit` for bytes that were verified while they arrived (`chunks.arrival`): they are not read again. Raises
        UsageError when the chunk is not reserved."""
        with self._lock:
            return self._book.commit(chunk_id, size_bytes, version).address

    def address(self, chunk_id: ChunkId) -> SlotAddress:
        """Where the chunk lies, committed or reserved."""
        with self._lock:
            return self._book.entry(chunk_id).address

    def extent(self, chunk_id: ChunkId) -> tuple[SlotAddress, int]:
        """Where the committed chunk lies, and how many bytes it has."""
        with self._lock:
            entry, _ = self._book.committed(chunk_id)
            return entry.address, entry.size_bytes

    def immutable_extent(self, chunk_id: ChunkId) -> tuple[SlotAddress, int]:
        """Where the committed chunk lies, and how many bytes its immutable part has, which is what pre-copy copies."""
        with self._lock:
            self._require_open()
            entry, _ = self._book.committed(chunk_id)
            content = self._bytes(entry)
        return entry.address, layout.read_header(content, where=str(entry.address)).immutable_bytes

    def advance(self, version: StateVersion, chunks: Iterable[ChunkId]) -> None:
        """The state of these chunks contains `version`, as the scheduler's ledger knows. Raises UsageError when a chunk
        is newer than that, or not here; no version is changed.

        Args:
            chunks: Have to be here.
        """
        with self._lock:
            self._book.advance(version, chunks)

    def seal(
        self,
        chunk_id: ChunkId,
        *,
        at_least: StateVersion = layout.FRESH,
        crc32: Callable[[Any, int], int] = zlib.crc32,
    ) -> tuple[SlotAddress, int]:
        """Write the version and the CRC of the state into the chunk: at a boundary, before its state is copied. Raises
        UsageError when the chunk is not here, ChunkCorruptError when what lies in its slot is no chunk any more.
        Returns where the chunk lies, and how many bytes it has.

        Args:
            at_least: The version is raised to this one first, if it is older.
        """
        with self._lock:
            self._require_open()
            entry, version = self._book.committed(chunk_id)
            if version < at_least:
                version = at_least
                self._book.advance(version, [chunk_id])
            content = self._bytes(entry)
        layout.seal_state(content, version, where=str(entry.address), crc32=crc32)
        return entry.address, entry.size_bytes

    def free(self, chunk_id: ChunkId) -> None:
        """Give up a chunk or a reservation. Raises UsageError when the chunk is not here; it was freed before, or never
        came."""
        with self._lock:
            self._book.free(chunk_id)

    def close(self) -> bool:
        """Give all memory back. May be called again. Returns whether all of it is unmapped already; False means that
        views of chunks are still held (see `Arena.close`)."""
        with self._lock:
            self._is_closed = True
            are_unmapped = [arena.close() for arena in self._arenas]
            return all(are_unmapped)

    # For the two below, the lock is held.

    def _bytes(self, entry: SlotEntry) -> memoryview:
        return self._arenas[entry.address.arena].view(entry.address.slot)[: entry.size_bytes]

    def _require_open(self) -> None:
        if self._is_closed:
            raise UsageError("the store is closed; nothing can be put into it or read from it")
