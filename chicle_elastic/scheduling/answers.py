"""What nodes answer to orders, matched with the order; what answers none is ignored, or freed."""

from collections.abc import Callable

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.leases import Leases, free
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.loads import Loads
from chicle_elastic.scheduling.members import Members


class Answers:
    """Takes answers to loads, copies and frees. They only change the books: a boundary acts on them.

    Args:
        ledger: Knows what is being freed.
        members: Knows who is here.
        leases: Knows the copies on their way.
        loads: Knows the loads on their way.
        emit: Takes the effects.
    """

    def __init__(
        self, ledger: Ledger, members: Members, leases: Leases, loads: Loads, emit: Callable[[Effect], None]
    ) -> None:
        self._ledger = ledger
        self._members = members
        self._leases = leases
        self._loads = loads
        self._emit = emit

    def on_chunk_loaded(self, event: events.ChunkLoaded) -> None:
        """A node holds a chunk from its source."""
        if self._loads.is_answer(event):
            self._loads.loaded(event.chunk, event.node, round=self._members.round)
        else:
            self._on_stray(event, event.node)

    def on_load_failed(self, event: events.LoadFailed) -> None:
        """A node could not get a chunk from its source."""
        if self._loads.is_answer(event):
            self._loads.failed(event.chunk, event.node, event.reason)
        else:
            self._log(f"{event.node} did not load chunk {event.chunk}, and did not have to; ignored")

    def on_chunk_copied(self, event: events.ChunkCopied) -> None:
        """A target holds a verified copy."""
        lease = self._leases.match(event)
        if lease is not None:
            self._leases.copied(lease)
        else:
            self._on_stray(event, event.target)

    def on_copy_failed(self, event: events.CopyFailed) -> None:
        """A copy did not arrive whole."""
        lease = self._leases.match(event)
        if lease is not None:
            self._leases.failed(lease, event.reason)
        else:
            self._log(f"chunk {event.chunk} was not copied to {event.target}, and did not have to be; ignored")

    def on_chunk_freed(self, event: events.ChunkFreed) -> None:
        """A node has given back the memory of a copy."""
        ordered = self._ledger.freeing.get((event.node, event.chunk))
        if ordered is not None and event.round in (None, ordered):
            self._ledger.drop(event.node, event.chunk)
        else:
            self._log(f"{event.node} freed chunk {event.chunk}, and did not have to; ignored")

    def _on_stray(self, event: events.ChunkLoaded | events.ChunkCopied, node: NodeId) -> None:
        """A copy that nobody waits for: an answer given twice, or by an earlier life of the node."""
        what = f"{type(event).__name__} of chunk {event.chunk} on {node}"
        if not self._ledger.knows(event.chunk):
            raise ProtocolError(f"{what}: there is no such chunk")
        if node not in self._members:
            self._log(f"{what} is ignored: the node is not here")
        elif self._ledger.phase(node, event.chunk) is not None or self._members.present[node].has_reported:
            self._log(f"{what} is ignored: it answers no order, and the book knows what the node holds")
        elif self._ledger.owner(event.chunk) is None:
            # Of an earlier life of the node, which reports what it holds before its first round: perhaps the last copy.
            self._log(f"{what} is ignored: it answers no order, and the chunk is missing")
        else:
            self._log(f"{what} answers no order; the copy is freed")
            free(self._ledger, self._emit, node, event.chunk, round=self._members.round)

    def _log(self, text: str) -> None:
        self._emit(Log(text=text))
