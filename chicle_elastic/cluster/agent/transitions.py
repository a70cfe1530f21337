"""How long each change of the membership took, phase by phase, as one node saw it.

detect           from the last message of a lost node until its loss is detected
-> ahead         from the first sign of a change (a link closed, a notice, a joiner, a broken group) until the end of
                 the last iteration in which rows were pre-copied; training goes on meanwhile
-> pause         until the boundary: the iteration in flight has ended, or was aborted
-> rendezvous    until all members of the next round have met
-> move          until no chunk is in transfer any more; the process group is set up meanwhile
-> group         the set-up of the process group, from the same instant as the moves
-> first         the first iteration of the new round, its wait for the group included
stall            from the last iteration that ended before the change to the first one that ended after it
whole            from the moment that the loss of a node was detected to the end of the first iteration with all samples
"""

import dataclasses
from collections.abc import Callable

from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.records import Transition


class TransitionTimes:
    """Collects the instants of one transition after the other.

    Args:
        now: Seconds on a monotonic clock.
        tell: Called with each transition, and with that of a loss once more when it has its `whole_ms`.
    """

    def __init__(self, now: Callable[[], float], tell: Callable[[Transition], None]) -> None:
        self._now, self._on_transition = now, tell
        self._at: dict[str, float] = {}
        self._reasons: dict[str, None] = {}
        self._suspicions: dict[str, None] = {}
        self._last_ended_s: float | None = None
        self._round = 0
        self._members: tuple[NodeId, ...] = ()
        self._is_complete = True
        self._lost_s: float | None = None
        self._last: Transition | None = None

    def suspected(self, reason: str = "", *, heard_s: float | None = None) -> None:
        """First sign of a change of the membership; the reason of the round comes later.

        Args:
            heard_s: When the last message of a silent node arrived.
        """
        self._mark_detected()
        if heard_s is not None:
            self._at.setdefault("heard", heard_s)
        if reason:
            self._suspicions[reason] = None

    def detected(self, reason: str, *, is_loss: bool = False) -> None:
        """There is a reason for another round; `is_loss`: chunks may be gone with a node."""
        at_s = self._mark_detected()
        self._reasons[reason] = None
        if is_loss:
            self._at["lost"] = at_s
            if self._lost_s is None:
                self._lost_s, self._last = at_s, None

    def called(self) -> None:
        """The scheduler has called a round: the boundary is reached."""
        self._at.setdefault("called", self._now())

    def formed(self, round: int, members: tuple[NodeId, ...]) -> None:
        """The members of a round have met; a round that breaks before its first iteration is followed by another."""
        self._at["formed"] = self._now()
        self._at.pop("connected", None)
        self._round, self._members = round, members

    def connected(self, round: int) -> None:
        """The process group of a round is ready."""
        if round == self._round:
            self._at["connected"] = self._now()

    def started(self, round: int, *, is_complete: bool) -> None:
        """The scheduler has started an iteration; `is_complete` says whether all samples take part."""
        self._is_complete = is_complete
        if round == self._round and "formed" in self._at:
            self._at["started"] = self._now()

    def ended(self, round: int, iteration: int) -> None:
        """An iteration has ended."""
        now = self._now()
        if round == self._round and "formed" in self._at:
            self._finish(now, iteration)
        elif "called" not in self._at:
            if self._reasons or self._suspicions:
                self._at["detected"] = now
            else:  # a boundary without a change: a policy asked for it
                self._at = {}
        self._last_ended_s = now
        if self._is_complete and self._lost_s is not None and self._last is not None and "lost" not in self._at:
            self._on_transition(dataclasses.replace(self._last, whole_ms=_ms(self._lost_s, now)))
            self._lost_s = None

    def _mark_detected(self) -> float:
        """When the change that is under way was detected: now, or earlier."""
        return self._at.setdefault("wanted", self._at.setdefault("detected", self._now()))

    def _finish(self, now: float, iteration: int) -> None:
        at = self._at
        called = at.get("called", at["formed"])
        started = at.get("started", at["formed"])
        wanted, detected = at.get("wanted", called), at.get("detected", called)
        transition = Transition(
            iteration=iteration,
            round=self._round,
            members=self._members,
            reasons=tuple(self._reasons or self._suspicions),
            detect_ms=_ms(at.get("heard", wanted), wanted),
            ahead_ms=_ms(wanted, detected),
            pause_ms=_ms(detected, called),
            rendezvous_ms=_ms(called, at["formed"]),
            move_ms=_ms(at["formed"], started),
            group_ms=_ms(at["formed"], at.get("connected", at["formed"])),
            first_ms=_ms(started, now),
            stall_ms=None if self._last_ended_s is None else _ms(self._last_ended_s, now),
        )
        self._on_transition(transition)
        if "lost" in at:
            self._last = transition
        self._at, self._reasons, self._suspicions = {}, {}, {}


def _ms(start_s: float, end_s: float) -> float:
    return round(1e3 * max(0.0, end_s - start_s), 3)
