"""The chunk store in one process: what goes in comes out, what does not fit or is damaged is named."""

import threading

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.views import NO_STATE, Chunk, CsrRows, StateSpec
from chicle_elastic.errors import CapacityError, ChunkCorruptError, ProtocolError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.values import StateVersion

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
        store.put(chunk, version=StateVersion(2, 9))
        assert_same(store.get(chunk.id), chunk)
        assert store.version(chunk.id) == StateVersion(2, 9)


def test_a_chunk_lies_in_its_slot_and_is_not_copied_out_of_it():
    """Its arrays are views of the arena, and solvers write its state there."""
    with make_store() as store:
        store.put(make_chunk(1))
        address = store.put(make_chunk(2))
        arena = store.arenas[address.arena]
        start = arena.base_address + arena.offset(address.slot)
        chunk = store.get(ChunkId(2))
        assert start < chunk.rows.ctypes.data < chunk.state.ctypes.data < start + SLOT_BYTES
        chunk.state[3, 1, 0] = -7.0
        assert store.get(ChunkId(2)).state[3, 1, 0] == -7.0
        assert store.address(ChunkId(2)) == address


def test_a_store_takes_nothing_before_the_first_chunk_and_grows_by_whole_arenas():
    """The last arena has what is left of the capacity."""
    with make_store(num_slots=6, slots_per_arena=4) as store:
        sizes = [[arena.num_slots for arena in store.arenas]]
        for number in range(6):
            store.put(make_chunk(number))
            sizes.append([arena.num_slots for arena in store.arenas])
        assert sizes == [[], [4], [4], [4], [4], [4, 2], [4, 2]]
        for number in range(6):
            assert_same(store.get(ChunkId(number)), make_chunk(number))


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
        assert store.used_bytes == 0
        store.put(make_chunk(0, num_rows=1))
        store.reserve(ChunkId(1), 64)
        assert store.used_bytes == 2 * SLOT_BYTES


def test_a_full_store_says_what_its_slots_are_doing():
    """And takes the chunk once another one is freed."""
    with make_store(num_slots=2) as store:
        store.put(make_chunk(0))
        store.reserve(ChunkId(1), 64)
        with pytest.raises(CapacityError, match=r"chunk 2 needs a slot, but all 2 slots .* 1 hold chunks, 1 wait"):
            store.put(make_chunk(2))
        store.free(ChunkId(0))
        store.put(make_chunk(2))
        assert_same(store.get(ChunkId(2)), make_chunk(2))


def test_a_chunk_larger_than_a_slot_is_refused_with_both_sizes():
    """In the words of the house rule."""
    with ChunkStore(slot_bytes=8 << 20, capacity_bytes=8 << 20) as store:
        big = make_chunk(7, num_rows=150_000)
        needed = layout.encoded_bytes(big) / 2**20
        expected = rf"chunk 7 needs {needed:.1f} MiB but slots hold 8\.0 MiB; raise slot_bytes or convert with smaller"
        with pytest.raises(CapacityError, match=expected):
            store.put(big)
        assert store.used_bytes == 0


@pytest.mark.parametrize(("slot_bytes", "capacity_bytes"), [(0, 4096), (-64, 4096), (100, 4096), (4096, 4095), (64, 0)])
def test_sizes_that_cannot_be_are_refused(slot_bytes, capacity_bytes):
    """Slots are positive multiples of 64, and one must fit."""
    with pytest.raises(UsageError, match=f"{slot_bytes}"):
        ChunkStore(slot_bytes=slot_bytes, capacity_bytes=capacity_bytes)


def test_more_than_the_machine_has_is_refused_when_it_is_needed():
    """A capacity is a promise of the user; taking it is checked arena by arena."""
    with ChunkStore(slot_bytes=1 << 40, capacity_bytes=1 << 50) as store:
        with pytest.raises(CapacityError, match=r"needs 1024\.0 GiB, but .* leaves"):
            store.put(make_chunk(0))
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
        assert_same(store.get(chunk.id), chunk)


def test_a_reserved_chunk_cannot_be_read():
    """Its bytes are still arriving."""
    with make_store() as store:
        store.reserve(ChunkId(3), 640)
        for use in (store.get, store.lease, store.seal, store.version):
            with pytest.raises(UsageError, match=r"chunk 3 is only reserved in slot 0 of arena 0"):
                use(ChunkId(3))


def test_an_abandoned_reservation_gives_its_slot_back():
    """A copy that never arrived costs nothing."""
    with make_store(num_slots=1) as store:
        store.reserve(ChunkId(3), 640)
        store.free(ChunkId(3))
        store.put(make_chunk(4))


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
        assert_same(store.get(chunk.id), chunk)


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
    """Whoever wrote over a chunk, reading it is an error and not a wild pointer."""
    with make_store() as store:
        store.put(make_chunk(0))
        address = store.put(make_chunk(1))
        store.arenas[address.arena].array(address.slot)[:] = np.random.default_rng(0).integers(0, 256, SLOT_BYTES)
        with pytest.raises(ChunkCorruptError, match="slot 1 of arena 0"):
            store.get(ChunkId(1))
        assert_same(store.get(ChunkId(0)), make_chunk(0))


def test_encoded_bytes_are_put_with_their_state():
    """Of whatever type the bytes are."""
    data = encoded(make_chunk(5), StateVersion(1, 2))
    for same in (data, bytearray(data), memoryview(data), np.frombuffer(data, dtype=np.uint8)):
        with make_store() as store:
            store.put_encoded(same, where="file c5")
            assert_same(store.get(ChunkId(5)), make_chunk(5))
            assert store.version(ChunkId(5)) == StateVersion(1, 2)


@pytest.mark.parametrize("source_state", [NO_STATE, DUALS])
def test_encoded_bytes_can_be_given_a_fresh_state(source_state):
    """A chunk file has no state; the trainer's is attached in the slot. One that was there is dropped."""
    wanted = StateSpec(outputs=3, width=2, dtype="float32")
    with make_store() as store:
        store.put_encoded(encoded(make_chunk(5, state=source_state)), where="file c5", state=wanted)
        found = store.get(ChunkId(5))
        assert found.state.dtype == np.float32
        assert not found.state.any()
        assert found.state.shape == (20, 3, 2)
        np.testing.assert_array_equal(found.rows, make_chunk(5).rows)
        assert store.version(ChunkId(5)) == StateVersion()


@pytest.mark.parametrize("state", [None, DUALS])
@pytest.mark.parametrize("num_bytes", [0, 100, 256, 400, 900])
def test_truncated_bytes_leave_nothing_in_the_store(state, num_bytes):
    """The message has the file; the slot is free again."""
    data = encoded(make_chunk(5))[:num_bytes]
    with make_store() as store:
        with pytest.raises(ChunkCorruptError, match="file c5"):
            store.put_encoded(data, where="file c5", state=state)
        assert store.used_bytes == 0


def test_one_chunk_has_one_slot():
    """Putting or reserving it again names where it is."""
    with make_store() as store:
        store.put(make_chunk(0))
        with pytest.raises(UsageError, match="chunk 0 is held in slot 0 of arena 0 already; free it first"):
            store.put(make_chunk(0))
        store.reserve(ChunkId(1), 64)
        with pytest.raises(UsageError, match="chunk 1 is reserved in slot 1 of arena 0 already"):
            store.reserve(ChunkId(1), 64)


@pytest.mark.parametrize("size_bytes", [0, -64])
def test_a_size_that_cannot_be_is_refused_before_a_slot_is_taken(size_bytes):
    """Peers announce sizes; a negative one would count from the end of the slot."""
    with make_store() as store:
        with pytest.raises(UsageError, match=f"size_bytes={size_bytes}"):
            store.reserve(ChunkId(1), size_bytes)
        assert store.used_bytes == 0


def test_a_chunk_that_cannot_be_encoded_leaves_its_slot_free():
    """Here the targets have a dtype that a chunk does not hold."""
    chunk = make_chunk(0)
    bad = Chunk(
        id=chunk.id, rows=chunk.rows, targets=chunk.targets.astype(np.int8), row_ids=chunk.row_ids, state=chunk.state
    )
    with make_store() as store:
        with pytest.raises(UsageError, match="int8"):
            store.put(bad)
        assert store.used_bytes == 0


@pytest.mark.parametrize("verb", ["get", "free", "lease", "seal", "commit", "address", "version"])
def test_a_chunk_that_is_not_here_is_named(verb):
    """Freed before, or never here."""
    with make_store() as store:
        store.put(make_chunk(0))
        store.put(make_chunk(1))
        store.free(ChunkId(1))
        with pytest.raises(UsageError, match="chunk 1 is not on this node, which holds 1 others"):
            getattr(store, verb)(ChunkId(1))


def test_committing_twice_is_refused():
    """The second would check bytes that a task is writing."""
    with make_store() as store:
        store.put(make_chunk(0))
        with pytest.raises(UsageError, match="chunk 0 in slot 0 of arena 0 is committed already"):
            store.commit(ChunkId(0))


def test_a_leased_chunk_stays_in_place_after_it_is_freed():
    """A peer that reads slowly gets the chunk that it asked for, and the slot is used again only then."""
    with make_store(num_slots=1) as store:
        store.put(make_chunk(0), version=StateVersion(1, 1))
        with store.lease(ChunkId(0)) as lease:
            store.free(ChunkId(0))
            assert ChunkId(0) not in store
            with pytest.raises(CapacityError, match="1 are still read by peers"):
                store.put(make_chunk(1))
            assert bytes(lease.view) == encoded(make_chunk(0), StateVersion(1, 1))
            assert lease.version == StateVersion(1, 1)
        store.put(make_chunk(1))
        assert_same(store.get(ChunkId(1)), make_chunk(1))


def test_a_lease_is_for_reading_only():
    """Peers do not write."""
    with make_store() as store:
        store.put(make_chunk(0))
        with store.lease(ChunkId(0)) as lease, pytest.raises(TypeError, match="read-only"):
            lease.view[0] = 1


def test_a_lease_is_given_back_once():
    """Releasing again takes nothing from another reader."""
    with make_store() as store:
        store.put(make_chunk(0))
        first, second = store.lease(ChunkId(0)), store.lease(ChunkId(0))
        first.release()
        first.release()
        assert store.slot_stats().leases == 1
        second.release()
        assert store.slot_stats().leases == 0


def test_the_view_of_a_released_lease_cannot_be_read():
    """A reader that goes on too long is stopped instead of seeing the next chunk of the slot."""
    with make_store() as store:
        store.put(make_chunk(0))
        lease = store.lease(ChunkId(0))
        lease.release()
        with pytest.raises(ValueError, match="released memoryview"):
            bytes(lease.view)


def test_a_merge_raises_the_version_of_every_chunk_here_and_of_no_reservation():
    """The state of all local chunks contains the merged iteration."""
    with make_store() as store:
        store.put(make_chunk(0), version=StateVersion(1, 3))
        store.put(make_chunk(1))
        store.reserve(ChunkId(2), 64)
        store.advance(StateVersion(1, 4))
        assert store.inventory() == {0: StateVersion(1, 4), 1: StateVersion(1, 4)}


def test_only_some_chunks_are_raised_when_asked():
    """A chunk that was loaded while others trained has no part in their merge."""
    with make_store() as store:
        store.put(make_chunk(0))
        store.put(make_chunk(1))
        store.advance(StateVersion(1, 4), chunks=[ChunkId(1)])
        assert store.inventory() == {0: StateVersion(), 1: StateVersion(1, 4)}
        with pytest.raises(UsageError, match="chunk 2 is not on this node"):
            store.advance(StateVersion(1, 5), chunks=[ChunkId(1), ChunkId(2)])
        assert store.version(ChunkId(1)) == StateVersion(1, 4)


def test_bytes_that_were_verified_while_they_arrived_are_committed_as_they_are():
    """The store takes the size and version that their headers said."""
    with make_store() as source, make_store() as target:
        source.put(make_chunk(0), version=StateVersion(2, 7))
        with source.lease(ChunkId(0)) as lease:
            target.reserve(ChunkId(0), len(lease.view))[:] = lease.view
            target.commit_verified(ChunkId(0), len(lease.view), lease.version)
        assert target.inventory() == {0: StateVersion(2, 7)}
        assert (target.get(ChunkId(0)).state == source.get(ChunkId(0)).state).all()


def test_versions_only_rise():
    """A chunk from a newer round must not be made older; nothing is changed then."""
    with make_store() as store:
        store.put(make_chunk(0), version=StateVersion(1, 3))
        store.put(make_chunk(1), version=StateVersion(2, 0))
        with pytest.raises(UsageError, match=r"chunk 1 is at StateVersion\(round=2, iteration=0\), newer than"):
            store.advance(StateVersion(1, 9))
        assert store.version(ChunkId(0)) == StateVersion(1, 3)


def test_a_sealed_chunk_arrives_at_a_peer_with_its_state_and_version():
    """The whole way of a move: train, merge, seal, lease, fetch, commit, free at the source."""
    with make_store() as source, make_store() as target:
        source.put(make_chunk(0))
        source.get(ChunkId(0)).state[...] = 3.25
        source.advance(StateVersion(1, 1))
        source.seal(ChunkId(0))
        with source.lease(ChunkId(0)) as lease:
            target.reserve(ChunkId(0), len(lease.view))[:] = lease.view
        target.commit(ChunkId(0))
        source.free(ChunkId(0))
        assert source.inventory() == {}
        assert target.inventory() == {0: StateVersion(1, 1)}
        assert (target.get(ChunkId(0)).state == 3.25).all()


def test_a_state_that_was_written_after_the_seal_does_not_arrive():
    """The checksum says so: whoever copies must seal first."""
    with make_store() as source, make_store() as target:
        source.put(make_chunk(0))
        source.get(ChunkId(0)).state[0] += 1.0
        with source.lease(ChunkId(0)) as lease:
            target.reserve(ChunkId(0), len(lease.view))[:] = lease.view
        with pytest.raises(ChunkCorruptError, match="state"):
            target.commit(ChunkId(0))


def test_a_closed_store_says_so():
    """For every use; closing again is fine."""
    store = make_store()
    store.put(make_chunk(0))
    assert store.close() is True
    assert store.close() is True
    uses = [lambda: store.put(make_chunk(1)), lambda: store.get(ChunkId(0)), lambda: store.lease(ChunkId(0))]
    for use in uses:
        with pytest.raises(UsageError, match="the store is closed"):
            use()


def test_closing_waits_for_views_and_leases_that_are_still_held():
    """They stay valid; the memory goes with the last of them."""
    store = make_store()
    store.put(make_chunk(0))
    chunk, lease = store.get(ChunkId(0)), store.lease(ChunkId(0))
    assert store.close() is False
    assert_same(chunk, make_chunk(0))
    lease.release()
    del chunk
    assert store.close() is True


def test_threads_that_put_lease_and_free_leave_a_consistent_store():
    """Each thread moves its own chunks through a store that is too small for all, and checks what it reads."""
    store = make_store(num_slots=6, slots_per_arena=2)
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        try:
            start.wait()
            for lap in range(40):
                chunk = make_chunk(4 * lap + thread)
                store.put(chunk)
                with store.lease(chunk.id) as lease:
                    store.free(chunk.id)
                    assert bytes(lease.view) == encoded(chunk)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    stats = store.slot_stats()
    assert (stats.used, stats.reserved, stats.draining, stats.leases) == (0, 0, 0, 0)
    assert stats.free == stats.total <= 6
    assert store.close() is True
