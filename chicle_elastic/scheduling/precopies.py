"""Immutable bytes on their way ahead of their chunks, while iterations run: reserved at the target, without owner.

    order    -> PRECOPYING   PrecopyChunk is asked for; the target's bytes are reserved
    ended    -> PRECOPIED    the target holds the rows of the chunk, and nothing of its state
    take     -> COPYING      at a boundary, `leases` copies the chunk there: only the state has to move
    discard  -> FREEING      it is not wanted any more

Rows never change, so a pre-copy stays good when the owner changes, and later plans prefer nodes that have one.
It is no copy of the chunk: it protects none from a loss, and is thrown away when its chunk has to be loaded again. An
order may be taken or discarded before it has ended; the answer to it, known by its number, is of no interest then.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.effects import Effect, PrecopyChunk
from chicle_elastic.scheduling.events import PrecopiesEnded
from chicle_elastic.scheduling.leases import free
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.values import ChunkInfo


@dataclass(eq=False, repr=False)
class Precopies:
    """All pre-copies."""

    _ledger: Ledger
    _emit: Callable[[Effect], None]
    # (chunk, target) of every order that was not answered, by its number
    in_flight: dict[int, tuple[ChunkId, NodeId]] = field(default_factory=dict)
    held: dict[tuple[NodeId, ChunkId], None] = field(default_factory=dict)
    _num_ordered: int = 0

    def order(self, orders: Iterable[tuple[ChunkId, NodeId]], *, round: int) -> None:
        """Ask for pre-copies, by (chunk, target) of each; the chunk has an owner, and the target has room and no copy
        of it."""
        infos: dict[NodeId, list[ChunkInfo]] = {}
        for number, (chunk, target) in enumerate(orders, start=self._num_ordered + 1):
            source = self._ledger.owner(chunk)
            assert source is not None
            self._num_ordered = number
            self.in_flight[number] = chunk, target
            self.held[target, chunk] = None
            infos.setdefault(target, []).append(self._ledger.info(chunk))
            self._emit(PrecopyChunk(chunk=chunk, source=source, target=target, round=round, number=number))
        for target, ahead in infos.items():
            self._ledger.hold_all(target, ahead, Phase.PRECOPYING)

    def ended(self, event: PrecopiesEnded) -> None:
        """A node has answered orders."""
        for numbers, phase in ((event.whole, Phase.PRECOPIED), (event.failed, None)):
            answers: list[ChunkId] = []
            for number in numbers:
                chunk, target = self.in_flight.get(number, (None, None))
                if chunk is None or target != event.node:
                    continue
                del self.in_flight[number]
                answers.append(chunk)
                if phase is None:
                    del self.held[target, chunk]
            self._ledger.hold_all(event.node, self._ledger.infos(answers), phase)

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

    def take(self, orders: Iterable[tuple[ChunkId, NodeId]]) -> None:
        """Each (chunk, target) is about to be copied; a pre-copy, if there is one, becomes the beginning of the
        copy."""
        self._forget([(target, chunk) for chunk, target in orders if (target, chunk) in self.held])

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
