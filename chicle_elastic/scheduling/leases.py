"""Copies on their way from node to node: leased at the source, reserved at the target, until commit or abandon.

    order   -> COPYING   CopyChunks is asked for; the target's bytes are reserved; the source owns the chunk
    copied  -> COPIED    the target holds a verified copy; the source still owns the chunk
    settle  -> commit    only at a boundary: the target owns the chunk, and the source frees its copy
    failed  -> FAILED    settle asks again: the same target up to a limit, then another one, then it gives up

The source may be lost on the way: then the lease is in doubt. The target will say whether its copy is whole; if so,
it is the newest copy there is and settle makes the target the owner. The target may go away or be noticed: then the
lease is abandoned, and what arrives is freed. At most one lease per chunk, so a source is never read for two.
"""

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.effects import CommitChunks, CopyChunks, Effect, FreeChunks, Log
from chicle_elastic.scheduling.events import ChunksCopied, CopyFailed
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.scheduling.together import by_key, change_shared, remove
from chicle_elastic.values import StateVersion


class LeaseState(Enum):
    """How far a copy has come."""

    COPYING = "copying"
    COPIED = "copied"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How far a copy has come; copies that were ordered together share one as long as they go on together."""

    source: NodeId
    target: NodeId  # who is to own it
    round: int  # round of the last order; its answer repeats it
    state: LeaseState = LeaseState.COPYING
    source_lost: bool = False  # the source was lost; the copy may be the last one
    is_abandoned: bool = False  # the copy is not wanted any more
    attempts: int = 1
    tried: tuple[NodeId, ...] = ()
    reason: str = ""


FindTarget: TypeAlias = Callable[[ChunkId, Lease], NodeId | None]


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
        owner = self._ledger.owner
        for (source, target), copied in by_key(((owner(chunk), target), chunk) for chunk, target in orders).items():
            assert source is not None
            self.in_flight.update(dict.fromkeys(copied, Lease(source=source, target=target, round=round)))
            self._ledger.hold_all(target, copied, Phase.COPYING)
            self._emit(CopyChunks(chunks=tuple(copied), source=source, target=target, round=round))

    def is_answer(self, event: ChunksCopied | CopyFailed, lease: Lease | None) -> bool:
        """Say whether an event answers an order; a late one does not, nor does one to an order of an earlier life."""
        if lease is None or lease.state is not LeaseState.COPYING:
            return False
        return (lease.source, lease.target, lease.round) == (event.source, event.target, event.round)

    def copied(self, event: ChunksCopied) -> list[ChunkId]:
        """The target holds verified copies. Returns those that answer no order."""
        answers, strays = dict[ChunkId, None](), list[ChunkId]()
        good: Lease | None = None  # of the chunk before
        for chunk in event.chunks:
            lease = self.in_flight.get(chunk)
            if chunk not in answers and ((lease is good and good is not None) or self.is_answer(event, lease)):
                answers[chunk], good = None, lease
            else:
                strays.append(chunk)
        self._change(answers, state=LeaseState.COPIED)
        self._answered.update(answers)
        self._ledger.hold_all(event.target, answers, Phase.COPIED)
        return strays

    def failed(self, chunk: ChunkId, reason: str) -> None:
        """The copy did not arrive whole; the target keeps nothing of it."""
        self._change([chunk], state=LeaseState.FAILED, reason=reason)
        self._answered[chunk] = None

    def settle(self, *, round: int, find_target: FindTarget) -> None:
        """At a boundary: commit what is copied, ask again for what failed."""
        answered = [(chunk, self.in_flight[chunk]) for chunk in self._answered]
        for lease, group in itertools.groupby(answered, operator.itemgetter(1)):
            if lease.state is LeaseState.COPIED and not lease.is_abandoned and not lease.source_lost:
                chunks = [chunk for chunk, _ in group]  # nothing came in between
                remove(self.in_flight, chunks)
                self._commit(lease.source, lease.target, chunks, round)
                continue
            for chunk, _ in group:
                del self.in_flight[chunk]
                self._settle(chunk, lease, round, find_target)
        self._answered.clear()

    def abandon_to(self, node: NodeId) -> None:
        """The node leaves: copies to it are not wanted, except the last of their chunks."""
        unwanted = [chunk for chunk, lease in self.in_flight.items() if lease.target == node and not lease.source_lost]
        self._change(unwanted, is_abandoned=True)

    def lose(self, node: NodeId) -> None:
        """The node is gone: copies to it end, copies from it are in doubt."""
        in_doubt = []
        for chunk, lease in list(self.in_flight.items()):
            if lease.target == node:
                self._forget(chunk)
            elif lease.source == node and lease.state is LeaseState.FAILED:
                self._forget(chunk)
                self._ledger.hold(lease.target, chunk, None)
            elif lease.source == node:
                in_doubt.append(chunk)
        self._change(in_doubt, source_lost=True, is_abandoned=False)

    def lose_copy(self, node: NodeId, chunk: ChunkId) -> None:
        """The node says that it does not hold a copy which it had confirmed."""
        lease = self.in_flight.get(chunk)
        if lease is not None and lease.target == node and lease.state is LeaseState.COPIED:
            self._forget(chunk)
            self._ledger.hold(node, chunk, None)

    def lose_source(self, chunk: ChunkId) -> None:
        """The owner says that it does not hold the chunk: a copy on its way is in doubt."""
        if chunk in self.in_flight:
            self._change([chunk], source_lost=True, is_abandoned=False)

    def _commit(self, source: NodeId, target: NodeId, chunks: list[ChunkId], round: int) -> None:
        is_to_be_freed = self._ledger.commit(chunks, target, round=round)
        self._emit(CommitChunks(chunks=tuple(chunks), source=source, target=target, round=round))
        if is_to_be_freed:
            self._emit(FreeChunks(chunks=tuple(chunks), node=source, round=round))

    def _settle(self, chunk: ChunkId, lease: Lease, round: int, find_target: FindTarget) -> None:
        if lease.state is LeaseState.FAILED:
            self._settle_failed(chunk, lease, round, find_target)
        elif lease.is_abandoned:
            free(self._ledger, self._emit, lease.target, [chunk], round=round)
        else:
            self._emit(CommitChunks(chunks=(chunk,), source=lease.source, target=lease.target, round=round))
            version = StateVersion(round, self._ledger.version(chunk).iteration)
            self._ledger.adopt(chunk, lease.target, version=version)

    def _settle_failed(self, chunk: ChunkId, lease: Lease, round: int, find_target: FindTarget) -> None:
        source, target = lease.source, lease.target
        what = f"copy of chunk {chunk} from {source} to {target} failed ({lease.reason})"
        if lease.is_abandoned or lease.source_lost:
            self._ledger.hold(target, chunk, None)
            self._emit(Log(text=f"{what}; it is not tried again"))
            return
        if lease.attempts < self._max_attempts:
            lease = replace(lease, attempts=lease.attempts + 1)
            self._emit(Log(text=f"{what}; attempt {lease.attempts} of {self._max_attempts}"))
        else:
            self._ledger.hold(target, chunk, None)
            lease = replace(lease, tried=(*lease.tried, target))
            other = find_target(chunk, lease)
            if other is None:
                tried = ", ".join(lease.tried)
                self.stuck[chunk] = f"chunk {chunk} could not be copied from {source} to {tried}: {lease.reason}"
                self._emit(Log(text=f"{what} {lease.attempts} times and no other node can take it; {source} keeps it"))
                return
            self._emit(Log(text=f"{what} {lease.attempts} times; {other} gets it instead"))
            lease = replace(lease, target=other, attempts=1)
            self._ledger.hold(other, chunk, Phase.COPYING)
        self.in_flight[chunk] = replace(lease, state=LeaseState.COPYING, round=round)
        self._emit(CopyChunks(chunks=(chunk,), source=source, target=lease.target, round=round))

    def _forget(self, chunk: ChunkId) -> None:
        del self.in_flight[chunk]
        self._answered.pop(chunk, None)

    def _change(self, chunks: Iterable[ChunkId], **changes: Any) -> None:
        change_shared(self.in_flight, chunks, lambda lease: replace(lease, **changes))


def free(
    ledger: Ledger, emit: Callable[[Effect], None], node: NodeId, chunks: Sequence[ChunkId], *, round: int
) -> None:
    """Order copies to be freed that the node holds and does not own."""
    if ledger.void(node, chunks, round=round):
        emit(FreeChunks(chunks=tuple(chunks), node=node, round=round))
