"""Which node should hold which chunk: pure functions of eligible nodes and chunks.

    plan_first    missing chunks -> the nodes furthest below their share         (first load, and after a loss)
    plan_leave    chunks of leavers -> joiners up to their share, then round robin over all that stay
    plan_join     the fewest chunks, drawn at random, from the nodes above their share -> joiners
    plan_moves    as many chunks from here to there as policies want
    plan_redraw   a share of the chunks to other nodes, at random, each node keeping its count

A share is a number of samples, the same for every node. No plan exceeds the room of a node: what does not
fit is returned as unplaced (plan_first, plan_leave) or left where it is (plan_join, plan_moves). Which chunk goes
where is drawn from `rng`; the nodes given are never changed. docs/design 2.6, paper's section on chunk scheduling.
"""

import dataclasses
import heapq
import itertools
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.balance import Balance, Stock, improves
from chicle_elastic.scheduling.ledger import Movable
from chicle_elastic.scheduling.node_capacity import NodeCapacity as NodeCapacity
from chicle_elastic.scheduling.node_capacity import NodeQueue
from chicle_elastic.scheduling.together import ascending, by_key
from chicle_elastic.values import ChunkInfo

_T = TypeVar("_T")
Indices: TypeAlias = npt.NDArray[np.int64]


class Transfer(NamedTuple):
    """A chunk that goes from node to node."""

    chunk: ChunkId
    source: NodeId
    target: NodeId


class Dealt:
    """Pairs (chunk, node) in the order in which they were dealt; kept as arrays, as there may be a million.

    Args:
        picks: Which of them were dealt, in order, shape (n,), int64.
        takers: Which of them got each, shape (n,), int64.
    """

    def __init__(self, infos: Sequence[ChunkInfo], picks: Indices, nodes: Sequence[NodeId], takers: Indices) -> None:
        self._infos, self._picks, self._nodes, self._takers = infos, picks, nodes, takers

    def __len__(self) -> int:
        return len(self._picks)

    def __iter__(self) -> Iterator[tuple[ChunkId, NodeId]]:
        for pick, taker in zip(self._picks.tolist(), self._takers.tolist(), strict=True):
            yield self._infos[pick].id, self._nodes[taker]

    def by_node(self) -> dict[NodeId, list[ChunkInfo]]:
        """The chunks that each node gets, in order; nodes that get none are left out."""
        # Numbers of 16 bits are sorted digit by digit, which is some ten times faster.
        keys = self._takers.astype(np.uint16) if len(self._nodes) < 1 << 16 else self._takers
        picks = self._picks[np.argsort(keys, kind="stable")].tolist()
        counts = np.bincount(self._takers, minlength=len(self._nodes)).tolist()
        infos, start = self._infos, 0
        found: dict[NodeId, list[ChunkInfo]] = {}
        for node, count in zip(self._nodes, counts, strict=True):
            if count:
                found[node] = [infos[pick] for pick in picks[start : start + count]]
                start += count
        return found


class Placement(NamedTuple):
    """Where chunks go."""

    placed: Dealt
    unplaced: tuple[ChunkInfo, ...]


class Dealer(Protocol):
    """Chooses the node of one chunk after the other, of the nodes of a plan."""

    def choose(self, info: ChunkInfo) -> int | None:
        """Index of a node that can take the chunk, whose rows no node has ahead; None if no node can."""
        ...

    def taken(self, index: int) -> None:
        """A node was given a chunk, chosen or not."""
        ...


MakeDealer: TypeAlias = Callable[[Sequence[NodeCapacity]], Dealer]  # makes a dealer for a fresh set of nodes


def shares(total: int, num_parts: int) -> list[int]:
    """Split `total` into equal parts; the first ones are larger by one where it does not come out even."""
    part, num_larger = divmod(total, num_parts) if num_parts else (0, 0)
    return [part + (index < num_larger) for index in range(num_parts)]


def plan_first(
    chunks: Sequence[ChunkInfo],
    eligible: Sequence[NodeCapacity],
    rng: np.random.Generator,
    *,
    avoid: Mapping[ChunkId, Collection[NodeId]] | None = None,
) -> Placement:
    """Place missing chunks, each at the node furthest below its share.

    Args:
        avoid: Nodes where a chunk goes only if no other has room (a load failed there).
    """

    num_rows = sum(info.num_rows for info in chunks)
    order = rng.permutation(len(chunks))
    free = None if avoid else _dealt_freely(chunks, order, eligible, num_rows)
    if free is not None:
        return Placement(free, ())

    def below_share(candidates: Sequence[NodeCapacity]) -> Dealer:
        targets = _share_of(candidates, num_rows)
        return _ByKey(candidates, lambda index: candidates[index].num_rows - targets[index], avoid or {})

    return _deal(chunks, order, eligible, below_share)


def plan_leave(
    chunks: Sequence[ChunkInfo], eligible: Sequence[NodeCapacity], joiners: Collection[NodeId], rng: np.random.Generator
) -> Placement:
    """Place the chunks of nodes that leave: at joiners as long as they are below their share, then round robin. The
    round robin begins with the nodes that hold least, and does not undo what policies did: it counts what it deals, and
    not what a node has."""

    num_rows = sum(info.num_rows for info in chunks)
    order = rng.permutation(len(chunks))
    return _deal(chunks, order, eligible, lambda candidates: _JoinersThenAll(candidates, num_rows, joiners))


def plan_join(
    owned: Movable,
    eligible: Sequence[NodeCapacity],
    joiners: Collection[NodeId],
    rng: np.random.Generator,
) -> list[Transfer]:
    """Bring joiners to their share with the fewest moves; nothing moves between the others.

    Every move goes from the node furthest above its share to the joiner furthest below, and is made only if it brings
    the two closer to their shares together. With chunks of equal size the result deviates least from the shares among
    all ways to move chunks to joiners, and no fewer moves reach that (tests compare with brute force).

    Args:
        eligible: All nodes that stay, joiners among them; `num_rows` counts everything they own or are about to.
    """
    eligible = [dataclasses.replace(candidate) for candidate in eligible]
    surplus = {
        candidate.node: candidate.num_rows - target
        for candidate, target in zip(eligible, _share_of(eligible, 0), strict=True)
    }
    # A joiner may have more than its share: the first node has loaded everything when the second comes.
    stock = Stock(owned, [candidate.node for candidate in eligible if candidate.node in owned], rng)
    targets = [candidate for candidate in eligible if candidate.node in joiners]
    moves = _moves_ahead(stock, targets, surplus)
    balance = Balance(stock, targets, surplus)
    usual = balance.usual_moves()
    return [*moves, *itertools.starmap(Transfer, itertools.chain(usual, iter(balance.next_move, None)))]


def plan_moves(
    counts: Mapping[tuple[NodeId, NodeId], int],
    owned: Mapping[NodeId, Sequence[ChunkInfo]],
    eligible: Sequence[NodeCapacity],
    rng: np.random.Generator,
) -> list[Transfer]:
    """Move as many chunks as a policy wants, clipped by what a source has and a target has room for."""
    seat_of = {candidate.node: dataclasses.replace(candidate) for candidate in eligible}
    stock = {node: _shuffled(owned.get(node, ()), rng) for node in dict.fromkeys(source for source, _ in counts)}
    moves: list[Transfer] = []
    for (source, target), count in counts.items():
        candidate = seat_of[target]
        for info in list(stock[source]):
            if count == 0:
                break
            if candidate.can_take(info):
                stock[source].remove(info)
                candidate.take(info)
                moves.append(Transfer(info.id, source, target))
                count -= 1
    return moves


def plan_redraw(
    share: float,
    owned: Mapping[NodeId, Sequence[ChunkInfo]],
    eligible: Sequence[NodeCapacity],
    rng: np.random.Generator,
) -> list[Transfer]:
    """Give a share of each node's chunks to other nodes: a sum of random cyclic permutations, so counts stay equal.

    In each permutation every node that takes part gives one chunk to the next one. A node takes part until it has given
    its share, or has no room for a chunk that it is to get: its own are there until they have arrived elsewhere.

    Args:
        share: > 0 and <= 1; a part of a chunk is rounded up or down at random, right in the mean.
    """
    seats = [dataclasses.replace(candidate) for candidate in eligible]
    stock = [_shuffled(owned.get(candidate.node, ()), rng) for candidate in seats]
    left = [min(int(share * len(infos) + rng.random()), len(infos)) for infos in stock]
    moves: list[Transfer] = []
    while len(nodes := [index for index, count in enumerate(left) if count]) > 1:
        cycle = [nodes[number] for number in rng.permutation(len(nodes)).tolist()]
        pairs = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        full = [target for source, target in pairs if not seats[target].can_take(stock[source][-1])]
        for target in full:
            left[target] = 0
        if full:
            continue
        for source, target in pairs:
            info = stock[source].pop()
            left[source] -= 1
            seats[target].take(info)
            moves.append(Transfer(info.id, seats[source].node, seats[target].node))
    return moves


def _moves_ahead(stock: Stock, joiners: Sequence[NodeCapacity], surplus: dict[NodeId, int]) -> list[Transfer]:
    """Move what joiners have the rows of already, as far as it reduces the deviation from the shares."""
    moves: list[Transfer] = []
    order = {source: number for number, source in enumerate(stock)}
    gone: set[ChunkId] = set()
    for candidate in joiners:
        node, owner_of = candidate.node, stock.owner_of
        by_source = by_key((owner_of(chunk), chunk) for chunk in ascending(candidate.ahead) if chunk not in gone)
        for source in sorted((order.keys() & by_source.keys()) - {node}, key=order.__getitem__):
            chunks, above, below = set(by_source[source]), surplus[source], surplus[node]
            for info in [stock.info(chunk) for chunk in reversed(stock[source]) if chunk in chunks]:
                if improves(info, above, below):
                    above, below = above - info.num_rows, below + info.num_rows
                    moves.append(Transfer(info.id, source, node))
                    gone.add(info.id)
            candidate.num_rows += below - surplus[node]  # the memory is there already
            surplus[source], surplus[node] = above, below
    for source in dict.fromkeys(move.source for move in moves):
        stock[source][:] = [chunk for chunk in stock[source] if chunk not in gone]
    return moves


class _ByKey:
    """Each chunk to the first node by a key; to one that is avoided only if no other can take it."""

    def __init__(
        self,
        candidates: Sequence[NodeCapacity],
        key: Callable[[int], int],
        avoid: Mapping[ChunkId, Collection[NodeId]] = types.MappingProxyType({}),
    ) -> None:
        self._avoid = avoid
        self._queue = NodeQueue(candidates, range(len(candidates)), key)

    def choose(self, info: ChunkInfo) -> int | None:
        avoided = self._avoid.get(info.id, ())
        chosen = self._queue.first(info, avoided)
        return self._queue.first(info) if chosen is None and avoided else chosen

    def taken(self, index: int) -> None:
        self._queue.changed(index)


class _JoinersThenAll:
    """Each chunk to the joiner furthest below its share while it is far enough below, then round robin over all."""

    def __init__(self, candidates: Sequence[NodeCapacity], more_rows: int, joiners: Collection[NodeId]) -> None:
        self._candidates, self._targets = candidates, _share_of(candidates, more_rows)
        indices = range(len(candidates))
        order = sorted(indices, key=lambda index: candidates[index].num_rows)
        # (chunks dealt to it by turns, its place among the turns)
        self._turns = [(0, place) for _, place in sorted((index, place) for place, index in enumerate(order))]
        self._joiners = NodeQueue(
            candidates,
            [index for index in indices if candidates[index].node in joiners],
            lambda index: -self._lacks(index),
        )
        self._all = NodeQueue(candidates, indices, lambda index: self._turns[index])

    def _lacks(self, index: int) -> int:
        return self._targets[index] - self._candidates[index].num_rows

    def choose(self, info: ChunkInfo) -> int | None:
        joiner = self._joiners.first(info)
        if joiner is not None and 2 * self._lacks(joiner) >= info.num_rows:
            return joiner
        chosen = self._all.first(info)
        if chosen is not None:
            num_dealt, place = self._turns[chosen]
            self._turns[chosen] = num_dealt + 1, place
        return chosen

    def taken(self, index: int) -> None:
        self._joiners.changed(index)
        self._all.changed(index)


def _tightest(candidates: Sequence[NodeCapacity]) -> Dealer:
    """Make a dealer that puts each chunk where it leaves least room; nodes without a limit count as full."""
    return _ByKey(candidates, lambda index: candidates[index].room_bytes or 0)


def _dealt_freely(
    chunks: Sequence[ChunkInfo], order: Indices, eligible: Sequence[NodeCapacity], more_rows: int
) -> Dealt | None:
    """Deal as `plan_first` does where no node lacks room, or has a copy of a chunk already; None where one does. A job
    of a million chunks begins so, and all agents are busy meanwhile."""
    size = len(eligible)
    if not size or any(candidate.ahead for candidate in eligible):
        return None
    # The key of a node, and its index in the last digit: whole numbers are compared faster than pairs.
    wanted = _share_of(eligible, more_rows)
    heap = [(candidate.num_rows - wanted[index]) * size + index for index, candidate in enumerate(eligible)]
    heapq.heapify(heap)
    rows = np.array([info.num_rows * size for info in chunks], dtype=np.int64)[order].tolist()
    keys = [heapq.heapreplace(heap, heap[0] + more) for more in rows]
    takers = np.array(keys, dtype=np.int64) % size
    dealt = Dealt(chunks, order, [candidate.node for candidate in eligible], takers)
    sizes = np.array([info.size_bytes for info in chunks], dtype=np.int64)[order]
    used = np.bincount(takers, weights=sizes, minlength=size).tolist()
    if any(c.room_bytes is not None and more > c.room_bytes for c, more in zip(eligible, used, strict=True)):
        return None
    if any(candidate.holds for candidate in eligible):
        holds = {candidate.node: candidate.holds for candidate in eligible}
        if any(chunk in holds[node] for chunk, node in dealt):
            return None
    return dealt


def _deal(
    chunks: Sequence[ChunkInfo], order: Indices, eligible: Sequence[NodeCapacity], make_dealer: MakeDealer
) -> Placement:
    """Deal chunks one by one to the nodes that a dealer chooses; if some do not fit so, pack them tightly instead."""
    shuffled = order.tolist()
    best: Placement | None = None
    for make, is_by_size in ((make_dealer, False), (make_dealer, True), (_tightest, True)):
        picks = sorted(shuffled, key=lambda pick: -chunks[pick].size_bytes) if is_by_size else shuffled
        placement = _deal_once(chunks, picks, eligible, make)
        if not placement.unplaced:
            return placement
        if best is None or len(placement.unplaced) < len(best.unplaced):
            best = placement
    assert best is not None
    return best


def _deal_once(
    chunks: Sequence[ChunkInfo], order: Iterable[int], eligible: Sequence[NodeCapacity], make_dealer: MakeDealer
) -> Placement:
    candidates = [dataclasses.replace(candidate) for candidate in eligible]
    dealer = make_dealer(candidates)
    has_rows: dict[ChunkId, int] = {}
    for index, candidate in enumerate(candidates):
        for chunk in candidate.ahead:
            has_rows.setdefault(chunk, index)
    picks: list[int] = []
    takers: list[int] = []
    unplaced: list[ChunkInfo] = []
    for pick in order:
        info = chunks[pick]
        chosen = has_rows.get(info.id)
        if chosen is None:
            chosen = dealer.choose(info)
        if chosen is None:
            unplaced.append(info)
            continue
        candidates[chosen].take(info)
        dealer.taken(chosen)
        picks.append(pick)
        takers.append(chosen)
    nodes = [candidate.node for candidate in candidates]
    placed = Dealt(chunks, np.array(picks, dtype=np.int64), nodes, np.array(takers, dtype=np.int64))
    return Placement(placed, tuple(unplaced))


def _share_of(eligible: Sequence[NodeCapacity], more_rows: int) -> list[int]:
    return shares(more_rows + sum(candidate.num_rows for candidate in eligible), len(eligible))


def _shuffled(items: Sequence[_T], rng: np.random.Generator) -> list[_T]:
    return [items[index] for index in rng.permutation(len(items)).tolist()]
