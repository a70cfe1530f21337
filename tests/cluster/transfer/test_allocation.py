"""Orders that wait for memory: in their order, and the loop goes on meanwhile."""

import functools
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.transfer.allocation import AllocationQueue
from chicle_elastic.errors import CapacityError
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.chunk_store import ChunkStore
from tests.cluster.loops import turn_until
from tests.timeouts import timeout_s

SLOT_BYTES = 4096


@pytest.fixture
def store() -> Iterator[ChunkStore]:
    """Arenas of two slots, and room for four of them."""
    with ChunkStore(slot_bytes=SLOT_BYTES, capacity_bytes=8 * SLOT_BYTES, arena_bytes=2 * SLOT_BYTES) as store:
        yield store


def test_orders_begin_in_turn_with_slots_for_all(loop: EventLoop, store: ChunkStore) -> None:
    """One that needs no slot waits for those before it; memory is taken for all of them at once."""
    room = AllocationQueue(loop, store)
    begun: list[tuple[str, int]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: begun.append((name, store.slot_stats().free))

    room.put(note("at once"))
    assert begun == [("at once", 0)]
    for name, num_slots in (("first", 2), ("second", 1), ("free", 0)):
        room.put(note(name), num_slots=num_slots)
    assert (len(room), len(begun)) == (3, 1)
    turn_until(lambda: not room, loop)
    assert begun[1:] == [("first", 4), ("second", 4), ("free", 4)]
    room.put(note("there is room"), num_slots=1)
    loop.turn(0.0)
    assert begun[-1] == ("there is room", 4)


def test_the_loop_turns_while_memory_is_taken(loop: EventLoop, store: ChunkStore) -> None:
    """And what comes meanwhile has its turn, with room of its own."""
    room = AllocationQueue(loop, store)
    is_slow, begun = threading.Event(), []
    take = store.prepare

    def slowly(num_bytes: int = 1) -> None:
        assert is_slow.wait(timeout_s(10))
        take(num_bytes)

    store.prepare = slowly  # type: ignore[method-assign]
    room.put(lambda: begun.append("first"), num_slots=2)
    for _ in range(3):
        loop.turn(0.0)
    room.put(lambda: begun.append("second"), num_slots=3)
    loop.turn(0.0)
    assert begun == []
    is_slow.set()
    turn_until(lambda: not room, loop)
    assert begun == ["first", "second"]
    assert store.slot_stats().free >= 3


def test_where_there_is_no_memory_orders_begin_and_find_none(loop: EventLoop, store: ChunkStore) -> None:
    """What they do about it is their affair."""
    room = AllocationQueue(loop, store)
    refused: list[ChunkId] = []

    def reserve(chunk: ChunkId) -> None:
        try:
            store.reserve(chunk, SLOT_BYTES)
        except CapacityError:
            refused.append(chunk)

    for number in range(10):
        room.put(functools.partial(reserve, ChunkId(number)), num_slots=1)
    turn_until(lambda: not room, loop)
    assert refused == [8, 9]


def test_what_is_not_wanted_any_more_never_begins(loop: EventLoop, store: ChunkStore) -> None:
    """Also when memory is being taken for it; what is put then has its turn."""
    room = AllocationQueue(loop, store)
    begun: list[str] = []
    room.put(lambda: begun.append("old"), num_slots=1)
    loop.turn(0.0)
    room.clear()
    room.put(lambda: begun.append("new"), num_slots=1)
    turn_until(lambda: bool(begun), loop)
    assert begun == ["new"]


def test_a_source_that_another_one_closes_in_the_same_turn_is_passed_over(loop: EventLoop) -> None:
    """Both were readable; whoever is called first closes the other."""
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []

    def read(number: int) -> None:
        called.append(number)
        other = pairs[1 - number][0]
        loop.forget(other)
        other.close()

    for number, (ours, theirs) in enumerate(pairs):
        theirs.send(b"!")
        loop.watch(ours, functools.partial(read, number))
    loop.turn(timeout_s(1))
    loop.turn(0.0)
    assert len(set(called)) == 1
    for sock in (sock for pair in pairs for sock in pair):
        sock.close()
