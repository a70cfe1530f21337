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

    def __getitem__(self, node: NodeId) -> list[ChunkInfo]:
        return self._lists[node]

    def owner_of(self, chunk: ChunkId) -> NodeId | None:
        return next((node for node, infos in self.items() if any(info.id == chunk for info in infos)), None)

    def least_of(self, node: NodeId) -> tuple[int, int]:
        infos = self.get(node, [])
        return min((i.num_rows for i in infos), default=0), min((i.size_bytes for i in infos), default=0)


class Placement(NamedTuple):
    """Equal to the `plan.Placement` with the same pairs and chunks."""

    placed: tuple[tuple[ChunkId, NodeId], ...]
    unplaced: tuple[ChunkInfo, ...]


def plan_first(
    chunks: Sequence[ChunkInfo],
    eligible: Sequence[NodeCapacity],
    rng: np.random.Generator,
    *,
    avoid: Mapping[ChunkId, Collection[NodeId]] | None = None,
) -> Placement:
    """Place missing chunks, each at the node furthest below its share.

    Args:
        chunks: Chunks without an owner.
        eligible: Where they may go.
        rng: Decides in which order they are dealt.
        avoid: Nodes where a chunk goes only if no other has room (a load failed there).
    """

    def dealer(all_seats: Sequence[NodeCapacity]) -> Picker:
        targets = _targets(all_seats, sum(info.num_rows for info in chunks))

        def pick(open_seats: list[NodeCapacity], info: ChunkInfo) -> NodeCapacity:
            shunned = avoid.get(info.id, ()) if avoid else ()
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
    the two closer to their shares together. With chunks of equal size the result deviates least from the shares among
    all ways to move chunks to joiners, and no fewer moves reach that (tests compare with brute force).

    Args:
        owned: Chunks that may be taken, by owner.
        eligible: All nodes that stay, joiners among them; `num_rows` counts everything they own or are about to.
        joiners: Who is to be filled.
        rng: Decides which chunks of a node go.
    """
    eligible = [dataclasses.replace(candidate) for candidate in eligible]
    surplus = {
        candidate.node: candidate.num_rows - target
        for candidate, target in zip(eligible, _share_of(eligible, 0), strict=True)
    }
    # A joiner may have more than its share: the first node has loaded everything when the second comes.
    drawn = Stock(owned, [candidate.node for candidate in eligible if candidate.node in owned], rng)
    stock = {node: list(drawn[node]) for node in drawn}
    moves = _moves_ahead(stock, [candidate for candidate in eligible if candidate.node in joiners], surplus)
    while move := _best_move(stock, [candidate for candidate in eligible if candidate.node in joiners], surplus):
        source, candidate, info = move
        stock[source].remove(info)
        candidate.take(info)
        surplus[source] -= info.num_rows
        surplus[candidate.node] += info.num_rows
        moves.append(Transfer(info.id, source, candidate.node))
    return moves


def _moves_ahead(
    stock: Mapping[NodeId, list[ChunkInfo]], joiners: Sequence[NodeCapacity], surplus: dict[NodeId, int]
) -> list[Transfer]:
    """What joiners have the rows of already, as far as it reduces the deviation from the shares."""
    moves: list[Transfer] = []
    for candidate in joiners:
        for source, infos in stock.items():
            if source == candidate.node or not candidate.ahead:
                continue
            left: list[ChunkInfo] = []
            for info in infos:
                before = abs(surplus[source]) + abs(surplus[candidate.node])
                after = abs(surplus[source] - info.num_rows) + abs(surplus[candidate.node] + info.num_rows)
                if info.id not in candidate.ahead or after >= before:
                    left.append(info)
                    continue
                candidate.take(info)
                surplus[source] -= info.num_rows
                surplus[candidate.node] += info.num_rows
                moves.append(Transfer(info.id, source, candidate.node))
            infos[:] = left
    return moves


def _best_move(
    stock: Mapping[NodeId, Sequence[ChunkInfo]], joiners: Sequence[NodeCapacity], surplus: Mapping[NodeId, int]
) -> tuple[NodeId, NodeCapacity, ChunkInfo] | None:
    """The first chunk, from most to least needed pair, whose move reduces the deviation from the shares."""
    for source in sorted(stock, key=lambda node: -surplus[node]):
        for candidate in sorted(joiners, key=lambda candidate: surplus[candidate.node]):
            before = abs(surplus[source]) + abs(surplus[candidate.node])
            for info in stock[source]:
                after = abs(surplus[source] - info.num_rows) + abs(surplus[candidate.node] + info.num_rows)
                if after < before and candidate.can_take(info):
                    return source, candidate, info
    return None


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
    return dict(zip((candidate.node for candidate in eligible), _share_of(eligible, more_rows), strict=True))


def _share_of(eligible: Sequence[NodeCapacity], more_rows: int) -> list[int]:
    """Share of each node in all rows of the nodes and `more_rows` on top."""
    return shares(more_rows + sum(candidate.num_rows for candidate in eligible), len(eligible))


def _shuffled(items: Sequence[ChunkInfo], rng: np.random.Generator) -> list[ChunkInfo]:
    """The items in random order."""
    return [items[int(index)] for index in rng.permutation(len(items))]
