"""The uni-task of a node in a cluster: solve, one all-reduce, merge, judge; at boundaries, do what the agent says.

Theory of operation. The agent orders, message by message (`control`), and the main thread of this process does one
thing at a time:

    Round     leave the old group, connect to the members of the new one, get the newest model      (`catch_up`)
    Attach    decode chunks where they lie in the agent's arenas, tell the solver
    Iterate   solve on the local chunks; add up [weight * delta | weight | metrics | samples, seconds and chunks of each
              member | votes] in one all-reduce; merge in place; judge; tell the agent               (`frames`)
    Finish    certify and collect what was asked for, return the outcome

Where the next iteration is certain to follow (`Iterate.may_go_on`, no votes, no stop), the task does not wait for the
agent to say so: it tells what it has done and begins the next one.

After the all-reduce every task has the same numbers, so every task comes to the same model, verdict and history without
another message. A certificate is a second all-reduce, which all tasks enter because their verdicts are equal.

When the group breaks. The merge is the commit. Before it, the iteration never was (`IterationBroke`); the state that
the solver wrote meanwhile may not belong to the model any more, so the next group rebuilds the model from the state
before its first iteration. After it, the iteration counts, whatever happens to its certificate (`IterationEnded`, then
`GroupBroke`). Some tasks may have merged and others not: the newest model wins in the next group.

The model lies in one place in memory from the first to the last round.
"""

import contextlib
import dataclasses
import logging
import math
import signal
import threading
import traceback
import zlib
from collections.abc import Iterator

import numpy as np

from chicle_elastic.chunks import layout
from chicle_elastic.clock import Clock
from chicle_elastic.errors import (
    DataError,
    JobFailedError,
    MissingExtraError,
    PeerLostError,
    ProtocolError,
    UsageError,
)
from chicle_elastic.ids import ChunkId
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.runtime import control
from chicle_elastic.runtime.advice import Advisers, Seen
from chicle_elastic.runtime.catch_up import Standing, catch_up, gather
from chicle_elastic.runtime.checkpoint import JobIdentity
from chicle_elastic.runtime.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.control_link import ControlLink
from chicle_elastic.runtime.device_ways import DeviceOffer, device_of_updates, way_of
from chicle_elastic.runtime.group import Group
from chicle_elastic.runtime.job import DEFAULT_POLICIES, Job, Outcome
from chicle_elastic.runtime.ledger_page import LedgerPage
from chicle_elastic.runtime.ledger_pages import LedgerPages
from chicle_elastic.runtime.loader import ChunkLoader
from chicle_elastic.runtime.outbox import Outbox
from chicle_elastic.runtime.post_office import PostOffice
from chicle_elastic.runtime.practice import practise
from chicle_elastic.runtime.rendezvous_link import RendezvousLink
from chicle_elastic.runtime.resumption import Resumption
from chicle_elastic.runtime.saver import Saver
from chicle_elastic.runtime.task import TRAINER, LocalContext, UniTask
from chicle_elastic.runtime.team import Team
from chicle_elastic.runtime.training import Lap, Training
from chicle_elastic.solvers.base import Action
from chicle_elastic.store.arena import SLOT_ALIGNMENT
from chicle_elastic.values import StateVersion

SIGNALS_OF_THE_AGENT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Resource managers and terminals send them to all processes of a node; the agent decides what they mean."""


logger = logging.getLogger(__name__)


class ClusterTask:
    """Runs one job as the task of one node.

    Args:
        job: The same in every task.
        address: Of the agent's socket.
        clock: Of this process.

    Raises:
        ProtocolError: There is no agent at `address`, or one of another release.
    """

    def __init__(self, job: Job, address: str, clock: Clock) -> None:
        self._job = job
        self._clock = clock
        self._origin_s = clock.now()
        self._state = job.trainer.state(job.source.schema)
        self._link = ControlLink(address)
        self._node = self._link.welcome.node
        self._rendezvous: RendezvousLink | None = None
        if self._link.welcome.store_host is not None:
            self._connect_rendezvous(self._link.welcome.store_host, self._link.welcome.store_port)
        self._post_office = PostOffice(self._node, self._link.send)
        self._outbox = Outbox(self._link.send)
        self._pages = LedgerPages()
        self._seen = Seen()
        policies = DEFAULT_POLICIES if job.policies is None else job.policies
        self._advisers = Advisers(policies, clock, self._link.send)
        self._team: Team | None = None
        self._saver: Saver | None = None
        self._began: int | None = None
        self._round: control.Round | None = None
        self._transitions: list[Transition] = []
        self._merged = 0
        self._is_dirty = False
        self._has_stopped = False

    def run(self) -> Outcome:
        """Do what the agent says until the job is over; see `ClusterRuntime.run`."""
        with _signals_ignored():
            try:
                outcome = self._work()
            except JobFailedError:
                self._close(control.Left())
                raise
            except BaseException:
                self._close(control.Failed(traceback=traceback.format_exc()))
                raise
            self._close(control.Left())
            if outcome is None:
                raise SystemExit(0)
            return outcome

    def _work(self) -> Outcome | None:
        """The outcome of the job; None when this node leaves before its end, or came too late for it."""
        self._get_hot()
        try:
            while True:
                message = self._link.inbox.get()
                match message:
                    case (control.Round() as order, Group() as group):
                        self._form_round(order, group)
                    case control.Attach():
                        self._attach(message)
                    case control.Iterate():
                        following: control.Iterate | None = message
                        while following is not None:
                            following = self._iterate(following)
                    case control.Finish():
                        return self._finish(message)
                    case control.Exit():
                        return None
                    case Exception():
                        raise message
                    case _:
                        raise ProtocolError(f"the agent said {message}, which has no place in the life of a task")
        finally:
            self._advisers.close()
            self._leave_team()
            if self._saver is not None:
                self._saver.close()
            self._task.close()

    def _get_hot(self) -> None:
        """Do what takes long, and then say so: nobody waits for a node before it joins."""
        job, seed = self._job, zlib.crc32(self._node.encode())
        infos = job.source.infos(self._state)
        slot_bytes = -(-max(info.size_bytes for info in infos) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self._link.send(control.Expect(num_chunks=len(infos), slot_bytes=slot_bytes))
        try:
            import torch.distributed  # noqa: F401 - takes a second or more
        except ImportError as error:
            raise MissingExtraError.for_package("torch", extra="cluster", purpose="a task of a cluster") from error
        context = LocalContext(self._node, np.random.default_rng([job.seed, seed]), self._post_office)
        self._context = LocalContext(TRAINER, np.random.default_rng([job.seed, 0]), self._post_office)
        self._task = UniTask(self._node, job.trainer, context, self._clock)
        self._training = Training(job, context=self._context, elapsed_s=self._shared_elapsed_s, keeps_address=True)
        self._device = device_of_updates(job.trainer)
        practise(job, self._state, self._clock)
        settings = self._checkpoint_settings()
        identity = JobIdentity.of(job.trainer, job.source.schema, num_parameters=len(self._training.model))
        self._resumption = Resumption(job, settings, identity)
        if settings is not None:
            self._saver = Saver(settings, identity, self._training, lambda: self._task.chunks, self._tell_saved)
        loader = ChunkLoader(job, self._state, self._resumption, self._link.send)
        self._link.start(loader, self._post_office)
        self._link.send(
            control.Declare(
                seed=job.seed,
                num_rows=job.source.schema.num_rows,
                rows=tuple(info.num_rows for info in infos),
                size_bytes=tuple(info.size_bytes for info in infos),
                slot_bytes=slot_bytes,
                merged=self._resumption.found,
                checkpoints="" if settings is None else settings.pace,
            )
        )

    def _checkpoint_settings(self) -> CheckpointSettings | None:
        """What the job says, or else the launcher."""
        welcome = self._link.welcome
        settings = self._job.checkpoint or welcome.checkpoint
        if not welcome.wants_resume:
            return settings
        if settings is None:
            raise UsageError("--resume needs to know where checkpoints are: say --checkpoint FOLDER, or in the Job")
        return dataclasses.replace(settings, resume=True)

    def _tell_saved(self, iteration: int, size_bytes: int, duration_s: float) -> None:
        with contextlib.suppress(ConnectionError):
            self._link.send(control.Saved(iteration=iteration, size_bytes=size_bytes, duration_s=duration_s))

    # Orders.

    def _form_round(self, order: control.Round, group: Group) -> None:
        self._leave_team()
        training = self._training
        self._go_on_from(order.began)
        link = self._connect_rendezvous(order.host, order.port)
        # Whoever was taken for lost may have had the whole sum of an iteration that the others have given up since.
        is_astray = order.is_return and self._merged > order.merged
        own = Standing(
            merged=order.merged - 1 if is_astray else self._merged,
            last_certificate=training.last_certificate,
            must_recover=self._is_dirty or order.has_losses,
            has_caller=self._job.on_iteration is not None or self._job.on_model is not None,
            device=DeviceOffer.of(self._device, may_use_nccl=link.has_device_ways),
        )
        try:
            group.connect(link, prefix=order.prefix)
            standings = gather(group, own)
            elapsed_s = catch_up(group, training, standings, self._elapsed_s())
            way = way_of([standing.device for standing in standings])
            if self._device is not None:
                logger.info(
                    "round %d: updates go by %s: %s", order.round, "NCCL" if way.is_by_nccl else "host", way.reason
                )
            if way.is_by_nccl:
                group.connect_devices(link, prefix=order.prefix, device=self._device, num_values=len(training.model))
        except PeerLostError as error:
            group.close()
            self._tell(control.GroupBroke(round=order.round, reason=str(error)))
            return
        self._set_elapsed(elapsed_s)
        self._merged = max(0, *(standing.merged for standing in standings))
        if self._merged < order.began == order.merged:
            self._resumption.at(order.began)  # nobody can read it: raises, and says why
        if self._merged == order.merged == 0 and self._saver is not None:
            self._saver.require_unused()
        is_first = self._merged == order.began and (order.began > 0 or self._job.initial_state is not None)
        self._is_dirty = is_first or any(standing.must_recover for standing in standings)
        self._post_office.has_trainer = group.rank == 0
        self._advisers.dismiss(order.disabled)
        self._round = order
        self._team = Team(
            self._job,
            self._task,
            training,
            group,
            order.members,
            has_caller=any(standing.has_caller for standing in standings),
            elapsed_s=self._elapsed_s,
        )
        self._tell(
            control.GroupReady(
                round=order.round,
                merged=self._merged,
                model_address=training.model.ctypes.data,
                ledger=self._pages.merged_by_others(self._merged),
            )
        )

    def _go_on_from(self, began: int) -> None:
        """Before the first round: be where the checkpoint is that the job goes on from, if it can be read here."""
        if self._began is not None:
            return
        self._began = began
        if not began:
            return
        try:
            found = self._resumption.at(began)
        except DataError:
            return  # the others have what is needed, or it is an error when they do not
        self._merged = began
        self._set_elapsed(found.restore(self._training))

    def _attach(self, order: control.Attach) -> None:
        attached = set(self._task.attached)
        added = [self._decode(placement) for placement in order.added]
        # An agent tells a task that was started again all over: what it does not know is nothing to be removed.
        removed = [chunk for chunk in (*order.removed, *added) if chunk in attached]
        self._task.attach(added, list(dict.fromkeys(removed)))
        for chunk in attached.intersection(order.removed).difference(added):
            self._task.free(chunk)
            self._pages.detach(chunk)

    def _decode(self, placement: control.Placement) -> ChunkId:
        """Hold a chunk where it lies."""
        where = f"slot {placement.slot} of arena {placement.arena} of node {self._node}"
        content = self._link.arena(placement.arena).view(placement.slot)
        ahead = self._link.take_ahead(placement)
        chunk, state_header = layout.decode_with_state_header(content, where=where, ahead=ahead)
        if chunk.id != placement.chunk or state_header.spec != self._state:
            raise ProtocolError(
                f"{where} holds chunk {chunk.id} with {state_header.spec}, and the agent said chunk "
                f"{placement.chunk}, of which this job keeps {self._state}"
            )
        self._task.hold(chunk)
        self._pages.attach(placement.chunk, state_header.version)
        return placement.chunk

    def _iterate(self, order: control.Iterate) -> control.Iterate | None:
        """One iteration; returns what to go on with without asking, if anything."""
        started_s = self._clock.now()
        version = StateVersion(order.round, order.iteration)
        has_solved = False
        try:
            team = self._team_of(order.round)
            if order.iteration <= team.merged:
                raise ProtocolError(
                    f"the agent orders iteration {order.iteration}, and iteration {team.merged} of round {order.round} "
                    "is merged; this is a fault of chicle-elastic"
                )
            if self._is_dirty:
                team.recover()
                # Not `self._merged`: the job counts on even when nobody survived who had the newest model.
                self._pages.stamp(StateVersion(order.round, order.iteration - 1))
            self._is_dirty = True  # until the merge, the state is ahead of the model
            team.solve(order, self._link.stop, self._clock)
            has_solved, is_interrupted = True, self._link.stop.is_set() or self._job.trainer.takes_parts
            has_vote = self._link.has_vote
            team.add_up(has_vote=has_vote)
        except PeerLostError as error:
            self._leave_team()
            wants_ledger = has_solved and self._link.welcome.wants_ledger
            pages = self._pages.write_unmerged(self._task.reads, version) if wants_ledger else ()
            self._tell(
                control.IterationBroke(round=order.round, iteration=order.iteration, reason=str(error), ledger=pages)
            )
            return None
        self._is_dirty = False
        if has_vote:
            self._link.forget_vote()
        if team.rank == 0:
            self._job.trainer.converse(self._context)
        else:
            self._set_elapsed(team.elapsed_s)
        lap = team.merge(order)
        self._merged = order.iteration
        pages = self._write_pages(version)
        self._pages.stamp(version)
        stop_reason = broke = None
        self._note_transitions()
        try:
            verdict = self._training.judge(lap, team.evaluate, team.ask_callers)
            stop_reason = verdict.reason if verdict.action is Action.STOP else None
        except PeerLostError as error:
            self._leave_team()
            broke = str(error)
        self._has_stopped = stop_reason is not None
        self._resumption.forget_state()
        if self._saver is not None and broke is None:
            ranks = [rank for rank, num_chunks in enumerate(lap.num_chunks.values()) if num_chunks]
            self._saver.iteration_ended(lap, rank=team.rank, ranks=ranks, has_stopped=self._has_stopped)
        reports = team.reports()
        self._seen.note(team.members, reports)
        if team.rank == 0 and self._advisers:
            self._show_policies(team, lap)
        is_wanted = bool(team.votes) or self._has_stopped or broke is not None or not self._link.inbox.empty()
        goes_on = order.may_go_on and not is_wanted
        if goes_on:
            self._link.begin_next()  # before the agent hears of it: an interrupt in answer means the next one
        tell = self._outbox.put if goes_on else self._tell
        tell(
            control.IterationEnded(
                round=order.round,
                iteration=order.iteration,
                reports=reports,
                votes=team.votes,
                stop_reason=stop_reason,
                figures={k: v for k, v in self._training.history[-1].figures.items() if math.isfinite(v)},
                epochs=self._training.epochs,
                duration_s=self._clock.now() - started_s,
                model_address=self._training.model.ctypes.data,
                ledger=pages,
                is_cut_off=broke is not None,
                goes_on=goes_on,
                is_interrupted=is_interrupted,
            )
        )
        if broke is not None:
            self._tell(control.GroupBroke(round=order.round, reason=broke))
        self._training.archive.keep(self._training.history)  # now, so that nobody waits for it when somebody joins
        return dataclasses.replace(order, iteration=order.iteration + 1, lines=()) if goes_on else None

    def _finish(self, order: control.Finish) -> Outcome | None:
        """Everything about the last model; in the group, as long as that holds. None when it was not here for that."""
        if order.failure is not None:
            raise JobFailedError(f"{order.reason}\n{order.failure}")
        if self._merged < order.merged:
            logger.warning("the job is over with iteration %d; %s has no model of it", order.merged, self._node)
            return None
        training, reason, state = self._training, order.reason, None
        self._note_transitions()
        try:
            if self._team is not None:
                if not self._has_stopped and training.last_certificate < self._merged:
                    training.certify(None, self._team.evaluate())
                if self._job.keep_state:
                    state = self._team.collect_state()
                if self._saver is not None:
                    self._saver.flush()
                    self._team.wait_for_all()  # then all parts are on the disk
                    self._saver.flush()
        except PeerLostError as error:
            reason += f"; a node was lost right after it, and what belongs to the end is incomplete ({error})"
        return Outcome(
            model=training.model,
            certificate=training.certificate_of(self._merged),
            history=training.full_history(self._transitions),
            reason=reason,
            state=state,
            ledger=JobLedger(order.accounts),
        )

    # Small things.

    def _tell(self, message: control.TaskMessage) -> None:
        """Tell the agent, after everything that it has not been told yet."""
        self._outbox.flush()
        self._link.send(message)

    def _note_transitions(self) -> None:
        """Keep what the agent has said of changes of the membership, and tell the caller."""
        while not self._link.transitions.empty():
            transition = self._link.transitions.get()
            self._transitions.append(transition)
            if self._job.on_transition is not None:
                self._job.on_transition(transition)

    def _close(self, last_word: control.TaskMessage) -> None:
        self._outbox.close()
        self._link.close(last_word)

    def _show_policies(self, team: Team, lap: Lap) -> None:
        assert self._round is not None
        num_chunks, samples = team.holdings()
        self._advisers.observe(
            self._seen.observations(self._round, iteration=lap.iteration, num_chunks=num_chunks, samples=samples)
        )

    def _write_pages(self, after: StateVersion) -> tuple[LedgerPage, ...]:
        return self._pages.write(self._task.reads, after) if self._link.welcome.wants_ledger else ()

    def _team_of(self, round: int) -> Team:
        if self._team is None or self._team.round != round:
            raise PeerLostError(
                f"the task of node {self._node} has no group for round {round}; the next round makes one"
            )
        return self._team

    def _leave_team(self) -> None:
        if self._team is not None:
            self._team.leave()
            self._team = None

    def _connect_rendezvous(self, host: str, port: int) -> RendezvousLink:
        """The link to this store; a new one when the store has moved."""
        link = self._rendezvous
        if link is None or (link.host, link.port) != (host, port):
            link = self._rendezvous = RendezvousLink(host, port)
            link.prepare()
        return link

    def _elapsed_s(self) -> float:
        return self._clock.now() - self._origin_s

    def _shared_elapsed_s(self) -> float:
        """The same in every task, for the history."""
        return self._elapsed_s() if self._team is None else self._team.elapsed_s

    def _set_elapsed(self, elapsed_s: float) -> None:
        """Every task counts from the same start, whenever it came."""
        self._origin_s = self._clock.now() - elapsed_s


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
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
