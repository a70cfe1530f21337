"""Performs what the scheduler orders of this node, and tells it what came of it.

Shell of the scheduler, as `runtime.in_process` is in one process: every method that performs an effect is named after
it, and nothing is decided here. Orders for other nodes are performed by their agents, which fold the same log.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from chicle_elastic.cluster.entries import Ended
from chicle_elastic.cluster.event_file import EventFile
from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.cluster.log_messages import Folded
from chicle_elastic.cluster.membership import Membership
from chicle_elastic.cluster.memory import NodeMemory
from chicle_elastic.cluster.pace import Pace
from chicle_elastic.cluster.placement import PlacementCheck
from chicle_elastic.cluster.rendezvous_errors import RoundAbandonedError, RoundTimeoutError
from chicle_elastic.cluster.steps import reach
from chicle_elastic.cluster.store_host import parse_endpoint, round_prefix
from chicle_elastic.cluster.transitions import Transitions
from chicle_elastic.errors import ChicleError, ContractError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.runtime import control
from chicle_elastic.runtime.ledger_page import LedgerPage
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.machine import State
from chicle_elastic.values import ChunkAccount, StateVersion

ROUNDS_PER_TERM = 1_000_000
"""At the rendezvous, rounds are numbered from a multiple of this for each term.

A lead that is cut off may still call a round in the term before, and the others, who have lost it, call one of the same
number for other members. Numbers there only rise, so the later term wins, and whoever comes with an earlier one is sent
away. A job that begins afresh in the same store has a later term, too.
"""
ROUND_TIMEOUT_S = 60.0
FAILURE = "a task failed: "
"""How the reason of `StopRequested` begins when code of the user raised; its traceback follows."""

logger = logging.getLogger(__name__)


class Host(Protocol):
    """What the performer needs of the agent."""

    def tell_task(self, message: control.AgentMessage) -> None:
        """Send a message to the task, if there is one."""
        ...

    def meet(self, round: int, members: tuple[NodeId, ...], timeout_s: float) -> None:
        """Take part in a rendezvous and wait for its end; in a worker thread."""
        ...

    def abandon(self, round: int, reason: str) -> None:
        """Wait no longer for a rendezvous, or one before it."""
        ...

    def released(self) -> None:
        """This node may go."""
        ...

    def finished(self, reason: str, merged: int, accounts: tuple[ChunkAccount, ...]) -> None:
        """The job is over with the model of iteration `merged`; `accounts` say what became of each chunk."""
        ...

    def failed(self, error: ChicleError) -> None:
        """This agent cannot go on."""
        ...

    def iteration_begins(self) -> None:
        """The task was told to iterate, or has gone on by itself."""
        ...

    def breached(self, error: ContractError) -> None:
        """The task did not process what it owns: nobody can go on."""
        ...


class Performer:
    """See the top of the module. Everything is called in the loop.

    Args:
        loop: For worker threads.
        node: This node.
        membership: The log, and the others.
        memory: The chunks of this node.
        host: The agent.
        events: The event file.
        endpoint: Of the rendezvous store.
        run_id: Of the job.
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        node: NodeId,
        membership: Membership,
        memory: NodeMemory,
        host: Host,
        event_file: EventFile,
        endpoint: str,
        run_id: str,
    ) -> None:
        self.node = node
        self.transitions = Transitions(loop.now, self._tell_transition)
        self._placement = PlacementCheck(node)
        self._loop, self._membership, self._memory, self._host = loop, membership, memory, host
        self._events, self._endpoint, self._run_id = event_file, endpoint, run_id
        self._term = 0
        self._number = 0
        self._met_round = 0
        self._is_return = False
        self._model_of_group: int | None = None
        self._is_round_said = False
        self._broken: tuple[int, str] = (0, "")
        self._pace = Pace()
        self._perform: dict[type, Callable[[Any], None]] = {
            effects.FormRound: self._form_round,
            effects.LoadChunk: self._load_chunk,
            effects.CopyChunk: self._copy_chunk,
            effects.PrecopyChunk: self._precopy_chunk,
            effects.CommitChunk: self._commit_chunk,
            effects.FreeChunk: self._free_chunk,
            effects.AttachChunks: self._attach_chunks,
            effects.StartIteration: self._start_iteration,
            effects.ReleaseNode: self._release_node,
            effects.PauseJob: self._pause_job,
            effects.FinishJob: self._finish_job,
            effects.Log: self._log,
        }

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
            self._perform[type(effect)](effect)
        if isinstance(event, events.InventoryReported):
            self._say_round_formed()

    def begin_life(self) -> None:
        """A new life folds the log from its beginning."""
        self._met_round = 0
        self._is_return = True
        self._pace.forget()

    def abandon_rendezvous(self, reason: str) -> None:
        """This life is over: wait for nobody any more."""
        self._host.abandon(self._number, reason)

    # Effects, in the order of a round.

    def _form_round(self, effect: effects.FormRound) -> None:
        self.transitions.called()
        self._number = self._term * ROUNDS_PER_TERM + effect.round
        self._host.abandon(self._number - 1, f"round {effect.round} is formed")
        reach("round.before_inventory", round=effect.round)
        self._membership.propose(events.InventoryReported(node=self.node, chunks=self._inventory(), round=effect.round))
        self._seal_ahead()
        if self.node in effect.members:
            self._is_round_said = False
            self._meet(effect)

    def _seal_ahead(self) -> None:
        """What is likely to move in this round."""
        owned = self._ledger.owned_by(self.node) if self.node in self._ledger.shelves else ()
        ahead = self._membership.replica.log.scheduler.chunks_ahead
        self._memory.serving.prepare({chunk: self._ledger.version(chunk) for chunk in owned if chunk in ahead})

    def _load_chunk(self, effect: effects.LoadChunk) -> None:
        if effect.node == self.node:
            self._placement.loads(effect.chunk)
            self._memory.load(effect, merged=self._ledger.merged, began=self._ledger.began)

    def _copy_chunk(self, effect: effects.CopyChunk) -> None:
        if effect.target == self.node:
            self._placement.copies(effect.chunk)
            self._memory.copy(effect)
        if effect.source == self.node:
            self._memory.serving.serve(effect, version=self._ledger.version(effect.chunk))

    def _precopy_chunk(self, effect: effects.PrecopyChunk) -> None:
        if effect.target == self.node:
            self._memory.fetch_ahead(effect)
        if effect.source == self.node:
            self._memory.rows.serve(effect)

    def _commit_chunk(self, effect: effects.CommitChunk) -> None:
        """The scheduler's book is in everybody's log: nothing else has to change hands."""
        if self.node in (effect.source, effect.target):
            reach("commit.done", chunk=effect.chunk, source=effect.source, target=effect.target)

    def _free_chunk(self, effect: effects.FreeChunk) -> None:
        if effect.node == self.node:
            self._memory.free(effect)

    def _attach_chunks(self, effect: effects.AttachChunks) -> None:
        if effect.node == self.node:
            self._memory.attach(effect.added, effect.removed)

    def _start_iteration(self, effect: effects.StartIteration) -> None:
        if self.node not in self._membership.replica.log.members:
            return
        reach("iteration.before_start", round=effect.round, iteration=effect.iteration)
        self._memory.serving.iteration_begins()
        self.transitions.started(effect.round, is_complete=effect.is_complete)
        if self._broken[0] == effect.round:
            reason = self._broken[1]
            self._loop.soon(lambda: self._membership.iteration_broke(effect.round, effect.iteration, reason))
            return
        shelves = self._ledger.shelves
        order = control.Iterate(
            round=effect.round,
            iteration=effect.iteration,
            is_complete=effect.is_complete,
            num_tasks=sum(1 for shelf in shelves.values() if shelf.owned),
            lines=self._membership.replica.log.lines,
            may_go_on=self._membership.replica.log.is_steady,
        )
        self._say(self._pace.start(order))
        self._host.iteration_begins()

    def _say(self, order: control.Iterate | None) -> None:
        if order is not None:
            self._host.tell_task(order)

    def _release_node(self, effect: effects.ReleaseNode) -> None:
        self._events.write("released", who=effect.node)
        if effect.node == self.node:
            self._host.released()

    def _pause_job(self, effect: effects.PauseJob) -> None:
        logger.warning("the job is paused: %s", effect.reason)
        self._events.write("paused", reason=effect.reason)

    def _finish_job(self, effect: effects.FinishJob) -> None:
        self._events.write("finished", reason=effect.reason)
        self._memory.attach_for_end(self._ledger.owned_by(self.node) if self.node in self._ledger.shelves else ())
        # Perhaps nobody survived who had the model of the last merge, and the job has gone on with one before it.
        merged = self._ledger.merged if self._model_of_group is None else min(self._ledger.merged, self._model_of_group)
        self._host.finished(effect.reason, merged, self._ledger.accounts())

    def _tell_transition(self, transition: Transition) -> None:
        kind = "transition" if transition.whole_ms is None else "whole"
        self._events.write(kind, **dataclasses.asdict(transition))
        self._host.tell_task(transition)

    def _log(self, effect: effects.Log) -> None:
        logger.info("%s", effect.text)
        self._events.write("log", text=effect.text)

    # What the task says.

    def group_ready(self, message: control.GroupReady) -> None:
        """The process group of a round is there."""
        self._is_return = False
        self._model_of_group = message.merged
        self.transitions.connected(message.round)
        if message.merged < self._ledger.merged:
            logger.warning(
                "nobody survived who had the model of iteration %d: the job goes on with that of iteration %d",
                self._ledger.merged,
                message.merged,
            )
        self._write_ledger(message.ledger)
        self._events.write("group", round=message.round, merged=message.merged, model_address=message.model_address)

    def group_broke(self, message: control.GroupBroke) -> None:
        """The process group of a round is not there, or not any more."""
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
        if not message.is_cut_off:  # it waited for somebody who was gone, and says so when that is over
            self.transitions.ended(message.round, message.iteration)
        self._check_placement(message)
        # The chunks that took part, before the boundary moves any. They are written down when nobody waits for it.
        chunks = {node: len(shelf.owned) for node, shelf in self._ledger.shelves.items()}
        if not message.goes_on:
            self._pace.waits(message.round, message.iteration)
        if message.is_cut_off:
            reason = f"the group of round {message.round} broke after the merge"
            self._membership.iteration_broke(message.round, message.iteration, reason, merged=ended)
        else:
            self._membership.iteration_ended(ended, votes=message.votes, goes_on=message.goes_on)
        self._say(self._pace.overdue(message.iteration, self._membership.replica.log.in_flight))
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
        )
        self._write_ledger(message.ledger)
        reach("iteration.ended", round=message.round, iteration=message.iteration)

    def saved(self, message: control.Saved) -> None:
        """A checkpoint is complete."""
        self._events.write(
            "checkpoint",
            iteration=message.iteration,
            size_bytes=message.size_bytes,
            duration_ms=round(1e3 * message.duration_s, 3),
        )

    def iteration_broke(self, message: control.IterationBroke) -> None:
        """The task could not merge an iteration."""
        self._pace.waits(message.round, message.iteration)
        self._write_ledger(message.ledger)
        self._break(message.round, message.reason)

    def advised(self, message: control.Advice) -> None:
        """A policy has decided. What the log would ignore, or has not taken yet, costs nobody a boundary."""
        event = events.PolicyDecided(
            policy=message.policy,
            generation=message.round,
            moves=message.moves,
            reason=message.reason,
            iteration=message.iteration,
        )
        replica = self._membership.replica
        is_on_its_way = any(
            isinstance(said.event, events.PolicyDecided) and said.event.policy == event.policy
            for said in replica.own.outbox
        )
        if not is_on_its_way and replica.log.scheduler.flaw_of(event) is None:
            self._membership.propose(event)

    def policy_failed(self, message: control.PolicyFailed) -> None:
        """A policy is heard no more."""
        self._membership.propose(events.PolicyDisabled(policy=message.policy, reason=message.reason))

    def task_died(self) -> None:
        """The task is gone; what it was in cannot end."""
        self._pace.forget()
        self._break(self._membership.replica.log.scheduler.round, f"the task of {self.node} died")

    # How.

    @property
    def _ledger(self) -> Any:
        return self._membership.replica.log.scheduler.ledger

    def _break(self, round: int, reason: str) -> None:
        self._broken = max(self._broken, (round, reason))
        self.transitions.suspected("broken group")
        self._events.write("broken", round=round, reason=reason)
        in_flight = self._membership.replica.log.in_flight
        if in_flight is not None and in_flight[0] == round:
            self._membership.iteration_broke(*in_flight, reason)

    def versions(self) -> dict[ChunkId, StateVersion]:
        """Versions of the chunks that this node owns, as its log knows them."""
        ledger = self._ledger
        owned = ledger.owned_by(self.node) if self.node in ledger.shelves else ()
        return {chunk: ledger.version(chunk) for chunk in owned}

    def _inventory(self) -> dict[ChunkId, StateVersion]:
        held = self._memory.store.inventory()
        return held | {chunk: version for chunk, version in self.versions().items() if chunk in held}

    def _meet(self, effect: effects.FormRound) -> None:
        """Take part in the rendezvous of a round; the first of its members says when it is formed."""
        number, life = self._number, self._membership.replica.life

        def then(future: "Future[None]") -> None:
            scheduler = self._membership.replica.log.scheduler
            is_current = (
                life == self._membership.replica.life
                and scheduler.round == effect.round
                and scheduler.state is State.FORMING
            )
            try:
                future.result()
            except (RoundAbandonedError, RoundTimeoutError) as error:
                if is_current and isinstance(error, RoundTimeoutError):
                    logger.warning("%s; it is tried again", error)
                    self._meet(effect)
            except ChicleError as error:
                self._host.failed(error)
            else:
                if is_current:
                    self._met_round = effect.round
                    self._say_round_formed()

        reach("round.before_rendezvous", round=effect.round)
        self._loop.work(lambda: self._host.meet(number, effect.members, ROUND_TIMEOUT_S), then)

    def _say_round_formed(self) -> None:
        """Once all members have met and reported, the first of them says that the round is formed."""
        log = self._membership.replica.log
        round = log.scheduler.round
        if log.scheduler.state is not State.FORMING or self._met_round != round or self._is_round_said:
            return
        members, reported = log.asked(round)
        if members and members[0] == self.node and set(members) <= reported:
            self._is_round_said = True
            self._membership.propose(events.RoundFormed(round=round, members=members))

    def _enter_round(self, event: events.RoundFormed) -> None:
        log = self._membership.replica.log
        if log.members != event.members or log.scheduler.round != event.round or self.node not in event.members:
            return
        reach("round.formed", round=event.round)
        self.transitions.formed(event.round, event.members)
        has_losses = log.loss_round is not None or self._ledger.num_missing > 0
        host, port = parse_endpoint(self._endpoint)
        shelves = self._ledger.shelves  # of later than this event: a member may be gone again
        weights = {node: shelf.weight for node, shelf in shelves.items()}
        capacities = {node: shelf.capacity_bytes for node, shelf in shelves.items()}
        self._host.tell_task(
            control.Round(
                round=event.round,
                rank=event.members.index(self.node),
                members=event.members,
                host=host,
                port=port,
                prefix=f"{round_prefix(self._run_id, self._number)}group/",
                has_losses=has_losses,
                merged=self._ledger.merged,
                began=self._ledger.began,
                is_return=self._is_return,
                weights=tuple(weights.get(node, 1.0) for node in event.members),
                capacity_bytes=tuple(capacities.get(node) for node in event.members),
                chunk_bytes=self._memory.store.slot_bytes,
                disabled=log.scheduler.disabled_policies,
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

    def _check_placement(self, message: control.IterationEnded) -> None:
        """Tasks write pages where there is an event file; those of another time have nothing to be compared with."""
        is_current = self._membership.replica.log.in_flight == (message.round, message.iteration)
        if not self._events.is_kept or not is_current:
            return
        try:
            self._placement.check(
                message.ledger,
                iteration=message.iteration,
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
