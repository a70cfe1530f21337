"""The ledger: which node owns which chunk, which node holds which copy of it, and how often it was processed.

A chunk has at most one OWNED copy (`node_chunks` has the phases of a copy), at its owner; a chunk without is *missing*.
Counting is lazy: a chunk that is owned takes part in every merged iteration, so a merge touches no chunk. Chunks with
the same past share one entry, which is replaced and never changed: of a million chunks there are as many entries as
nodes have come and gone.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.codec import COMPACT
from chicle_elastic.scheduling.node_chunks import NodeChunks, Phase
from chicle_elastic.scheduling.together import ascending, by_key, change_shared, remove
from chicle_elastic.values import ChunkAccount, ChunkInfo, StateVersion

NEVER = StateVersion()  # version of a chunk that was never owned


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """Hold what became of chunks that have always been together."""

    owner: NodeId | None = None
    version: StateVersion = NEVER
    owned_since: int = 0
    versioned_at: int = 0
    # iterations by node; those of the present owner since `owned_since` are not in them
    shares: tuple[tuple[NodeId, int], ...] = ()
    replays: int = 0


class Movable(Mapping[NodeId, list[ChunkInfo]]):
    """Chunks that some nodes own and that may be moved, by owner; those of a node are looked up when asked for."""

    def __init__(self, ledger: "Ledger", nodes: Iterable[NodeId], going: Collection[ChunkId]) -> None:
        self._ledger, self._going = ledger, going
        self.info: Callable[[ChunkId], ChunkInfo] = ledger.info
        self._nodes = dict.fromkeys(nodes)

    def __getitem__(self, node: NodeId) -> list[ChunkInfo]:
        if node not in self._nodes:
            raise KeyError(node)
        return self._ledger.infos(self.chunks_of(node))

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def chunks_of(self, node: NodeId) -> Sequence[ChunkId]:
        """Chunks of a node, ascending: to look at each of a million takes many times as long as to know its number."""
        owned = self._ledger.owned_by(node)
        return [chunk for chunk in owned if chunk not in self._going] if self._going else owned

    def owner_of(self, chunk: ChunkId) -> NodeId | None:
        """Whose the chunk is; None if it may not be moved."""
        owner = self._ledger.owner(chunk)
        return None if owner not in self._nodes or chunk in self._going else owner

    def least_of(self, node: NodeId) -> tuple[int, int]:
        """(rows, bytes): no chunk of the node has fewer."""
        held = self._ledger.node_chunks[node]
        return held.least_rows, held.least_bytes


@dataclass(eq=False, repr=False)
class Ledger:
    """Which node owns which chunk, and what every node holds. Methods change it in one consistent step each.

    One class because its methods keep one invariant, which `tests/harness/ledger_check.py` states.
    """

    node_chunks: dict[NodeId, NodeChunks] = field(default_factory=dict)
    merged: int = 0  # number of the last merged iteration
    began: int = 0  # number of the iteration that the job goes on from; 0 for a job of its own
    # since the last merge a node became owner of a copy with state of its own, which the model may not contain: the
    # others may have rebuilt theirs without it. False again when an iteration is merged.
    must_rebuild: bool = False
    # round of the order to free, by (node, chunk), for every FREEING copy
    freeing: dict[tuple[NodeId, ChunkId], int] = field(default_factory=dict)
    merged_round: int = 0  # round in which it was merged; 0 for none
    _infos: Annotated[dict[ChunkId, ChunkInfo], COMPACT] = field(default_factory=dict)
    _entries: dict[ChunkId, ChunkEntry] = field(default_factory=dict)
    _missing: dict[ChunkId, None] = field(default_factory=dict)
    _lost_in_flight: dict[ChunkId, NodeId] = field(default_factory=dict)

    # Questions.

    @property
    def num_chunks(self) -> int:
        """Chunks of the data set."""
        return len(self._entries)

    @property
    def num_missing(self) -> int:
        """Chunks that no node owns."""
        return len(self._missing)

    @property
    def missing(self) -> tuple[ChunkId, ...]:
        """Chunks that no node owns, ascending."""
        return tuple(sorted(self._missing))

    @property
    def replayed(self) -> Mapping[ChunkId, int]:
        """How often the state of a chunk was started afresh after it had been processed; others are left out. Samples
        of these chunks may have been processed more often than others within an epoch."""
        return {chunk: entry.replays for chunk, entry in self._entries.items() if entry.replays}

    def info(self, chunk: ChunkId) -> ChunkInfo:
        """Rows and bytes of a chunk."""
        return self._infos[chunk]

    def infos(self, chunks: Iterable[ChunkId]) -> list[ChunkInfo]:
        """Rows and bytes of several chunks."""
        return list(map(self._infos.__getitem__, chunks))

    def knows(self, chunk: ChunkId) -> bool:
        """Whether the chunk was declared."""
        return chunk in self._entries

    def unknown(self, chunks: Iterable[ChunkId]) -> ChunkId | None:
        """The first of the chunks that was not declared; None if all were."""
        return next((chunk for chunk in chunks if chunk not in self._entries), None)

    def owner(self, chunk: ChunkId) -> NodeId | None:
        """Who owns the chunk; None while it is missing."""
        return self._entries[chunk].owner

    def phase(self, node: NodeId, chunk: ChunkId) -> Phase | None:
        """What the copy on `node` is; None where there is no copy or no such node."""
        held = self.node_chunks.get(node)
        return None if held is None else held.copies.get(chunk)

    def owned_by(self, node: NodeId) -> tuple[ChunkId, ...]:
        """Chunks that the node owns, ascending."""
        return tuple(ascending(self.node_chunks[node].owned))

    def accounts(self) -> tuple[ChunkAccount, ...]:
        """What became of every chunk up to now, ascending."""
        return tuple(
            ChunkAccount(
                chunk=chunk,
                rows=self._infos[chunk].num_rows,
                owner=entry.owner,
                iterations=dict(self._shares(entry)),
                replays=entry.replays,
            )
            for chunk, entry in sorted(self._entries.items())
        )

    def version(self, chunk: ChunkId) -> StateVersion:
        """Version of the owner's copy; of a missing chunk, of the copy that was lost."""
        return self._version(self._entries[chunk])

    # Nodes and chunks.

    def declare(self, chunks: Iterable[ChunkInfo], *, merged: int = 0) -> None:
        """Open an entry for every chunk of the data set; all are missing, and their state is of iteration `merged`."""
        self.merged = self.began = merged
        self._infos = {info.id: info for info in chunks}
        self._entries = dict.fromkeys(self._infos, ChunkEntry())
        self._missing = dict.fromkeys(self._infos)

    def add_node(self, node: NodeId, capacity_bytes: int | None) -> None:
        """A node has joined, and holds nothing."""
        self.node_chunks[node] = NodeChunks(capacity_bytes)

    def close_node(self, node: NodeId) -> None:
        """The node leaves: nothing comes here any more, and memory need not be given back."""
        self.node_chunks[node].is_closing = True

    def remove_node(self, node: NodeId) -> None:
        """The node is gone with all that it holds. Chunks that it owns must have been lost before."""
        self.hold_all(node, self.node_chunks[node].copies, None)
        del self.node_chunks[node]

    # Copies.

    def hold(self, node: NodeId, chunk: ChunkId, phase: Phase | None) -> None:
        """Write down a copy as `hold_all` does."""
        self.hold_all(node, [chunk], phase)

    def hold_all(self, node: NodeId, chunks: Collection[ChunkId], phase: Phase | None) -> None:
        """Write down copies of different chunks, new or in a new phase, or that there are none any more. Becoming OWNED
        has its own methods."""
        if not chunks:
            return
        held, chunks = self.node_chunks[node], ascending(chunks)
        olds = list(map(held.copies.get, chunks))
        if olds.count(olds[0]) < len(olds):
            for alike in by_key(zip(olds, chunks, strict=True)).values():
                self.hold_all(node, alike, phase)
            return
        held.put(chunks, olds[0], phase, self.infos)
        if olds[0] is Phase.FREEING and phase is not Phase.FREEING:
            for chunk in chunks:
                del self.freeing[node, chunk]

    def void(self, node: NodeId, chunks: Sequence[ChunkId], *, round: int) -> bool:
        """Copies are worth nothing any more. Returns whether they are to be freed, in `round`; not where the node
        leaves anyway."""
        if self.node_chunks[node].is_closing:
            self.hold_all(node, chunks, None)
            return False
        self.hold_all(node, chunks, Phase.FREEING)
        self.freeing.update(((node, chunk), round) for chunk in chunks)
        return True

    def adopt(self, chunk: ChunkId, node: NodeId, *, version: StateVersion) -> None:
        """Make `node`, which holds a whole copy, the owner of a missing chunk."""
        self._give([chunk], node, version, is_fresh=False)
        self.must_rebuild = True

    def adopt_fresh(self, chunks: Sequence[ChunkId], node: NodeId, *, round: int) -> None:
        """Make `node` the owner of missing chunks that it has loaded from their source, with fresh state. A chunk that
        was processed before is replayed. Fresh state is newer than whatever was lost."""
        self._give(chunks, node, StateVersion(round, self.merged), is_fresh=True)

    def commit(self, chunks: Sequence[ChunkId], target: NodeId, *, round: int, iteration: int | None = None) -> bool:
        """Move the ownership of chunks of one node to the whole copies on `target`; the copies of the old owner are
        void from now on. Returns whether those are to be freed.

        Args:
            iteration: Last merged iteration in the state of these copies; None when they are copies of the owner's.
        """
        merged, source = self.merged, self._entries[chunks[0]].owner
        assert source is not None
        self.must_rebuild = self.must_rebuild or iteration is not None

        def handed_over(entry: ChunkEntry) -> ChunkEntry:
            assert entry.owner == source, f"a chunk is of {entry.owner} and not of {source}"
            version = StateVersion(round, self._version(entry).iteration if iteration is None else iteration)
            return ChunkEntry(target, version, merged, merged, self._shares(entry), entry.replays)

        chunks = ascending(chunks)
        change_shared(self._entries, chunks, handed_over)
        self.node_chunks[source].note_removed(chunks)
        is_to_be_freed = self.void(source, chunks, round=round)
        self.hold_all(target, chunks, Phase.OWNED)
        self.node_chunks[target].added.update(dict.fromkeys(chunks))
        return is_to_be_freed

    def lose(self, node: NodeId, chunks: Sequence[ChunkId], *, in_flight: bool) -> None:
        """Copies of chunks that the node owns do not exist any more: the chunks are missing.

        Args:
            in_flight: An iteration is running that may still be merged with the updates of these chunks.
        """

        def lost(entry: ChunkEntry) -> ChunkEntry:
            assert entry.owner == node, f"a chunk is of {entry.owner} and not of {node}"
            return replace(entry, owner=None, version=self._version(entry), shares=self._shares(entry))

        change_shared(self._entries, chunks, lost)
        self.node_chunks[node].note_removed(chunks)
        self._missing.update(dict.fromkeys(chunks))
        self.hold_all(node, chunks, None)
        if in_flight:
            self._lost_in_flight.update(dict.fromkeys(chunks, node))

    def correct_versions(self, node: NodeId, versions: Mapping[ChunkId, StateVersion]) -> None:
        """A node says which versions its copies really have; those that it owns count, and none of round 0."""
        owned = self.node_chunks[node].owned
        alike = by_key((id(versions[chunk]), chunk) for chunk in owned if chunk in versions)
        for chunks in alike.values():  # most chunks of a report share a version
            version = versions[chunks[0]]
            if version.round > 0:
                corrected = functools.partial(replace, version=version, versioned_at=self.merged)
                change_shared(self._entries, chunks, corrected)

    def take_changes(self, node: NodeId) -> tuple[tuple[ChunkId, ...], tuple[ChunkId, ...]]:
        """What the node's task has to be told: (added, removed), each ascending. The next call starts from here."""
        held = self.node_chunks[node]
        changes = tuple(sorted(held.added)), tuple(sorted(held.removed))
        held.added, held.removed = {}, {}
        return changes

    # Iterations.

    def count_merge(self, round: int, iteration: int) -> None:
        """An iteration is merged: every chunk that took part has been processed once more."""
        counted = functools.partial(_counted, version=StateVersion(round, iteration))
        for owner, chunks in by_key((owner, chunk) for chunk, owner in self._lost_in_flight.items()).items():
            change_shared(self._entries, chunks, functools.partial(counted, node=owner))
        self._lost_in_flight.clear()
        self.must_rebuild = False
        self.merged = iteration
        self.merged_round = round

    def count_abort(self) -> None:
        """An iteration ended without a merge: nothing counts."""
        self._lost_in_flight.clear()

    def _version(self, entry: ChunkEntry) -> StateVersion:
        is_as_written = entry.owner is None or self.merged == entry.versioned_at
        return entry.version if is_as_written else _shared_version(self.merged_round, self.merged)

    def _shares(self, entry: ChunkEntry) -> tuple[tuple[NodeId, int], ...]:
        if entry.owner is None or self.merged == entry.owned_since:
            return entry.shares
        return _with_share(entry.shares, entry.owner, self.merged - entry.owned_since)

    def _give(self, chunks: Sequence[ChunkId], node: NodeId, version: StateVersion, *, is_fresh: bool) -> None:
        def given(entry: ChunkEntry) -> ChunkEntry:
            assert entry.owner is None, f"a chunk is of {entry.owner} already"
            replays = entry.replays + (is_fresh and bool(entry.shares))
            return ChunkEntry(node, version, self.merged, self.merged, entry.shares, replays)

        change_shared(self._entries, chunks, given)
        remove(self._missing, chunks)
        self.hold_all(node, chunks, Phase.OWNED)
        self.node_chunks[node].added.update(dict.fromkeys(chunks))


def _counted(entry: ChunkEntry, *, node: NodeId, version: StateVersion) -> ChunkEntry:
    return replace(entry, shares=_with_share(entry.shares, node, 1), version=version)


@functools.lru_cache
def _shared_version(round: int, iteration: int) -> StateVersion:
    """Hundreds of chunks have the same version, and most of the time that it takes to ask for it is to make it."""
    return StateVersion(round, iteration)


def _with_share(shares: tuple[tuple[NodeId, int], ...], node: NodeId, count: int) -> tuple[tuple[NodeId, int], ...]:
    counts = dict(shares)
    counts[node] = counts.get(node, 0) + count
    return tuple(counts.items())
