"""The log as one node has it: which entries are its history and which its orders, and how its own task stands."""

from collections.abc import Sequence
from typing import Any

from chicle_elastic.cluster.entries import Ended, Entry
from chicle_elastic.cluster.log import KEPT_ENTRIES, Log
from chicle_elastic.cluster.log_messages import Broke, Folded
from chicle_elastic.cluster.proposals import Outbox
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.effects import Effect, StartIteration
from chicle_elastic.scheduling.machine import Scheduler


class OwnLog:
    """A log, and the part of one life of one node in it.

    Args:
        node: The node.
        life: Name of its life.
        scheduler: Has handled nothing yet.
        kept: See `Log`.

    Attributes:
        log: The log.
        outbox: What this life has proposed.
        is_live: This life has joined; entries from before are history, and ordered others.
        is_lost: A lead took this life for lost; its link was cut, and is there again.
        is_awaiting: The own task is in the iteration in flight, and its end will be told.
        ended: How that iteration was merged, while its place in the log is for the lead to give.
        broken: Why it cannot end; no later one of the same round can.
        is_breaking: Iterations of this round are of no use any more: none is started.
    """

    def __init__(self, node: NodeId, life: str, scheduler: Scheduler, *, kept: int = KEPT_ENTRIES) -> None:
        self.log = Log(scheduler, kept=kept)
        self.outbox = Outbox(life)
        self.is_live = False
        self.is_lost = False
        self.is_awaiting = False
        self.ended: Ended | None = None
        self.broken: Broke | None = None
        self.is_breaking = False
        self._node = node
        self._life = life

    def ends(self, round: int, iteration: int) -> bool:
        """Whether this is the end of the iteration that the own task is in; it is not in it any more then."""
        if not self.is_awaiting or self.log.in_flight != (round, iteration):
            return False
        self.is_awaiting = False
        return True

    def adopt(self, base: int, entries: Sequence[Entry]) -> list[Folded] | None:
        """Fold what is new of the entries from index `base` (<= length) on; None if what is known differs."""
        first = max(base, self.log.start)  # what is not kept cannot be compared, but for the term of the last of it
        if base < first <= base + len(entries) and entries[first - base - 1].term != self.log.term_before(first):
            return None
        known = self.log.entries_from(first)
        if any(mine != theirs for mine, theirs in zip(known, entries[first - base :], strict=False)):
            return None
        return self.fold(entries[len(self.log) - base :])

    def install(self, state: Any) -> bool:
        """Go on from what another log has come to, if this life has had no orders yet; returns whether that is so.

        Raises:
            ProtocolError: It is no such state.
        """
        if self.is_live:
            return False
        self.log.install(state)
        for number in range(1, self.log.seen(self._life) + 1):
            self.outbox.seen(number)
        return self._life not in self.log.lives.values()

    def fold(self, entries: Sequence[Entry], *, goes_on: bool = False) -> list[Folded]:
        """Append entries; an iteration that a later one of them ends is not ordered.

        Args:
            entries: What to append.
            goes_on: The own task has begun the iteration that follows by itself, whatever is known here by now.
        """
        before = self.log.in_flight
        folded: list[tuple[Entry, list[Effect], bool, str]] = []
        for entry in entries:
            lost_life = self._lost_life(entry)
            self.is_lost = self.is_lost or lost_life == self._life
            ordered = self.log.append(entry)
            if entry.origin == self._life:
                self.outbox.seen(entry.number)
                self.is_live = self.is_live or isinstance(entry.event, events.NodeJoined)
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
        """The life that is about to end; not when a node says that its task died: it joins again in the same life."""
        is_loss = isinstance(entry.event, events.NodeLost) and not entry.origin
        return self.log.lives.get(entry.event.node, "") if is_loss else ""  # type: ignore[union-attr]

    def _is_over(self, effect: Effect) -> bool:
        return isinstance(effect, StartIteration) and (
            self.is_breaking or (effect.round, effect.iteration) != self.log.in_flight
        )
