"""Chunks on their way from their source (arrays, a chunk folder) to the memory of a node, with fresh state.

    order  -> LOADING    LoadChunks is asked for; the node's bytes are reserved; the chunk stays missing
    loaded -> LOADED     the node holds it
    settle -> adopt      only at a boundary: the node owns the chunk
    failed               nothing is held; the next plan tries another node, up to a limit

A load cannot be called back. One that is not wanted any more (its node leaves, an older owner came back with the
state) is UNWANTED until its answer comes, and is freed then.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.effects import Effect, LoadChunks, Log
from chicle_elastic.scheduling.leases import free
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.scheduling.together import by_key
from chicle_elastic.values import ChunkInfo


@dataclass(slots=True)
class Failures:
    """Loads of one chunk that failed since the membership changed last."""

    count: int = 0
    nodes: list[NodeId] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Loads:
    """All chunks on their way from their source."""

    _ledger: Ledger
    _emit: Callable[[Effect], None]
    _max_attempts: int
    in_flight: dict[ChunkId, NodeId] = field(default_factory=dict)
    stuck: dict[ChunkId, str] = field(default_factory=dict)
    _arrived: dict[ChunkId, NodeId] = field(default_factory=dict)
    _rounds: dict[NodeId, dict[ChunkId, int]] = field(default_factory=dict)
    _unwanted: dict[tuple[NodeId, ChunkId], None] = field(default_factory=dict)
    _failures: dict[ChunkId, Failures] = field(default_factory=dict)

    @property
    def num_pending(self) -> int:
        """Chunks that are loading, or loaded and not adopted yet."""
        return len(self.in_flight) + len(self._arrived)

    @property
    def num_unwanted(self) -> int:
        """Loads that are not wanted any more, and that have not been answered."""
        return len(self._unwanted)

    def unwanted(self) -> dict[ChunkId, list[NodeId]]:
        """Nodes with a load that is not wanted any more and has not been answered, by its chunk."""
        return by_key((chunk, node) for node, chunk in self._unwanted)

    def pending(self) -> Set[ChunkId]:
        """Chunks that are loading, or loaded and not adopted yet."""
        return self.in_flight.keys() | self._arrived.keys()

    def failed_nodes(self) -> dict[ChunkId, tuple[NodeId, ...]]:
        """Nodes that tried to load a chunk in vain, for all chunks that any node could not load."""
        return {chunk: tuple(failures.nodes) for chunk, failures in self._failures.items()}

    def order(self, infos: Sequence[ChunkInfo], node: NodeId, *, round: int) -> None:
        """Ask for missing chunks; the node must have room and no copy of them."""
        chunks = tuple(info.id for info in infos)
        self.in_flight.update(dict.fromkeys(chunks, node))
        self._rounds.setdefault(node, {}).update(dict.fromkeys(chunks, round))
        self._ledger.hold_all(node, chunks, Phase.LOADING)
        self._emit(LoadChunks(chunks=chunks, node=node, round=round))

    def want_again(self, chunk: ChunkId, node: NodeId) -> None:
        """A load that was not wanted and has not been answered yet, is wanted after all."""
        del self._unwanted[node, chunk]
        self.in_flight[chunk] = node
        self._ledger.hold(node, chunk, Phase.LOADING)

    def unwant(self, chunk: ChunkId, *, round: int) -> None:
        """The chunk is not needed from its source any more: free it, now or when it arrives."""
        if chunk in self._arrived:
            free(self._ledger, self._emit, self._arrived.pop(chunk), [chunk], round=round)
        elif chunk in self.in_flight:
            node = self.in_flight.pop(chunk)
            self._unwanted[node, chunk] = None
            self._ledger.hold(node, chunk, Phase.UNWANTED)

    def is_answer(self, chunk: ChunkId, node: NodeId, round: int | None) -> bool:
        """Whether the node's answer with this round is one to a load in flight, wanted or not."""
        ordered = self._rounds.get(node, {}).get(chunk)
        return ordered is not None and round in (None, ordered)

    def loaded(self, chunks: Sequence[ChunkId], node: NodeId, *, round: int) -> None:
        """The node holds these chunks, different ones; for each of them the event was an answer."""
        arrived = []
        for chunk in chunks:
            self._forget(chunk, node)
            if (node, chunk) in self._unwanted:
                del self._unwanted[node, chunk]
                free(self._ledger, self._emit, node, [chunk], round=round)
            else:
                del self.in_flight[chunk]
                arrived.append(chunk)
        if arrived:
            self._arrived.update(dict.fromkeys(arrived, node))
            self._ledger.hold_all(node, arrived, Phase.LOADED)

    def failed(self, chunk: ChunkId, node: NodeId, reason: str) -> None:
        """The node could not get the chunk; the event was an answer."""
        self._forget(chunk, node)
        self._ledger.hold(node, chunk, None)
        if (node, chunk) in self._unwanted:
            del self._unwanted[node, chunk]
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
        if not self._arrived:
            return
        for node, chunks in by_key((node, chunk) for chunk, node in self._arrived.items()).items():
            self._ledger.adopt_fresh(chunks, node, round=round)
        for chunk in self._failures.keys() & self._arrived.keys():
            del self._failures[chunk]
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
        self._rounds.pop(node, None)
        self._unwanted = {key: None for key in self._unwanted if key[0] != node}

    def lose_copy(self, node: NodeId, chunk: ChunkId) -> None:
        """The node says that it does not hold a chunk which it had loaded."""
        if self._arrived.get(chunk) == node:
            del self._arrived[chunk]
            self._ledger.hold(node, chunk, None)

    def _forget(self, chunk: ChunkId, node: NodeId) -> None:
        ordered = self._rounds[node]
        del ordered[chunk]
        if not ordered:
            del self._rounds[node]
