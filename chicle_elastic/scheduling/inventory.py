"""What nodes say they hold, against the ledger. The report wins.

* A chunk that the ledger gives to a node and the node does not report, is missing.
* A copy that the ledger does not know is a *stray*: it takes memory, and the next boundary decides. Copies are in order
  of (round, iteration) of their state. The newest copy's node owns the chunk; all others are freed. So a zombie (a node
  that was lost and joined again) loses against everything that happened without it, and wins if nothing did.
* A report may leave out the chunks that the ledger gives to the node, all of them (`is_as_known`).
* A version of round 0 is that of a load never told to a task: it says nothing about age, and the ledger's is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.effects import CommitChunks, Effect, FreeChunks, Log
from chicle_elastic.scheduling.events import InventoryReported
from chicle_elastic.scheduling.leases import Leases, free
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.loads import Loads
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.scheduling.text import count_text
from chicle_elastic.values import StateVersion


@dataclass(eq=False, repr=False)
class Inventory:
    """Compares reports with the ledger, and settles what strays are."""

    _ledger: Ledger
    _leases: Leases
    _loads: Loads
    _emit: Callable[[Effect], None]
    _strays: dict[ChunkId, dict[NodeId, StateVersion]] = field(default_factory=dict)

    def report(self, event: InventoryReported, *, is_running: bool) -> None:
        """Correct the ledger by what a present node says.

        Args:
            is_running: An iteration is in flight: its merge raises the versions of owned chunks.
        """
        node = event.node
        held = self._ledger.node_chunks[node]
        copies = held.copies
        # Nothing to be learned: what has to be there is there, and no more.
        if event.is_as_known and not event.chunks and len(copies) == len(held.owned):
            return
        is_same = not self._strays and not event.is_as_known and copies.keys() == event.chunks.keys()
        if not is_same:
            self._take_away_unreported(event, is_running=is_running)
        if not is_running and not event.is_as_known:
            self._ledger.correct_versions(node, event.chunks)
        if is_same:
            return
        unknown = 0
        for chunk in sorted(chunk for chunk in event.chunks if copies.get(chunk, Phase.STRAY) is Phase.STRAY):
            if self._ledger.knows(chunk):
                self._ledger.hold(node, chunk, Phase.STRAY)
                self._strays.setdefault(chunk, {})[node] = event.chunks[chunk]
            else:
                unknown += 1
        if unknown:
            self._emit(Log(text=f"{node} reports {count_text(unknown, 'chunk')} that this job does not have; ignored"))

    @property
    def has_strays(self) -> bool:
        """Whether copies were reported that nothing was decided about."""
        return bool(self._strays)

    def may_be_saved(self, chunk: ChunkId) -> bool:
        """Whether a stray can make the loss of a missing chunk undone."""
        return any(version >= self._ledger.version(chunk) for version in self._strays.get(chunk, {}).values())

    def settle(self, *, round: int) -> None:
        """At a boundary where nothing is in flight: the newest copy wins, the others are freed."""
        for chunk in sorted(self._strays):
            versions = self._strays[chunk]
            winner = max(versions, key=lambda node: versions[node])
            if not self._is_better(chunk, versions[winner]):
                losers = list(versions)
            else:
                losers = [node for node in versions if node != winner]
                self._enthrone(chunk, winner, versions[winner], round)
            for node in losers:
                free(self._ledger, self._emit, node, [chunk], round=round)
        self._strays.clear()

    def lose(self, node: NodeId) -> None:
        """The node is gone, and its strays with it."""
        for versions in self._strays.values():
            versions.pop(node, None)
        self._strays = {chunk: versions for chunk, versions in self._strays.items() if versions}

    def _is_better(self, chunk: ChunkId, version: StateVersion) -> bool:
        known = self._ledger.version(chunk)
        return version >= known if self._ledger.owner(chunk) is None else version > known

    def _enthrone(self, chunk: ChunkId, node: NodeId, version: StateVersion, round: int) -> None:
        owner = self._ledger.owner(chunk)
        if owner is None:
            self._loads.unwant(chunk, round=round)
            self._ledger.adopt(chunk, node, version=version)
            self._emit(Log(text=f"{node} still holds chunk {chunk} of iteration {version.iteration}: it is not lost"))
            return
        self._emit(Log(text=f"{node} holds a newer state of chunk {chunk} than {owner} and owns it now"))
        self._emit(CommitChunks(chunks=(chunk,), source=owner, target=node, round=round))
        if self._ledger.commit([chunk], node, round=round, iteration=version.iteration):
            self._emit(FreeChunks(chunks=(chunk,), node=owner, round=round))

    def _take_away_unreported(self, event: InventoryReported, *, is_running: bool) -> None:
        node = event.node
        lost = 0
        for chunk, phase in list(self._ledger.node_chunks[node].copies.items()):
            if chunk in event.chunks or (phase is Phase.OWNED and event.is_as_known):
                continue
            if phase is Phase.OWNED:
                self._leases.lose_source(chunk)
                self._ledger.lose(node, [chunk], in_flight=is_running)
                lost += 1
            elif phase is Phase.LOADED:
                self._loads.lose_copy(node, chunk)
            elif phase is Phase.COPIED:
                self._leases.lose_copy(node, chunk)
            elif phase is Phase.STRAY:
                self._ledger.hold(node, chunk, None)
                self._drop_stray(node, chunk)
        if lost:
            self._emit(Log(text=f"{node} does not hold {count_text(lost, 'chunk')} that it owned: missing now"))

    def _drop_stray(self, node: NodeId, chunk: ChunkId) -> None:
        versions = self._strays[chunk]
        del versions[node]
        if not versions:
            del self._strays[chunk]
