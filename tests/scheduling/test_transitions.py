"""Rows travel ahead while iterations run: for nodes that come, nodes that go, and moves that policies want."""

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.node_chunks import Phase
from tests.scheduling.stage import Stage, kinds, only

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
PRECOPY, COPY = effects.PrecopyChunks, effects.CopyChunks


def running(nodes: tuple[str, ...] = ("a", "b"), *, num_chunks: int = 12, **options) -> Stage:
    """A job in its second iteration."""
    stage = Stage(num_chunks, nodes, precopy=True, **options)
    stage.run(2)
    return stage


def result(stage: Stage) -> list[effects.Effect]:
    """The iteration ends; what that leads to but for pre-copies is answered, and the next one is in flight."""
    return [*stage.finish(), *stage.answer()]


def ended(stage: Stage, orders: list[effects.PrecopyChunks], *, fail: bool = False) -> list[effects.Effect]:
    """A node answers pre-copies."""
    numbers = {"failed" if fail else "whole": tuple(order.numbers[0] for order in orders)}
    return stage.tell(events.PrecopiesEnded(node=orders[0].target, **numbers))


def pairs(orders: list) -> set[tuple[ChunkId, NodeId]]:
    """Which chunk goes where."""
    return {(order.chunks[0], order.target) for order in orders}


def test_a_joiner_gets_the_rows_of_its_share_while_the_others_iterate():
    """It is no member before they are there; then the same chunks follow, at one boundary."""
    stage = running()
    stage.join("c")
    ordered = result(stage)
    assert kinds(ordered) == ["PrecopyChunks", "StartIteration"]
    orders = stage.take(PRECOPY)
    assert [order.target for order in orders] == [C] * 4
    assert kinds(result(stage)) == ["StartIteration"]
    assert stage.scheduler.round == 1
    assert stage.scheduler.members_ahead == (A, B, C)
    assert stage.scheduler.chunks_ahead == {order.chunks[0] for order in orders}
    assert ended(stage, orders) == []
    ordered = result(stage)
    assert stage.scheduler.chunks_ahead == frozenset(), "they were taken, and are nothing but copies now"
    assert [effect.members for effect in only(ordered, effects.FormRound)] == [(A, B, C)]
    assert stage.scheduler.members_ahead == ()
    assert pairs(only(ordered, COPY)) == pairs(orders)
    assert stage.counts() == {"a": 4, "b": 4, "c": 4}


def test_fifteen_that_join_at_once_are_one_transition():
    """A cloud gives machines in bulk: one round, in which all of them get their share."""
    stage = running(("n0",), num_chunks=32)
    for number in range(1, 16):
        stage.join(f"n{number}")
    result(stage)
    for order in stage.take(PRECOPY):
        ended(stage, [order])
    [round] = only(result(stage), effects.FormRound)
    assert len(round.members) == 16
    assert set(stage.counts().values()) == {2}


def test_a_node_under_notice_works_on_until_the_rows_of_its_chunks_are_elsewhere():
    """Then it hands over the states, and goes."""
    stage = running(("a", "b", "c"))
    stage.notice("c")
    ordered = result(stage)
    orders = stage.take(PRECOPY)
    assert kinds(ordered) == ["PrecopyChunks", "StartIteration"]
    assert {order.chunks[0] for order in orders} == set(stage.ledger.owned_by(C))
    result(stage)
    assert stage.counts()["c"] == 4
    for node in (A, B):
        ended(stage, [order for order in orders if order.target == node])
    ordered = result(stage)
    assert pairs(only(ordered, COPY)) == pairs(orders)
    assert only(ordered, effects.ReleaseNode) == [effects.ReleaseNode(node=C)]
    assert stage.counts() == {"a": 6, "b": 6}


def test_a_notice_that_is_about_to_expire_waits_for_no_rows():
    """What is there is used, what is still coming is fetched with its chunk, by an order to copy."""
    stage = running(("a", "b", "c"))
    stage.notice("c")
    result(stage)
    orders = stage.take(PRECOPY)
    stage.tell(events.HandoverDue(node=C))
    ordered = result(stage)
    assert pairs(only(ordered, COPY)) == pairs(orders)
    assert only(ordered, effects.ReleaseNode)
    assert ended(stage, [order for order in orders if order.target == A]) == []
    assert stage.ledger.phase(A, orders[0].chunks[0]) in (Phase.OWNED, None)


def test_the_source_dies_while_rows_come():
    """A new round is due: the joiner is in it at once, and what it has the rows of is what it gets."""
    stage = running(("a", "b", "d"))
    stage.join("c")
    result(stage)
    orders = stage.take(PRECOPY)
    [dead] = {order.source for order in orders[:1]}
    whole = [order for order in orders if order.source != dead]
    lost = [order for order in orders if order.source == dead]
    ended(stage, whole)
    stage.lose(dead)
    ended(stage, lost, fail=True)
    ordered = [*stage.abort(), *stage.answer()]
    assert C in only(ordered, effects.FormRound)[0].members
    assert not only(ordered, effects.LoadChunks, lambda effect: stage.ledger.owner(*effect.chunks) is None)
    assert pairs(only(ordered, COPY)) >= pairs(whole)
    result(stage)
    assert sum(stage.counts().values()) == 12


def test_rows_of_a_chunk_that_is_lost_are_given_back():
    """They are no copy: the chunk is loaded from its source, with fresh state."""
    stage = running(("a", "b"))
    stage.join("c")
    result(stage)
    orders = stage.take(PRECOPY)
    ended(stage, orders)
    ordered = [*stage.lose("b"), *stage.abort(), *stage.answer()]
    lost = {order.chunks[0] for order in orders if order.source == B}
    assert lost
    assert {effect.chunks[0] for effect in only(ordered, effects.FreeChunks) if effect.node == C} >= lost
    assert {effect.chunks[0] for effect in only(ordered, effects.LoadChunks)} >= lost
    result(stage)
    assert stage.ledger.num_missing == 0


def test_memory_that_is_reserved_ahead_is_given_back_when_something_is_missing():
    """Three nodes that are full with what is to come: the loss of one needs the room."""
    stage = running(("a", "b"), capacity_bytes=12)
    stage.join("c", capacity_bytes=4)
    result(stage)
    assert stage.ledger.node_chunks[C].used_bytes == 4
    stage.lose("a")
    stage.abort()
    stage.answer()
    result(stage)
    assert stage.ledger.num_missing == 0
    assert sum(stage.counts().values()) == 12
