"""The plans as they were first written: every node is looked at for every chunk. The oracle of `test_plan_oracle`."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.balance import Stock
from chicle_elastic.scheduling.ledger import Movable
from chicle_elastic.scheduling.plan import NodeCapacity, Transfer, shares
from chicle_elastic.values import ChunkInfo

Picker: TypeAlias = Callable[[list[NodeCapacity], ChunkInfo], NodeCapacity]
"""Chooses among the nodes that can take a chunk."""

Dealer: TypeAlias = Callable[[Sequence[NodeCapacity]], Picker]
"""Makes a picker for a fresh set of nodes."""


class Owned(Movable):
    """Chunks that may be taken, in lists by owner; questions about them are answered by a look at all of them."""

    def __init__(self, lists: Mapping[NodeId, list[ChunkInfo]]) -> None:
        self._lists, self._nodes = dict(lists), dict.fromkeys(lists)
        known = {info.id: info for infos in lists.values() for info in infos}
        self.info = lambda chunk: known[chunk]

    def __getitem__(self, node: NodeId) -> list[ChunkInfo]:
        return self._lists[node]

    def chunks_of(self, node: NodeId) -> list[ChunkId]:
        return [info.id for info in self._lists[node]]

    def owner_of(self, chunk: ChunkId) -> NodeId | None:
        return next((node for node, infos in self.items() if any(info.id == chunk for info in infos)), None)

    def least_of(self, node: NodeId) -> tuple[int, int]:
        infos = self.get(node, [])
        return min((i.num_rows for i in infos), default=0), min((i.size_bytes for i in infos), default=0)


class Placement(NamedTuple):
    """What `plan.Placement` says, with the pairs as a tuple."""

    placed: tuple[tuple[ChunkId, NodeId], ...]
    unplaced: tuple[ChunkInfo, ...]


def plan_first(
    chunks: Sequence[ChunkInfo],
    eligible: Sequence[NodeCapacity],
    rng: np.random.Generator,
    *,
    avoid: Mapping[ChunkId, Collection[NodeId]],
) -> Placement:
    """Place each missing chunk at the node furthest below its share; at one to avoid only if no other has room."""

    def dealer(all_seats: Sequence[NodeCapacity]) -> Picker:
        targets = _targets(all_seats, sum(info.num_rows for info in chunks))

        def pick(open_seats: list[NodeCapacity], info: ChunkInfo) -> NodeCapacity:
            shunned = avoid.get(info.id, ())
            preferred = [candidate for candidate in open_seats if candidate.node not in shunned] or open_seats
            return max(preferred, key=lambda candidate: targets[candidate.node] - candidate.num_rows)

        return pick

    return _deal(chunks, eligible, rng, dealer)


def plan_leave(
    chunks: Sequence[ChunkInfo], eligible: Sequence[NodeCapacity], joiners: Collection[NodeId], rng: np.random.Generator
) -> Placement:
    """Place the chunks of nodes that leave: at joiners as long as they are below their share, then round robin.

    The round robin begins with the nodes that hold least, and does not undo what policies did: it counts what it deals,
    and not what a node has.
    """

    def dealer(all_seats: Sequence[NodeCapacity]) -> Picker:
        targets = _targets(all_seats, sum(info.num_rows for info in chunks))
        order = sorted(all_seats, key=lambda candidate: candidate.num_rows)
        num_dealt = {candidate.node: 0 for candidate in order}

        def pick(open_seats: list[NodeCapacity], info: ChunkInfo) -> NodeCapacity:
            needy = [
                candidate
                for candidate in open_seats
                if candidate.node in joiners and 2 * (targets[candidate.node] - candidate.num_rows) >= info.num_rows
            ]
            if needy:
                return max(needy, key=lambda candidate: targets[candidate.node] - candidate.num_rows)
            present = {candidate.node for candidate in open_seats}
            turn = [candidate for candidate in order if candidate.node in present]
            chosen = min(turn, key=lambda candidate: num_dealt[candidate.node])
            num_dealt[chosen.node] += 1
            return chosen

        return pick

    return _deal(chunks, eligible, rng, dealer)


def plan_join(
    owned: Owned,
    eligible: Sequence[NodeCapacity],
    joiners: Collection[NodeId],
    rng: np.random.Generator,
) -> list[Transfer]:
    """Bring joiners to their share with the fewest moves; nothing moves between the others.

    Every move goes from the node furthest above its share to the joiner furthest below, and is made only if it brings
    the two closer to their shares together. What a joiner has the rows of already comes first. With chunks of equal
    size the result deviates least from the shares among all ways to move chunks to joiners, and no fewer moves reach
    that (tests compare with brute force).
    """
    eligible = [dataclasses.replace(candidate) for candidate in eligible]
    targets = _targets(eligible, 0)
    surplus = {candidate.node: candidate.num_rows - targets[candidate.node] for candidate in eligible}
    # A joiner may have more than its share: the first node has loaded everything when the second comes.
    drawn = Stock(owned, [candidate.node for candidate in eligible if candidate.node in owned], rng)
    stock = {node: [owned.info(chunk) for chunk in reversed(drawn[node])] for node in drawn}
    fillers = [candidate for candidate in eligible if candidate.node in joiners]
    moves: list[Transfer] = []

    def reduces(source: NodeId, target: NodeId, info: ChunkInfo) -> bool:
        after = abs(surplus[source] - info.num_rows) + abs(surplus[target] + info.num_rows)
        return after < abs(surplus[source]) + abs(surplus[target])

    def move(source: NodeId, candidate: NodeCapacity, info: ChunkInfo) -> None:
        stock[source].remove(info)
        candidate.take(info)
        surplus[source] -= info.num_rows
        surplus[candidate.node] += info.num_rows
        moves.append(Transfer(info.id, source, candidate.node))

    for candidate in fillers:
        for source in stock:
            for info in list(stock[source]) if source != candidate.node else ():
                if info.id in candidate.ahead and reduces(source, candidate.node, info):
                    move(source, candidate, info)
    while best := next(
        (
            (source, candidate, info)
            for source in sorted(stock, key=lambda node: -surplus[node])
            for candidate in sorted(fillers, key=lambda candidate: surplus[candidate.node])
            for info in stock[source]
            if reduces(source, candidate.node, info) and candidate.can_take(info)
        ),
        None,
    ):
        move(*best)
    return moves


def _deal(
    chunks: Sequence[ChunkInfo],
    eligible: Sequence[NodeCapacity],
    rng: np.random.Generator,
    dealer: Dealer,
) -> Placement:
    """Deal chunks one by one to the nodes that `dealer` picks; if some do not fit so, pack them tightly instead."""

    def tight(all_seats: Sequence[NodeCapacity]) -> Picker:
        return lambda open_seats, info: min(open_seats, key=lambda candidate: candidate.room_bytes or 0)

    shuffled = _shuffled(chunks, rng)
    by_size = sorted(shuffled, key=lambda info: -info.size_bytes)
    best: Placement | None = None
    for order, choose in ((shuffled, dealer), (by_size, dealer), (by_size, tight)):
        placement = _deal_once(order, eligible, choose)
        if not placement.unplaced:
            return placement
        if best is None or len(placement.unplaced) < len(best.unplaced):
            best = placement
    assert best is not None
    return best


def _deal_once(
    order: Iterable[ChunkInfo],
    eligible: Sequence[NodeCapacity],
    dealer: Dealer,
) -> Placement:
    eligible = [dataclasses.replace(candidate) for candidate in eligible]
    pick = dealer(eligible)
    placed: list[tuple[ChunkId, NodeId]] = []
    unplaced: list[ChunkInfo] = []
    for info in order:
        open_seats = [candidate for candidate in eligible if candidate.can_take(info)]
        if not open_seats:
            unplaced.append(info)
            continue
        candidate = next((candidate for candidate in open_seats if info.id in candidate.ahead), None) or pick(
            open_seats, info
        )
        candidate.take(info)
        placed.append((info.id, candidate.node))
    return Placement(tuple(placed), tuple(unplaced))


def _targets(eligible: Sequence[NodeCapacity], more_rows: int) -> dict[NodeId, int]:
    """Return the share of each node in all rows of the nodes and `more_rows` on top."""
    total = more_rows + sum(candidate.num_rows for candidate in eligible)
    return dict(zip((candidate.node for candidate in eligible), shares(total, len(eligible)), strict=True))


def _shuffled(items: Sequence[ChunkInfo], rng: np.random.Generator) -> list[ChunkInfo]:
    """The items in random order."""
    return [items[int(index)] for index in rng.permutation(len(items))]
