"""Nodes that can be given chunks, and a queue that finds the first of them that can take one.

A plan deals a hundred thousand chunks to hundreds of nodes, each to the first node by some key that changes with every
chunk which the node takes. `NodeQueue` finds it in time logarithmic in the nodes, and not by a look at each of them.
"""

import heapq
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.values import ChunkInfo


@dataclass(slots=True, kw_only=True)
class NodeCapacity:
    """A node that can be given chunks."""

    node: NodeId
    num_rows: int = 0
    room_bytes: int | None = None  # bytes for more chunks; None for no limit
    holds: Container[ChunkId] = ()  # chunks of which it has a copy in any phase, and that it can therefore not be given
    # chunks of which it has the rows, or will have soon: they take no more room, and are given here first
    ahead: Collection[ChunkId] = ()

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


class NodeQueue:
    """Some nodes in the order of a key. Tell it of every change of a key (`changed`).

    A heap whose entries are not removed when a key changes: an entry with another key than the present one is dropped
    when it comes to the top. Nodes without room for a chunk wait apart until a chunk comes that is small enough, so
    full nodes do not slow the search down.

    Args:
        candidates: All nodes of the plan. Their room never grows.
        key: Of the node with an index; smaller ones come first, and of equal ones the smaller index.
    """

    def __init__(self, candidates: Sequence[NodeCapacity], members: Collection[int], key: Callable[[int], Any]) -> None:
        self._candidates, self._key = candidates, key
        self._keys = {index: key(index) for index in members}
        self._entries = [(value, index) for index, value in self._keys.items()]
        heapq.heapify(self._entries)
        self._full: list[tuple[int, int]] = []

    def first(self, info: ChunkInfo, avoided: Container[NodeId] = ()) -> int | None:
        """Index of the first node that can take a chunk, whose rows no node has ahead; None if no node can."""
        entries, full, size_bytes = self._entries, self._full, info.size_bytes
        while full and size_bytes <= -full[0][0]:
            index = heapq.heappop(full)[1]
            heapq.heappush(entries, (self._keys[index], index))
        passed: list[tuple[Any, int]] = []
        found: int | None = None
        while entries and found is None:
            key, index = entries[0]
            candidate = self._candidates[index]
            room_bytes = candidate.room_bytes
            if key != self._keys[index]:
                heapq.heappop(entries)
            elif room_bytes is not None and size_bytes > room_bytes:
                heapq.heappop(entries)
                heapq.heappush(full, (-room_bytes, index))
            elif info.id in candidate.holds or candidate.node in avoided:
                passed.append(heapq.heappop(entries))
            else:
                found = index
        for entry in passed:
            heapq.heappush(entries, entry)
        return found

    def changed(self, index: int) -> None:
        """The key of a node may have changed."""
        if index in self._keys and (key := self._key(index)) != self._keys[index]:
            self._keys[index] = key
            entries = self._entries
            if entries and entries[0][1] == index:  # the usual case: the first one was given a chunk
                heapq.heapreplace(entries, (key, index))
            else:
                heapq.heappush(entries, (key, index))
