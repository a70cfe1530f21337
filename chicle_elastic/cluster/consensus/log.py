"""The log of a job: one sequence of events (`entries`) that every agent folds into its own scheduler.

A log is as long as its job, but only its end is kept: the entries that an agent which lags a little may lack. An agent
that lacks more gets a snapshot (`Log.state`), and so does a joining node that lacks many: it goes on from there
(`Log.install`). An agent that may have effects to execute among the skipped entries cannot use a snapshot, and rejoins
as a new incarnation.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chicle_elastic.cluster.consensus.entries import Ended, Entry
from chicle_elastic.errors import ProtocolError
from chicle_elastic.garbage import MANY_CHUNKS, uncollected
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import codec, effects, events
from chicle_elastic.scheduling.effects import Effect, StartIteration
from chicle_elastic.scheduling.recording import Recorder, RecordingSink
from chicle_elastic.scheduling.scheduler import Scheduler, State
from chicle_elastic.scheduling.snapshot import restore, snapshot, to_text

KEPT_ENTRIES = 2048
"""An agent is lost after two seconds of silence, and few iterations are shorter than 1 ms: no agent lags by more."""
STATE_VERSION = 6  # of the snapshots that `Log.state` returns


@dataclass(slots=True, kw_only=True)
class LogState:
    """The state of a log after its entries, without its scheduler."""

    length: int = 0
    now: float = 0.0
    last_term: int = 0  # term of the last entry; 0 when there is none
    # term of the first entry: the number of the job, as a job of which no node survived begins a new log
    first_term: int = 0
    in_flight: tuple[int, int] | None = None  # (round, iteration) of the iteration that runs; None at a boundary
    members: tuple[NodeId, ...] = ()  # nodes of the current round, in rank order
    # when the iteration in flight ends in band, the next one of the same round follows without any other effect, and so
    # on until an event is sequenced
    is_steady: bool = False
    # incarnation of each present node, i.e. the author of the proposal by which it joined
    lives: dict[NodeId, str] = field(default_factory=dict)
    # incarnation of each node that may vote on who leads: the members of the last round that was formed, without those
    # that were released since (`reachability`)
    electorate: dict[NodeId, str] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    asked: tuple[int, tuple[NodeId, ...]] = (0, ())
    reported: dict[NodeId, None] = field(default_factory=dict)
    # round in which a node was lost or an iteration aborted, until a later round has merged an iteration: the model is
    # to be rebuilt from the state first
    loss_round: int | None = None
    said: list[str] = field(default_factory=list)
    lines: tuple[str, ...] = ()  # log lines of the boundary before the last iteration that was started


class Log:
    """Entries, and the scheduler that has folded them.

    Args:
        kept: Minimum number of entries that are kept; at most twice as many.
    """

    def __init__(self, scheduler: Scheduler, *, kept: int = KEPT_ENTRIES) -> None:
        self.scheduler = scheduler  # has handled all entries
        self.start = 0  # index of the first entry that is kept
        self.entries: list[Entry] = []
        self._start_term = 0
        self._kept = kept
        self._state = LogState()
        self._sink: RecordingSink | None = None
        self._handler: Scheduler | Recorder = scheduler

    def record(self, sink: RecordingSink) -> None:
        """Record all entries; to be called before the first one."""
        self._sink = sink
        self._handler = Recorder(self.scheduler, sink)

    def __len__(self) -> int:
        return self._state.length

    @property
    def present(self) -> tuple[NodeId, ...]:
        """Nodes that joined and were neither lost nor released, in the order in which they joined."""
        return tuple(self.scheduler.ledger.node_chunks)

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
        """Whether iterations follow each other without any other effect until an event is sequenced."""
        return self._state.is_steady

    @property
    def lives(self) -> Mapping[NodeId, str]:
        """Incarnation of each present node, i.e. the author of the proposal by which it joined."""
        return self._state.lives

    @property
    def electorate(self) -> Mapping[NodeId, str]:
        """Incarnation of each node that may vote on who leads; empty before the first round."""
        return self._state.electorate

    @property
    def loss_round(self) -> int | None:
        """Round in which a node was lost or an iteration aborted, as long as no model was rebuilt since."""
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
        """Number of proposals of an author in the log; they come in their order and without a gap."""
        return self._state.seen.get(origin, 0)

    def asked(self, round: int) -> tuple[tuple[NodeId, ...], set[NodeId]]:
        """The members called to a round, and the nodes that have reported their inventory for it."""
        state = self._state
        return (state.asked[1], set(state.reported)) if state.asked[0] == round else ((), set())

    def in_band(self, ended: Ended) -> list[Entry]:
        """The entries that every agent appends by itself for an iteration that ended without a vote."""
        now = self.now + max((report.duration_s for report in ended.reports.values()), default=0.0)
        return [Entry(now=now, event=event, term=self.last_term) for event in ended.events()]

    def append(self, entry: Entry) -> list[Effect]:
        """Fold one more entry. Returns the scheduler's effects. An event that the scheduler refuses leaves the same log
        line on every agent."""
        event, round = entry.event, self.scheduler.round
        is_formed = (
            isinstance(event, events.RoundFormed)
            and self.scheduler.state is State.FORMING
            and event.round == self.scheduler.round
        )
        try:
            ordered = self._handler.handle(event, now=entry.now)
        except ProtocolError as error:
            ordered = [effects.Log(text=f"refused: {error}")]
        self._keep(entry)
        state, here = self._state, self.scheduler.ledger.node_chunks
        if is_formed and isinstance(event, events.RoundFormed):
            state.members = event.members
            state.electorate = {node: state.lives[node] for node in event.members if node in state.lives}
        if isinstance(event, events.NodeJoined) and event.node not in self.lives and event.node in here:
            state.lives[event.node] = entry.origin
        if len(state.lives) != len(here):
            state.lives = {node: life for node, life in state.lives.items() if node in here}
        if isinstance(event, events.InventoryReported) and event.round == state.asked[0]:
            state.reported[event.node] = None
        if isinstance(event, events.NodeLost | events.IterationAborted):
            state.loss_round = round
        elif isinstance(event, events.IterationFinished) and event.round > (state.loss_round or 0):
            state.loss_round = None  # the tasks of this round have rebuilt the model first, if a node was lost
        self._note(ordered)
        # A boundary whose only effect is the next iteration is followed by others like it: no event comes in between,
        # and without policies the scheduler decides nothing by the metrics of an iteration.
        state.is_steady = (
            isinstance(event, events.IterationFinished)
            and [type(effect) for effect in ordered] == [StartIteration]
            and not self.scheduler.policies
        )
        return ordered

    def state(self, *, write: Callable[..., Any] = codec.to_values) -> dict[str, Any]:
        """A snapshot of the log and its scheduler, as JSON values; `write` as in `scheduling.snapshot`. With
        `codec.to_raw` it is for a node that installs it."""
        write_large = to_text if write is codec.to_raw else None
        return {
            "version": STATE_VERSION,
            "log": write(self._state),
            "scheduler": snapshot(self.scheduler, write=write, write_large=write_large),
        }

    def install(self, data: Any) -> None:
        """Replace this log by the snapshot of another one. Raises ProtocolError when the data is not a snapshot, or one
        of another release or job; this log is unchanged."""
        if not isinstance(data, dict) or data.get("version") != STATE_VERSION:
            found = data.get("version") if isinstance(data, dict) else None
            raise ProtocolError(
                f"the state of a log has version {found!r} and this release reads version {STATE_VERSION}; all agents "
                "of a job need the same release of chicle-elastic"
            )
        with uncollected():
            state: LogState = codec.from_values(data.get("log"), LogState)
            scheduler = restore(data.get("scheduler"), self.scheduler.policies)
            if scheduler.ledger.num_chunks >= MANY_CHUNKS:
                gc.freeze()
        if scheduler.settings != self.scheduler.settings:
            raise ProtocolError(
                f"the job has {scheduler.settings}, but this node has {self.scheduler.settings}; start all nodes alike"
            )
        self._state, self.scheduler = state, scheduler
        self._handler = scheduler
        if self._sink is not None:
            self._handler = Recorder(scheduler, self._sink, length=state.length, state=data["scheduler"])
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
        """Record the called round, the log lines and the iteration that the effects have started."""
        state = self._state
        has_started = False
        for effect in ordered:
            if isinstance(effect, effects.FormRound):
                state.asked, state.reported = (effect.round, effect.members), {}
            elif isinstance(effect, effects.Log):
                state.said.append(effect.text)
            elif isinstance(effect, effects.ReleaseNode):
                state.electorate.pop(effect.node, None)
            elif isinstance(effect, StartIteration):
                has_started = True
                state.in_flight = (effect.round, effect.iteration)
                state.lines, state.said = tuple(state.said), []
        if not has_started and self.scheduler.state is not State.RUNNING:
            state.in_flight = None
