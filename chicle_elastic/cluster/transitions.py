"""How long each change of the membership took, phase by phase, as one node saw it.

detect           something is wrong or wanted: a link closed, a notice, a joiner, a broken group
-> pause         until the boundary: the iteration in flight ended, or was given up
-> rendezvous    until all members of the next round have met
-> move          until no chunk is on its way any more; the group is set up meanwhile
-> group         what the set-up of the process group took, from the same instant as the moves
-> first         the first iteration of the new round, its wait for the group included
stall            from the last iteration that ended before to the first one that ended after it
"""

from collections.abc import Callable
from typing import Any

from chicle_elastic.ids import NodeId


class Transitions:
    """Collects the instants of one transition after the other.

    Args:
        now: Seconds on a monotonic clock.
        write: Takes the finished transition: `write("transition", round=..., stall_ms=..., ...)`.
    """

    def __init__(self, now: Callable[[], float], write: Callable[..., None]) -> None:
        self._now, self._write = now, write
        self._at: dict[str, float] = {}
        self._reasons: list[str] = []
        self._last_ended_s: float | None = None
        self._round = 0
        self._members: tuple[NodeId, ...] = ()

    def detected(self, reason: str) -> None:
        """Something asks for another boundary, perhaps for another round; the reason may come later."""
        self._at.setdefault("detected", self._now())
        if reason and reason not in self._reasons:
            self._reasons.append(reason)

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

    def started(self, round: int) -> None:
        """The first iteration of a round was ordered."""
        if round == self._round and "formed" in self._at:
            self._at["started"] = self._now()

    def ended(self, round: int) -> None:
        """An iteration has ended."""
        now = self._now()
        if round == self._round and "formed" in self._at:
            self._finish(now)
        self._last_ended_s = now

    def _finish(self, now: float) -> None:
        at = self._at
        called = at.get("called", at["formed"])
        started = at.get("started", at["formed"])
        fields: dict[str, Any] = {
            "round": self._round,
            "members": list(self._members),
            "reasons": self._reasons,
            "pause_ms": _ms(at.get("detected", called), called),
            "rendezvous_ms": _ms(called, at["formed"]),
            "move_ms": _ms(at["formed"], started),
            "group_ms": _ms(at["formed"], at.get("connected", at["formed"])),
            "first_ms": _ms(started, now),
            "stall_ms": None if self._last_ended_s is None else _ms(self._last_ended_s, now),
        }
        self._write("transition", **fields)
        self._at = {}
        self._reasons = []


def _ms(start_s: float, end_s: float) -> float:
    return round(1e3 * max(0.0, end_s - start_s), 3)
