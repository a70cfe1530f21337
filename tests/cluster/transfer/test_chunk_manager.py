"""The chunks of one node: what its answers to orders wait for."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.layout import encoded_bytes
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import StateSpec
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.peers import Peer
from chicle_elastic.cluster.transfer.chunk_manager import ChunkManager
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.scheduling import effects, events
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import TransportSelector
from chicle_elastic.values import StateVersion
from tests.chunk_slots import bytes_in_slot, chunk_in_slot, put_chunk
from tests.harness import chaos_app
from tests.timeouts import timeout_s

HERE, THERE = NodeId("n0"), NodeId("n1")
CHUNK = ChunkId(0)


class Source:
    """A node that holds chunk 0, and what it says to others."""

    def __init__(self, loop: EventLoop, store: ChunkStore, transports: TransportSelector) -> None:
        self.has_link = False
        self.tries: list[NodeId] = []
        self.num_arenas_told = 0
        self.told: list[control.AgentMessage] = []
        self.answers: list[events.Event] = []
        self.endpoints = transports.endpoints
        self.said: list[tuple[NodeId, str, dict[str, Any]]] = []
        self.memory = ChunkManager(
            loop,
            node=HERE,
            store=store,
            transports=transports,
            sizes=(store.slot_bytes, store.slot_bytes),
            say=self.answers.append,
            tell_task=self.tell_task,
            tell_peer=self.tell,
        )

    @property
    def peer(self) -> Peer:
        """As others see it."""
        return Peer(life=f"{HERE}#1", link=None, heard_s=0.0, said_s=0.0, endpoints=self.endpoints)  # type: ignore[arg-type]

    def tell_task(self, message: control.AgentMessage, fd: int | None) -> None:
        """Count descriptors."""
        self.told.append(message)
        self.num_arenas_told += fd is not None

    def tell(self, node: NodeId, kind: str, fields: dict[str, Any]) -> bool:
        """Say something, if there is a link."""
        self.tries.append(node)
        if self.has_link:
            self.said.append((node, kind, fields))
        return self.has_link


def turn_until(loop: EventLoop, is_there: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    end_s = loop.now() + timeout_s(10)
    while not is_there():
        assert loop.now() < end_s
        loop.turn(0.05)


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """The loop of the node."""
    with EventLoop() as loop:
        yield loop


@pytest.fixture
def source(loop: EventLoop, tmp_path: Path) -> Iterator[Source]:
    """A node that holds a chunk."""
    X, y = chaos_app.data()
    chunk = ArraySource(X, y, max_tasks=1).load(0, StateSpec(outputs=1, width=1, dtype="float64"))  # type: ignore[arg-type]
    secret = JobSecret.load_or_create(tmp_path / "job.secret")
    with (
        TransportSelector(secret, name=HERE) as transports,
        ChunkStore(slot_bytes=encoded_bytes(chunk), capacity_bytes=1 << 22, arena_bytes=1 << 20) as store,
    ):
        put_chunk(store, chunk)
        source = Source(loop, store, transports)
        source.memory.offer_arenas()
        yield source
        source.memory.end_life({})  # no view of a slot is left


@pytest.fixture
def target(loop: EventLoop, source: Source, tmp_path: Path) -> Iterator[Source]:
    """Another node, which holds nothing; the first one can speak to it."""
    secret = JobSecret.load_or_create(tmp_path / "job.secret")
    slot_bytes = source.memory.store.slot_bytes
    with (
        TransportSelector(secret, name=THERE) as transports,
        ChunkStore(slot_bytes=slot_bytes, capacity_bytes=1 << 22, arena_bytes=1 << 20) as store,
    ):
        source.has_link = True
        target = Source(loop, store, transports)
        yield target
        target.memory.end_life({})


def test_what_nobody_can_load_is_not_waited_for(source: Source) -> None:
    """Between the death of a task and the loss of its node in the log: it would never be ready to join again."""
    order = effects.LoadChunks(chunks=(ChunkId(1),), node=HERE, round=3)
    source.memory.forget_task()
    source.memory.load(order, merged=0)
    assert source.memory.is_quiet
    source.memory.task_is_there()
    source.memory.load(order, merged=0)
    assert not source.memory.is_quiet


def test_a_node_is_quiet_when_its_memory_is_taken(loop: EventLoop, source: Source) -> None:
    """It is told then; where there is no memory it is told that."""
    told: list[str] = []

    def prepare(num_bytes: int) -> None:
        source.memory.prepare(
            num_bytes, ready=lambda: told.append("ready"), failed=lambda error: told.append(str(error))
        )

    store = source.memory.store
    for num_bytes in (8 * store.slot_bytes, 1 << 50):  # no more than the capacity
        prepare(num_bytes)
        assert not source.memory.is_quiet
        turn_until(loop, lambda: source.memory.is_quiet)
        assert told.pop() == "ready"
    assert store.slot_stats().total * store.slot_bytes == store.capacity_bytes
    store.close()
    prepare(1)
    turn_until(loop, lambda: bool(told))
    assert "the store is closed" in told[0]


def test_a_task_that_is_started_again_is_told_of_all_arenas(loop: EventLoop, source: Source) -> None:
    """Also when memory was asked for while there was none."""
    assert source.num_arenas_told == 1
    source.memory.forget_task()
    copy = effects.CopyChunk(chunk=ChunkId(1), source=THERE, target=HERE, round=3)
    source.memory.fetch(copy)
    loop.turn(0.0)
    assert source.num_arenas_told == 1
    source.memory.task_is_there()
    source.memory.offer_arenas()
    assert source.num_arenas_told == 2


def test_a_copy_from_a_node_that_is_lost_gets_its_answer(loop: EventLoop, source: Source) -> None:
    """Its link broke before the order came, so that nothing would ever come of it."""
    source.memory.fetch(effects.CopyChunk(chunk=ChunkId(1), source=THERE, target=HERE, round=3))
    source.memory.lose_source(NodeId("n2"))
    loop.turn(0.0)
    assert source.answers == []
    source.memory.lose_source(THERE)
    assert not source.memory.is_quiet, "what is not said yet belongs to this life"
    loop.turn(0.0)
    [answer] = source.answers
    assert isinstance(answer, events.CopyFailed)
    assert source.memory.is_quiet


def test_orders_that_wait_for_memory_are_failed_with_their_source(loop: EventLoop, source: Source) -> None:
    """And only those: an order that comes later may be for the same node, which is back."""
    later = NodeId("n3")
    source.memory.fetch(effects.CopyChunk(chunk=ChunkId(1), source=THERE, target=HERE, round=3))
    source.memory.lose_source(THERE)
    assert source.answers == []
    assert not source.memory.is_quiet
    turn_until(loop, lambda: bool(source.answers))
    [answer] = source.answers
    assert isinstance(answer, events.CopyFailed)
    source.memory.fetch(effects.CopyChunk(chunk=ChunkId(1), source=later, target=HERE, round=4))
    turn_until(loop, lambda: source.memory.under_way["wait for memory"] == 0)
    assert source.memory.under_way["copies"] == 1


def test_what_has_come_is_told_with_what_is_still_to_come(loop: EventLoop, source: Source, target: Source) -> None:
    """A boundary waits for the last copy. One that can never come is nothing to wait for."""
    whole = effects.CopyChunk(chunk=CHUNK, source=HERE, target=THERE, round=3)
    never = effects.CopyChunk(chunk=ChunkId(1), source=NodeId("n2"), target=THERE, round=3)
    for order in (whole, never):
        target.memory.fetch(order)
    source.memory.serving.serve(whole, version=StateVersion(2, 7))
    turn_until(loop, lambda: bool(source.said))
    target.memory.places(source.peer, source.said[0][2])
    turn_until(loop, lambda: CHUNK in target.memory.store)
    loop.turn(0.0)
    assert target.answers == []
    assert not target.memory.is_quiet
    target.memory.lose_source(NodeId("n2"))
    turn_until(loop, lambda: target.memory.is_quiet)
    assert [type(answer) for answer in target.answers] == [events.CopyFailed, events.ChunksCopied]


def test_the_task_is_told_of_rows_that_came_ahead(loop: EventLoop, source: Source, target: Source) -> None:
    """Once; by then it has the arena that they are in."""
    order = effects.PrecopyChunk(chunk=CHUNK, source=HERE, target=THERE, round=3, number=1)
    target.memory.fetch(order)
    source.memory.serving.serve(order, version=StateVersion(2, 7))
    turn_until(loop, lambda: bool(source.said))
    target.memory.places(source.peer, source.said[0][2])
    turn_until(loop, lambda: bool(target.answers))
    assert target.answers == [events.PrecopiesEnded(node=HERE, whole=(1,), failed=())]
    place = target.memory.store.address(CHUNK)
    arena, ahead = target.told
    assert isinstance(arena, control.Arena)
    assert ahead == control.Precopied(chunks=(control.Placement(chunk=CHUNK, arena=place.arena, slot=place.slot),))


def test_a_state_that_is_sealed_ahead_is_sealed_again_once_it_may_have_changed(loop: EventLoop, source: Source) -> None:
    """Also when the iteration began while it was being sealed."""
    serving, store = source.memory.serving, source.memory.store
    source.has_link = True
    state = chunk_in_slot(store, CHUNK).state
    assert state.size

    def serve(round: int, version: StateVersion) -> None:
        source.said.clear()
        serving.serve(effects.CopyChunk(chunk=CHUNK, source=HERE, target=THERE, round=round), version=version)
        turn_until(loop, lambda: bool(source.said))
        [place] = source.said[0][2]["places"]
        assert place["region"] is not None
        assert layout.verify_state(bytes_in_slot(store, CHUNK), where="the slot") == version

    serving.prepare({CHUNK: StateVersion(1, 1)})
    serve(2, StateVersion(1, 1))  # while it is under way: the order waits for it
    serve(2, StateVersion(1, 1))
    serving.prepare({CHUNK: StateVersion(1, 1)})
    turn_until(loop, lambda: not serving.is_preparing)
    serving.iteration_begins()
    state += 1.0
    serve(3, StateVersion(1, 1))  # the iteration broke: the version is what it was
    serving.prepare({CHUNK: StateVersion(1, 1)})
    serve(3, StateVersion(1, 1))
    state += 1.0  # whoever did that: the copy was damaged, and is asked for again
    serve(3, StateVersion(1, 1))
    serving.prepare({CHUNK: StateVersion(1, 2)})
    serving.iteration_begins()
    turn_until(loop, lambda: not serving.is_preparing)
    state += 1.0
    serve(4, StateVersion(1, 2))
    serving.prepare({ChunkId(1): StateVersion(1, 2)})  # not here any more
    turn_until(loop, lambda: not serving.is_preparing)
    serve(4, StateVersion(1, 2))


def test_where_a_chunk_lies_is_said_on_every_new_link(loop: EventLoop, source: Source) -> None:
    """Two nodes that joined at one boundary have none yet, and what is said on one that breaks may be lost."""
    order = effects.CopyChunk(chunk=CHUNK, source=HERE, target=THERE, round=3)
    source.memory.serving.serve(order, version=StateVersion(2, 7))
    end_s = loop.now() + timeout_s(10)
    while not source.tries and loop.now() < end_s:
        loop.turn(0.1)
    assert (source.tries, source.said) == ([THERE], [])
    source.has_link = True
    source.memory.peer_up(NodeId("n2"))
    assert source.said == []
    source.memory.peer_up(THERE)
    [(node, kind, fields)] = source.said
    assert (node, kind) == (THERE, "places")
    [place] = fields["places"]
    assert (place["chunk"], place["number"]) == (CHUNK, 3)
    assert place["region"] is not None
    source.memory.peer_up(THERE)
    assert len(source.said) == 2
    other_round = effects.CopyChunk(chunk=CHUNK, source=HERE, target=NodeId("n2"), round=4)
    source.memory.serving.serve(other_round, version=StateVersion(2, 7))
    source.memory.peer_up(THERE)
    assert len(source.said) == 2, "nobody waits for what was said in an earlier round"
