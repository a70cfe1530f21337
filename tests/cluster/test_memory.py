"""The chunks of one node: what its answers to orders wait for."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chicle_elastic.chunks.layout import encoded_bytes
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import NO_STATE
from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.cluster.memory import NodeMemory
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime import control
from chicle_elastic.scheduling import effects, events
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.testing import chaos_app
from chicle_elastic.transports.carrier import Carrier
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.values import StateVersion
from tests.timeouts import timeout_s

HERE, THERE = NodeId("n0"), NodeId("n1")
CHUNK = ChunkId(0)


class Source:
    """A node that holds chunk 0, and what it says to others."""

    def __init__(self, loop: EventLoop, store: ChunkStore, carrier: Carrier) -> None:
        self.has_link = False
        self.tries: list[NodeId] = []
        self.num_arenas_told = 0
        self.answers: list[events.Event] = []
        self.said: list[tuple[NodeId, str, dict[str, Any]]] = []
        self.memory = NodeMemory(
            loop,
            node=HERE,
            store=store,
            carrier=carrier,
            sizes=(store.slot_bytes, store.slot_bytes),
            say=self.answers.append,
            tell_task=self.tell_task,
            tell_peer=self.tell,
        )

    def tell_task(self, message: control.AgentMessage, fd: int | None) -> None:
        """Count descriptors."""
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
    chunk = ArraySource(X, y, max_tasks=1).load(0, NO_STATE)  # type: ignore[arg-type]
    secret = JobSecret.load_or_create(tmp_path / "job.secret")
    with (
        Carrier(secret, name=HERE) as carrier,
        ChunkStore(slot_bytes=encoded_bytes(chunk), capacity_bytes=1 << 22, arena_bytes=1 << 20) as store,
    ):
        store.put(chunk)
        source = Source(loop, store, carrier)
        source.memory.offer_arenas()
        yield source
        source.memory.end_life({})  # no view of a slot is left


def test_what_nobody_can_load_is_not_waited_for(source: Source) -> None:
    """Between the death of a task and the loss of its node in the log: it would never be ready to join again."""
    order = effects.LoadChunk(chunk=ChunkId(1), node=HERE, round=3)
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
    source.memory.copy(copy)
    loop.turn(0.0)
    assert source.num_arenas_told == 1
    source.memory.task_is_there()
    source.memory.offer_arenas()
    assert source.num_arenas_told == 2


def test_a_copy_from_a_node_that_is_lost_gets_its_answer(loop: EventLoop, source: Source) -> None:
    """Its link broke before the order came, so that nothing would ever come of it."""
    source.memory.copy(effects.CopyChunk(chunk=ChunkId(1), source=THERE, target=HERE, round=3))
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
    source.memory.copy(effects.CopyChunk(chunk=ChunkId(1), source=THERE, target=HERE, round=3))
    source.memory.lose_source(THERE)
    assert source.answers == []
    assert not source.memory.is_quiet
    turn_until(loop, lambda: bool(source.answers))
    [answer] = source.answers
    assert isinstance(answer, events.CopyFailed)
    source.memory.copy(effects.CopyChunk(chunk=ChunkId(1), source=later, target=HERE, round=4))
    turn_until(loop, lambda: source.memory.under_way["wait for memory"] == 0)
    assert source.memory.under_way["copies"] == 1


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
    assert (place["chunk"], place["round"]) == (CHUNK, 3)
    assert "region" in place
    source.memory.peer_up(THERE)
    assert len(source.said) == 2
    other_round = effects.CopyChunk(chunk=CHUNK, source=HERE, target=NodeId("n2"), round=4)
    source.memory.serving.serve(other_round, version=StateVersion(2, 7))
    source.memory.peer_up(THERE)
    assert len(source.said) == 2, "nobody waits for what was said in an earlier round"
