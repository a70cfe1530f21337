"""Chunks in the slots of a store: put there without a task, and read as transports and tasks read them."""

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.views import Chunk
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.store.slot_table import SlotAddress
from chicle_elastic.values import StateVersion


def put_chunk(store: ChunkStore, chunk: Chunk, *, version: StateVersion | None = None) -> SlotAddress:
    """Write a chunk with its state into a slot, and commit it."""
    view = store.reserve(chunk.id, layout.encoded_bytes(chunk))
    layout.encode(chunk, view, version=version or StateVersion())
    return store.commit(chunk.id)


def bytes_in_slot(store: ChunkStore, chunk_id: ChunkId) -> memoryview:
    """Immutable part and state of a committed chunk: a view of the arena, read-only."""
    return _slot(store, chunk_id).toreadonly()


def chunk_in_slot(store: ChunkStore, chunk_id: ChunkId) -> Chunk:
    """A committed chunk as views of its slot; its state can be written."""
    return layout.decode(_slot(store, chunk_id), where=f"chunk {chunk_id}")


def _slot(store: ChunkStore, chunk_id: ChunkId) -> memoryview:
    address, size_bytes = store.extent(chunk_id)
    return store.arenas[address.arena].view(address.slot)[:size_bytes]
