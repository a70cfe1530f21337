"""How long each change of the membership took, phase by phase, as one node saw it.

detect           from the last word of a node that is lost until that is noticed
-> ahead         something is wrong or wanted (a link closed, a notice, a joiner, a broken group): until the end of the
                 last iteration in which rows travelled ahead; nobody is held up by it
-> pause         until the boundary: the iteration in flight ended, or was given up
-> rendezvous    until all members of the next round have met
-> move          until no chunk is on its way any more; the group is set up meanwhile
-> group         what the set-up of the process group took, from the same instant as the moves
-> first         the first iteration of the new round, its wait for the group included
stall            from the last iteration that ended before to the first one that ended after it
whole            from the moment that a lost node was missed to the end of the first iteration with all samples
"""

import dataclasses
from collections.abc import Callable

from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.records import Transition


class Transitions:
    """Collects the instants of one transition after the other.

    Args:
        now: Seconds on a monotonic clock.
        tell: Takes each transition, and that of a loss once more when it has its `whole_ms`.
    """

    def __init__(self, now: Callable[[], float], tell: Callable[[Transition], None]) -> None:
        self._now, self._tell = now, tell
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
        """Something is not as it was, and asks for another boundary; the reason of a round comes later.

        Args:
            reason: In words, should no other one come.
            heard_s: When a node that is not heard any more said something last.
        """
        self._note()
        if heard_s is not None:
            self._at.setdefault("heard", heard_s)
        if reason:
            self._suspicions[reason] = None

    def detected(self, reason: str, *, is_loss: bool = False) -> None:
        """There is a reason for another round; `is_loss`: chunks may be gone with a node."""
        at_s = self._note()
        self._reasons[reason] = None
        if is_loss:
            self._at["lost"] = at_s
            if self._lost_s is None:
                self._lost_s, self._last = at_s, None

    def called(self) -> None:
        """A round was asked for: the boundary is there."""
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
        """An iteration was ordered; `is_complete` says whether all samples take part."""
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
            else:  # a boundary that was no more than that: a policy wanted it
                self._at = {}
        self._last_ended_s = now
        if self._is_complete and self._lost_s is not None and self._last is not None and "lost" not in self._at:
            self._tell(dataclasses.replace(self._last, whole_ms=_ms(self._lost_s, now)))
            self._lost_s = None

    def _note(self) -> float:
        """When the change that is under way was noticed: now, or before."""
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
        self._tell(transition)
        if "lost" in at:
            self._last = transition
        self._at, self._reasons, self._suspicions = {}, {}, {}


def _ms(start_s: float, end_s: float) -> float:
    return round(1e3 * max(0.0, end_s - start_s), 3)
