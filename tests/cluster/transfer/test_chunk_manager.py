"""The chunks of one node: what its answers to orders wait for."""

import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.transfer.protocol import Order, Part
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.scheduling import effects, events
from chicle_elastic.values import StateVersion
from tests.chunk_slots import bytes_in_slot, chunk_in_slot
from tests.cluster.loops import turn_until
from tests.cluster.transfer.transfer_nodes import CHUNK, OTHER, Node, Pair
from tests.cluster.transfer.transfer_nodes import SOURCE as HERE
from tests.cluster.transfer.transfer_nodes import TARGET as THERE


@pytest.fixture
def source(pair: Pair) -> Node:
    """The node that holds a chunk; it has no link to the other one."""
    pair.source.has_link = False
    return pair.source


def test_what_nobody_can_load_is_not_waited_for(source: Node) -> None:
    """Between the death of a task and the loss of its node in the log: it would never be ready to join again."""
    order = effects.LoadChunks(chunks=(ChunkId(1),), node=HERE, round=3)
    source.memory.forget_task()
    source.memory.load(order, merged=0)
    assert source.memory.is_quiet
    source.memory.task_is_there()
    source.memory.load(order, merged=0)
    assert not source.memory.is_quiet


def test_a_slot_that_the_task_has_not_filled_is_given_back(loop: EventLoop, source: Node) -> None:
    """What it says it has loaded is looked at before anybody may read it."""
    source.memory.task_is_there()
    source.memory.load(effects.LoadChunks(chunks=(OTHER,), node=HERE, round=3), merged=0)
    turn_until(lambda: source.memory.store.slot_stats().reserved, loop)
    source.memory.loaded(control.Loaded(chunk=OTHER, round=3))
    turn_until(lambda: bool(source.answers), loop)
    [answer] = source.answers
    assert isinstance(answer, events.LoadFailed)
    assert source.memory.store.slot_stats().reserved == 0


def test_a_node_is_quiet_when_its_memory_is_taken(loop: EventLoop, source: Node) -> None:
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
        turn_until(lambda: source.memory.is_quiet, loop)
        assert told.pop() == "ready"
    assert store.slot_stats().total * store.slot_bytes == store.capacity_bytes
    store.close()
    prepare(1)
    turn_until(lambda: bool(told), loop)
    assert "the store is closed" in told[0]


def test_a_task_that_is_started_again_is_told_of_all_arenas(loop: EventLoop, source: Node) -> None:
    """Also when memory was asked for while there was none."""
    assert source.num_arenas_told == 1
    source.memory.forget_task()
    copy = Order(chunk=ChunkId(1), source=THERE, target=HERE, round=3, part=Part.ALL, number=3)
    source.memory.fetch(copy)
    loop.turn(0.0)
    assert source.num_arenas_told == 1
    source.memory.task_is_there()
    source.memory.offer_arenas()
    assert source.num_arenas_told == 2


def test_a_copy_from_a_node_that_is_lost_gets_its_answer(loop: EventLoop, source: Node) -> None:
    """Its link broke before the order came, so that nothing would ever come of it."""
    source.memory.fetch(Order(chunk=ChunkId(1), source=THERE, target=HERE, round=3, part=Part.ALL, number=3))
    source.memory.lose_source(NodeId("n2"))
    loop.turn(0.0)
    assert source.answers == []
    source.memory.lose_source(THERE)
    assert not source.memory.is_quiet, "what is not said yet belongs to this life"
    loop.turn(0.0)
    [answer] = source.answers
    assert isinstance(answer, events.CopyFailed)
    assert source.memory.is_quiet


def test_orders_that_wait_for_memory_are_failed_with_their_source(loop: EventLoop, source: Node) -> None:
    """And only those: an order that comes later may be for the same node, which is back."""
    later = NodeId("n3")
    source.memory.fetch(Order(chunk=ChunkId(1), source=THERE, target=HERE, round=3, part=Part.ALL, number=3))
    source.memory.lose_source(THERE)
    assert source.answers == []
    assert not source.memory.is_quiet
    turn_until(lambda: bool(source.answers), loop)
    [answer] = source.answers
    assert isinstance(answer, events.CopyFailed)
    source.memory.fetch(Order(chunk=ChunkId(1), source=later, target=HERE, round=4, part=Part.ALL, number=4))
    turn_until(lambda: source.memory.under_way["wait for memory"] == 0, loop)
    assert source.memory.under_way["copies"] == 1


def test_what_has_come_is_told_with_what_is_still_to_come(pair: Pair) -> None:
    """A boundary waits for the last copy. One that can never come is nothing to wait for."""
    target = pair.target
    never = Order(chunk=ChunkId(1), source=NodeId("n2"), target=THERE, round=3, part=Part.ALL, number=3)
    target.memory.fetch(never)
    pair.order(Order(chunk=CHUNK, source=HERE, target=THERE, round=3, part=Part.ALL, number=3))
    pair.turn_until(lambda: CHUNK in target.memory.store)
    pair.loop.turn(0.0)
    assert target.answers == []
    assert not target.memory.is_quiet
    target.memory.lose_source(NodeId("n2"))
    pair.turn_until(lambda: target.memory.is_quiet)
    assert [type(answer) for answer in target.answers] == [events.CopyFailed, events.ChunksCopied]


def test_the_task_is_told_of_rows_that_came_ahead(pair: Pair) -> None:
    """Once; by then it has the arena that they are in."""
    target = pair.target
    pair.order(Order(chunk=CHUNK, source=HERE, target=THERE, round=3, part=Part.ROWS, number=1))
    assert pair.answers() == [events.PrecopiesEnded(node=THERE, whole=(1,), failed=())]
    place = target.memory.store.address(CHUNK)
    arena, ahead = target.told
    assert isinstance(arena, control.Arena)
    assert ahead == control.Precopied(chunks=(control.Placement(chunk=CHUNK, arena=place.arena, slot=place.slot),))


def test_a_state_that_is_sealed_ahead_is_sealed_again_once_it_may_have_changed(loop: EventLoop, pair: Pair) -> None:
    """Also when the iteration began while it was being sealed."""
    serving, store = pair.source.memory.serving, pair.source.store
    state = chunk_in_slot(store, CHUNK).state
    assert state.size

    def serve(round: int, version: StateVersion) -> None:
        order = Order(chunk=CHUNK, source=HERE, target=THERE, round=round, part=Part.ALL, number=round)
        [place] = pair.serve(order, version)["places"]
        assert place["region"] is not None
        assert layout.verify_state(bytes_in_slot(store, CHUNK), where="the slot") == version

    serving.prepare({CHUNK: StateVersion(1, 1)})
    serve(2, StateVersion(1, 1))  # while it is under way: the order waits for it
    serve(2, StateVersion(1, 1))
    serving.prepare({CHUNK: StateVersion(1, 1)})
    turn_until(lambda: not serving.is_preparing, loop)
    serving.iteration_begins()
    state += 1.0
    serve(3, StateVersion(1, 1))  # the iteration broke: the version is what it was
    serving.prepare({CHUNK: StateVersion(1, 1)})
    serve(3, StateVersion(1, 1))
    state += 1.0  # whoever did that: the copy was damaged, and is asked for again
    serve(3, StateVersion(1, 1))
    serving.prepare({CHUNK: StateVersion(1, 2)})
    serving.iteration_begins()
    turn_until(lambda: not serving.is_preparing, loop)
    state += 1.0
    serve(4, StateVersion(1, 2))
    serving.prepare({ChunkId(1): StateVersion(1, 2)})  # not here any more
    turn_until(lambda: not serving.is_preparing, loop)
    serve(4, StateVersion(1, 2))


def test_where_a_chunk_lies_is_said_on_every_new_link(loop: EventLoop, source: Node) -> None:
    """Two nodes that joined at one boundary have none yet, and what is said on one that breaks may be lost."""
    order = Order(chunk=CHUNK, source=HERE, target=THERE, round=3, part=Part.ALL, number=3)
    source.memory.serving.serve(order, version=StateVersion(2, 7))
    turn_until(lambda: source.tries, loop)
    assert (source.tries, source.said) == ([THERE], [])
    source.has_link = True
    source.memory.peer_up(NodeId("n2"))
    assert source.said == []
    source.memory.peer_up(THERE)
    [fields] = source.said
    [place] = fields["places"]
    assert (place["chunk"], place["number"]) == (CHUNK, 3)
    assert place["region"] is not None
    source.memory.peer_up(THERE)
    assert len(source.said) == 2
    other_round = Order(chunk=CHUNK, source=HERE, target=NodeId("n2"), round=4, part=Part.ALL, number=4)
    source.memory.serving.serve(other_round, version=StateVersion(2, 7))
    source.memory.peer_up(THERE)
    assert len(source.said) == 2, "nobody waits for what was said in an earlier round"
