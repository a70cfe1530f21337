"""What nodes answer to orders, matched with the order; what answers none is ignored, or freed."""

from collections.abc import Callable
from dataclasses import dataclass

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.leases import Leases, free
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.loads import Loads
from chicle_elastic.scheduling.members import Members


@dataclass(eq=False, repr=False)
class PendingOrders:
    """Takes answers to loads, copies and frees. They only change the ledger: a boundary acts on them."""

    _ledger: Ledger
    _members: Members
    _leases: Leases
    _loads: Loads
    _emit: Callable[[Effect], None]

    def on_chunks_loaded(self, event: events.ChunksLoaded) -> None:
        """A node holds chunks from their source."""
        self._require_known(event, event.node)
        answers = {chunk: None for chunk in event.chunks if self._loads.is_answer(chunk, event.node, event.round)}
        if answers:
            self._loads.loaded(tuple(answers), event.node, round=self._members.round)
        for chunk in event.chunks:
            if chunk in answers:
                del answers[chunk]  # a second one in the same event answers nothing
            else:
                self._on_stray(event, chunk, event.node)

    def on_load_failed(self, event: events.LoadFailed) -> None:
        """A node could not get a chunk from its source."""
        if self._loads.is_answer(event.chunk, event.node, event.round):
            self._loads.failed(event.chunk, event.node, event.reason)
        else:
            self._log(f"{event.node} did not load chunk {event.chunk}, and did not have to; ignored")

    def on_chunks_copied(self, event: events.ChunksCopied) -> None:
        """A target holds verified copies."""
        self._require_known(event, event.target)
        for chunk in self._leases.copied(event):
            self._on_stray(event, chunk, event.target)

    def on_copy_failed(self, event: events.CopyFailed) -> None:
        """A copy did not arrive whole."""
        if self._leases.is_answer(event, self._leases.in_flight.get(event.chunk)):
            self._leases.failed(event.chunk, event.reason)
        else:
            self._log(f"chunk {event.chunk} was not copied to {event.target}, and did not have to be; ignored")

    def on_chunks_freed(self, event: events.ChunksFreed) -> None:
        """A node has given back the memory of copies."""
        freed: dict[ChunkId, None] = {}
        for chunk in event.chunks:
            ordered = self._ledger.freeing.get((event.node, chunk))
            if ordered is not None and event.round in (None, ordered) and chunk not in freed:
                freed[chunk] = None
            else:
                self._log(f"{event.node} freed chunk {chunk}, and did not have to; ignored")
        self._ledger.hold_all(event.node, freed, None)

    def _require_known(self, event: events.ChunksLoaded | events.ChunksCopied, node: NodeId) -> None:
        """Refuse the whole event before any of its chunks changes anything."""
        chunk = self._ledger.unknown(event.chunks)
        if chunk is not None:
            raise ProtocolError(f"{_what(event, chunk, node)}: there is no such chunk")

    def _on_stray(self, event: events.ChunksLoaded | events.ChunksCopied, chunk: ChunkId, node: NodeId) -> None:
        """A copy that answers no order: an answer given twice, or by an earlier life of the node."""
        what = _what(event, chunk, node)
        if node not in self._members:
            self._log(f"{what} is ignored: the node is not here")
        elif self._ledger.phase(node, chunk) is not None or self._members.present[node].has_reported:
            self._log(f"{what} is ignored: it answers no order, and the ledger knows what the node holds")
        elif self._ledger.owner(chunk) is None:
            # Of an earlier life of the node, which reports what it holds before its first round: perhaps the last copy.
            self._log(f"{what} is ignored: it answers no order, and the chunk is missing")
        else:
            self._log(f"{what} answers no order; the copy is freed")
            free(self._ledger, self._emit, node, [chunk], round=self._members.round)

    def _log(self, text: str) -> None:
        self._emit(Log(text=text))


def _what(event: events.ChunksLoaded | events.ChunksCopied, chunk: ChunkId, node: NodeId) -> str:
    return f"{type(event).__name__} of chunk {chunk} on {node}"
