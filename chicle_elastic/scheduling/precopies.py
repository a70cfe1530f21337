"""Immutable bytes on their way ahead of their chunks, while iterations run: reserved at the target, without owner.

    order    -> PRECOPYING   PrecopyChunks is asked for; the target's bytes are reserved
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
from chicle_elastic.scheduling.effects import Effect, PrecopyChunks
from chicle_elastic.scheduling.events import PrecopiesEnded
from chicle_elastic.scheduling.leases import free
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.scheduling.together import by_key, remove


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
        numbered = dict(enumerate(orders, start=self._num_ordered + 1))
        self._num_ordered += len(numbered)
        self.in_flight.update(numbered)
        self.held.update(dict.fromkeys((target, chunk) for chunk, target in numbered.values()))
        owner = self._ledger.owner
        together = by_key(((owner(chunk), target), number) for number, (chunk, target) in numbered.items())
        for (source, target), numbers in together.items():
            assert source is not None
            chunks = tuple(numbered[number][0] for number in numbers)
            self._ledger.hold_all(target, chunks, Phase.PRECOPYING)
            self._emit(PrecopyChunks(chunks=chunks, source=source, target=target, round=round, numbers=tuple(numbers)))

    def ended(self, event: PrecopiesEnded) -> list[ChunkId]:
        """A node has answered orders. Returns the chunks of those whose rows are there."""
        whole, failed = self._answered(event.node, event.whole), self._answered(event.node, event.failed)
        remove(self.held, [(event.node, chunk) for chunk in failed])
        self._ledger.hold_all(event.node, whole, Phase.PRECOPIED)
        self._ledger.hold_all(event.node, failed, None)
        return whole

    def _answered(self, node: NodeId, numbers: Iterable[int]) -> list[ChunkId]:
        known = [number for number in dict.fromkeys(numbers) if self.in_flight.get(number, (0, None))[1] == node]
        return [self.in_flight.pop(number)[0] for number in known]

    def is_whole(self, node: NodeId, chunk: ChunkId) -> bool:
        """Whether the node holds the rows of the chunk."""
        return self._ledger.phase(node, chunk) is Phase.PRECOPIED

    def by_node(self) -> dict[NodeId, set[ChunkId]]:
        """Chunks of which a node has a pre-copy, whole or not, for all nodes that have any."""
        return {node: set(chunks) for node, chunks in by_key(self.held).items()}

    def take(self, orders: Iterable[tuple[ChunkId, NodeId]]) -> None:
        """Each (chunk, target) is about to be copied; a pre-copy, if there is one, becomes the beginning of the
        copy."""
        self._forget([(target, chunk) for chunk, target in orders if (target, chunk) in self.held])

    def discard(self, keys: Sequence[tuple[NodeId, ChunkId]], *, round: int) -> None:
        """Give the memory of these pre-copies, (target, chunk), back."""
        self._forget(keys)
        for target, chunks in by_key(keys).items():
            free(self._ledger, self._emit, target, chunks, round=round)

    def discard_lost(self, *, round: int) -> None:
        """The rows of missing chunks come from their source again, into memory that this may take."""
        self.discard([key for key in self.held if self._ledger.owner(key[1]) is None], round=round)

    def discard_all(self, *, round: int) -> None:
        """No node comes, goes or is relieved, or other chunks need the room: give all memory back."""
        self.discard(list(self.held), round=round)

    def discard_at(self, node: NodeId, *, round: int) -> None:
        """The node leaves."""
        self.discard(sorted(key for key in self.held if key[0] == node), round=round)

    def lose(self, node: NodeId) -> None:
        """The node is gone with everything that it was fetching."""
        self._forget([key for key in self.held if key[0] == node])

    def _forget(self, keys: Sequence[tuple[NodeId, ChunkId]]) -> None:
        """Forget pre-copies; their copies still have their phase, which tells whether an answer is awaited."""
        remove(self.held, keys)
        if not self.in_flight:
            return
        awaited = {(chunk, target) for target, chunk in keys if self._ledger.phase(target, chunk) is Phase.PRECOPYING}
        if awaited:
            self.in_flight = {number: order for number, order in self.in_flight.items() if order not in awaited}
