"""The scheduler: a pure machine that learns events and orders effects.

Theory of operation. One `Scheduler` decides for one job. It does no I/O and knows no clock; the same events
with the same settings give the same effects, so every agent folds the stream and any of them can be the leader.

    WAITING   fewer nodes than `start_nodes`, or no chunks declared yet
    FORMING   a round was asked for; answers to older orders are taken, nothing is committed or ordered but frees
    MOVING    a boundary: loads, copies, commits, frees; no task touches a chunk
    RUNNING   an iteration is in flight; no chunk moves or changes its owner, lost ones are loaded in the background
    PAUSED    a boundary at which no iteration can be started; the reason was told, and may go away with any event;
              perhaps none does, so a checkpoint was ordered if every chunk has an owner
    FINISHED  the job is over; every event is ignored

    WAITING  --enough nodes and chunks-->   FORMING       FORMING --RoundFormed-->             MOVING
    MOVING   --nothing left to move-->      RUNNING       FORMING --a member is lost-->        FORMING or PAUSED
    MOVING   --membership changed-->        FORMING       RUNNING --IterationFinished-->       MOVING
    MOVING   --no room, too few nodes-->    PAUSED        RUNNING --IterationAborted-->        FORMING
    PAUSED   --membership changed-->        FORMING       any boundary --StopRequested-->      FINISHED

At a boundary, `_advance` goes as far as it can; it is called after every event. The rules:

* The round changes exactly when the nodes that stay are not its members, or when an iteration was aborted (the tasks'
  connections are broken then). A node under notice is not in the next round but stays present until it is released;
  unless no node that stays has the model: then it takes part in one more iteration, without chunks (`members`).
* Copy, acknowledge, commit, free (`leases`): the owner changes at the commit, which only a boundary does.
* An iteration starts when no copy is in flight, and no free while something is to be decided (`boundary`). Loads are
  waited for before the first merge and when no chunk is left; otherwise it is started without the missing chunks.
* A lost node's chunks are missing, unless a verified copy of the same state is on its way or comes back (`inventory`).
* A leaver is released when it holds no copy that is worth anything and no round or iteration counts on it. Where all
  nodes leave, the newest checkpoint has what they hold, and later nodes go on from it: then nothing is worth more.
* Events that make no sense now (late answers, unknown nodes, duplicates) are ignored with a log line. What a correct
  shell can never say is a `ProtocolError`.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.boundary import Boundary
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.inventory import Inventory
from chicle_elastic.scheduling.leases import Lease, Leases
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.loads import Loads
from chicle_elastic.scheduling.members import Members
from chicle_elastic.scheduling.pending_orders import PendingOrders
from chicle_elastic.scheduling.pending_policies import DecidingPolicy, PendingPolicies
from chicle_elastic.scheduling.precopies import Precopies
from chicle_elastic.scheduling.settings import SchedulerSettings as SchedulerSettings
from chicle_elastic.scheduling.text import boundary_text, count_text
from chicle_elastic.scheduling.together import by_key
from chicle_elastic.scheduling.transitions import PendingTransitions
from chicle_elastic.values import Happening

OVER = "the job is over"


class State(Enum):
    """Where the job stands; see the theory of operation."""

    WAITING = "waiting"
    FORMING = "forming"
    MOVING = "moving"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


@dataclass(eq=False, repr=False)
class Scheduler:
    """Decides for one job: `effects = scheduler.handle(event, now=...)`, to be performed in order. One class because it
    is one state machine with a method per event.

    Here and in each part, the fields with a default are what it knows: they begin with it, and a `snapshot` has them.
    """

    settings: SchedulerSettings
    policies: Sequence[DecidingPolicy] = ()
    state: State = State.WAITING  # where the job stands
    _has_begun: bool = False
    _started: tuple[int, int] = (0, 0)
    _happened: list[Happening] = field(default_factory=list)  # since the last iteration was started
    _carried: tuple[Happening, ...] = ()  # what that iteration brought to the tasks; again after an abort
    # When the copies under way were ordered: of rows where they are pre-copied, because then little follows them.
    _ordered_s: dict[NodeId, dict[ChunkId, float]] = field(default_factory=dict)
    _pause_reason: str | None = None
    _stop_reason: str | None = None
    _saved: int = 0  # iteration of the newest checkpoint that later nodes go on from; 0 for none
    _now: float = 0.0
    _boundary_since: float = 0.0
    _round_since: float = 0.0
    _round_ms: float = 0.0

    def __post_init__(self) -> None:
        settings = self.settings
        self.policies = tuple(self.policies)
        self.ledger = Ledger()  # who owns what; to be read only
        # No part of this object refers to it, so that it goes, with all chunks of its job, without garbage collection.
        self._effects: list[Effect] = []
        emit = self._emit = self._effects.append
        self._members = Members()
        self._leases = Leases(self.ledger, emit, settings.max_copy_attempts)
        self._loads = Loads(self.ledger, emit, settings.max_load_attempts)
        self._inventory = Inventory(self.ledger, self._leases, self._loads, emit)
        self._pending_policies = PendingPolicies(self.policies, emit, settings)
        self._precopies = Precopies(self.ledger, emit)
        self._pending_transitions = PendingTransitions(self.ledger, self._members, self._precopies, emit)
        self._boundary = Boundary(
            self.ledger,
            self._members,
            self._leases,
            self._loads,
            self._inventory,
            self._pending_policies,
            self._precopies,
            self._pending_transitions,
            emit,
            settings,
            partial(Scheduler._let_go, weakref.proxy(self)),
        )
        self._answers = PendingOrders(self.ledger, self._members, self._leases, self._loads, emit)

    @property
    def round(self) -> int:
        """Number of the round that is current, or that was asked for."""
        return self._members.round

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Copies on their way; to be read only."""
        return tuple(self._leases.in_flight.values())

    @property
    def chunks_ahead(self) -> frozenset[ChunkId]:
        """Chunks whose rows are being copied ahead, or have been: their states are likely to follow next."""
        return frozenset(chunk for _, chunk in self._precopies.held)

    @property
    def members_ahead(self) -> tuple[NodeId, ...]:
        """Members that the next round is likely to have, while an iteration runs and nodes are on their way in or out;
        else none."""
        return self._members.lasting if self.state is State.RUNNING and self._members.preparing else ()

    @property
    def pause_reason(self) -> str | None:
        """Why the job is paused, with the figures; None when it is not."""
        return self._pause_reason if self.state is State.PAUSED else None

    @property
    def needed_nodes(self) -> int:
        """Nodes that have to be here to stay for the job to begin, or to go on."""
        start_nodes = None if self._has_begun else self.settings.start_nodes
        return start_nodes or self.settings.min_nodes

    @property
    def under_notice(self) -> tuple[NodeId, ...]:
        """Nodes that are to leave and are still here."""
        return tuple(node for node, member in self._members.present.items() if member.is_leaving or member.is_departing)

    @property
    def is_short_of_nodes(self) -> bool:
        """Whether nothing goes on because too few nodes are here."""
        return self.state in (State.WAITING, State.PAUSED) and len(self._members.staying) < self.needed_nodes

    @property
    def disabled_policies(self) -> tuple[str, ...]:
        """Names of policies that failed and are not asked again."""
        return tuple(self._pending_policies.disabled)

    @property
    def memories(self) -> Mapping[str, Any]:
        """What policies have remembered, by name; to be read only."""
        return self._pending_policies.memories

    @property
    def offer_number(self) -> int:
        """Number of the resource manager's last offer; 0 when there was none."""
        return self._pending_policies.offer_number

    def flaw_of(self, proposal: events.Proposal) -> str | None:
        """Why the proposal would be refused now, in words; None if it would wait for the boundary."""
        return OVER if self.state is State.FINISHED else self._boundary.flaw(proposal)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Learn an event. Raises ProtocolError when the event is one that a correct shell can never send; nothing has
        changed. Returns the effects, to be performed in this order.

        Args:
            now: Seconds on a monotonic clock; durations in reports and in what policies see depend on it alone.
        """
        self._now = now
        self._effects.clear()
        handler = HANDLERS.get(type(event))
        if handler is None:
            raise ProtocolError(f"{event!r} is not an event of chicle_elastic.scheduling.events")
        if self.state is State.FINISHED:
            if not events.is_quiet(event):
                self._log(f"{type(event).__name__} is ignored: {OVER}")
        else:
            handler(self, event)
            self._advance()
            timed = effects.PrecopyChunks if self.settings.precopy else effects.CopyChunks
            for effect in self._effects:
                if isinstance(effect, timed):
                    self._ordered_s.setdefault(effect.target, {}).update(dict.fromkeys(effect.chunks, now))
        return self._effects.copy()

    # The data set and the nodes.

    def _on_chunks_declared(self, event: events.ChunksDeclared) -> None:
        if self.ledger.num_chunks:
            known = all(self.ledger.knows(info.id) and self.ledger.info(info.id) == info for info in event.chunks)
            if not known or len(event.chunks) != self.ledger.num_chunks:
                raise ProtocolError("the chunks of the job were declared before, and others; they are declared once")
            self._log("chunks are declared again, as before")
            if event.merged != self.ledger.began:
                self._log(f"checkpoint {event.merged} is not used: the job goes on from iteration {self.ledger.began}")
            return
        ids = {info.id for info in event.chunks}
        if not ids or len(ids) != len(event.chunks):
            raise ProtocolError(f"{len(event.chunks)} chunks with {len(ids)} different ids cannot be a data set")
        for info in event.chunks:
            if info.num_rows < 1 or info.size_bytes < 0:
                raise ProtocolError(f"{info} cannot be: a chunk has num_rows >= 1 and size_bytes >= 0")
        if event.merged < 0:
            raise ProtocolError(f"a job cannot go on from iteration {event.merged}")
        self.ledger.declare(event.chunks, merged=event.merged)
        self._saved = event.merged
        if event.merged:
            self._log(f"the job goes on from the checkpoint of iteration {event.merged}")
            self._pending_policies.parameters.update(event.parameters)
            for name, value in event.parameters.items():
                self._log(f"{name} is {value:g}, as a policy had set it")

    def _on_node_joined(self, event: events.NodeJoined) -> None:
        node = event.node
        if node in self._members:
            self._log(f"{node} joins, but is here already; ignored")
        elif (event.capacity_bytes or 0) < 0:
            self._log(
                f"{node} cannot join with capacity_bytes={event.capacity_bytes}; the capacity must be >= 0 or None"
            )
        else:
            self.ledger.add_node(node, event.capacity_bytes)
            self._happens("joined", node)
            self._members.add(node, is_arriving=self.settings.precopy)

    def _on_leave_noticed(self, event: events.LeaveNoticed) -> None:
        node = event.node
        member = self._members.present.get(node)
        if member is None or member.is_leaving or member.is_departing:
            known = "is under notice already" if node in self._members else "is not here"
            self._log(f"notice for {node} is ignored: it {known}")
            return
        self._happens("noticed", node)
        if self.settings.precopy and not member.is_arriving:
            self._members.depart(node)
        else:
            self._begin_leaving(node)

    def _let_go(self, node: NodeId) -> None:
        self._emit(effects.NoticeNode(node=node))
        self._on_leave_noticed(events.LeaveNoticed(node=node))

    def _on_handover_due(self, event: events.HandoverDue) -> None:
        member = self._members.present.get(event.node)
        if member is not None and member.is_departing:
            self._begin_leaving(event.node)

    def _begin_leaving(self, node: NodeId) -> None:
        self._members.leave(node)
        self.ledger.close_node(node)
        self._loads.unwant_at(node, round=self._members.round)
        self._leases.abandon_to(node)
        self._precopies.discard_at(node, round=self._members.round)

    def _on_node_lost(self, event: events.NodeLost) -> None:
        if event.node not in self._members:
            self._log(f"loss of {event.node} is ignored: it is not here")
            return
        is_asked = self.state is State.FORMING and event.node in self._members.asked
        self._lose(event.node)
        if is_asked:
            self._members.break_round()
            self.state = State.MOVING

    def _lose(self, node: NodeId) -> None:
        self._log(f"{node} was lost with {count_text(len(self.ledger.node_chunks[node].owned), 'chunk')}")
        self._remove(node)
        self._happens("lost", node)

    def _remove(self, node: NodeId) -> None:
        self.ledger.lose(node, self.ledger.owned_by(node), in_flight=self.state is State.RUNNING)
        self._leases.lose(node)
        self._loads.lose(node)
        self._inventory.lose(node)
        self._precopies.lose(node)
        self.ledger.remove_node(node)
        self._pending_policies.recent.forget(node)
        self._members.remove(node)

    def _on_round_formed(self, event: events.RoundFormed) -> None:
        if event.round > self._members.round:
            raise ProtocolError(f"round {event.round} is formed, but only {self._members.round} were asked for")
        if self.state is not State.FORMING or event.round < self._members.round:
            self._log(f"round {event.round} is ignored: the current one is {self._members.round}")
            return
        asked = self._members.asked
        self.state = State.MOVING
        strangers = [node for node in event.members if node not in self._members]
        if strangers:
            self._log(f"round {event.round} has members that are not here ({', '.join(strangers)}); it is asked again")
            self._members.break_round()
            return
        for node in asked:
            if node not in event.members and node in self._members.staying:
                self._log(f"round {event.round} was formed without {node}")
                self._lose(node)
        self._members.form(event.members)
        self._round_ms += 1e3 * (self._now - self._round_since)
        self._loads.forgive()
        self._leases.stuck.clear()

    def _on_inventory_reported(self, event: events.InventoryReported) -> None:
        member = self._members.present.get(event.node)
        if member is None:
            self._log(f"inventory of {event.node} is ignored: it is not here")
            return
        if event.round is not None and not member.joined_round < event.round == self._members.round:
            self._log(f"inventory of {event.node} for round {event.round} is ignored: this is round {self.round}")
            return
        member.has_reported = True
        self._inventory.report(event, is_running=self.state is State.RUNNING)

    # Iterations.

    def _on_iteration_finished(self, event: events.IterationFinished) -> None:
        if not self._ends_iteration(event):
            return
        self.ledger.count_merge(event.round, event.iteration)
        self._members.merged()
        self._pending_policies.delivered()
        self._pending_policies.recent.note(
            {node: report for node, report in event.reports.items() if node in self._members}, event.training
        )
        self._boundary.begin(ask_policies=True)

    def _on_iteration_aborted(self, event: events.IterationAborted) -> None:
        if not self._ends_iteration(event):
            return
        self.ledger.count_abort()
        self._happened[:0] = self._carried
        self._members.break_round()
        self._log(f"iteration {event.iteration} was aborted: {event.reason}")

    def _ends_iteration(self, event: events.IterationFinished | events.IterationAborted) -> bool:
        ended = (event.round, event.iteration)
        if self.state is State.RUNNING and ended == self._started:
            self.state = State.MOVING
            self._boundary_since = self._now
            return True
        if ended > self._started:
            raise ProtocolError(
                f"{type(event).__name__} of iteration {event.iteration} in round {event.round}, which was never "
                f"started; the last one was {self._started[1]} in round {self._started[0]}"
            )
        self._log(f"late {type(event).__name__} of iteration {event.iteration} in round {event.round} is ignored")
        return False

    def _on_proposal(self, event: events.Proposal) -> None:
        flaw = self.flaw_of(event)
        if flaw is None:
            self._pending_policies.add(event)
        else:
            self._pending_policies.refuse(event, flaw)

    def _on_chunks_copied(self, event: events.ChunksCopied) -> None:
        self._answers.on_chunks_copied(event)
        self._copied(event.source, event.target, event.chunks)

    def _on_precopies_ended(self, event: events.PrecopiesEnded) -> None:
        whole = self._precopies.ended(event)
        for source, chunks in by_key((self.ledger.owner(chunk), chunk) for chunk in whole).items():
            if source is not None:
                self._copied(source, event.node, chunks)

    def _copied(self, source: NodeId, target: NodeId, chunks: Iterable[ChunkId]) -> None:
        """Note how long a link took."""
        ordered_s = self._ordered_s.get(target, {})
        known = [chunk for chunk in dict.fromkeys(chunks) if chunk in ordered_s]
        if known:
            size_bytes = sum(info.size_bytes for info in self.ledger.infos(known))
            duration_s = self._now - min([ordered_s.pop(chunk) for chunk in known])
            self._happens("copied", target, source=source, size_bytes=size_bytes, duration_s=duration_s)

    def _on_checkpoint_saved(self, event: events.CheckpointSaved) -> None:
        self._saved = max(self._saved, event.iteration if event.is_resumed else 0)
        self._happens("saved", size_bytes=event.size_bytes, duration_s=event.duration_s)

    def _happens(self, kind: str, node: str = "", **more: Any) -> None:
        self._happened.append(Happening(kind=kind, iteration=0, node=node, **more))

    def _on_stop_requested(self, event: events.StopRequested) -> None:
        self._stop_reason = self._stop_reason or event.reason

    # Going on.

    def _advance(self) -> None:
        self._release_leavers()
        if self.state is State.RUNNING:
            self._boundary.load_missing()
        elif self._stop_reason is not None:
            self._pending_policies.refuse_all(OVER)
            self._emit(effects.FinishJob(reason=self._stop_reason))
            self.state = State.FINISHED
        elif self.state is not State.FORMING:
            self._advance_boundary()

    def _advance_boundary(self) -> None:
        members = self._members
        self._leases.settle(round=members.round, find_target=self._boundary.find_target)
        self._loads.settle(round=members.round)
        self._prepare()
        num_staying = len(members.staying)
        if not self._has_begun:
            if not self.ledger.num_chunks or num_staying < self.needed_nodes:
                return
            self._has_begun = True
            self._boundary_since = self._now
        if members.round_is_due() and num_staying >= self.settings.min_nodes:
            self._form_round()
            return
        has_left = len(members.leaving) + len(members.preparing)
        if self._boundary.move():
            self.state = State.MOVING
            return
        if len(members.leaving) + len(members.preparing) != has_left:  # a policy has let a node go
            self._advance_boundary()
            return
        self._release_leavers()
        obstacle = self._too_few_nodes(num_staying) or self._boundary.obstacle()
        if obstacle is None:
            self._start_iteration()
        else:
            self._pause(obstacle)

    def _prepare(self) -> None:
        """Let nodes arrive and depart that are ready, or need not wait."""
        members = self._members
        nodes = members.preparing
        if not nodes:
            return
        departing = [node for node in nodes if members.present[node].is_departing]
        can_wait = (
            self._has_begun
            and not members.round_is_due()
            and not members.leaving
            and self.ledger.merged > self.ledger.began
            and not self.ledger.num_missing
            and len(members.staying) - len(departing) >= self.settings.min_nodes
        )
        if can_wait and not self._boundary.is_ready():
            return
        for node in departing:
            self._begin_leaving(node)
        for node in nodes:
            if members.present[node].is_arriving:
                members.arrived(node)

    def _form_round(self) -> None:
        self._boundary.begin(ask_policies=False)
        self._ordered_s.clear()
        self._pause_reason = None
        self.state = State.FORMING
        self._round_since = self._now
        round = self._members.ask()
        self._emit(effects.FormRound(round=round, members=self._members.asked))

    def _too_few_nodes(self, num_staying: int) -> str | None:
        if num_staying >= self.settings.min_nodes:
            return None
        return (
            f"{count_text(num_staying, 'node')} here to stay, {self.settings.min_nodes} needed (min_nodes); the job "
            "goes on when enough have joined"
        )

    def _pause(self, reason: str) -> None:
        self.state = State.PAUSED
        if reason != self._pause_reason:
            self._pause_reason = reason
            self._save()
            self._emit(effects.PauseJob(reason=reason))
        self._release_leavers()

    def _save(self) -> None:
        """Save what has been merged, if all of it is there: nodes under notice take their chunks with them."""
        ledger = self.ledger
        if ledger.merged > self._saved and not ledger.num_missing and not ledger.must_rebuild:
            self._attach_changes(self._members.present)  # chunks may have moved since the last iteration
            nodes = tuple(node for node in self._members.present if ledger.node_chunks[node].owned)
            self._emit(effects.SaveCheckpoint(round=self._members.round, iteration=ledger.merged, nodes=nodes))

    def _attach_changes(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            added, removed = self.ledger.take_changes(node)
            if added or removed:
                self._emit(effects.AttachChunks(node=node, added=added, removed=removed))

    def _start_iteration(self) -> None:
        self._attach_changes(self._members.in_round)
        round, iteration = self._started = self._members.round, self.ledger.merged + 1
        self._report_boundary()
        self._pause_reason = None
        self.state = State.RUNNING
        is_complete = self.ledger.num_missing == 0
        happened = self._carried = tuple(dataclasses.replace(each, iteration=iteration) for each in self._happened)
        self._happened.clear()
        self._pending_policies.recent.begin(iteration, happened)
        self._emit(
            effects.StartIteration(
                round=round,
                iteration=iteration,
                is_complete=is_complete,
                parameters=dict(self._pending_policies.parameters),
                travelling=len(self._pending_transitions.migrations),
                wanted=self._pending_policies.wanted,
                must_rebuild=self.ledger.must_rebuild,
                arriving=self._boundary.arriving(),
                offer=self._pending_policies.offer,
                messages=tuple(self._pending_policies.messages),
                memories=self._pending_policies.fresh_memories(),
                happened=happened,
            )
        )

    def _report_boundary(self) -> None:
        num_ordered = self._boundary.end()
        if num_ordered or self._round_ms:
            total_ms = 1e3 * (self._now - self._boundary_since)
            round, iteration = self._started
            self._log(boundary_text(iteration, round, total_ms=total_ms, round_ms=self._round_ms))
        self._round_ms = 0.0

    def _release_leavers(self) -> None:
        """Let go of nodes under notice on which nothing depends any more. A copy may come from a node that owns
        nothing: it was lost when the copy began, and has joined again."""
        leaving = self._members.leaving
        is_saved = self.state is State.PAUSED and 0 < self.ledger.merged == self._saved and not self._members.lasting
        keepers = self._members.keepers if leaving else ()
        for node in leaving:
            is_needed = not is_saved and (
                bool(self.ledger.node_chunks[node].copies)
                or any(lease.source == node for lease in self._leases.in_flight.values())
                or (self.state is State.RUNNING and self._members.present[node].in_round)
                or (self.state is State.FORMING and node in self._members.asked)
                or node in keepers
            )
            if not is_needed:
                self._remove(node)
                self._happens("left", node)
                self._emit(effects.ReleaseNode(node=node))

    def _log(self, text: str) -> None:
        self._emit(Log(text=text))


HANDLERS: Mapping[type, Callable[[Scheduler, Any], None]] = {
    events.ChunksDeclared: Scheduler._on_chunks_declared,
    events.NodeJoined: Scheduler._on_node_joined,
    events.LeaveNoticed: Scheduler._on_leave_noticed,
    events.NodeLost: Scheduler._on_node_lost,
    events.RoundFormed: Scheduler._on_round_formed,
    events.InventoryReported: Scheduler._on_inventory_reported,
    events.ChunksLoaded: lambda scheduler, event: scheduler._answers.on_chunks_loaded(event),
    events.LoadFailed: lambda scheduler, event: scheduler._answers.on_load_failed(event),
    events.ChunksCopied: Scheduler._on_chunks_copied,
    events.CopyFailed: lambda scheduler, event: scheduler._answers.on_copy_failed(event),
    events.PrecopiesEnded: Scheduler._on_precopies_ended,
    events.HandoverDue: Scheduler._on_handover_due,
    events.ChunksFreed: lambda scheduler, event: scheduler._answers.on_chunks_freed(event),
    events.IterationFinished: Scheduler._on_iteration_finished,
    events.IterationAborted: Scheduler._on_iteration_aborted,
    events.Proposal: Scheduler._on_proposal,
    events.PolicyDisabled: lambda scheduler, event: scheduler._pending_policies.disable(event.policy, event.reason),
    events.ResourcesOffered: lambda scheduler, event: scheduler._pending_policies.resources_offered(event),
    events.CheckpointSaved: Scheduler._on_checkpoint_saved,
    events.StopRequested: Scheduler._on_stop_requested,
}
"""What learns an event, by its type."""
