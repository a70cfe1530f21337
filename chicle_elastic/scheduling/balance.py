"""Moves that bring nodes closer to their shares, one after the other: from most surplus to least.

A node's *surplus* is the samples that it has above its share; it is negative below. A chunk of r rows that goes from
surplus s to surplus t reduces |s| + |t| exactly if s > 0 > t and r < s - t, so whole pairs of nodes are ruled out
without a look at their chunks.
"""

import bisect
import heapq
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.ledger import Movable
from chicle_elastic.scheduling.node_capacity import NodeCapacity
from chicle_elastic.values import ChunkInfo


def improves(info: ChunkInfo, source: int, target: int) -> bool:
    """Say whether the move of a chunk brings two nodes closer to their shares together."""
    return source > 0 > target and 0 < info.num_rows < source - target


class Stock:
    """Chunks that may go, by owner, those of each owner in random order.

    They are looked up and drawn when they are first asked for, each owner's with randomness of its own: a node that
    joins thousands of others gets one chunk each of a few of them.
    """

    def __init__(self, owned: Movable, nodes: Iterable[NodeId], rng: np.random.Generator) -> None:
        self._owned = owned
        # They know nothing of what was taken since.
        self.owner_of, self.least_of, self.info = owned.owner_of, owned.least_of, owned.info
        self._places = {node: place for place, node in enumerate(nodes)}
        self._seed = int(rng.integers(1 << 62))
        self._drawn: dict[NodeId, list[ChunkId]] = {}

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._places)

    def __contains__(self, node: object) -> bool:
        return node in self._places

    def __getitem__(self, node: NodeId) -> list[ChunkId]:
        """Chunks of a node, those that go first at the end: a list of a million gives only its end away at no cost.
        It is the stock's own, and changes with it."""
        if node not in self._drawn:
            rng = np.random.default_rng([self._seed, self._places[node]])
            chunks = np.array(self._owned.chunks_of(node), dtype=np.int64)
            self._drawn[node] = chunks[rng.permutation(len(chunks))[::-1]].tolist()
        return self._drawn[node]


class Balance:
    """Takes chunks from nodes with a surplus and gives them to those with a lack.

    Args:
        stock: Chunks that may go; it is changed.
        targets: Who may get them; counted up with every move.
        surplus: Of each of these nodes; it is changed.
    """

    def __init__(self, stock: Stock, targets: Sequence[NodeCapacity], surplus: dict[NodeId, int]) -> None:
        self._stock, self._targets, self._surplus = stock, targets, surplus
        self._sources = list(stock)
        self._source_place = {node: place for place, node in enumerate(stock)}
        self._target_place = {candidate.node: place for place, candidate in enumerate(targets)}
        self._sort()

    def _sort(self) -> None:
        # Most needed first; of equal ones the first: (key, place), kept sorted while the keys change.
        above = map(self._surplus.__getitem__, self._sources)
        below = map(self._surplus.__getitem__, self._target_place)
        self._giving = sorted(zip(map(operator.neg, above), itertools.count(), strict=False))
        self._getting = sorted(zip(below, itertools.count(), strict=False))

    def usual_moves(self) -> list[tuple[ChunkId, NodeId, NodeId]]:
        """Make moves as `next_move` does as long as the first chunk of the first pair will do: nearly all, without a
        search."""
        giving, getting, surplus, moves = self._giving, self._getting, self._surplus, []
        while giving and getting and giving[0][0] < 0 and getting[0][0] < 0:
            (minus, source_place), (lack, target_place) = giving[0], getting[0]
            source, target = self._sources[source_place], self._targets[target_place]
            stock = self._stock[source]
            info = self._stock.info(stock[-1]) if stock else None
            if info is None or not 0 < info.num_rows < -minus - lack or not target.can_take(info):
                break
            moves.append((stock.pop(), source, target.node))
            target.take(info)
            minus, lack = minus + info.num_rows, lack + info.num_rows
            surplus[source], surplus[target.node] = -minus, lack
            heapq.heapreplace(giving, (minus, source_place))
            heapq.heapreplace(getting, (lack, target_place))
            if minus > 0 or lack > 0:  # a node may be on the other side from now on
                break
        self._sort()
        return moves

    def next_move(self) -> tuple[ChunkId, NodeId, NodeId] | None:
        """Make the first move, from most to least needed pair, that reduces the deviation from the shares. Returns
        (chunk, source, target); None when no move does."""
        for minus, source_place in self._giving:
            if minus >= 0:
                return None
            if not self._getting or self._getting[0][0] >= 0:
                return None
            source = self._sources[source_place]
            least_rows, _ = self._stock.least_of(source)
            for lack, target_place in self._getting:
                if lack >= 0 or -minus - lack <= least_rows:
                    break
                place = self._find(source, self._targets[target_place], -minus - lack)
                if place is not None:
                    return self._move(source, self._targets[target_place], place)
        return None

    def _find(self, source: NodeId, target: NodeCapacity, end: int) -> int | None:
        """The first chunk of a node with fewer rows than `end` that the target can take, by its place in the stock."""
        room_bytes = target.room_bytes
        if room_bytes is not None and room_bytes < self._stock.least_of(source)[1] and not target.ahead:
            return None
        stock = self._stock[source]
        for place in range(len(stock) - 1, -1, -1):
            info = self._stock.info(stock[place])
            if 0 < info.num_rows < end and target.can_take(info):
                return place
        return None

    def _move(self, source: NodeId, target: NodeCapacity, place: int) -> tuple[ChunkId, NodeId, NodeId]:
        info = self._stock.info(self._stock[source].pop(place))
        target.take(info)
        self._change(source, -info.num_rows)
        self._change(target.node, info.num_rows)
        return info.id, source, target.node

    def _change(self, node: NodeId, num_rows: int) -> None:
        before = self._surplus[node]
        after = self._surplus[node] = before + num_rows
        if node in self._source_place:
            _replace(self._giving, (-before, self._source_place[node]), (-after, self._source_place[node]))
        if node in self._target_place:
            _replace(self._getting, (before, self._target_place[node]), (after, self._target_place[node]))


def _replace(entries: list[tuple[int, int]], old: tuple[int, int], new: tuple[int, int]) -> None:
    del entries[bisect.bisect_left(entries, old)]
    bisect.insort(entries, new)
