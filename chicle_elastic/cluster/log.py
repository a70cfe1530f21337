"""The log of a job: one sequence of events (`entries`) that every agent folds into its own scheduler.

A log is as long as its job, and only its end is kept: the entries that an agent which lags a little may lack. Whoever
lacks more is given what the whole log has come to (`Log.state`), and so is a newcomer that lacks many: it goes on from
there (`Log.install`). To an agent that has orders among the entries left out, that is of no use, and it begins afresh.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chicle_elastic.cluster.entries import Ended, Entry
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.coders import coder_of
from chicle_elastic.scheduling.effects import Effect, StartIteration
from chicle_elastic.scheduling.machine import Scheduler, State
from chicle_elastic.scheduling.snapshot import restore, snapshot

KEPT_ENTRIES = 2048
"""Two seconds of silence end an agent, and few iterations are shorter than a millisecond: nobody lags by more."""
STATE_VERSION = 2
"""Of what `Log.state` returns."""


@dataclass(slots=True, kw_only=True)
class LogState:
    """What a log has come to, but for its scheduler.

    Attributes:
        length: Entries, kept or not.
        now: Time of the last entry.
        last_term: Term of the last entry; 0 when there is none.
        first_term: Term of the first entry: the number of the job, as a job that nobody survived begins a new log.
        in_flight: (round, iteration) of the iteration that runs; None at a boundary.
        members: Nodes of the current round, in rank order.
        is_steady: When the iteration in flight ends in band, the next one of the same round follows and nothing else is
            ordered, and so on until an event is sequenced.
        lives: Life of each present node, i.e. who proposed that it joined.
        seen: Proposals of each author that are in the log.
        asked: The last round that was asked for, and its members.
        reported: Nodes that have reported what they hold for it.
        loss_round: Round in which something was lost or cut off, until a later round has merged an iteration: the model
            is to be rebuilt from the state first.
        said: Log lines since the last iteration was started.
        lines: Log lines of the boundary before the last iteration that was started.
    """

    length: int = 0
    now: float = 0.0
    last_term: int = 0
    first_term: int = 0
    in_flight: tuple[int, int] | None = None
    members: tuple[NodeId, ...] = ()
    is_steady: bool = False
    lives: dict[NodeId, str] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    asked: tuple[int, tuple[NodeId, ...]] = (0, ())
    reported: dict[NodeId, None] = field(default_factory=dict)
    loss_round: int | None = None
    said: list[str] = field(default_factory=list)
    lines: tuple[str, ...] = ()


class Log:
    """Entries, and the scheduler that has folded them.

    Args:
        scheduler: Has handled nothing yet.
        kept: Entries that are kept at least; twice as many at most.

    Attributes (to be read only):
        scheduler: Has handled all entries.
        start: Index of the first entry that is kept.
        entries: From `start` on.
    """

    def __init__(self, scheduler: Scheduler, *, kept: int = KEPT_ENTRIES) -> None:
        self.scheduler = scheduler
        self.start = 0
        self.entries: list[Entry] = []
        self._start_term = 0
        self._kept = kept
        self._state = LogState()

    def __len__(self) -> int:
        return self._state.length

    @property
    def present(self) -> tuple[NodeId, ...]:
        """Nodes that joined and were neither lost nor released, in the order in which they joined."""
        return tuple(self.scheduler.ledger.shelves)

    @property
    def now(self) -> float:
        """Time of the last entry."""
        return self._state.now

    @property
    def last_term(self) -> int:
        """Term of the last entry; 0 when there is none."""
        return self._state.last_term

    @property
    def first_term(self) -> int:
        """Term of the first entry, the number of the job; 0 when there is none."""
        return self._state.first_term

    @property
    def in_flight(self) -> tuple[int, int] | None:
        """Round and iteration of the iteration that runs; None at a boundary."""
        return self._state.in_flight

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Nodes of the current round, in rank order."""
        return self._state.members

    @property
    def is_steady(self) -> bool:
        """Whether iterations follow each other, and nothing else is ordered, until an event is sequenced."""
        return self._state.is_steady

    @property
    def lives(self) -> Mapping[NodeId, str]:
        """Life of each present node, i.e. who proposed that it joined."""
        return self._state.lives

    @property
    def loss_round(self) -> int | None:
        """Round in which something was lost or cut off, as long as no model was rebuilt since."""
        return self._state.loss_round

    @property
    def lines(self) -> tuple[str, ...]:
        """What happened at the boundary before the iteration in flight, in words."""
        return self._state.lines

    def term_before(self, length: int) -> int | None:
        """Term of the last of the first `length` entries; 0 for none, None where that is not known."""
        if length == 0:
            return 0
        if not self.start <= length <= len(self):
            return None
        return self._start_term if length == self.start else self.entries[length - self.start - 1].term

    def entries_from(self, index: int) -> tuple[Entry, ...]:
        """All entries from this one on, which must be kept."""
        assert index >= self.start
        return tuple(self.entries[index - self.start :])

    def seen(self, origin: str) -> int:
        """Proposals of an author that are in the log; they come in their order and without a gap."""
        return self._state.seen.get(origin, 0)

    def asked(self, round: int) -> tuple[tuple[NodeId, ...], set[NodeId]]:
        """Members that were asked for in a round, and those of all nodes that have reported what they hold for it."""
        state = self._state
        return (state.asked[1], set(state.reported)) if state.asked[0] == round else ((), set())

    def in_band(self, ended: Ended) -> list[Entry]:
        """The entries that every agent appends by itself for an iteration that ended without a vote."""
        now = self.now + max((report.duration_s for report in ended.reports.values()), default=0.0)
        return [Entry(now=now, event=event, term=self.last_term) for event in ended.events()]

    def append(self, entry: Entry) -> list[Effect]:
        """Fold one more entry.

        Returns:
            The scheduler's orders. An event that the scheduler refuses leaves a log line on every agent alike.
        """
        event, round = entry.event, self.scheduler.round
        is_formed = (
            isinstance(event, events.RoundFormed)
            and self.scheduler.state is State.FORMING
            and event.round == self.scheduler.round
        )
        try:
            ordered = self.scheduler.handle(event, now=entry.now)
        except ProtocolError as error:
            ordered = [effects.Log(text=f"refused: {error}")]
        self._keep(entry)
        state = self._state
        if is_formed and isinstance(event, events.RoundFormed):
            state.members = event.members
        if isinstance(event, events.NodeJoined) and event.node not in self.lives and event.node in self.present:
            state.lives[event.node] = entry.origin
        if len(state.lives) != len(self.present):
            state.lives = {node: life for node, life in state.lives.items() if node in self.present}
        if isinstance(event, events.InventoryReported) and event.round == state.asked[0]:
            state.reported[event.node] = None
        if isinstance(event, events.NodeLost | events.IterationAborted):
            state.loss_round = round
        elif isinstance(event, events.IterationFinished) and event.round > (state.loss_round or 0):
            state.loss_round = None  # the model of this round was rebuilt first, if anything was lost
        self._note(ordered)
        # A boundary that ordered nothing else is followed by others like it: nothing is learnt in between, and
        # without policies the scheduler decides nothing by the figures of an iteration.
        state.is_steady = (
            isinstance(event, events.IterationFinished)
            and [type(effect) for effect in ordered] == [StartIteration]
            and not self.scheduler.policies
        )
        return ordered

    def state(self) -> dict[str, Any]:
        """What all entries together have come to, as JSON values."""
        return {
            "version": STATE_VERSION,
            "log": coder_of(LogState).encode(self._state),
            "scheduler": snapshot(self.scheduler),
        }

    def install(self, data: Any) -> None:
        """Go on from what another log has come to; nothing is left of this one.

        Raises:
            ProtocolError: It is not what `state` returns, or that of another release or job; this log is as it was.
        """
        if not isinstance(data, dict) or data.get("version") != STATE_VERSION:
            raise ProtocolError("the state of a log is of another release; all agents need the same one")
        state: LogState = coder_of(LogState).decode(data.get("log"))
        scheduler = restore(data.get("scheduler"), self.scheduler.policies)
        if scheduler.settings != self.scheduler.settings:
            raise ProtocolError(f"the job has {scheduler.settings}, and this node has {self.scheduler.settings}")
        self._state, self.scheduler = state, scheduler
        self.start, self._start_term, self.entries = state.length, state.last_term, []

    def _keep(self, entry: Entry) -> None:
        state = self._state
        if state.length == 0:
            state.first_term = entry.term
        state.length += 1
        state.now, state.last_term = entry.now, entry.term
        if entry.origin:
            state.seen[entry.origin] = entry.number
        self.entries.append(entry)
        if len(self.entries) >= 2 * self._kept:
            num_cut = len(self.entries) - self._kept
            self._start_term = self.entries[num_cut - 1].term
            self.start += num_cut
            del self.entries[:num_cut]

    def _note(self, ordered: Sequence[Effect]) -> None:
        """Take down what was ordered, and said on the way to an iteration."""
        state = self._state
        has_started = False
        for effect in ordered:
            if isinstance(effect, effects.FormRound):
                state.asked, state.reported = (effect.round, effect.members), {}
            elif isinstance(effect, effects.Log):
                state.said.append(effect.text)
            elif isinstance(effect, StartIteration):
                has_started = True
                state.in_flight = (effect.round, effect.iteration)
                state.lines, state.said = tuple(state.said), []
        if not has_started and self.scheduler.state is not State.RUNNING:
            state.in_flight = None
