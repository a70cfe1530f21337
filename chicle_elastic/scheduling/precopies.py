"""Immutable bytes on their way ahead of their chunks, while iterations run: reserved at the target, without owner.

    order    -> PRECOPYING   PrecopyChunk is asked for; the target's bytes are reserved
    ended    -> PRECOPIED    the target holds the rows of the chunk, and nothing of its state
    take     -> COPYING      at a boundary, `leases` copies the chunk there: only the state has to move
    discard  -> FREEING      it is not wanted any more

Rows never change, so a pre-copy stays good when the owner changes, and later plans prefer nodes that have one.
It is no copy of the chunk: it protects none from a loss, and is thrown away when its chunk has to be loaded again. An
order may be taken or discarded before it has ended; the answer to it, known by its number, is of no interest then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.effects import Effect, PrecopyChunk
from chicle_elastic.scheduling.events import PrecopiesEnded
from chicle_elastic.scheduling.leases import free
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase


@dataclass(eq=False, repr=False)
class Precopies:
    """All pre-copies."""

    _ledger: Ledger
    _emit: Callable[[Effect], None]
    # (chunk, target) of every order that was not answered, by its number
    in_flight: dict[int, tuple[ChunkId, NodeId]] = field(default_factory=dict)
    held: dict[tuple[NodeId, ChunkId], None] = field(default_factory=dict)
    _num_ordered: int = 0

    def order(self, chunk: ChunkId, target: NodeId, *, round: int) -> None:
        """Ask for a pre-copy; the chunk has an owner, and the target has room and no copy of it."""
        source = self._ledger.owner(chunk)
        assert source is not None
        self._num_ordered += 1
        self.in_flight[self._num_ordered] = chunk, target
        self.held[target, chunk] = None
        self._ledger.hold(target, chunk, Phase.PRECOPYING)
        self._emit(PrecopyChunk(chunk=chunk, source=source, target=target, round=round, number=self._num_ordered))

    def ended(self, event: PrecopiesEnded) -> None:
        """A node has answered orders."""
        whole = frozenset(event.whole)
        for number in (*event.whole, *event.failed):
            chunk, target = self.in_flight.get(number, (None, None))
            if chunk is None or target != event.node:
                continue
            del self.in_flight[number]
            if number in whole:
                self._ledger.hold(target, chunk, Phase.PRECOPIED)
            else:
                del self.held[target, chunk]
                self._ledger.drop(target, chunk)

    def is_whole(self, node: NodeId, chunk: ChunkId) -> bool:
        """Whether the node holds the rows of the chunk."""
        return self._ledger.phase(node, chunk) is Phase.PRECOPIED

    def at(self, node: NodeId) -> frozenset[ChunkId]:
        """Chunks of which the node has a pre-copy, whole or not."""
        return frozenset(chunk for holder, chunk in self.held if holder == node)

    def by_node(self) -> dict[NodeId, set[ChunkId]]:
        """Chunks of which a node has a pre-copy, whole or not, for all nodes that have any."""
        chunks_at: dict[NodeId, set[ChunkId]] = {}
        for node, chunk in self.held:
            chunks_at.setdefault(node, set()).add(chunk)
        return chunks_at

    def take(self, chunk: ChunkId, target: NodeId) -> None:
        """The chunk is about to be copied there; a pre-copy, if there is one, becomes the beginning of the copy."""
        if (target, chunk) in self.held:
            self._forget([(target, chunk)])

    def discard(self, keys: Sequence[tuple[NodeId, ChunkId]], *, round: int) -> None:
        """Give the memory of these pre-copies, (target, chunk), back."""
        self._forget(keys)
        for target, chunk in keys:
            free(self._ledger, self._emit, target, chunk, round=round)

    def discard_lost(self, *, round: int) -> None:
        """The rows of missing chunks come from their source again, into memory that this may take."""
        self.discard([key for key in self.held if self._ledger.owner(key[1]) is None], round=round)

    def discard_all(self, *, round: int) -> None:
        """No node comes, goes or is relieved, or other chunks need the room: give all memory back."""
        self.discard(list(self.held), round=round)

    def discard_at(self, node: NodeId, *, round: int) -> None:
        """The node leaves."""
        self.discard([(node, chunk) for chunk in sorted(self.at(node))], round=round)

    def lose(self, node: NodeId) -> None:
        """The node is gone with everything that it was fetching."""
        self._forget([(node, chunk) for chunk in self.at(node)])

    def _forget(self, keys: Sequence[tuple[NodeId, ChunkId]]) -> None:
        """Forget pre-copies; their copies still have their phase, which tells whether an answer is awaited."""
        awaited = set()
        for target, chunk in keys:
            del self.held[target, chunk]
            if self._ledger.phase(target, chunk) is Phase.PRECOPYING:
                awaited.add((chunk, target))
        if awaited:
            self.in_flight = {number: order for number, order in self.in_flight.items() if order not in awaited}
