"""Performs what the scheduler orders of this node, and tells it what came of it.

Shell of the scheduler, as `runtime.in_process` is in one process, which decides nothing. Orders for
other nodes are performed by their agents, which fold the same log.
"""

import contextlib
import dataclasses
import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from chicle_elastic.cluster.agent.group_formation import GroupFormation
from chicle_elastic.cluster.agent.moved_bytes import MovedBytes
from chicle_elastic.cluster.agent.node_protocols import ResourceLink
from chicle_elastic.cluster.agent.pipelining import Pipelining
from chicle_elastic.cluster.agent.placement_check import PlacementCheck
from chicle_elastic.cluster.agent.policy_events import PolicyEvents
from chicle_elastic.cluster.agent.transitions import TransitionTimes
from chicle_elastic.cluster.consensus.entries import Ended
from chicle_elastic.cluster.consensus.messages import Folded
from chicle_elastic.cluster.consensus.replicated_log import ReplicatedLog
from chicle_elastic.cluster.net.event_file import EventFile
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.net.worker_lanes import Lane
from chicle_elastic.cluster.transfer.chunk_manager import ChunkManager
from chicle_elastic.cluster.transfer.protocol import orders_of
from chicle_elastic.errors import ChicleError, ContractError
from chicle_elastic.garbage import MANY_CHUNKS
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.training.ledger_pages import LedgerPage
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.scheduler import State
from chicle_elastic.scheduling.text import no_manager_text
from chicle_elastic.values import ChunkAccount, StateVersion

ROUNDS_PER_TERM = 1_000_000
"""In the round stores, rounds are numbered from a multiple of this for each term.

A leader that is cut off may still call a round in the term before, and the others, who have lost it, call one of the
same number for other members. By the number, the tasks of the one never read keys of the other.
"""
NOBODY: tuple[int, tuple[NodeId, ...]] = (0, ())
FAILURE = "a task failed: "
"""How the reason of `StopRequested` begins when code of the user raised; its traceback follows."""

logger = logging.getLogger(__name__)


class Host(Protocol):
    """What the effect executor needs of the agent."""

    def tell_task(self, message: control.AgentMessage, fd: int | None = None) -> None:
        """Send a message to the task, if there is one."""

    def round_store(self, node: NodeId) -> str | None:
        """Endpoint of the round store of a node; None where there is no link to the node."""

    def released(self) -> None:
        """This node may go."""

    def finished(self, reason: str, merged: int, accounts: tuple[ChunkAccount, ...]) -> None:
        """The job is over with the model of iteration `merged`; `accounts` say what became of each chunk."""

    def job_paused(self, reason: str) -> None:
        """Nothing goes on in the job."""

    def failed(self, error: ChicleError) -> None:
        """This agent cannot go on."""

    def iteration_begins(self) -> None:
        """The task was told to iterate, or has gone on by itself."""

    def breached(self, error: ContractError) -> None:
        """The task did not process what it owns: the job ends."""


class EffectExecutor:
    """See the top of the module. Everything is called in the loop. One class because a method per effect is the
    interface, and all share what this node was told last."""

    def __init__(
        self,
        loop: EventLoop,
        *,
        node: NodeId,
        log: ReplicatedLog,
        memory: ChunkManager,
        host: Host,
        meet: Callable[[int, tuple[NodeId, ...]], None],
        event_file: EventFile,
        formation: GroupFormation,
        resources: ResourceLink | None = None,
    ) -> None:
        self.node = node
        self.transitions = TransitionTimes(loop.now, self._tell_transition)
        self._placement = PlacementCheck(node)
        self._loop, self._log, self._memory, self._host, self._take_part = loop, log, memory, host, meet
        self._events, self._formation = event_file, formation
        self._term = 0
        self._number = 0
        self._connecting = NOBODY
        self._ahead: tuple[NodeId, ...] = ()
        self._met_round = 0
        self._is_return = False
        self._model_of_group: int | None = None
        self._is_round_said = False
        self._is_frozen = False
        self._broken: tuple[int, str] = (0, "")
        self._pace = Pipelining()
        self._moved = MovedBytes(lambda chunk: self._ledger.info(chunk).size_bytes, self._immutable_share)
        self._resources = resources
        self._offer_told = 0
        self.policy_events = PolicyEvents(log, lambda text: self.log(effects.Log(text=text)))

    # What the log says.

    def folded(self, folded: Folded) -> None:
        """An entry was folded: perform its orders."""
        event, self._term = folded.entry.event, folded.entry.term
        if not folded.is_live:
            return
        self._note(event)
        if isinstance(event, events.RoundFormed):
            self._enter_round(event)
        for effect in folded.effects:
            effects.dispatch(effect, self)
        if isinstance(event, events.InventoryReported):
            self._say_round_formed()
        if isinstance(event, events.Proposal):
            self.policy_events.folded(event, folded.entry)
        elif isinstance(event, events.CheckpointSaved):
            self.policy_events.tell_saved()

    def begin_life(self) -> None:
        """A new incarnation folds the log from its beginning."""
        self.policy_events.lose(f"{self.node}, where it was made, was declared dead")
        self._met_round = self._offer_told = 0
        self._connecting = NOBODY
        self._is_return = True
        self._pace.forget()
        self._moved.forget()

    # Effects, in the order of a round.

    def form_round(self, effect: effects.FormRound) -> None:
        """Say what this node holds, and meet the other members in the rendezvous."""
        self.transitions.called()
        if not self._is_frozen and self._ledger.num_chunks >= MANY_CHUNKS:
            self._is_frozen = True
            gc.freeze()  # to look through a million entries takes a second and more, in the loop
        self._number = self._term * ROUNDS_PER_TERM + effect.round
        hit("round.before_inventory", round=effect.round)
        self._log.append(self._inventory(effect.round))
        self._seal_ahead()
        if self.node in effect.members:
            self._is_round_said = False
            self._formation.called(effect.members)
            if pause_s := self._formation.pause_s:
                self._events.write("pause", round=effect.round, pause_s=pause_s)
                number, incarnation = self._number, self._log.snapshot().incarnation
                self._loop.later(pause_s, lambda: self._meet_after_pause(effect, number, incarnation))
            else:
                self._meet(effect)

    def _seal_ahead(self) -> None:
        """What is likely to move in this round."""
        owned = self._ledger.owned_by(self.node) if self.node in self._ledger.node_chunks else ()
        ahead = self._log.scheduler.chunks_ahead
        self._memory.serving.prepare({chunk: self._ledger.version(chunk) for chunk in owned if chunk in ahead})

    def load_chunks(self, effect: effects.LoadChunks) -> None:
        """Have the task of this node load chunks."""
        if effect.node == self.node:
            self._placement.loads(effect.chunks)
            self._memory.load(effect, merged=self._ledger.merged, began=self._ledger.began)

    def copy_chunks(self, effect: effects.CopyChunks) -> None:
        """Transfer chunks that this node is the source or the target of."""
        if effect.target == self.node:
            self._placement.copies(effect.chunks)
        self._transfer(effect)

    def precopy_chunks(self, effect: effects.PrecopyChunks) -> None:
        """Transfer the rows of chunks, while the tasks compute."""
        self._moved.ordered(effect)
        self._transfer(effect)

    def _transfer(self, effect: effects.CopyChunks | effects.PrecopyChunks) -> None:
        for order in orders_of(effect) if self.node in (effect.source, effect.target) else ():
            if order.target == self.node:
                self._memory.fetch(order)
            if order.source == self.node:
                self._memory.serving.serve(order, version=self._ledger.version(order.chunk))

    def commit_chunks(self, effect: effects.CommitChunks) -> None:
        """The scheduler of every agent has the new owner in its ledger: nothing else has to change hands."""
        self._moved.committed(effect)
        if self.node in (effect.source, effect.target):
            for chunk in effect.chunks:
                hit("commit.done", chunk=chunk, source=effect.source, target=effect.target)

    def free_chunks(self, effect: effects.FreeChunks) -> None:
        """Give slots of this node back."""
        self._moved.freed(effect)
        if effect.node == self.node:
            self._memory.free(effect)

    def attach_chunks(self, effect: effects.AttachChunks) -> None:
        """Tell the task of this node what it has now."""
        if effect.node == self.node:
            self._memory.attach(effect.added, effect.removed)

    def start_iteration(self, effect: effects.StartIteration) -> None:
        """Tell the task of a member to iterate, or that the group of this round is broken."""
        log = self._log.snapshot()
        self._connect_ahead(effect.round)
        if self.node not in log.members:
            return
        hit("iteration.before_start", round=effect.round, iteration=effect.iteration)
        self._memory.serving.iteration_begins()
        self.transitions.started(effect.round, is_complete=effect.is_complete)
        if self._broken[0] == effect.round:
            reason = self._broken[1]
            self._loop.soon(lambda: self._log.iteration_broke(effect.round, effect.iteration, reason))
            return
        node_chunks = self._ledger.node_chunks
        order = control.Iterate(
            **{field.name: getattr(effect, field.name) for field in dataclasses.fields(effect)},
            num_tasks=sum(1 for held in node_chunks.values() if held.owned),
            lines=log.lines,
            may_go_on=log.is_steady,
        )
        self._say(self._pace.start(order))
        self._host.iteration_begins()
        self.policy_events.iteration_begins()
        self._tell_offer(log.members)

    def _tell_offer(self, members: Sequence[NodeId]) -> None:
        """The first member of the round tells the log what the resource manager offers, unless the log has it."""
        offer = None if self._resources is None else self._resources.offer
        if offer is None or members[0] != self.node:
            return
        if offer.number > max(self._log.scheduler.offer_number, self._offer_told):
            self._offer_told = offer.number
            self._log.append(offer)

    def _say(self, order: control.Iterate | None) -> None:
        if order is not None:
            self._host.tell_task(order)

    def notice_node(self, effect: effects.NoticeNode) -> None:
        """Write down that a policy lets a node go; its own agent hands its chunks over as after any notice."""
        self.transitions.detected(f"{effect.node} leaves")
        self._events.write("noticed", who=effect.node)

    def request_nodes(self, effect: effects.RequestNodes) -> None:
        """Tell the resource manager, if there is one, and write down what is wanted."""
        if self._resources is None:
            logger.warning("%s", no_manager_text(effect.total))
        else:
            self._resources.request(effect)
        self._events.write("requested", total=effect.total, reason=effect.reason)

    def release_node(self, effect: effects.ReleaseNode) -> None:
        """Leave, when it is this node that owns nothing any more."""
        self._events.write("released", who=effect.node)
        if effect.node == self.node:
            self.policy_events.lose(f"{self.node}, where it was made, has left")
            self._host.released()

    def save_checkpoint(self, effect: effects.SaveCheckpoint) -> None:
        """Have the task of this node write its part, unless state was lost or cut off since the last merge. The
        checkpoint before is better then: it has all state."""
        log = self._log.snapshot()
        if self.node not in effect.nodes or log.loss_round is not None:
            return
        self._host.tell_task(
            control.Save(
                round=effect.round,
                iteration=effect.iteration,
                merged_round=self._ledger.merged_round,
                nodes=effect.nodes,
            )
        )

    def pause_job(self, effect: effects.PauseJob) -> None:
        """Say why nothing goes on."""
        self._events.write("paused", reason=effect.reason)
        self._host.job_paused(effect.reason)

    def finish_job(self, effect: effects.FinishJob) -> None:
        """Tell the task what it has in the end, and with which model the job is over."""
        self.policy_events.end()
        self._events.write("finished", reason=effect.reason)
        if self._resources is not None:
            self._resources.finish(effect.reason, has_failed=effect.reason.startswith(FAILURE))
        self._memory.attach_for_end(self._ledger.owned_by(self.node) if self.node in self._ledger.node_chunks else ())
        # Perhaps no surviving node has the model of the last merge, and the job has resumed from an earlier one.
        merged = self._ledger.merged if self._model_of_group is None else min(self._ledger.merged, self._model_of_group)
        self._host.finished(effect.reason, merged, self._ledger.accounts())

    def _tell_transition(self, transition: Transition) -> None:
        kind = "transition" if transition.whole_ms is None else "whole"
        self._events.write(kind, **dataclasses.asdict(transition))
        self._host.tell_task(transition)

    def log(self, effect: effects.Log) -> None:
        """Write the line down."""
        logger.info("%s", effect.text)
        self._events.write("log", text=effect.text)

    # What the task says.

    def group_ready(self, message: control.GroupReady) -> None:
        """The process group of a round is there."""
        self._formation.succeeded(message.round)
        self._is_return = False
        self._model_of_group = message.merged
        self.transitions.connected(message.round)
        if message.merged < self._ledger.merged:
            logger.warning(
                "no surviving node has the model of iteration %d: the job resumes from iteration %d",
                self._ledger.merged,
                message.merged,
            )
        self._write_ledger(message.ledger)
        model = {"merged": message.merged, "model_address": message.model_address}
        self._events.write("group", round=message.round, sums=message.sums, **model)

    def group_broke(self, message: control.GroupBroke) -> None:
        """The process group of a round is not there, or not any more."""
        self._formation.failed(message.round, message.reason)
        self._break(message.round, message.reason)

    def iteration_ended(self, message: control.IterationEnded) -> None:
        """The task has merged an iteration."""
        self._model_of_group = None
        ended = Ended(
            round=message.round,
            iteration=message.iteration,
            reports=message.reports,
            stop_reason=message.stop_reason,
        )
        if not message.is_cut_off:  # else the task waited for a dead member before it reported
            self.transitions.ended(message.round, message.iteration)
        self._check_placement(message)
        # The chunks that took part, before the boundary moves any. The agent writes them down when no task waits.
        chunks = {node: len(held.owned) for node, held in self._ledger.node_chunks.items()}
        if not message.goes_on:
            self._pace.waits(message.round, message.iteration)
        if message.is_cut_off:
            reason = f"the group of round {message.round} broke after the merge"
            self._log.iteration_broke(message.round, message.iteration, reason, merged=ended)
        else:
            self._log.iteration_ended(ended, votes=message.votes, goes_on=message.goes_on)
        self._say(self._pace.overdue(message.iteration, self._log.snapshot().in_flight))
        self._loop.soon(lambda: self._write_iteration(message, chunks))

    def _write_iteration(self, message: control.IterationEnded, chunks: Mapping[NodeId, int]) -> None:
        self._events.write(
            "iteration",
            round=message.round,
            iteration=message.iteration,
            duration_ms=round(1e3 * message.duration_s, 3),
            epochs=message.epochs,
            votes=message.votes,
            model_address=message.model_address,
            figures=message.figures,
            seconds={node: report.duration_s for node, report in message.reports.items()},
            samples={node: report.samples for node, report in message.reports.items()},
            chunks=chunks,
            **self._moved.since_last(),
        )
        self._write_ledger(message.ledger)
        hit("iteration.ended", round=message.round, iteration=message.iteration)

    def saved(self, message: control.Saved) -> None:
        """A checkpoint is complete."""
        self._events.write(
            "checkpoint",
            iteration=message.iteration,
            size_bytes=message.size_bytes,
            duration_ms=round(1e3 * message.duration_s, 3),
        )
        if message.has_policies or message.is_resumed:
            self.policy_events.saved(
                events.CheckpointSaved(
                    iteration=message.iteration,
                    size_bytes=message.size_bytes,
                    duration_s=message.duration_s,
                    is_resumed=message.is_resumed,
                )
            )

    def iteration_broke(self, message: control.IterationBroke) -> None:
        """The task could not merge an iteration."""
        self._pace.waits(message.round, message.iteration)
        self._write_ledger(message.ledger)
        self._break(message.round, message.reason)

    def task_died(self) -> None:
        """The task is gone; what it was in cannot end."""
        self._pace.forget()
        self._connecting = NOBODY
        self._break(self._log.scheduler.round, f"the task of {self.node} died")

    @property
    def cannot_connect(self) -> str | None:
        """The addresses of the members, when their tasks have failed to connect again and again; else None."""
        return self._formation.describe() if self._formation.is_failing else None

    # How.

    @property
    def _ledger(self) -> Ledger:
        return self._log.scheduler.ledger

    def _break(self, round: int, reason: str) -> None:
        self._broken = max(self._broken, (round, reason))
        self.transitions.suspected("broken group")
        self._events.write("broken", round=round, reason=reason)
        in_flight = self._log.snapshot().in_flight
        if in_flight is not None and in_flight[0] == round:
            self._log.iteration_broke(*in_flight, reason)

    def versions(self) -> dict[ChunkId, StateVersion]:
        """Versions of the chunks that this node owns, as its log knows them."""
        ledger = self._ledger
        owned = ledger.owned_by(self.node) if self.node in ledger.node_chunks else ()
        return {chunk: ledger.version(chunk) for chunk in owned}

    def _inventory(self, round: int) -> events.InventoryReported:
        held, known = self._memory.store.inventory(), self.versions()
        if known.keys() <= held.keys():
            besides = {chunk: version for chunk, version in held.items() if chunk not in known}
            return events.InventoryReported(node=self.node, chunks=besides, round=round, is_as_known=True)
        chunks = held | {chunk: version for chunk, version in known.items() if chunk in held}
        return events.InventoryReported(node=self.node, chunks=chunks, round=round)

    def _is_forming(self, round: int, incarnation: str) -> bool:
        """Whether this incarnation still waits for this round to be formed."""
        scheduler = self._log.scheduler
        is_same = incarnation == self._log.snapshot().incarnation and scheduler.round == round
        return is_same and scheduler.state is State.FORMING

    def _meet_after_pause(self, effect: effects.FormRound, number: int, incarnation: str) -> None:
        if number == self._number and self._is_forming(effect.round, incarnation):
            self._meet(effect)

    def _meet(self, effect: effects.FormRound) -> None:
        """Take part in the rendezvous. It waits for no node: that all members are there, the log says."""
        self._connect_task(self._number, effect.round, effect.members)
        number, incarnation = self._number, self._log.snapshot().incarnation

        def then(future: "Future[None]") -> None:
            try:
                future.result()
            except ChicleError as error:
                self._host.failed(error)
                return
            if self._is_forming(effect.round, incarnation):
                self._met_round = effect.round
                self._say_round_formed()

        hit("round.before_rendezvous", round=effect.round)
        self._loop.work(lambda: self._take_part(number, effect.members), then, lane=Lane.MEET)

    def _say_round_formed(self) -> None:
        """Once all members have reported, the first of them says that the round is formed."""
        scheduler = self._log.scheduler
        round = scheduler.round
        if scheduler.state is not State.FORMING or self._met_round != round or self._is_round_said:
            return
        log = self._log.snapshot()
        members = log.asked
        if members and members[0] == self.node and log.reported.issuperset(members):
            self._is_round_said = True
            self._log.append(events.RoundFormed(round=round, members=members))

    def _connect_ahead(self, round: int) -> None:
        """Have the task connect to the members that the next round is likely to have, while the tasks compute; once
        they are the same as an iteration ago, so that the tasks do not connect anew for each of many nodes."""
        scheduler = self._log.scheduler
        before, self._ahead = self._ahead, scheduler.members_ahead
        if before == self._ahead and self.node in self._ahead and scheduler.round == round:
            self._connect_task(self._term * ROUNDS_PER_TERM + round + 1, round + 1, self._ahead)

    def _connect_task(self, number: int, round: int, members: tuple[NodeId, ...]) -> bool:
        """Have the task connect to the members of a round, unless it was told so; returns whether it was told."""
        store = self._host.round_store(members[0])
        if store is not None and self._connecting != (number, members):
            self._connecting = number, members
            self._events.write("connect", round=round, members=members)
            self._host.tell_task(self._formation.order(number, round, members, store))
        return self._connecting == (number, members)

    def _enter_round(self, event: events.RoundFormed) -> None:
        log, scheduler = self._log.snapshot(), self._log.scheduler
        if log.members != event.members or scheduler.round != event.round or self.node not in event.members:
            return
        hit("round.formed", round=event.round)
        self.transitions.formed(event.round, event.members)
        has_losses = log.loss_round is not None or self._ledger.num_missing > 0
        if not self._connect_task(self._number, event.round, event.members):
            # The link is cut: the next round comes when the agents have a new one, or one is lost.
            self._break(event.round, f"{self.node} has no link to {event.members[0]}, which serves the round's store")
            return
        node_chunks = self._ledger.node_chunks  # of later than this event: a member may be gone again
        capacities = {node: held.capacity_bytes for node, held in node_chunks.items()}
        self._host.tell_task(
            control.Round(
                round=event.round,
                members=event.members,
                has_losses=has_losses,
                merged=self._ledger.merged,
                merged_round=self._ledger.merged_round,
                began=self._ledger.began,
                is_return=self._is_return,
                capacity_bytes=tuple(capacities.get(node) for node in event.members),
                chunk_bytes=self._memory.store.slot_bytes,
                min_nodes=scheduler.settings.min_nodes,
                max_nodes=scheduler.settings.max_nodes,
                disabled=scheduler.disabled_policies,
                memories=scheduler.memories,
            )
        )
        self._events.write("round", round=event.round, members=event.members, has_losses=has_losses)

    def _note(self, event: events.Event) -> None:
        """Write down who comes and goes."""
        if isinstance(event, events.NodeJoined):
            self.transitions.detected(f"{event.node} joins")
            self._events.write("joined", who=event.node)
        elif isinstance(event, events.LeaveNoticed):
            self.transitions.detected(f"{event.node} leaves")
            self._events.write("noticed", who=event.node)
        elif isinstance(event, events.NodeLost):
            self.transitions.detected(f"{event.node} is lost", is_loss=True)
            self._events.write("lost", who=event.node, merged=self._ledger.merged)
            self._memory.lose_source(event.node)
        elif isinstance(event, events.IterationAborted):
            self._events.write("aborted", round=event.round, iteration=event.iteration, reason=event.reason)
        elif isinstance(event, events.PrecopiesEnded):
            self._moved.ended(event)
        elif isinstance(event, events.ChunksLoaded) and self._ledger.merged > self._ledger.began:
            self._moved.reloaded(event)

    def _immutable_share(self) -> float:
        """Of a chunk here; 1 where there is none."""
        for chunk in self._ledger.owned_by(self.node) if self.node in self._ledger.node_chunks else ():
            with contextlib.suppress(ChicleError):  # it is about to come or to go
                return self._memory.store.immutable_extent(chunk)[1] / self._ledger.info(chunk).size_bytes
        return 1.0

    def _check_placement(self, message: control.IterationEnded) -> None:
        """Tasks write pages where there is an event file; those of another time have nothing to be compared with."""
        is_current = self._log.snapshot().in_flight == (message.round, message.iteration)
        if not self._events.is_kept or not is_current:
            return
        try:
            self._placement.check(
                message.ledger,
                version=StateVersion(message.round, message.iteration),
                ledger=self._ledger,
                is_interrupted=message.is_interrupted,
            )
        except ContractError as error:
            self._host.breached(error)

    def _write_ledger(self, pages: Sequence[LedgerPage]) -> None:
        for page in pages:
            self._events.write(
                "ledger",
                before=[page.before.round, page.before.iteration],
                after=None if page.after is None else [page.after.round, page.after.iteration],
                chunks=page.chunks,
                rows=page.rows,
            )
