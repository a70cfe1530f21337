"""The uni-task of a node in a cluster: solve, one all-reduce, merge, judge; at boundaries, execute the agent's orders.

Theory of operation. The agent sends orders (`control`), and the main thread of this process executes them one at a
time:

    Round     leave the old group, connect to the members of the new one, get the newest model      (`catch_up`)
    Attach    decode chunks in place in the agent's arenas, pass them to the solver
    Iterate   solve on the local chunks; add up [weight * delta | weight | metrics | samples, seconds and chunks of each
              member | votes] in one all-reduce; merge in place; judge; report to the agent          (`reduce_layout`)
    Save      write a checkpoint: the job pauses, perhaps for good
    Finish    certify and collect what the job wants, return the outcome

Where the next iteration is certain to follow (`Iterate.may_go_on`, no votes, no stop), the task does not wait for the
agent's order: it reports the iteration and begins the next one.

After the all-reduce every task has the same numbers, so every task computes the same model, verdict and history without
another message. A certificate is a second all-reduce, which all tasks enter because their verdicts are equal.

When the group breaks. The merge is the commit. Before it, the iteration is void (`IterationBroke`); the state that the
solver wrote meanwhile may not match the model any more, so the next group rebuilds the model from the state before its
first iteration. After it, the iteration counts, even if its certificate fails (`IterationEnded`, then `GroupBroke`).
Some tasks may have merged and others not: the newest model wins in the next group.

The model keeps its address in memory from the first to the last round.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import signal
import sys
import threading
import traceback
import zlib
from collections.abc import Iterator
from typing import Any

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.sources import is_shared
from chicle_elastic.clock import Clock
from chicle_elastic.errors import (
    ChunkCorruptError,
    DataError,
    JobFailedError,
    PeerLostError,
    ProtocolError,
    UnreachablePlaceError,
    UsageError,
)
from chicle_elastic.ids import ChunkId
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.checkpoint.resume import Resumption
from chicle_elastic.runtime.checkpoint.trigger import CheckpointTrigger
from chicle_elastic.runtime.cluster_task.catch_up import TaskPosition, catch_up, gather
from chicle_elastic.runtime.cluster_task.chunk_loader import ChunkLoader
from chicle_elastic.runtime.cluster_task.control_client import ControlClient
from chicle_elastic.runtime.cluster_task.message_router import MessageRouter
from chicle_elastic.runtime.cluster_task.policy_runner import PolicyRunner
from chicle_elastic.runtime.cluster_task.round import RoundContext
from chicle_elastic.runtime.cluster_task.warmup import warm_up
from chicle_elastic.runtime.collectives.backend_choice import DeviceOffer, choose_backend, device_of_updates
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.job import DEFAULT_POLICIES, Job, Outcome
from chicle_elastic.runtime.training.ledger_pages import LedgerPage, LedgerPages
from chicle_elastic.runtime.training.training import Training
from chicle_elastic.runtime.training.uni_task import TRAINER, LocalContext, UniTask
from chicle_elastic.scheduling.pending_policies import NodeHoldings, RecentIterations, observe
from chicle_elastic.solvers.base import Action
from chicle_elastic.values import DEADLINE, Observations, StateVersion

SIGNALS_OF_THE_AGENT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Resource managers and terminals send them to all processes of a node; only the agent reacts to them."""

logger = logging.getLogger(__name__)


class ClusterTask:
    """Runs one job as the task of one node. One class because the order of the steps of an iteration is its subject.
    Raises ProtocolError when there is no agent at `address`, or one of another release.

    Args:
        began_s: When the job began, by this clock; by default now.
    """

    def __init__(self, job: Job, address: str, clock: Clock, *, began_s: float | None = None) -> None:
        self._job = job
        self._clock = clock
        self._origin_s = clock.now() if began_s is None else began_s
        self._state = job.trainer.state(job.source.schema)
        self._control = ControlClient(address)
        self._node = self._control.welcome.node
        self._may_use_nccl = True
        self._pages = LedgerPages()
        self._recent = RecentIterations()
        policies = DEFAULT_POLICIES if job.policies is None else job.policies
        self._message_router = MessageRouter(self._node, self._control.send, [policy.name for policy in policies])
        self._policy_runner = PolicyRunner(policies, clock, self._control.send, mailboxes=self._message_router)
        self._memories: dict[str, Any] = {}
        self._round_context: RoundContext | None = None
        self._checkpoint_trigger: CheckpointTrigger | None = None
        self._began: int | None = None
        self._round: control.Round | None = None
        self._transitions: list[Transition] = []
        self._merged, self._version = 0, StateVersion()
        self._is_dirty = False
        self._has_stopped = False

    def run(self) -> Outcome:
        """Execute the agent's orders until the job is over; see `ClusterRuntime.run`."""
        with signals_ignored():
            try:
                outcome = self._work()
            except JobFailedError:
                self._control.close(control.Left())
                raise
            except BaseException:
                self._control.close(control.Failed(traceback=traceback.format_exc()))
                raise
            self._control.close(control.Left())
            if outcome is None:
                raise SystemExit(0)
            return outcome

    def _work(self) -> Outcome | None:
        """The outcome of the job; None when this node leaves before its end, or came too late for it."""
        self._get_ready()
        try:
            while True:
                message = self._control.inbox.get()
                match message:
                    case (control.Round() as order, ProcessGroup() as group):
                        self._form_round(order, group)
                    case control.Attach():
                        self._attach(message)
                    case control.Iterate():
                        following: control.Iterate | None = message
                        while following is not None:
                            following = self._iterate(following)
                    case control.Save():
                        self._save(message)
                    case control.Finish():
                        return self._finish(message)
                    case control.Exit():
                        return None
                    case Exception():
                        raise message
                    case _:
                        raise ProtocolError(f"the agent sent {message}, which is no order for a task")
        finally:
            self._policy_runner.close()
            self._leave_round()
            if self._checkpoint_trigger is not None:
                self._checkpoint_trigger.close()
            self._task.close()

    def _get_ready(self) -> None:
        """Do all slow preparation, then declare the job: the other nodes do not wait for this one before it joins."""
        job, seed = self._job, zlib.crc32(self._node.encode())
        infos = job.source.infos(self._state)
        if is_shared(job.source):  # a slot holds the state alone
            sizes = (layout.outside_bytes(info.num_rows, self._state) for info in infos)
            infos = tuple(
                dataclasses.replace(info, size_bytes=size_bytes) for info, size_bytes in zip(infos, sizes, strict=True)
            )
        slot_bytes = self._control.expect(infos)
        context = LocalContext(self._node, [job.seed, seed], self._message_router)
        self._context = LocalContext(TRAINER, [job.seed, 0], self._message_router)
        self._task = UniTask(self._node, job.trainer, context, self._clock, job.source.schema)
        self._training = Training(job, context=self._context, elapsed_s=self._shared_elapsed_s, keeps_address=True)
        self._device = device_of_updates(job.trainer)
        warm_up(job, self._state, self._clock)
        settings = self._checkpoint_settings()
        identity = JobIdentity.of(job.trainer, job.source.schema, num_parameters=len(self._training.model))
        self._resumption = self._find_checkpoint(settings, identity)
        if settings is not None:
            saved = functools.partial(self._control.saved, is_resumed=settings.resume)
            self._checkpoint_trigger = CheckpointTrigger(
                settings,
                identity,
                self._training,
                lambda: self._task.chunks,
                lambda *figures: saved(*figures, has_policies=bool(self._policy_runner)),
                who=f"node {self._node}",
            )
            with self._tolerates_unreachable():
                self._checkpoint_trigger.require_writable()
        loader = ChunkLoader(job.source, self._state, self._resumption, self._control.send)
        self._control.start(loader, self._message_router)
        self._control.send(
            control.Declare(
                seed=job.seed,
                num_rows=job.source.schema.num_rows,
                rows=tuple(info.num_rows for info in infos),
                size_bytes=tuple(info.size_bytes for info in infos),
                slot_bytes=slot_bytes,
                data=job.source.fingerprint()[:16] if isinstance(job.source, ChunkFolder) else "",
                merged=self._resumption.found,
                parameters=self._resumption.parameters,
                checkpoints="" if settings is None else settings.pace,
                # "2.9.1" of "2.9.1+cpu"; tasks of linear models have none
                torch=getattr(sys.modules.get("torch"), "__version__", "").partition("+")[0],
            )
        )

    def _checkpoint_settings(self) -> CheckpointSettings | None:
        welcome = self._control.welcome
        settings = self._job.checkpoint or welcome.checkpoint
        if not welcome.wants_resume:
            return settings
        if settings is None:
            raise UsageError("--resume needs the checkpoints: give --checkpoint FOLDER, or Job(checkpoint=...)")
        return dataclasses.replace(settings, resume=True)

    def _find_checkpoint(self, settings: CheckpointSettings | None, identity: JobIdentity) -> Resumption:
        with self._tolerates_unreachable():
            return Resumption(self._job, settings, identity)
        assert settings is not None
        return Resumption(self._job, dataclasses.replace(settings, resume=False), identity)

    @contextlib.contextmanager
    def _tolerates_unreachable(self) -> Iterator[None]:
        """A new node that cannot reach the checkpoints does not join; a member whose task died must not end the job."""
        try:
            yield
        except UnreachablePlaceError as error:
            if not self._control.welcome.is_restart:
                raise
            logger.error("%s; the job goes on without", error)

    # Orders.

    def _form_round(self, order: control.Round, group: ProcessGroup) -> None:
        self._leave_round()
        training = self._training
        self._restore_checkpoint(order.began)
        own = TaskPosition(
            merged=order.merged_by(self._merged, self._version),
            last_certificate=training.last_certificate,
            must_recover=self._is_dirty or order.has_losses,
            has_caller=self._job.on_iteration is not None or self._job.on_model is not None,
            device=DeviceOffer.of(self._device, may_use_nccl=self._may_use_nccl),
            version=self._version,
        )
        try:
            group.connect()
            positions = gather(group, own)
            elapsed_s = catch_up(group, training, positions, self._elapsed_s())
            backend = choose_backend([position.device for position in positions])
            if self._device is not None:
                name = "NCCL" if backend.is_by_nccl else "the hosts"
                logger.info("round %d: updates are summed by %s: %s", order.round, name, backend.reason)
            if backend.is_by_nccl:
                self._may_use_nccl = group.connect_devices(device=self._device, num_values=len(training.model))
        except PeerLostError as error:
            group.close()
            self._control.report(control.GroupBroke(round=order.round, reason=str(error)))
            return
        self._set_elapsed(elapsed_s)
        newest = max(positions, key=lambda position: position.progress)
        self._merged, self._version = max(0, newest.merged), newest.version
        if self._merged < order.began == order.merged:
            self._resumption.at(order.began)  # no task can read it: raises the reason
        if self._merged == order.merged == 0 and self._checkpoint_trigger is not None:
            self._checkpoint_trigger.require_unused()
        is_first = self._merged == order.began and (order.began > 0 or self._job.initial_state is not None)
        self._is_dirty = is_first or any(position.must_recover for position in positions)
        self._message_router.has_trainer = group.rank == 0
        self._policy_runner.dismiss(order.disabled)
        self._memories.update(order.memories)
        self._round = order
        self._round_context = RoundContext(
            self._job,
            self._task,
            training,
            group,
            order.members,
            has_caller=any(position.has_caller for position in positions),
            elapsed_s=self._elapsed_s,
        )
        self._control.report(
            control.GroupReady(
                round=order.round,
                merged=self._merged,
                model_address=training.model.ctypes.data,
                sums=group.sums,
                ledger=self._pages.merged_by_others(self._version),
            )
        )

    def _restore_checkpoint(self, began: int) -> None:
        """Before the first round: restore the checkpoint that the job resumes from, if this task can read it."""
        if self._began is not None:
            return
        self._began = began
        if not began:
            return
        try:
            found = self._resumption.at(began)
        except DataError:
            return  # another task has read it, or `_form_round` raises the error
        self._merged, self._version = began, StateVersion(0, began)
        self._set_elapsed(found.restore(self._training))

    def _attach(self, order: control.Attach) -> None:
        attached = set(self._task.attached)
        try:
            added = [self._decode(placement) for placement in order.added]
        except (DataError, ChunkCorruptError):
            if not is_shared(self._job.source):
                raise
            traceback.print_exc()  # this host cannot read rows of its folder: the others go on without its task
            os._exit(1)
        # An agent attaches all chunks again to a restarted task, which has none of the removed ones.
        removed = [chunk for chunk in (*order.removed, *added) if chunk in attached]
        self._task.attach(added, list(dict.fromkeys(removed)))
        for chunk in attached.intersection(order.removed).difference(added):
            self._task.free(chunk)
            self._pages.detach(chunk)

    def _decode(self, placement: control.Placement) -> ChunkId:
        where = f"slot {placement.slot} of arena {placement.arena} of node {self._node}"
        chunk, state_header = self._control.decode(placement, where=where)
        if chunk.id != placement.chunk or state_header.spec != self._state:
            raise ProtocolError(
                f"{where} holds chunk {chunk.id} with {state_header.spec}, but the agent named chunk "
                f"{placement.chunk}, of which this job keeps {self._state}; this is a bug in chicle-elastic"
            )
        self._task.hold(chunk)
        self._pages.attach(placement.chunk, state_header.version)
        return placement.chunk

    def _iterate(self, order: control.Iterate) -> control.Iterate | None:
        """One iteration; returns the next one if the task begins it without an order."""
        started_s = self._clock.now()
        version = StateVersion(order.round, order.iteration)
        self._learn(order)
        has_solved = False
        try:
            round_context = self._round_context_of(order.round)
            if order.iteration <= round_context.merged:
                raise ProtocolError(
                    f"the agent orders iteration {order.iteration}, but iteration {round_context.merged} of round "
                    f"{order.round} is merged already; this is a bug in chicle-elastic"
                )
            if self._is_dirty or order.must_rebuild:
                round_context.recover()
                # Not `self._merged`: the job counts on even when no surviving task has the newest model.
                self._pages.stamp(StateVersion(order.round, order.iteration - 1))
            self._is_dirty = True  # until the merge, the state is ahead of the model
            round_context.solve(order, self._control.stop, self._clock)
            is_cut = self._control.stop.is_set() or order.parameters.get(DEADLINE, 0.0) > 0
            trainer = self._job.trainer
            has_solved, takes_all = True, trainer.reads_all(self._training.begun) and not trainer.takes_parts
            is_interrupted = is_cut or not takes_all
            has_vote = self._control.has_vote
            round_context.add_up(has_vote=has_vote)
        except PeerLostError as error:
            self._leave_round()
            wants_ledger = has_solved and self._control.welcome.wants_ledger
            pages = self._pages.write_unmerged(self._task.reads, version) if wants_ledger else ()
            self._control.report(
                control.IterationBroke(round=order.round, iteration=order.iteration, reason=str(error), ledger=pages)
            )
            return None
        self._is_dirty = False
        if has_vote:
            self._control.forget_vote()
        if round_context.rank == 0:
            self._job.trainer.converse(self._context)
        # Only forwards: a clock that was set back would lose the time of this sum.
        self._set_elapsed(max(self._elapsed_s(), round_context.elapsed_s))
        result = round_context.merge(order)
        self._merged, self._version = order.iteration, version
        pages = self._write_pages(version)
        self._pages.stamp(version)
        stop_reason = broke = None
        self._note_transitions()
        try:
            verdict = self._training.judge(result, round_context.evaluate, round_context.ask_callers)
            stop_reason = verdict.reason if verdict.action is Action.STOP else None
        except PeerLostError as error:
            self._leave_round()
            broke = str(error)
        self._has_stopped = stop_reason is not None
        self._resumption.forget_state()
        if self._checkpoint_trigger is not None and broke is None:
            ranks = [rank for rank, num_chunks in enumerate(result.num_chunks.values()) if num_chunks]
            self._checkpoint_trigger.iteration_ended(
                result, rank=round_context.rank, ranks=ranks, has_stopped=self._has_stopped
            )
        reports = round_context.reports()
        training = self._training.state_for_policies(order.parameters)
        self._recent.keep_only(round_context.members)
        self._recent.note(reports, (training,))
        if round_context.rank == 0 and self._policy_runner:
            self._policy_runner.observe(self._observations(round_context, order), self._memories)
        is_wanted = (
            bool(round_context.votes) or self._has_stopped or broke is not None or not self._control.inbox.empty()
        )
        goes_on = order.may_go_on and not is_wanted
        ended = control.IterationEnded(
            round=order.round,
            iteration=order.iteration,
            reports=reports,
            votes=round_context.votes,
            stop_reason=stop_reason,
            figures=training.figures,
            epochs=self._training.epochs,
            duration_s=self._clock.now() - started_s,
            model_address=self._training.model.ctypes.data,
            ledger=pages,
            is_cut_off=broke is not None,
            goes_on=goes_on,
            is_interrupted=is_interrupted,
        )
        self._control.ended(ended)
        if broke is not None:
            self._control.report(control.GroupBroke(round=order.round, reason=broke))
        self._training.history_text.keep(self._training.history)  # now, so that no member waits for it at a join
        return order.following() if goes_on else None

    def _learn(self, order: control.Iterate) -> None:
        """Take what policies have sent and remembered, and what happened."""
        if order.messages:
            self._message_router.deliver_of_policies(order.messages, order.iteration)
        self._memories.update(order.memories)
        self._recent.begin(order.iteration, order.happened)

    def _save(self, order: control.Save) -> None:
        """Write a part of the checkpoint of a job that pauses, if this task has the model that belongs to its state."""
        is_whole = self._version == StateVersion(order.merged_round, order.iteration) and not self._is_dirty
        if self._checkpoint_trigger is not None and is_whole:
            self._checkpoint_trigger.paused(order.iteration, order.nodes.index(self._node), order.nodes, order.round)

    def _finish(self, order: control.Finish) -> Outcome | None:
        """Certify and collect the outcome in the group, if that still holds; None if this task lacks the last model."""
        if order.failure is not None:
            raise JobFailedError(f"{order.reason}\n{order.failure}")
        if self._merged < order.merged:
            logger.warning("the job ended with iteration %d, and task %s has no model of it", order.merged, self._node)
            return None
        training, reason, state = self._training, order.reason, None
        self._note_transitions()
        try:
            if self._round_context is not None:
                if not self._has_stopped and training.last_certificate < self._merged:
                    training.certify(None, self._round_context.evaluate)
                if self._job.keep_state:
                    state = self._round_context.collect_state()
                if self._checkpoint_trigger is not None:
                    self._checkpoint_trigger.flush()
                    self._round_context.wait_for_all()  # after it, all parts are on the disk
                    self._checkpoint_trigger.flush()
        except PeerLostError as error:
            reason += f"; a node was lost right after it, so certificate, state or checkpoint may be missing ({error})"
        return Outcome(
            model=training.model,
            certificate=training.certificate_of(self._merged),
            history=training.full_history(self._transitions),
            reason=reason,
            state=state,
            ledger=JobLedger(order.accounts),
        )

    # Helpers.

    def _note_transitions(self) -> None:
        """Collect the agent's reports on changes of the membership, and call the callback of the job."""
        while not self._control.transitions.empty():
            transition = self._control.transitions.get()
            self._transitions.append(transition)
            if self._job.on_transition is not None:
                self._job.on_transition(transition)

    def _observations(self, round_context: RoundContext, order: control.Iterate) -> Observations:
        assert self._round is not None
        num_chunks, samples = round_context.holdings()
        capacities = dict(zip(self._round.members, self._round.capacity_bytes, strict=True))
        holdings = {
            node: NodeHoldings(
                num_chunks=count,
                samples=samples[node],
                used_bytes=self._round.chunk_bytes * count,
                capacity_bytes=capacities[node],
            )
            for node, count in num_chunks.items()
        }
        return observe(
            self._recent,
            holdings,
            round=self._round.round,
            iteration=order.iteration,
            min_nodes=self._round.min_nodes,
            max_nodes=self._round.max_nodes,
            wanted=order.wanted,
            travelling=order.travelling,
            arriving=order.arriving,
            offer=order.offer,
        )

    def _write_pages(self, after: StateVersion) -> tuple[LedgerPage, ...]:
        return self._pages.write(self._task.reads, after) if self._control.welcome.wants_ledger else ()

    def _round_context_of(self, round: int) -> RoundContext:
        if self._round_context is None or self._round_context.round != round:
            raise PeerLostError(f"task {self._node} has no group for round {round}; the next round makes one")
        return self._round_context

    def _leave_round(self) -> None:
        if self._round_context is not None:
            self._round_context.leave()
            self._round_context = None

    def _elapsed_s(self) -> float:
        return self._clock.now() - self._origin_s

    def _shared_elapsed_s(self) -> float:
        """Return the same value in every task, for the history."""
        return self._elapsed_s() if self._round_context is None else self._round_context.elapsed_s

    def _set_elapsed(self, elapsed_s: float) -> None:
        """Count from the start of the job, whenever this task joined."""
        self._origin_s = self._clock.now() - elapsed_s


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Leave the signals to the agent; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in SIGNALS_OF_THE_AGENT]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
