"""Chunks on their way from their source (arrays, a chunk folder) to the memory of a node, with fresh state.

    order  -> LOADING    LoadChunk is asked for; the node's bytes are reserved; the chunk stays missing
    loaded -> LOADED     the node holds it
    settle -> adopt      only at a boundary: the node owns the chunk
    failed               nothing is held; the next plan tries another node, up to a limit

A load cannot be called back. One that is not wanted any more (its node leaves, an older owner came back with the
state) is UNWANTED until its answer comes, and is freed then.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.effects import Effect, LoadChunk, Log
from chicle_elastic.scheduling.leases import free
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase


@dataclass(slots=True)
class Failures:
    """Loads of one chunk that failed since the membership changed last."""

    count: int = 0
    nodes: list[NodeId] = field(default_factory=list)


class Loads:
    """All chunks on their way from their source.

    Args:
        ledger: Which node owns and holds what; reservations are written there.
        emit: Takes the effects.
        max_attempts: Loads of one chunk that may fail before the job is paused.
    """

    def __init__(self, ledger: Ledger, emit: Callable[[Effect], None], *, max_attempts: int) -> None:
        self.in_flight: dict[ChunkId, NodeId] = {}
        self.stuck: dict[ChunkId, str] = {}
        self._arrived: dict[ChunkId, NodeId] = {}
        self._rounds: dict[tuple[NodeId, ChunkId], int] = {}
        self._failures: dict[ChunkId, Failures] = {}
        self._ledger = ledger
        self._emit = emit
        self._max_attempts = max_attempts

    @property
    def num_pending(self) -> int:
        """Chunks that are loading, or loaded and not adopted yet."""
        return len(self.in_flight) + len(self._arrived)

    @property
    def num_unwanted(self) -> int:
        """Loads that are not wanted any more, and that have not been answered."""
        return len(self._rounds) - len(self.in_flight)

    def unwanted(self) -> dict[ChunkId, list[NodeId]]:
        """Nodes with a load that is not wanted any more and has not been answered, by its chunk."""
        nodes_of: dict[ChunkId, list[NodeId]] = {}
        for node, chunk in self._rounds if self.num_unwanted else ():
            if self._ledger.phase(node, chunk) is Phase.UNWANTED:
                nodes_of.setdefault(chunk, []).append(node)
        return nodes_of

    def pending(self) -> Set[ChunkId]:
        """Chunks that are loading, or loaded and not adopted yet."""
        return self.in_flight.keys() | self._arrived.keys()

    def failed_nodes(self) -> dict[ChunkId, tuple[NodeId, ...]]:
        """Nodes that tried to load a chunk in vain, for all chunks that any node could not load."""
        return {chunk: tuple(failures.nodes) for chunk, failures in self._failures.items()}

    def order(self, chunk: ChunkId, node: NodeId, *, round: int) -> None:
        """Ask for a missing chunk; the node must have room and no copy of it."""
        self.in_flight[chunk] = node
        self._rounds[node, chunk] = round
        self._ledger.hold(node, chunk, Phase.LOADING)
        self._emit(LoadChunk(chunk=chunk, node=node, round=round))

    def want_again(self, chunk: ChunkId, node: NodeId) -> None:
        """A load that was not wanted and has not been answered yet, is wanted after all."""
        self.in_flight[chunk] = node
        self._ledger.hold(node, chunk, Phase.LOADING)

    def unwant(self, chunk: ChunkId, *, round: int) -> None:
        """The chunk is not needed from its source any more: free it, now or when it arrives."""
        if chunk in self._arrived:
            free(self._ledger, self._emit, self._arrived.pop(chunk), chunk, round=round)
        elif chunk in self.in_flight:
            self._ledger.hold(self.in_flight.pop(chunk), chunk, Phase.UNWANTED)

    def is_answer(self, chunk: ChunkId, node: NodeId, round: int | None) -> bool:
        """Whether the node's answer with this round is one to a load in flight, wanted or not."""
        ordered = self._rounds.get((node, chunk))
        return ordered is not None and round in (None, ordered)

    def loaded(self, chunk: ChunkId, node: NodeId, *, round: int) -> None:
        """The node holds the chunk; the event was an answer."""
        del self._rounds[node, chunk]
        if self._ledger.phase(node, chunk) is Phase.UNWANTED:
            free(self._ledger, self._emit, node, chunk, round=round)
            return
        del self.in_flight[chunk]
        self._arrived[chunk] = node
        self._ledger.hold(node, chunk, Phase.LOADED)

    def failed(self, chunk: ChunkId, node: NodeId, reason: str) -> None:
        """The node could not get the chunk; the event was an answer."""
        del self._rounds[node, chunk]
        is_wanted = self._ledger.phase(node, chunk) is Phase.LOADING
        self._ledger.drop(node, chunk)
        if not is_wanted:
            return
        del self.in_flight[chunk]
        failures = self._failures.setdefault(chunk, Failures())
        failures.count += 1
        failures.nodes.append(node)
        self._emit(
            Log(
                text=f"{node} could not load chunk {chunk} (attempt {failures.count} of {self._max_attempts}): {reason}"
            )
        )
        if failures.count >= self._max_attempts:
            tried = ", ".join(dict.fromkeys(failures.nodes))
            self.stuck[chunk] = f"chunk {chunk} could not be loaded in {failures.count} attempts by {tried}: {reason}"

    def settle(self, *, round: int) -> None:
        """At a boundary: nodes own what they have loaded."""
        for chunk, node in self._arrived.items():
            self._failures.pop(chunk, None)
            self._ledger.adopt_fresh(chunk, node, round=round)
        self._arrived.clear()

    def forgive(self) -> None:
        """The membership changed: chunks that could not be loaded are tried again."""
        self._failures.clear()
        self.stuck.clear()

    def unwant_at(self, node: NodeId, *, round: int) -> None:
        """The node leaves: what it loads is not wanted."""
        for chunk in [chunk for chunk, at in (*self.in_flight.items(), *self._arrived.items()) if at == node]:
            self.unwant(chunk, round=round)

    def lose(self, node: NodeId) -> None:
        """The node is gone, with everything that it was loading."""
        self.in_flight = {chunk: at for chunk, at in self.in_flight.items() if at != node}
        self._arrived = {chunk: at for chunk, at in self._arrived.items() if at != node}
        self._rounds = {key: round for key, round in self._rounds.items() if key[0] != node}

    def lose_copy(self, node: NodeId, chunk: ChunkId) -> None:
        """The node says that it does not hold a chunk which it had loaded."""
        if self._arrived.get(chunk) == node:
            del self._arrived[chunk]
            self._ledger.drop(node, chunk)
