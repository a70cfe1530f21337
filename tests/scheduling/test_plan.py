"""Plans are pure: who gets which chunk, and never more than fits."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.plan import NodeCapacity, plan_join, plan_moves, plan_redraw, shares
from chicle_elastic.values import ChunkInfo
from tests.scheduling.plan_oracle import Owned
from tests.scheduling.stage import infos


def rng(seed=0):
    """A generator."""
    return np.random.default_rng(seed)


def deviation(rows):
    """Sum of distances from the shares."""
    targets = shares(sum(rows), len(rows))
    return sum(abs(have - want) for have, want in zip(rows, targets, strict=True))


def test_shares_add_up_and_are_off_by_less_than_one():
    """The parts are the exact ones, rounded, and their sum is the whole."""
    for total, num_parts in itertools.product(range(51), range(1, 7)):
        parts = shares(total, num_parts)
        assert sum(parts) == total
        assert len(parts) == num_parts
        assert all(abs(part - total / num_parts) < 1 for part in parts)


def test_the_first_parts_get_the_odd_ones():
    """8 on three is 3, 3, 2: the same in every process."""
    assert shares(8, 3) == [3, 3, 2]


def test_moves_never_exceed_room_and_leave_their_input_alone():
    """Random sizes and rooms, against a plain sum; the other plans are compared with an oracle."""
    source = NodeId("z")
    for seed in range(300):
        dice = random.Random(seed)
        chunks = [
            ChunkInfo(id=ChunkId(n), num_rows=dice.randint(1, 9), size_bytes=dice.randint(1, 5))
            for n in range(dice.randint(1, 12))
        ]
        eligible = [
            NodeCapacity(node=NodeId(name), room_bytes=dice.choice((None, dice.randint(0, 20))))
            for name in "abcd"[: dice.randint(1, 4)]
        ]
        before = repr(eligible)
        moves = plan_moves({(source, each.node): 3 for each in eligible}, {source: chunks}, eligible, rng(seed))
        assert repr(eligible) == before
        assert len({move.chunk for move in moves}) == len(moves)
        size = {info.id: info.size_bytes for info in chunks}
        for each in eligible:
            used = sum(size[move.chunk] for move in moves if move.target == each.node)
            assert each.room_bytes is None or used <= each.room_bytes


def join(counts, joiners, seed=0, rows=10):
    """plan_join for nodes with `counts` chunks of equal size; the moves, and rows by node afterwards."""
    numbers = itertools.count()
    names = [NodeId(f"n{index}") for index in range(len(counts))]
    owned = {
        name: [ChunkInfo(id=ChunkId(next(numbers)), num_rows=rows, size_bytes=1) for _ in range(count)]
        for name, count in zip(names, counts, strict=True)
    }
    eligible = [NodeCapacity(node=name, num_rows=rows * len(owned[name])) for name in names]
    moves = plan_join(Owned(owned), eligible, [names[index] for index in joiners], rng(seed))
    after = {name: rows * len(owned[name]) for name in names}
    for move in moves:
        assert move.chunk in {info.id for info in owned[move.source]}
        after[move.source] -= rows
        after[move.target] += rows
    return moves, [after[name] for name in names]


def brute_force(counts, joiners, rows=10):
    """Least deviation that moves to joiners can reach, and the fewest moves that reach it."""
    best = (deviation([rows * count for count in counts]), 0)
    donors = [index for index in range(len(counts)) if index not in joiners]
    # How many chunks each joiner gets from each donor.
    pairs = [(donor, joiner) for donor in donors for joiner in joiners]
    for amounts in itertools.product(*(range(counts[donor] + 1) for donor, _ in pairs)):
        after = list(counts)
        for (donor, joiner), amount in zip(pairs, amounts, strict=True):
            after[donor] -= amount
            after[joiner] += amount
        if min(after) >= 0:
            best = min(best, (deviation([rows * count for count in after]), sum(amounts)))
    return best


@pytest.mark.parametrize("rows", [1, 10])
def test_a_join_moves_the_minimal_number_of_chunks(rows):
    """Against brute force: no other moves to joiners come closer to the shares, and no fewer come as close."""
    for seed in range(150):
        dice = random.Random(seed)
        num_donors, num_joiners = dice.choice(((1, 1), (2, 1), (3, 1), (1, 2), (2, 2)))
        counts = [dice.randint(0, 5) for _ in range(num_donors)] + [0] * num_joiners
        joiners = list(range(num_donors, len(counts)))
        moves, after = join(counts, joiners, seed, rows)
        assert (deviation(after), len(moves)) == brute_force(counts, joiners, rows), (counts, moves)


def test_a_policy_gets_what_there_is_and_what_fits():
    """Wants 5 of 3 chunks; then 3 where there is room for 1."""
    owned = {NodeId("a"): infos(3)}
    wide = [NodeCapacity(node=NodeId("a"), num_rows=30), NodeCapacity(node=NodeId("b"))]
    tight = [NodeCapacity(node=NodeId("a"), num_rows=30), NodeCapacity(node=NodeId("b"), room_bytes=1)]
    assert len(plan_moves({(NodeId("a"), NodeId("b")): 5}, owned, wide, rng())) == 3
    assert len(plan_moves({(NodeId("a"), NodeId("b")): 3}, owned, tight, rng())) == 1


def test_a_redraw_gives_each_node_as_many_chunks_as_it_takes():
    """Random counts, rooms and sizes; without limits and with equal counts exactly the share goes, to all others."""
    for seed in range(300):
        dice, numbers = random.Random(seed), itertools.count()
        names = [NodeId(name) for name in "abcde"[: dice.randint(1, 5)]]
        owned = {
            name: [
                ChunkInfo(id=ChunkId(next(numbers)), num_rows=1, size_bytes=dice.randint(1, 4))
                for _ in range(dice.randint(0, 9))
            ]
            for name in names
        }
        eligible = [NodeCapacity(node=name, room_bytes=dice.choice((None, dice.randint(0, 20)))) for name in names]
        share = dice.choice((0.1, 0.5, 1.0))
        moves = plan_redraw(share, owned, eligible, rng(seed))
        given, taken = Counter(move.source for move in moves), Counter(move.target for move in moves)
        assert given == taken
        assert len({move.chunk for move in moves}) == len(moves)
        size = {info.id: info.size_bytes for infos_of in owned.values() for info in infos_of}
        for candidate in eligible:
            assert given[candidate.node] <= share * len(owned[candidate.node]) + 1
            used = sum(size[move.chunk] for move in moves if move.target == candidate.node)
            assert candidate.room_bytes is None or used <= candidate.room_bytes
        assert moves == plan_redraw(share, owned, eligible, rng(seed))
    owned = {NodeId(name): infos(120)[place::3] for place, name in enumerate("abc")}
    moves = plan_redraw(0.5, owned, [NodeCapacity(node=node) for node in owned], rng())
    assert Counter(move.source for move in moves) == {"a": 20, "b": 20, "c": 20}
    assert min(Counter((move.source, move.target) for move in moves).values()) >= 3
