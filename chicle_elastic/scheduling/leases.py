"""Copies on their way from node to node: leased at the source, reserved at the target, until commit or abandon.

    order   -> COPYING   CopyChunk is asked for; the target's bytes are reserved; the source owns the chunk
    copied  -> COPIED    the target holds a verified copy; the source still owns the chunk
    settle  -> commit    only at a boundary: the target owns the chunk, and the source frees its copy
    failed  -> FAILED    settle asks again: the same target up to a limit, then another one, then it gives up

The source may be lost on the way: then the lease is in doubt. The target will say whether its copy is whole; if so,
it is the newest copy there is and settle makes the target the owner. The target may go away or be noticed: then the
lease is abandoned, and what arrives is freed. At most one lease per chunk, so a source is never read for two.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.effects import CommitChunk, CopyChunk, Effect, FreeChunk, Log
from chicle_elastic.scheduling.events import ChunksCopied
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.values import ChunkInfo, StateVersion


class LeaseState(Enum):
    """How far a copy has come."""

    COPYING = "copying"
    COPIED = "copied"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Lease:
    """One copy on its way."""

    chunk: ChunkId
    source: NodeId
    target: NodeId  # who is to own it
    round: int  # round of the last order; its answer repeats it
    state: LeaseState = LeaseState.COPYING
    source_lost: bool = False  # the source was lost; the copy may be the last one
    is_abandoned: bool = False  # the copy is not wanted any more
    attempts: int = 1
    tried: list[NodeId] = field(default_factory=list)
    reason: str = ""


@dataclass(eq=False, repr=False)
class Leases:
    """All copies on their way."""

    _ledger: Ledger
    _emit: Callable[[Effect], None]
    _max_attempts: int
    in_flight: dict[ChunkId, Lease] = field(default_factory=dict)
    stuck: dict[ChunkId, str] = field(default_factory=dict)
    _answered: dict[ChunkId, None] = field(default_factory=dict)

    def order(self, orders: Iterable[tuple[ChunkId, NodeId]], *, round: int) -> None:
        """Ask for copies, by (chunk, target) of each; the target must have room and no copy of the chunk."""
        infos: dict[NodeId, list[ChunkInfo]] = {}
        for chunk, target in orders:
            source = self._ledger.owner(chunk)
            assert source is not None
            self.in_flight[chunk] = Lease(chunk=chunk, source=source, target=target, round=round)
            infos.setdefault(target, []).append(self._ledger.info(chunk))
            self._emit(CopyChunk(chunk=chunk, source=source, target=target, round=round))
        for target, copied in infos.items():
            self._ledger.hold_all(target, copied, Phase.COPYING)

    def match(self, chunk: ChunkId, source: NodeId, target: NodeId, round: int) -> Lease | None:
        """The lease that an answer belongs to; None for a late answer, or one to an order of an earlier life."""
        lease = self.in_flight.get(chunk)
        if lease is None or lease.state is not LeaseState.COPYING:
            return None
        same = (lease.source, lease.target, lease.round) == (source, target, round)
        return lease if same else None

    def copied(self, event: ChunksCopied) -> list[ChunkId]:
        """The target holds verified copies. Returns those that answer no order."""
        answers, strays = list[ChunkId](), list[ChunkId]()
        for chunk in event.chunks:
            lease = self.match(chunk, event.source, event.target, event.round)
            if lease is not None:
                lease.state = LeaseState.COPIED
                answers.append(chunk)
            else:
                strays.append(chunk)
        self._answered.update(dict.fromkeys(answers))
        self._ledger.hold_all(event.target, self._ledger.infos(answers), Phase.COPIED)
        return strays

    def failed(self, lease: Lease, reason: str) -> None:
        """The copy did not arrive whole; the target keeps nothing of it."""
        lease.state = LeaseState.FAILED
        lease.reason = reason
        self._answered[lease.chunk] = None

    def settle(self, *, round: int, find_target: Callable[[Lease], NodeId | None]) -> None:
        """At a boundary: commit what is copied, ask again for what failed."""
        answered = [self.in_flight[chunk] for chunk in self._answered]
        for pair, together in itertools.groupby(answered, _pair_of):
            if pair is not None:
                self._commit(*pair, [self.in_flight.pop(lease.chunk).chunk for lease in together], round)
                continue
            for lease in together:
                del self.in_flight[lease.chunk]
                self._settle(lease, round, find_target)
        self._answered.clear()

    def abandon_to(self, node: NodeId) -> None:
        """The node leaves: copies to it are not wanted, except the last of their chunks."""
        for lease in self.in_flight.values():
            if lease.target == node and not lease.source_lost:
                lease.is_abandoned = True

    def lose(self, node: NodeId) -> None:
        """The node is gone: copies to it end, copies from it are in doubt."""
        for lease in list(self.in_flight.values()):
            if lease.target == node:
                self._forget(lease)
            elif lease.source == node:
                if lease.state is LeaseState.FAILED:
                    self._forget(lease)
                    self._ledger.drop(lease.target, lease.chunk)
                lease.source_lost = True
                lease.is_abandoned = False

    def lose_copy(self, node: NodeId, chunk: ChunkId) -> None:
        """The node says that it does not hold a copy which it had confirmed."""
        lease = self.in_flight.get(chunk)
        if lease is not None and lease.target == node and lease.state is LeaseState.COPIED:
            self._forget(lease)
            self._ledger.drop(node, chunk)

    def lose_source(self, chunk: ChunkId) -> None:
        """The owner says that it does not hold the chunk: a copy on its way is in doubt."""
        lease = self.in_flight.get(chunk)
        if lease is not None:
            lease.source_lost = True
            lease.is_abandoned = False

    def _commit(self, source: NodeId, target: NodeId, chunks: list[ChunkId], round: int) -> None:
        is_to_be_freed = self._ledger.commit(chunks, target, round=round)
        for chunk in chunks:
            self._emit(CommitChunk(chunk=chunk, source=source, target=target, round=round))
            if is_to_be_freed:
                self._emit(FreeChunk(chunk=chunk, node=source, round=round))

    def _settle(self, lease: Lease, round: int, find_target: Callable[[Lease], NodeId | None]) -> None:
        if lease.state is LeaseState.FAILED:
            self._settle_failed(lease, round, find_target)
        elif lease.is_abandoned:
            free(self._ledger, self._emit, lease.target, lease.chunk, round=round)
        else:
            self._emit(CommitChunk(chunk=lease.chunk, source=lease.source, target=lease.target, round=round))
            version = StateVersion(round, self._ledger.version(lease.chunk).iteration)
            self._ledger.adopt(lease.chunk, lease.target, version=version)

    def _settle_failed(self, lease: Lease, round: int, find_target: Callable[[Lease], NodeId | None]) -> None:
        chunk, source, target = lease.chunk, lease.source, lease.target
        what = f"copy of chunk {chunk} from {source} to {target} failed ({lease.reason})"
        if lease.is_abandoned or lease.source_lost:
            self._ledger.drop(target, chunk)
            self._emit(Log(text=f"{what}; it is not tried again"))
            return
        if lease.attempts < self._max_attempts:
            lease.attempts += 1
            self._emit(Log(text=f"{what}; attempt {lease.attempts} of {self._max_attempts}"))
        else:
            self._ledger.drop(target, chunk)
            lease.tried.append(target)
            other = find_target(lease)
            if other is None:
                tried = ", ".join(lease.tried)
                self.stuck[chunk] = f"chunk {chunk} could not be copied from {source} to {tried}: {lease.reason}"
                self._emit(Log(text=f"{what} {lease.attempts} times and no other node can take it; {source} keeps it"))
                return
            self._emit(Log(text=f"{what} {lease.attempts} times; {other} gets it instead"))
            lease.target, lease.attempts = other, 1
            self._ledger.hold(other, chunk, Phase.COPYING)
        lease.state, lease.round = LeaseState.COPYING, round
        self.in_flight[chunk] = lease
        self._emit(CopyChunk(chunk=chunk, source=source, target=lease.target, round=round))

    def _forget(self, lease: Lease) -> None:
        del self.in_flight[lease.chunk]
        self._answered.pop(lease.chunk, None)


def free(ledger: Ledger, emit: Callable[[Effect], None], node: NodeId, chunk: ChunkId, *, round: int) -> None:
    """Order a copy to be freed that the node holds and does not own."""
    if ledger.void(node, [chunk], round=round):
        emit(FreeChunk(chunk=chunk, node=node, round=round))


def _pair_of(lease: Lease) -> tuple[NodeId, NodeId] | None:
    """Return (source, target) of a copy that the owner gives away; None where something came in between."""
    is_plain = lease.state is LeaseState.COPIED and not lease.is_abandoned and not lease.source_lost
    return (lease.source, lease.target) if is_plain else None
