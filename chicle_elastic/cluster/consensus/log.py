"""The log of a job: one sequence of events (`entries`) that every agent folds into its own scheduler.

A log is as long as its job, but only its end is kept: the entries that an agent which lags a little may lack. An agent
that lacks more gets a snapshot (`Log.state`), and so does a joining node that lacks many: it goes on from there
(`Log.install`). An agent that may have effects to execute among the skipped entries cannot use a snapshot, and rejoins
as a new incarnation.
"""

import gc
from collections.abc import Callable, Sequence
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
STATE_VERSION = 7  # of the snapshots that `Log.state` returns


@dataclass(kw_only=True, eq=False)
class LogState:
    """The state of a log after its entries, without its scheduler."""

    length: int = 0
    now: float = 0.0  # time of the last entry
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
    # incarnation of each member of the last round that was formed: they may vote on who leads (`reachability`)
    electorate: dict[NodeId, str] = field(default_factory=dict)
    num_seen: dict[str, int] = field(default_factory=dict)  # by author
    called: tuple[int, tuple[NodeId, ...]] = (0, ())  # the last round that was asked for, and its members
    reported: dict[NodeId, None] = field(default_factory=dict)  # those that have said what they hold for that round
    # round in which a node was lost or an iteration aborted, until a later round has merged an iteration: the model is
    # to be rebuilt from the state first
    loss_round: int | None = None
    said: list[str] = field(default_factory=list)
    lines: tuple[str, ...] = ()  # log lines of the boundary before the last iteration that was started


class Log(LogState):
    """Entries, and the scheduler that has folded them; its `LogState` is to be read only.

    Args:
        kept: Minimum number of entries that are kept; at most twice as many.
    """

    def __init__(self, scheduler: Scheduler, *, kept: int = KEPT_ENTRIES) -> None:
        super().__init__()
        self.scheduler = scheduler  # has handled all entries
        self.start = 0  # index of the first entry that is kept
        self.entries: list[Entry] = []
        self._start_term = 0
        self._kept = kept
        self._sink: RecordingSink | None = None
        self._handler: Scheduler | Recorder = scheduler

    def record(self, sink: RecordingSink) -> None:
        """Record all entries; to be called before the first one."""
        self._sink = sink
        self._handler = Recorder(self.scheduler, sink)

    def __len__(self) -> int:
        return self.length

    @property
    def present(self) -> tuple[NodeId, ...]:
        """Nodes that joined and were neither lost nor released, in the order in which they joined."""
        return tuple(self.scheduler.ledger.node_chunks)

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
        return self.num_seen.get(origin, 0)

    def asked(self, round: int) -> tuple[tuple[NodeId, ...], set[NodeId]]:
        """The members called to a round, and the nodes that have reported their inventory for it."""
        return (self.called[1], set(self.reported)) if self.called[0] == round else ((), set())

    @property
    def electorates(self) -> tuple[dict[NodeId, str], ...]:
        """The electorate, and while a round forms, the members called to it: either may become the only one."""
        if self.scheduler.state is not State.FORMING:
            return (self.electorate,)
        return self.electorate, {node: self.lives[node] for node in self.called[1] if node in self.lives}

    @property
    def voters(self) -> dict[NodeId, str]:
        """All of the electorates."""
        return {node: life for electorate in self.electorates for node, life in electorate.items()}

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
            with uncollected():  # a change of a million chunks makes many objects, and none of them is garbage
                ordered = self._handler.handle(event, now=entry.now)
        except ProtocolError as error:
            ordered = [effects.Log(text=f"refused: {error}")]
        self._keep(entry)
        here = self.scheduler.ledger.node_chunks
        if is_formed and isinstance(event, events.RoundFormed):
            self.members = event.members
            self.electorate = {node: self.lives[node] for node in event.members if node in self.lives}
        if isinstance(event, events.NodeJoined) and event.node not in self.lives and event.node in here:
            self.lives[event.node] = entry.origin
        if len(self.lives) != len(here):
            self.lives = {node: life for node, life in self.lives.items() if node in here}
        if isinstance(event, events.InventoryReported) and event.round == self.called[0]:
            self.reported[event.node] = None
        if isinstance(event, events.NodeLost | events.IterationAborted):
            self.loss_round = round
        elif isinstance(event, events.IterationFinished) and event.round > (self.loss_round or 0):
            self.loss_round = None  # the tasks of this round have rebuilt the model first, if a node was lost
        self._note(ordered)
        # A boundary whose only effect is the next iteration is followed by others like it: no event comes in between,
        # and without policies the scheduler decides nothing by the metrics of an iteration.
        self.is_steady = (
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
            "log": write(self, LogState),
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
        vars(self).update(vars(state))
        self.scheduler = self._handler = scheduler
        if self._sink is not None:
            self._handler = Recorder(scheduler, self._sink, length=state.length, state=data["scheduler"])
        self.start, self._start_term, self.entries = state.length, state.last_term, []

    def _keep(self, entry: Entry) -> None:
        if self.length == 0:
            self.first_term = entry.term
        self.length += 1
        self.now, self.last_term = entry.now, entry.term
        if entry.origin:
            self.num_seen[entry.origin] = entry.number
        self.entries.append(entry)
        if len(self.entries) >= 2 * self._kept:
            num_cut = len(self.entries) - self._kept
            self._start_term = self.entries[num_cut - 1].term
            self.start += num_cut
            del self.entries[:num_cut]

    def _note(self, ordered: Sequence[Effect]) -> None:
        """Record the called round, the log lines and the iteration that the effects have started."""
        has_started = False
        for effect in ordered:
            if isinstance(effect, effects.FormRound):
                self.called, self.reported = (effect.round, effect.members), {}
            elif isinstance(effect, effects.Log):
                self.said.append(effect.text)
            elif isinstance(effect, StartIteration):
                has_started = True
                self.in_flight = (effect.round, effect.iteration)
                self.lines, self.said = tuple(self.said), []
        if not has_started and self.scheduler.state is not State.RUNNING:
            self.in_flight = None
