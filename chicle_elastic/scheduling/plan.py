"""Who should hold which chunk: pure functions of seats (nodes as a plan sees them) and chunks.

    plan_first    missing chunks -> the nodes furthest below their share         (first load, and after a loss)
    plan_leave    chunks of leavers -> joiners up to their share, then round robin over all that stay
    plan_join     the fewest chunks, drawn at random, from the nodes above their share -> joiners
    plan_policy   as many chunks from here to there as a policy wants

A share is a number of samples in proportion to the node's weight. No plan exceeds the room of a seat: what does not
fit is returned as unplaced (plan_first, plan_leave) or left where it is (plan_join, plan_policy). Which chunk goes
where is drawn from `rng`; the seats given are never changed. DESIGN 2.6, paper's section on chunk scheduling.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.values import ChunkInfo

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Seat:
    """A node that can be given chunks.

    Attributes:
        node: The node.
        weight: Its share relative to the other seats, > 0.
        num_rows: Samples that are its own already, or on their way.
        room_bytes: Bytes for more chunks; None for no limit.
        holds: Chunks of which it has a copy in any phase, and that it can therefore not be given.
        ahead: Chunks of which it has the rows, or will have soon: they take no more room, and are given here first.
    """

    node: NodeId
    weight: float = 1.0
    num_rows: int = 0
    room_bytes: int | None = None
    holds: Container[ChunkId] = ()
    ahead: Container[ChunkId] = ()

    def can_take(self, info: ChunkInfo) -> bool:
        """Whether the chunk fits and is not here already."""
        if info.id in self.ahead:
            return True
        return (self.room_bytes is None or info.size_bytes <= self.room_bytes) and info.id not in self.holds

    def take(self, info: ChunkInfo) -> None:
        """Count a chunk as placed here."""
        self.num_rows += info.num_rows
        if self.room_bytes is not None and info.id not in self.ahead:
            self.room_bytes -= info.size_bytes


class Transfer(NamedTuple):
    """A chunk that goes from node to node."""

    chunk: ChunkId
    source: NodeId
    target: NodeId


class Placement(NamedTuple):
    """Where chunks go.

    Attributes:
        placed: Pairs (chunk, node).
        unplaced: Chunks for which there is no room.
    """

    placed: tuple[tuple[ChunkId, NodeId], ...]
    unplaced: tuple[ChunkInfo, ...]


Picker: TypeAlias = Callable[[list[Seat], ChunkInfo], Seat]
"""Chooses among seats that can take a chunk."""

Dealer: TypeAlias = Callable[[Sequence[Seat]], Picker]
"""Makes a picker for a fresh set of seats."""


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Split `total` in proportion to `weights` by largest remainder; the first of equals gets the odd one."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    parts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: parts[index] - exact[index])
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def plan_first(
    chunks: Sequence[ChunkInfo],
    seats: Sequence[Seat],
    rng: np.random.Generator,
    *,
    avoid: Mapping[ChunkId, Collection[NodeId]] | None = None,
) -> Placement:
    """Place missing chunks, each at the node furthest below its share.

    Args:
        chunks: Chunks that nobody has.
        seats: Where they may go.
        rng: Decides in which order they are dealt.
        avoid: Nodes where a chunk goes only if no other has room (a load failed there).
    """

    def dealer(all_seats: Sequence[Seat]) -> Picker:
        targets = _targets(all_seats, sum(info.num_rows for info in chunks))

        def pick(open_seats: list[Seat], info: ChunkInfo) -> Seat:
            shunned = avoid.get(info.id, ()) if avoid else ()
            preferred = [seat for seat in open_seats if seat.node not in shunned] or open_seats
            return max(preferred, key=lambda seat: targets[seat.node] - seat.num_rows)

        return pick

    return _deal(chunks, seats, rng, dealer)


def plan_leave(
    chunks: Sequence[ChunkInfo], seats: Sequence[Seat], joiners: Collection[NodeId], rng: np.random.Generator
) -> Placement:
    """Place the chunks of nodes that leave: at joiners as long as they are below their share, then round robin.

    The round robin is weighted: of three nodes with weights 2, 1, 1 the first gets every second chunk. It begins with
    the nodes that hold least, and does not undo what policies did: it looks at weights only.
    """

    def dealer(all_seats: Sequence[Seat]) -> Picker:
        targets = _targets(all_seats, sum(info.num_rows for info in chunks))
        order = sorted(all_seats, key=lambda seat: seat.num_rows / seat.weight)
        credit = {seat.node: 0.0 for seat in order}

        def pick(open_seats: list[Seat], info: ChunkInfo) -> Seat:
            needy = [
                seat
                for seat in open_seats
                if seat.node in joiners and 2 * (targets[seat.node] - seat.num_rows) >= info.num_rows
            ]
            if needy:
                return max(needy, key=lambda seat: targets[seat.node] - seat.num_rows)
            present = {seat.node for seat in open_seats}
            turn = [seat for seat in order if seat.node in present]
            for seat in turn:
                credit[seat.node] += seat.weight
            chosen = max(turn, key=lambda seat: credit[seat.node])
            credit[chosen.node] -= sum(seat.weight for seat in turn)
            return chosen

        return pick

    return _deal(chunks, seats, rng, dealer)


def plan_join(
    owned: Mapping[NodeId, Sequence[ChunkInfo]],
    seats: Sequence[Seat],
    joiners: Collection[NodeId],
    rng: np.random.Generator,
) -> list[Transfer]:
    """Bring joiners to their share with the fewest moves; nothing moves between the others.

    Every move goes from the node furthest above its share to the joiner furthest below, and is made only if it brings
    the two closer to their shares together. With chunks of equal size the result deviates least from the shares among
    all ways to move chunks to joiners, and no fewer moves reach that (tests compare with brute force).

    Args:
        owned: Chunks that may be taken, by owner.
        seats: All nodes that stay, joiners among them; `num_rows` counts everything they own or are about to.
        joiners: Who is to be filled.
        rng: Decides which chunks of a node go.
    """
    seats = [dataclasses.replace(seat) for seat in seats]
    surplus = {seat.node: seat.num_rows - target for seat, target in zip(seats, _share_of(seats, 0), strict=True)}
    # A joiner may have more than its share: the first node has loaded everything when the second comes.
    stock = {seat.node: _shuffled(owned[seat.node], rng) for seat in seats if owned.get(seat.node)}
    moves = _moves_ahead(stock, [seat for seat in seats if seat.node in joiners], surplus)
    while move := _best_move(stock, [seat for seat in seats if seat.node in joiners], surplus):
        source, seat, info = move
        stock[source].remove(info)
        seat.take(info)
        surplus[source] -= info.num_rows
        surplus[seat.node] += info.num_rows
        moves.append(Transfer(info.id, source, seat.node))
    return moves


def plan_policy(
    counts: Mapping[tuple[NodeId, NodeId], int],
    owned: Mapping[NodeId, Sequence[ChunkInfo]],
    seats: Sequence[Seat],
    rng: np.random.Generator,
) -> list[Transfer]:
    """Move as many chunks as a policy wants, clipped by what a source has and a target has room for.

    Args:
        counts: Chunks wanted, by (source, target).
        owned: Chunks that may be taken, by owner.
        seats: Targets.
        rng: Decides which chunks go.
    """
    seat_of = {seat.node: dataclasses.replace(seat) for seat in seats}
    stock = {node: _shuffled(owned.get(node, ()), rng) for node in dict.fromkeys(source for source, _ in counts)}
    moves: list[Transfer] = []
    for (source, target), count in counts.items():
        seat = seat_of[target]
        for info in list(stock[source]):
            if count == 0:
                break
            if seat.can_take(info):
                stock[source].remove(info)
                seat.take(info)
                moves.append(Transfer(info.id, source, target))
                count -= 1
    return moves


def _moves_ahead(
    stock: Mapping[NodeId, list[ChunkInfo]], joiners: Sequence[Seat], surplus: dict[NodeId, int]
) -> list[Transfer]:
    """What joiners have the rows of already, as far as it reduces the deviation from the shares."""
    moves: list[Transfer] = []
    for seat in joiners:
        for source, infos in stock.items():
            if source == seat.node or not seat.ahead:
                continue
            left: list[ChunkInfo] = []
            for info in infos:
                before = abs(surplus[source]) + abs(surplus[seat.node])
                after = abs(surplus[source] - info.num_rows) + abs(surplus[seat.node] + info.num_rows)
                if info.id not in seat.ahead or after >= before:
                    left.append(info)
                    continue
                seat.take(info)
                surplus[source] -= info.num_rows
                surplus[seat.node] += info.num_rows
                moves.append(Transfer(info.id, source, seat.node))
            infos[:] = left
    return moves


def _best_move(
    stock: Mapping[NodeId, Sequence[ChunkInfo]], joiners: Sequence[Seat], surplus: Mapping[NodeId, int]
) -> tuple[NodeId, Seat, ChunkInfo] | None:
    """The first chunk, from most to least needed pair, whose move reduces the deviation from the shares."""
    for source in sorted(stock, key=lambda node: -surplus[node]):
        for seat in sorted(joiners, key=lambda seat: surplus[seat.node]):
            before = abs(surplus[source]) + abs(surplus[seat.node])
            for info in stock[source]:
                after = abs(surplus[source] - info.num_rows) + abs(surplus[seat.node] + info.num_rows)
                if after < before and seat.can_take(info):
                    return source, seat, info
    return None


def _deal(
    chunks: Sequence[ChunkInfo],
    seats: Sequence[Seat],
    rng: np.random.Generator,
    dealer: Dealer,
) -> Placement:
    """Deal chunks one by one to the seats that `dealer` picks; if some do not fit so, pack them tightly instead."""

    def tight(all_seats: Sequence[Seat]) -> Picker:
        return lambda open_seats, info: min(open_seats, key=lambda seat: seat.room_bytes or 0)

    shuffled = _shuffled(chunks, rng)
    by_size = sorted(shuffled, key=lambda info: -info.size_bytes)
    best: Placement | None = None
    for order, choose in ((shuffled, dealer), (by_size, dealer), (by_size, tight)):
        placement = _deal_once(order, seats, choose)
        if not placement.unplaced:
            return placement
        if best is None or len(placement.unplaced) < len(best.unplaced):
            best = placement
    assert best is not None
    return best


def _deal_once(
    order: Iterable[ChunkInfo],
    seats: Sequence[Seat],
    dealer: Dealer,
) -> Placement:
    seats = [dataclasses.replace(seat) for seat in seats]
    pick = dealer(seats)
    placed: list[tuple[ChunkId, NodeId]] = []
    unplaced: list[ChunkInfo] = []
    for info in order:
        open_seats = [seat for seat in seats if seat.can_take(info)]
        if not open_seats:
            unplaced.append(info)
            continue
        seat = next((seat for seat in open_seats if info.id in seat.ahead), None) or pick(open_seats, info)
        seat.take(info)
        placed.append((info.id, seat.node))
    return Placement(tuple(placed), tuple(unplaced))


def _targets(seats: Sequence[Seat], more_rows: int) -> dict[NodeId, int]:
    return dict(zip((seat.node for seat in seats), _share_of(seats, more_rows), strict=True))


def _share_of(seats: Sequence[Seat], more_rows: int) -> list[int]:
    """Share of each seat in all rows of the seats and `more_rows` on top."""
    return shares(more_rows + sum(seat.num_rows for seat in seats), [seat.weight for seat in seats])


def _shuffled(items: Sequence[_T], rng: np.random.Generator) -> list[_T]:
    """The items in random order."""
    return [items[int(index)] for index in rng.permutation(len(items))]
