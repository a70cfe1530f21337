"""Bytes go straight into slots, and what happens to a slot meanwhile is noticed."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.arrival import ArrivingChunk
from chicle_elastic.chunks.views import Chunk, StateSpec
from chicle_elastic.errors import ChunkCorruptError
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.arena import Arena
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.base import PIECE_BYTES, Region
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.verbs.reads import WINDOW
from chicle_elastic.transports.verbs.transport import VerbsTransport
from chicle_elastic.values import StateVersion
from tests.chunk_slots import put_chunk
from tests.rdma.devices import HOSTS
from tests.timeouts import timeout_s

TIMEOUT_S = timeout_s(10)
SPEC = StateSpec(outputs=1, width=1)


@pytest.fixture
def pair() -> Iterator[tuple[VerbsTransport, VerbsTransport]]:
    """An owner and a reader."""
    secret = JobSecret.generate()
    with contextlib.ExitStack() as stack:
        owner, reader = (
            stack.enter_context(VerbsTransport(f"tcp://{host}:0", secret, name=name))
            for host, name in zip(HOSTS, ("owner", "reader"), strict=True)
        )
        yield owner, reader


def chunk(number: int, *, num_rows: int = 1000, state: float = 0.0) -> Chunk:
    """A dense chunk of 50 features, whose state is everywhere the same."""
    rng = np.random.default_rng(number)
    values = SPEC.zeros(num_rows)
    values[...] = state
    return Chunk(
        id=ChunkId(number),
        rows=rng.normal(size=(num_rows, 50)),
        targets=np.zeros(num_rows),
        row_ids=np.arange(num_rows),
        state=values,
    )


def test_a_slot_of_a_registered_arena_needs_no_staging(pair: tuple[VerbsTransport, VerbsTransport]) -> None:
    """The card writes into the pages of the slot, and into no others."""
    owner, reader = pair
    with Arena.create(3, slot_bytes=4096) as theirs, Arena.create(3, slot_bytes=4096) as ours:
        theirs.array(1)[:] = 7
        owner.register(theirs)
        reader.register(ours)
        view = ours.view(1)
        assert reader.place_of(view) is not None
        assert reader.place_of(memoryview(bytearray(4096))) is None
        reader.fetch(owner.address, Region(0, 4096, 4096), view, timeout_s=TIMEOUT_S)
        assert [set(ours.array(slot).tolist()) for slot in range(3)] == [{0}, {7}, {0}]
        ours.close()
        assert reader.place_of(view) is None, "that address is only known to be the slot while its arena is open"
        reader.fetch(owner.address, Region(0, 0, 4096), view, timeout_s=TIMEOUT_S)
        assert set(view.tolist()) == {0}
        view.release()


@pytest.mark.parametrize("is_same_chunk", [False, True], ids=["another chunk", "another state"])
def test_a_slot_that_is_used_again_during_a_read_is_noticed(
    pair: tuple[VerbsTransport, VerbsTransport], is_same_chunk: bool
) -> None:
    """The card reads on, whatever happens to the bytes: their sums tell."""
    owner, reader = pair
    num_rows = 15_000  # 6 MB, and so more than the staging area: the end is asked for after the beginning has come
    first = chunk(1, num_rows=num_rows)
    second = chunk(1, num_rows=num_rows, state=1.0) if is_same_chunk else chunk(2, num_rows=num_rows)
    size_bytes = layout.encoded_bytes(first)
    assert size_bytes > (WINDOW + 1) * PIECE_BYTES
    with Arena.create(1, slot_bytes=-(-size_bytes // 64) * 64) as theirs:
        layout.encode(first, theirs.view(0))
        after = memoryview(bytearray(size_bytes))
        layout.encode(second, after)
        owner.register(theirs)
        into = memoryview(bytearray(size_bytes))
        arriving = ArrivingChunk(into, chunk_id=ChunkId(1), where="from owner")
        writes = iter([size_bytes - 4096 if is_same_chunk else size_bytes * 9 // 10])

        def check(num_bytes: int) -> None:
            if (start := next(writes, None)) is not None:
                theirs.view(0)[start:size_bytes] = after[start:]
            arriving(num_bytes)

        with pytest.raises(ChunkCorruptError, match="is damaged"):
            reader.fetch(owner.address, Region(0, 0, size_bytes), into, check=check, timeout_s=TIMEOUT_S)


def test_a_sealed_chunk_brings_its_version(pair: tuple[VerbsTransport, VerbsTransport]) -> None:
    """Straight out of the slot of a store, without a copy at its owner."""
    owner, reader = pair
    with ChunkStore(slot_bytes=1 << 19, capacity_bytes=1 << 20, arena_bytes=1 << 20) as store:
        put_chunk(store, chunk(1))
        place, size_bytes = store.seal(ChunkId(1), at_least=StateVersion(2, 9))
        owner.register(store.arenas[0])
        into = memoryview(bytearray(size_bytes))
        arriving = ArrivingChunk(into, chunk_id=ChunkId(1), where="from owner")
        region = Region(place.arena, place.slot * store.slot_bytes, size_bytes)
        reader.fetch(owner.address, region, into, check=arriving, timeout_s=TIMEOUT_S)
        assert arriving.finish() == StateVersion(2, 9)
