"""The log of a job: one sequence of events that every agent folds into its own scheduler.

An entry is either *sequenced* (the lead gave it its place) or *in band*: when all tasks have finished an iteration
without a vote, every agent knows so from the numbers of the all-reduce and appends the same entry by itself.

Two entries are equal when all their fields are; logs that differ at any index belong to different histories. The term
of an entry is that of the lead which sequenced it; an in-band entry has the term of the entry before it, so that all
agents write the same one whatever they have heard of a new lead meanwhile. Therefore, as in Raft, two logs with an
entry of the same index and term are equal up to there.

Time is part of an entry, because the scheduler is told it: sequenced entries carry the lead's clock, continued from
the entry before; an in-band entry adds the longest duration in its reports.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.codec import decode_event, decode_fields, encode, encode_fields
from chicle_elastic.scheduling.effects import Effect, StartIteration
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.machine import Scheduler, State
from chicle_elastic.values import TaskReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event in its place.

    Attributes:
        now: Seconds since the job began; never decreases.
        event: What happened.
        term: Of the lead that sequenced it.
        origin: Life of the agent that proposed it; empty for what the protocol itself adds.
        number: Counts the proposals of `origin`, from 1; 0 without one.
    """

    now: float
    event: Event
    term: int
    origin: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An iteration that was merged, as every task that got the sum knows it.

    Attributes:
        round: Its round.
        iteration: Its number.
        reports: Of every member, the same everywhere: they rode in the all-reduce.
        stop_reason: The trainer's verdict ends the job here; None to go on.
    """

    round: int
    iteration: int
    reports: Mapping[NodeId, TaskReport]
    stop_reason: str | None = None

    def events(self) -> tuple[Event, ...]:
        """What goes into the log for it."""
        finished = events.IterationFinished(round=self.round, iteration=self.iteration, reports=self.reports)
        if self.stop_reason is None:
            return (finished,)
        # First the request, then the boundary that it takes effect at.
        return (events.StopRequested(reason=self.stop_reason), finished)


class Log:
    """Entries, and the scheduler that has folded them.

    Args:
        scheduler: Has handled nothing yet.

    Attributes:
        entries: The whole log; to be read only.
        scheduler: To be read only.
        in_flight: (round, iteration) of the iteration that runs; None at a boundary.
        members: Nodes of the current round, in rank order.
        is_steady: When the iteration in flight ends in band, the next one of the same round follows and nothing else is
            ordered, and so on until an event is sequenced.
        lives: Life of each present node, i.e. who proposed that it joined.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.entries: list[Entry] = []
        self.scheduler = scheduler
        self.in_flight: tuple[int, int] | None = None
        self.members: tuple[NodeId, ...] = ()
        self.is_steady = False
        self.lives: dict[NodeId, str] = {}
        self._seen: dict[str, int] = {}
        self._asked: tuple[int, tuple[NodeId, ...]] = (0, ())
        self._reported: set[NodeId] = set()

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def present(self) -> tuple[NodeId, ...]:
        """Nodes that joined and were neither lost nor released, in the order in which they joined."""
        return tuple(self.scheduler.ledger.shelves)

    @property
    def now(self) -> float:
        """Time of the last entry."""
        return self.entries[-1].now if self.entries else 0.0

    @property
    def last_term(self) -> int:
        """Term of the last entry; 0 when there is none."""
        return self.entries[-1].term if self.entries else 0

    def term_before(self, length: int) -> int | None:
        """Term of the last of the first `length` entries; 0 for none, None where the log is shorter."""
        if length > len(self.entries):
            return None
        return self.entries[length - 1].term if length else 0

    def seen(self, origin: str) -> int:
        """Proposals of an author that are in the log; they come in their order and without a gap."""
        return self._seen.get(origin, 0)

    def asked(self, round: int) -> tuple[tuple[NodeId, ...], set[NodeId]]:
        """Members that were asked for in a round, and those of all nodes that have reported what they hold for it."""
        return (self._asked[1], self._reported) if self._asked[0] == round else ((), set())

    def in_band(self, ended: Ended) -> list[Entry]:
        """The entries that every agent appends by itself for an iteration that ended without a vote."""
        now = self.now + max((report.duration_s for report in ended.reports.values()), default=0.0)
        return [Entry(now=now, event=event, term=self.last_term) for event in ended.events()]

    def append(self, entry: Entry) -> list[Effect]:
        """Fold one more entry.

        Returns:
            The scheduler's orders. An event that the scheduler refuses leaves a log line on every agent alike.
        """
        event = entry.event
        is_formed = (
            isinstance(event, events.RoundFormed)
            and self.scheduler.state is State.FORMING
            and event.round == self.scheduler.round
        )
        try:
            ordered = self.scheduler.handle(event, now=entry.now)
        except ProtocolError as error:
            ordered = [effects.Log(text=f"refused: {error}")]
        self.entries.append(entry)
        if entry.origin:
            self._seen[entry.origin] = entry.number
        if is_formed and isinstance(event, events.RoundFormed):
            self.members = event.members
        if isinstance(event, events.NodeJoined) and event.node not in self.lives and event.node in self.present:
            self.lives[event.node] = entry.origin
        if len(self.lives) != len(self.present):
            self.lives = {node: life for node, life in self.lives.items() if node in self.present}
        if isinstance(event, events.InventoryReported) and event.round == self._asked[0]:
            self._reported.add(event.node)
        for effect in ordered:
            if isinstance(effect, effects.FormRound):
                self._asked, self._reported = (effect.round, effect.members), set()
        started = [effect for effect in ordered if isinstance(effect, StartIteration)]
        if started:
            self.in_flight = (started[-1].round, started[-1].iteration)
        elif self.scheduler.state is not State.RUNNING:
            self.in_flight = None
        # A boundary that ordered nothing else is followed by others like it: nothing is learnt in between, and
        # without policies the scheduler decides nothing by the figures of an iteration.
        self.is_steady = (
            isinstance(event, events.IterationFinished)
            and [type(effect) for effect in ordered] == [StartIteration]
            and not self.scheduler.policies
        )
        return ordered


def encode_entries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Entries as JSON values."""
    return [
        {
            "now": entry.now,
            "event": encode(entry.event),
            "term": entry.term,
            "origin": entry.origin,
            "number": entry.number,
        }
        for entry in entries
    ]


def decode_entries(data: Any) -> tuple[Entry, ...]:
    """Entries from JSON values.

    Raises:
        ProtocolError: They are none.
    """
    if not isinstance(data, list):
        raise ProtocolError("entries of a log are a list")
    return tuple(_decode_entry(item) for item in data)


def encode_ended(ended: Ended | None) -> dict[str, Any] | None:
    """The end of an iteration as JSON values."""
    return None if ended is None else encode_fields(ended)


def decode_ended(data: Any) -> Ended | None:
    """The end of an iteration from JSON values.

    Raises:
        ProtocolError: It is none.
    """
    return None if data is None else decode_fields(Ended, data, "ended")


def _decode_entry(data: Any) -> Entry:
    if not isinstance(data, dict) or data.keys() != {"now", "event", "term", "origin", "number"}:
        raise ProtocolError("an entry of a log has now, event, term, origin and number")
    now, term, origin, number = data["now"], data["term"], data["origin"], data["number"]
    is_sound = (
        type(now) in (int, float)
        and math.isfinite(now)
        and type(term) is int
        and type(number) is int
        and isinstance(origin, str)
    )
    if not is_sound:
        raise ProtocolError(f"an entry with now={now!r}, term={term!r}, origin={origin!r}, number={number!r} cannot be")
    return Entry(now=float(now), event=decode_event(data["event"]), term=term, origin=origin, number=number)
