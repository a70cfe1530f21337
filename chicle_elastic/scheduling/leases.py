"""Copies on their way from node to node: leased at the source, reserved at the target, until commit or abandon.

    order   -> COPYING   CopyChunk is asked for; the target's bytes are reserved; the source owns the chunk
    copied  -> COPIED    the target holds a verified copy; the source still owns the chunk
    settle  -> commit    only at a boundary: the target owns the chunk, and the source frees its copy
    failed  -> FAILED    settle asks again: the same target up to a limit, then another one, then it gives up

The source may be lost on the way: then the lease is in doubt. The target will say whether its copy is whole; if so,
it is the newest copy there is and settle makes the target the owner. The target may go away or be noticed: then the
lease is abandoned, and what arrives is freed. At most one lease per chunk, so a source is never read for two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.effects import CommitChunk, CopyChunk, Effect, FreeChunk, Log
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.values import StateVersion


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

    def order(self, chunk: ChunkId, source: NodeId, target: NodeId, *, round: int) -> None:
        """Ask for a copy; the target must have room and no copy of the chunk."""
        self.in_flight[chunk] = Lease(chunk=chunk, source=source, target=target, round=round)
        self._ledger.hold(target, chunk, Phase.COPYING)
        self._emit(CopyChunk(chunk=chunk, source=source, target=target, round=round))

    def match(self, chunk: ChunkId, source: NodeId, target: NodeId, round: int) -> Lease | None:
        """The lease that an answer belongs to; None for a late answer, or one to an order of an earlier life."""
        lease = self.in_flight.get(chunk)
        if lease is None or lease.state is not LeaseState.COPYING:
            return None
        same = (lease.source, lease.target, lease.round) == (source, target, round)
        return lease if same else None

    def copied(self, lease: Lease) -> None:
        """The target holds a verified copy."""
        lease.state = LeaseState.COPIED
        self._ledger.hold(lease.target, lease.chunk, Phase.COPIED)
        self._answered[lease.chunk] = None

    def failed(self, lease: Lease, reason: str) -> None:
        """The copy did not arrive whole; the target keeps nothing of it."""
        lease.state = LeaseState.FAILED
        lease.reason = reason
        self._answered[lease.chunk] = None

    def settle(self, *, round: int, find_target: Callable[[Lease], NodeId | None]) -> None:
        """At a boundary: commit what is copied, ask again for what failed."""
        for chunk in self._answered:
            lease = self.in_flight.pop(chunk)
            if lease.state is LeaseState.FAILED:
                self._settle_failed(lease, round, find_target)
            elif lease.is_abandoned:
                free(self._ledger, self._emit, lease.target, chunk, round=round)
            elif lease.source_lost:
                self._emit(CommitChunk(chunk=chunk, source=lease.source, target=lease.target, round=round))
                version = StateVersion(round, self._ledger.version(chunk).iteration)
                self._ledger.adopt(chunk, lease.target, version=version)
            else:
                self._commit(lease, round)
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

    def _commit(self, lease: Lease, round: int) -> None:
        self._emit(CommitChunk(chunk=lease.chunk, source=lease.source, target=lease.target, round=round))
        if self._ledger.commit(lease.chunk, lease.target, round=round):
            self._emit(FreeChunk(chunk=lease.chunk, node=lease.source, round=round))

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
    if ledger.void(node, chunk, round=round):
        emit(FreeChunk(chunk=chunk, node=node, round=round))
