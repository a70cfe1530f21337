"""The log from the view of one node: which entries concern it, and the state of its task relative to the log."""

from collections.abc import Sequence
from typing import Any

from chicle_elastic.cluster.consensus.entries import Ended, Entry
from chicle_elastic.cluster.consensus.log import KEPT_ENTRIES, Log
from chicle_elastic.cluster.consensus.messages import Folded, GroupFailed, Released
from chicle_elastic.cluster.consensus.proposals import PendingProposals
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.effects import Effect, ReleaseNode, StartIteration
from chicle_elastic.scheduling.scheduler import Scheduler


class NodeLog:
    """A log, and the part of one incarnation of one node in it."""

    def __init__(self, node: NodeId, life: str, scheduler: Scheduler, *, kept: int = KEPT_ENTRIES) -> None:
        self.log = Log(scheduler, kept=kept)
        self.outbox = PendingProposals(life)  # what this incarnation has proposed
        self.is_live = False  # this incarnation has joined; the effects of earlier entries concerned other incarnations
        self.lost: set[str] = set()  # incarnations that leaders declared dead; the link of one may be up again
        self.is_awaiting = False  # the task of this node is in the iteration in flight, and will report its end
        self.release: Released | None = None  # this node may leave; to be told to the others
        self.ended: Ended | None = None  # how the task merged that iteration, until the leader has sequenced its end
        self.broken: GroupFailed | None = None  # why that iteration cannot end; no later one of the same round can
        self.is_breaking = False  # the iterations of this round are void: none is started any more
        self._node = node
        self._life = life

    @property
    def why_broken(self) -> str:
        """Why the iteration in flight cannot end, given that it cannot."""
        return "a member of the round is gone" if self.broken is None else self.broken.reason

    def ends(self, round: int, iteration: int) -> bool:
        """Whether this is the end of the iteration of the task of this node; if so, the task has left it."""
        if not self.is_awaiting or self.log.in_flight != (round, iteration):
            return False
        self.is_awaiting = False
        return True

    def adopt(self, base: int, entries: Sequence[Entry]) -> list[Folded] | None:
        """Fold the new ones of the entries from index `base` (<= length) on; None if the known ones differ.

        A leader that does not know what this node has begins with the first entry, and its term is the number of the
        job: another job is known by it, however few entries it has.
        """
        if base == 0 and entries and len(self.log) and entries[0].term != self.log.first_term:
            return None
        first = max(base, self.log.start)  # of the entries no longer kept only the term of the last can be compared
        if base < first <= base + len(entries) and entries[first - base - 1].term != self.log.term_before(first):
            return None
        known = self.log.entries_from(first)
        if any(mine != theirs for mine, theirs in zip(known, entries[first - base :], strict=False)):
            return None
        return self.fold(entries[len(self.log) - base :])

    def install(self, state: Any) -> bool:
        """Install a snapshot, if this incarnation has not joined yet; returns whether it could. Raises ProtocolError
        when it is not a snapshot of this job and release."""
        if self.is_live:
            return False
        self.log.install(state)
        for number in range(1, self.log.seen(self._life) + 1):
            self.outbox.seen(number)
        return self._life not in self.log.lives.values()

    def fold(self, entries: Sequence[Entry], *, goes_on: bool = False) -> list[Folded]:
        """Append entries; drops the effect that starts an iteration if a later one of the entries ends it."""
        before = self.log.in_flight
        folded: list[tuple[Entry, list[Effect], bool, str]] = []
        for entry in entries:
            lost_life = self._lost_life(entry)
            self.lost.update({lost_life} - {""})
            ordered = self.log.append(entry)
            if entry.origin == self._life:
                self.outbox.seen(entry.number)
                self.is_live = self.is_live or isinstance(entry.event, events.NodeJoined)
            if self.is_live and any(isinstance(e, ReleaseNode) and e.node == self._node for e in ordered):
                self.release = Released(length=len(self.log), last_term=entry.term)
            folded.append((entry, ordered, self.is_live, lost_life))
        if self.log.in_flight != before:
            self.ended = None
            if before is None or self.log.in_flight is None or before[0] != self.log.in_flight[0]:
                self.broken = None
            self.is_awaiting = goes_on or (
                self.log.in_flight is not None
                and self.is_live
                and not self.is_breaking
                and self._node in self.log.members
                and self._node in self.log.present
            )
        first = len(self.log) - len(folded)
        return [
            Folded(
                index=first + offset,
                entry=entry,
                effects=[effect for effect in ordered if not self._is_over(effect)],
                is_live=is_live,
                lost_life=lost_life,
            )
            for offset, (entry, ordered, is_live, lost_life) in enumerate(folded)
        ]

    def _lost_life(self, entry: Entry) -> str:
        """The incarnation that ends; none when a node reports that its task died: it rejoins as the same one."""
        is_loss = isinstance(entry.event, events.NodeLost) and not entry.origin
        return self.log.lives.get(entry.event.node, "") if is_loss else ""  # type: ignore[union-attr]

    def _is_over(self, effect: Effect) -> bool:
        return isinstance(effect, StartIteration) and (
            self.is_breaking or (effect.round, effect.iteration) != self.log.in_flight
        )
