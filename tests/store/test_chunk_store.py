"""The chunk store in one process: what goes in comes out, what does not fit or is damaged is named."""

import threading

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.views import Chunk, CsrRows, StateSpec
from chicle_elastic.errors import CapacityError, ChunkCorruptError, ProtocolError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.values import StateVersion
from tests.chunk_slots import bytes_in_slot, chunk_in_slot, put_chunk

SLOT_BYTES = 4096
DUALS = StateSpec(outputs=2, width=1)


def make_chunk(number: int, *, num_rows: int = 20, kind: str = "dense", state: StateSpec = DUALS) -> Chunk:
    """A chunk whose values depend on its number; its state is not zero."""
    rng = np.random.default_rng(number)
    rows = rng.standard_normal((num_rows, 5)).astype(np.float32)
    csr = CsrRows(
        np.arange(num_rows + 1, dtype=np.int32), np.full(num_rows, number % 5, dtype=np.int32), rows[:, 0].copy(), 5
    )
    chunk_state = state.zeros(num_rows)
    chunk_state[...] = number + 0.5
    return Chunk(
        id=ChunkId(number),
        rows=rows if kind == "dense" else csr,
        targets=rng.integers(0, 3, num_rows).astype(np.int32),
        weights=rng.random(num_rows) if number % 2 else None,
        row_ids=np.arange(num_rows, dtype=np.int64) + 100 * number,
        state=chunk_state,
    )


def make_store(num_slots: int = 8, *, slots_per_arena: int = 4) -> ChunkStore:
    """A store of a few small slots."""
    return ChunkStore(
        slot_bytes=SLOT_BYTES, capacity_bytes=num_slots * SLOT_BYTES, arena_bytes=slots_per_arena * SLOT_BYTES
    )


def used_bytes(store: ChunkStore) -> int:
    """Memory of all slots that are not free."""
    stats = store.slot_stats()
    return (stats.total - stats.free) * SLOT_BYTES


def encoded(chunk: Chunk, version: StateVersion | None = None) -> bytes:
    """The bytes of a chunk as they are on the wire."""
    buffer = layout.empty_buffer(layout.encoded_bytes(chunk))
    layout.encode(chunk, buffer, version=version or StateVersion())
    return buffer.tobytes()


def assert_same(found: Chunk, expected: Chunk) -> None:
    """Every array of two chunks is equal, and of the same dtype."""
    assert found.id == expected.id
    if isinstance(expected.rows, CsrRows):
        assert isinstance(found.rows, CsrRows)
        assert (found.rows.to_scipy() != expected.rows.to_scipy()).nnz == 0
    else:
        np.testing.assert_array_equal(found.rows, expected.rows)
    for name in ("targets", "row_ids", "state", "weights"):
        here, there = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(here, there)
        assert (here is None) == (there is None)
        assert here is None or here.dtype == there.dtype


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("number", [6, 7])
def test_what_is_put_is_got(kind, number):
    """Rows, targets, weights, row ids and state, bit for bit."""
    with make_store() as store:
        chunk = make_chunk(number, kind=kind)
        put_chunk(store, chunk, version=StateVersion(2, 9))
        assert_same(chunk_in_slot(store, chunk.id), chunk)
        assert store.inventory()[chunk.id] == StateVersion(2, 9)


def test_a_chunk_lies_in_its_slot_and_is_not_copied_out_of_it():
    """Its arrays are views of the arena, and solvers write its state there."""
    with make_store() as store:
        put_chunk(store, make_chunk(1))
        address = put_chunk(store, make_chunk(2))
        arena = store.arenas[address.arena]
        start = arena.base_address + arena.offset(address.slot)
        chunk = chunk_in_slot(store, ChunkId(2))
        assert start < chunk.rows.ctypes.data < chunk.state.ctypes.data < start + SLOT_BYTES
        chunk.state[3, 1, 0] = -7.0
        assert chunk_in_slot(store, ChunkId(2)).state[3, 1, 0] == -7.0
        assert store.address(ChunkId(2)) == address


def test_a_store_takes_nothing_before_the_first_chunk_and_grows_by_whole_arenas():
    """The last arena has what is left of the capacity."""
    with make_store(num_slots=6, slots_per_arena=4) as store:
        sizes = [[arena.num_slots for arena in store.arenas]]
        for number in range(6):
            put_chunk(store, make_chunk(number))
            sizes.append([arena.num_slots for arena in store.arenas])
        assert sizes == [[], [4], [4], [4], [4], [4, 2], [4, 2]]
        for number in range(6):
            assert_same(chunk_in_slot(store, ChunkId(number)), make_chunk(number))


def test_memory_that_is_going_to_be_needed_can_be_taken_before():
    """Whole arenas, and no more than the capacity."""
    with make_store(num_slots=5, slots_per_arena=2) as store:
        store.prepare()
        assert [arena.num_slots for arena in store.arenas] == [2]
        store.prepare(3 * SLOT_BYTES)
        assert [arena.num_slots for arena in store.arenas] == [2, 2]
        store.prepare(100 * SLOT_BYTES)
        assert [arena.num_slots for arena in store.arenas] == [2, 2, 1]


def test_capacity_is_counted_in_whole_slots():
    """A chunk takes a slot whatever its size."""
    with ChunkStore(slot_bytes=SLOT_BYTES, capacity_bytes=3 * SLOT_BYTES + 100) as store:
        assert store.capacity_bytes == 3 * SLOT_BYTES
        assert used_bytes(store) == 0
        put_chunk(store, make_chunk(0, num_rows=1))
        store.reserve(ChunkId(1), 64)
        assert used_bytes(store) == 2 * SLOT_BYTES


def test_a_full_store_says_what_its_slots_are_doing():
    """And takes the chunk once another one is freed."""
    with make_store(num_slots=2) as store:
        put_chunk(store, make_chunk(0))
        store.reserve(ChunkId(1), 64)
        with pytest.raises(CapacityError, match=r"chunk 2 needs a slot, but all 2 slots .* 1 hold chunks, 1 wait"):
            put_chunk(store, make_chunk(2))
        store.free(ChunkId(0))
        put_chunk(store, make_chunk(2))
        assert_same(chunk_in_slot(store, ChunkId(2)), make_chunk(2))


def test_a_chunk_larger_than_a_slot_is_refused_with_both_sizes():
    """In the words of the house rule."""
    with ChunkStore(slot_bytes=8 << 20, capacity_bytes=8 << 20) as store:
        big = make_chunk(7, num_rows=150_000)
        needed = layout.encoded_bytes(big) / 2**20
        expected = rf"chunk 7 needs {needed:.1f} MiB but slots hold 8\.0 MiB; raise slot_bytes or convert with smaller"
        with pytest.raises(CapacityError, match=expected):
            put_chunk(store, big)
        assert used_bytes(store) == 0


@pytest.mark.parametrize(("slot_bytes", "capacity_bytes"), [(0, 4096), (-64, 4096), (100, 4096), (4096, 4095), (64, 0)])
def test_sizes_that_cannot_be_are_refused(slot_bytes, capacity_bytes):
    """Slots are positive multiples of 64, and one must fit."""
    with pytest.raises(UsageError, match=f"{slot_bytes}"):
        ChunkStore(slot_bytes=slot_bytes, capacity_bytes=capacity_bytes)


def test_more_than_the_machine_has_is_refused_when_it_is_needed():
    """A capacity is a promise of the user; taking it is checked arena by arena."""
    with ChunkStore(slot_bytes=1 << 40, capacity_bytes=1 << 50) as store:
        with pytest.raises(CapacityError, match=r"needs 1024\.0 GiB, but .* leaves"):
            put_chunk(store, make_chunk(0))
        assert store.slot_stats().total == 0


def test_bytes_that_arrive_become_a_chunk_when_they_are_committed():
    """As in a fetch: reserve, fill, commit; the version is the one that the source sealed."""
    chunk = make_chunk(3)
    data = encoded(chunk, StateVersion(4, 17))
    with make_store() as store:
        view = store.reserve(chunk.id, len(data))
        assert len(view) == len(data)
        view[:] = data
        assert chunk.id not in store
        assert store.inventory() == {}
        store.commit(chunk.id)
        assert chunk.id in store
        assert store.inventory() == {3: StateVersion(4, 17)}
        assert_same(chunk_in_slot(store, chunk.id), chunk)


def test_a_reserved_chunk_cannot_be_read():
    """Its bytes are still arriving."""
    with make_store() as store:
        store.reserve(ChunkId(3), 640)
        for use in (
            store.extent,
            store.immutable_extent,
            store.seal,
            lambda chunk: store.advance(StateVersion(1, 1), [chunk]),
        ):
            with pytest.raises(UsageError, match=r"chunk 3 is only reserved in slot 0 of arena 0"):
                use(ChunkId(3))


@pytest.mark.parametrize("part", ["header", "rows", "state"])
def test_a_damaged_copy_is_not_committed_and_can_be_filled_again(part):
    """One flipped bit anywhere; the slot stays reserved for the next try."""
    chunk = make_chunk(3)
    data = encoded(chunk)
    with make_store() as store:
        view = store.reserve(chunk.id, len(data))
        view[:] = data
        view[{"header": 40, "rows": 300, "state": len(data) - 70}[part]] ^= 4
        with pytest.raises(ChunkCorruptError, match="peer n2"):
            store.commit(chunk.id, where="peer n2")
        assert chunk.id not in store
        view[:] = data
        store.commit(chunk.id)
        assert_same(chunk_in_slot(store, chunk.id), chunk)


def test_the_bytes_of_another_chunk_are_a_breach_of_protocol():
    """A peer that sends chunk 4 when chunk 3 was asked for."""
    data = encoded(make_chunk(4))
    with make_store() as store:
        store.reserve(ChunkId(3), len(data))[:] = data
        with pytest.raises(ProtocolError, match="peer n2: expected the bytes of chunk 3, got those of chunk 4"):
            store.commit(ChunkId(3), where="peer n2")


def test_an_empty_slot_is_no_chunk():
    """Committing what never arrived."""
    with make_store() as store:
        store.reserve(ChunkId(3), 640)
        with pytest.raises(ChunkCorruptError, match="slot 0 of arena 0"):
            store.commit(ChunkId(3))


def test_garbage_in_a_slot_is_named_by_slot():
    """If a task wrote over a chunk, reading its header is an error and not a wild pointer."""
    with make_store() as store:
        put_chunk(store, make_chunk(0))
        address = put_chunk(store, make_chunk(1))
        store.arenas[address.arena].array(address.slot)[:] = np.random.default_rng(0).integers(0, 256, SLOT_BYTES)
        with pytest.raises(ChunkCorruptError, match="slot 1 of arena 0"):
            store.immutable_extent(ChunkId(1))
        assert_same(chunk_in_slot(store, ChunkId(0)), make_chunk(0))


def test_one_chunk_has_one_slot():
    """Putting or reserving it again names where it is."""
    with make_store() as store:
        put_chunk(store, make_chunk(0))
        with pytest.raises(UsageError, match="chunk 0 is held in slot 0 of arena 0 already; free it first"):
            put_chunk(store, make_chunk(0))
        store.reserve(ChunkId(1), 64)
        with pytest.raises(UsageError, match="chunk 1 is reserved in slot 1 of arena 0 already"):
            store.reserve(ChunkId(1), 64)


@pytest.mark.parametrize("size_bytes", [0, -64])
def test_a_size_that_cannot_be_is_refused_before_a_slot_is_taken(size_bytes):
    """Peers announce sizes; a negative one would count from the end of the slot."""
    with make_store() as store:
        with pytest.raises(UsageError, match=f"size_bytes={size_bytes}"):
            store.reserve(ChunkId(1), size_bytes)
        assert used_bytes(store) == 0


@pytest.mark.parametrize("verb", ["free", "extent", "immutable_extent", "seal", "commit", "address"])
def test_a_chunk_that_is_not_here_is_named(verb):
    """Freed before, or never here."""
    with make_store() as store:
        put_chunk(store, make_chunk(0))
        put_chunk(store, make_chunk(1))
        store.free(ChunkId(1))
        with pytest.raises(UsageError, match="chunk 1 is not on this node, which holds 1 others"):
            getattr(store, verb)(ChunkId(1))


def test_committing_twice_is_refused():
    """The second would check bytes that a task is writing."""
    with make_store() as store:
        put_chunk(store, make_chunk(0))
        with pytest.raises(UsageError, match="chunk 0 in slot 0 of arena 0 is committed already"):
            store.commit(ChunkId(0))


def test_only_the_chunks_that_are_named_are_raised():
    """A chunk that was loaded while others trained has no part in their merge."""
    with make_store() as store:
        put_chunk(store, make_chunk(0))
        put_chunk(store, make_chunk(1))
        store.advance(StateVersion(1, 4), chunks=[ChunkId(1)])
        assert store.inventory() == {0: StateVersion(), 1: StateVersion(1, 4)}
        with pytest.raises(UsageError, match="chunk 2 is not on this node"):
            store.advance(StateVersion(1, 5), chunks=[ChunkId(1), ChunkId(2)])
        assert store.inventory()[ChunkId(1)] == StateVersion(1, 4)


def test_versions_only_rise():
    """A chunk from a newer round must not be made older; nothing is changed then."""
    with make_store() as store:
        put_chunk(store, make_chunk(0), version=StateVersion(1, 3))
        put_chunk(store, make_chunk(1), version=StateVersion(2, 0))
        with pytest.raises(UsageError, match=r"chunk 1 is at StateVersion\(round=2, iteration=0\), newer than"):
            store.advance(StateVersion(1, 9), store.inventory())
        assert store.inventory()[ChunkId(0)] == StateVersion(1, 3)


def test_the_immutable_extent_of_a_chunk_is_what_every_state_leaves_alone():
    """Pre-copy reads it while a task writes the state behind it."""
    with make_store() as store:
        put_chunk(store, make_chunk(0))
        place = put_chunk(store, make_chunk(1))
        before = bytes(bytes_in_slot(store, ChunkId(1)))
        where, num_bytes = store.immutable_extent(ChunkId(1))
        chunk_in_slot(store, ChunkId(1)).state[...] = 3.25
        store.seal(ChunkId(1), at_least=StateVersion(1, 1))
        after = bytes(bytes_in_slot(store, ChunkId(1)))
        assert where == place
        assert num_bytes == layout.read_header(after, where="here").immutable_bytes
        assert after[:num_bytes] == before[:num_bytes]
        assert after[num_bytes:] != before[num_bytes:]


def test_a_sealed_chunk_arrives_at_a_peer_with_its_state_and_version():
    """The whole way of a move: train, merge, seal, fetch, commit, free at the source."""
    with make_store() as source, make_store() as target:
        put_chunk(source, make_chunk(0))
        chunk_in_slot(source, ChunkId(0)).state[...] = 3.25
        source.advance(StateVersion(1, 1), [ChunkId(0)])
        source.seal(ChunkId(0))
        content = bytes_in_slot(source, ChunkId(0))
        target.reserve(ChunkId(0), len(content))[:] = content
        target.commit(ChunkId(0))
        source.free(ChunkId(0))
        assert source.inventory() == {}
        assert target.inventory() == {0: StateVersion(1, 1)}
        assert (chunk_in_slot(target, ChunkId(0)).state == 3.25).all()


def test_a_state_that_was_written_after_the_seal_does_not_arrive():
    """The checksum says so: whoever copies must seal first."""
    with make_store() as source, make_store() as target:
        put_chunk(source, make_chunk(0))
        chunk_in_slot(source, ChunkId(0)).state[0] += 1.0
        content = bytes_in_slot(source, ChunkId(0))
        target.reserve(ChunkId(0), len(content))[:] = content
        with pytest.raises(ChunkCorruptError, match="state"):
            target.commit(ChunkId(0))


def test_a_closed_store_says_so():
    """For every use; closing again is fine."""
    store = make_store()
    put_chunk(store, make_chunk(0))
    assert store.close() is True
    assert store.close() is True
    uses = [
        lambda: store.reserve(ChunkId(1), 64),
        lambda: store.commit(ChunkId(1)),
        lambda: store.seal(ChunkId(0)),
        lambda: store.immutable_extent(ChunkId(0)),
        lambda: store.prepare(),
    ]
    for use in uses:
        with pytest.raises(UsageError, match="the store is closed"):
            use()


def test_threads_that_fill_read_and_free_slots_leave_a_consistent_store():
    """Each thread moves its own chunks through a store that is too small for all, and checks what it reads."""
    store = make_store(num_slots=6, slots_per_arena=2)
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        try:
            start.wait()
            for result in range(40):
                chunk = make_chunk(4 * result + thread)
                put_chunk(store, chunk)
                assert bytes(bytes_in_slot(store, chunk.id)) == encoded(chunk)
                store.free(chunk.id)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    stats = store.slot_stats()
    assert (stats.used, stats.reserved) == (0, 0)
    assert stats.free == stats.total <= 6
    assert store.close() is True
