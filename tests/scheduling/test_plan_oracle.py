"""The plans deal by queues of nodes, and give every chunk to the node that a look at all nodes would choose."""

import random
import sys

import pytest

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.plan import NodeCapacity, plan_first, plan_join, plan_leave
from chicle_elastic.values import ChunkInfo
from tests.scheduling import plan_oracle
from tests.scheduling.stage import infos
from tests.scheduling.test_plan import rng


def case(seed):
    """Chunks and nodes; many are alike, so that ties are common, and room is scarce in half of the cases."""
    dice = random.Random(seed)
    sizes, rows = dice.choice(((1,), (1, 2), (3, 4, 5), (1, 50))), dice.choice(((10,), (1, 2, 9), (5, 5, 5, 7)))
    chunks = [
        ChunkInfo(id=ChunkId(n), num_rows=dice.choice(rows), size_bytes=dice.choice(sizes))
        for n in range(dice.randint(1, 40))
    ]
    num_nodes = dice.randint(1, 9)
    fair_bytes = sum(info.size_bytes for info in chunks) // num_nodes
    limit = dice.choice((fair_bytes, 2 * fair_bytes + 1))
    ids = [info.id for info in chunks]
    some = dice.choice((0.0, 0.1, 0.5))
    eligible = [
        NodeCapacity(
            node=NodeId(f"n{number}"),
            num_rows=dice.choice((0, 10, dice.randint(0, 100))),
            room_bytes=dice.choice((None, limit, dice.randint(0, limit), limit)),
            holds={chunk: None for chunk in ids if dice.random() < some},
            ahead=frozenset(chunk for chunk in ids if dice.random() < some / 2),
        )
        for number in range(num_nodes)
    ]
    avoid = {
        chunk: tuple(candidate.node for candidate in eligible if dice.random() < 0.5)
        for chunk in ids
        if dice.random() < 0.2
    }
    joiners = [candidate.node for candidate in eligible if dice.random() < 0.4]
    return chunks, eligible, avoid, joiners


@pytest.mark.parametrize("start", range(0, 3000, 500))
def test_first_plans_are_those_of_the_oracle(start):
    """Ties, full nodes, copies in the way, rows ahead and nodes to avoid."""
    num_unplaced = 0
    for seed in range(start, start + 500):
        chunks, eligible, avoid, _ = case(seed)
        before = repr(eligible)
        expected = plan_oracle.plan_first(chunks, eligible, rng(seed), avoid=avoid)
        placement = plan_first(chunks, eligible, rng(seed), avoid=avoid)
        assert (tuple(placement.placed), placement.unplaced) == expected, seed
        assert repr(eligible) == before, "a plan is a plan"
        num_unplaced += bool(expected.unplaced)
    assert 50 < num_unplaced < 450


@pytest.mark.parametrize("start", range(0, 3000, 500))
def test_plans_for_leavers_are_those_of_the_oracle(start):
    """The same, with joiners that come first."""
    for seed in range(start, start + 500):
        chunks, eligible, _, joiners = case(seed)
        before = repr(eligible)
        expected = plan_oracle.plan_leave(chunks, eligible, joiners, rng(seed))
        placement = plan_leave(chunks, eligible, joiners, rng(seed))
        assert (tuple(placement.placed), placement.unplaced) == expected, seed
        assert repr(eligible) == before


@pytest.mark.parametrize("start", range(0, 3000, 500))
def test_plans_for_joiners_are_those_of_the_oracle(start):
    """Chunks of several sizes and owners; joiners that own some, have rows ahead or hardly any room."""
    num_moves = 0
    for seed in range(start, start + 500):
        chunks, eligible, _, joiners = case(seed)
        dice = random.Random(seed)
        owners = [candidate.node for candidate in eligible[: dice.randint(1, len(eligible))]]
        owned = {}
        for info in chunks:
            owned.setdefault(dice.choice(owners), []).append(info)
        for candidate in eligible:
            mine = owned.get(candidate.node, ())
            candidate.num_rows = sum(info.num_rows for info in mine) + dice.choice((0, 0, 30))
            candidate.holds = {**candidate.holds, **{info.id: None for info in mine}}
            candidate.ahead = candidate.ahead - {info.id for info in mine}
        owned = plan_oracle.Owned(owned)
        before = repr(eligible)
        expected = plan_oracle.plan_join(owned, eligible, joiners, rng(seed))
        assert plan_join(owned, eligible, joiners, rng(seed)) == expected, seed
        assert repr(eligible) == before
        num_moves += len(expected)
    assert num_moves > 500


def lines_per_chunk(num_nodes, room):
    """Lines of Python that a plan takes per chunk; `room` is that of all nodes, in chunks."""
    count = 0

    def trace(frame, what, arg):
        nonlocal count
        count += what == "line"
        return trace

    chunks = infos(2000)
    room_bytes = room and room // num_nodes
    eligible = [NodeCapacity(node=NodeId(f"n{number}"), room_bytes=room_bytes) for number in range(num_nodes)]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        plan_first(chunks, eligible, rng(0))
    finally:
        sys.settrace(before)
    return count / len(chunks)


@pytest.mark.parametrize("room", [None, 2000, 1200])
def test_more_nodes_make_a_plan_hardly_longer(room):
    """Counted in lines, the same on every machine; also where most nodes are full before the end, and all at it."""
    assert lines_per_chunk(400, room) < 1.5 * lines_per_chunk(50, room)
