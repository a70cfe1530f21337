"""The in-process runtime: K uni-tasks in this process, driven by the same scheduler as a cluster.

It touches no torch, no fork, no socket and no shared memory, so it runs wherever NumPy does. With one task it is the
plain way to fit on one machine. With several it *emulates* a cluster, tasks one after the other: what is measured in
iterations and epochs is what a cluster would show, what is measured in seconds is not.

Shell of the scheduler: `_Shell.run` feeds one event at a time and performs the effects in order.
Nothing is decided here.
"""

import contextlib
import dataclasses
import statistics
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from chicle_elastic.cgroups import PROC, memory_headroom
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.sources import ChunkSource
from chicle_elastic.chunks.views import Array, StateSpec
from chicle_elastic.clock import Clock, MonotonicClock, Stopwatch
from chicle_elastic.errors import CapacityError, ProtocolError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.recording_file import new_recording
from chicle_elastic.resources.managed_nodes import ManagedNodes
from chicle_elastic.resources.managers import ResourceManager
from chicle_elastic.resources.schedule import Schedule, ScheduledNodes
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.checkpoint.resume import Resumption
from chicle_elastic.runtime.checkpoint.trigger import CheckpointTrigger
from chicle_elastic.runtime.cluster_task.policy_runner import HearingPolicy, TimeLimitedPolicy
from chicle_elastic.runtime.training.blas_threads import blas_threads_of
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.runtime.training.local_tasks import LocalTasks
from chicle_elastic.runtime.training.training import Evaluation, IterationResult, Training
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.recording import RecordedPolicy, Recorder, RecordingSink
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.scheduling.text import no_manager_text
from chicle_elastic.solvers.base import Action, Trainer

TASK_PREFIX = "task-"  # how names of tasks begin
CERTIFY_WITHIN_S = 0.5
"""After Ctrl-C; where the passes over the samples take longer, the last merged model gets no certificate."""
PASSES_OF_A_CERTIFICATE, ITERATIONS_LOOKED_AT = 4, 10
"""As long as so many of the last iterations, by their median, because a first one compiles kernels: state is read for
the model, and samples for the figures, perhaps once more for another model (`Trainer.settled`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """Run a job in this process.

    Args:
        num_tasks: Uni-tasks at the start, >= 1.
        changes: Membership changes to emulate: pairs (iteration, num_tasks), both >= 1; after that iteration tasks
            join or leave (the newest leave first) until there are `num_tasks`.
        log_dir: Folder for the recording of each job, which `chicle replay` folds again; None for none.
        resources: Where tasks come from, instead of `changes`: a schedule (seconds since the job began, tasks, price),
            or a resource manager of your own. The job begins with all tasks that it assigns at once, at least
            `num_tasks`; it is asked again after each iteration. None: policies can give tasks back, and get no others.

    One task; a second one joins after iteration 1:

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from chicle_elastic import ArraySource, InProcess, Job, LinearTrainer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> runtime = InProcess(num_tasks=1, changes=((1, 2),))
    >>> source = ArraySource(scale(X), y, max_tasks=runtime.most_tasks())
    >>> trainer = LinearTrainer(C=0.1, tol=1e-3, algorithm="newton")
    >>> outcome = runtime.run(Job(trainer=trainer, source=source, max_iterations=100))
    >>> outcome.history.column("num_tasks")[:3]
    array([1, 2, 2])
    >>> bool(outcome.history[-1].figures["duality_gap"] <= 1e-3)
    True
    """

    num_tasks: int = 1
    changes: tuple[tuple[int, int], ...] = ()
    log_dir: str | Path | None = None
    resources: Schedule | ResourceManager | None = None

    def __post_init__(self) -> None:
        counts = [self.num_tasks, *(number for change in self.changes for number in change)]
        if any(len(change) != 2 for change in self.changes) or any(
            isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in counts
        ):
            raise UsageError(
                f"InProcess needs num_tasks >= 1 and changes as pairs (iteration, num_tasks) of integers >= 1, got "
                f"num_tasks={self.num_tasks!r}, changes={self.changes!r}"
            )
        if self.changes and self.resources is not None:
            raise UsageError("InProcess takes changes or resources, and not both: tasks come from one of the two")
        if isinstance(self.resources, Schedule) and (
            self.resources.least() < 1 or self.resources.at(0.0).nodes < self.num_tasks
        ):
            raise UsageError(
                f"InProcess(num_tasks={self.num_tasks}): the schedule has {self.resources.at(0.0).nodes} nodes at the "
                f"beginning and {self.resources.least()} at the least; the job begins with num_tasks or more, and in "
                "one process it cannot go on with none"
            )

    def most_tasks(self) -> int:
        """Largest number of tasks there will be, as far as that is known; chunks are cut so that each has some."""
        scheduled = self.resources.most() if isinstance(self.resources, Schedule) else 0
        return max([self.num_tasks, scheduled, *(number for _, number in self.changes)])

    def run(self, job: Job, *, clock: Clock | None = None) -> Outcome:
        """Run the job to its end, or to the first Ctrl-C.

        Raises:
            KeyboardInterrupt: Ctrl-C before the first iteration has ended.
            ContractError: The job's solver broke the contract of chunks.
            CapacityError: The scheduler had to pause the job, and in one process nothing would ever resume it; or there
                are fewer nodes than `num_tasks` at the beginning.
            UsageError: No recording can be written to `log_dir`.
        """
        with contextlib.ExitStack() as stack:
            sink = None if self.log_dir is None else stack.enter_context(new_recording(Path(self.log_dir), "job"))
            manager = self.resources
            if isinstance(manager, Schedule):
                manager = ScheduledNodes(manager, prefix=TASK_PREFIX)
            shell = _Shell(job, self.num_tasks, clock or MonotonicClock(), sink=sink, manager=manager)
            stack.callback(shell.close)
            stack.enter_context(blas_threads_of(job.trainer))
            return shell.run(self)


class _Shell:
    """Performs the effects of the scheduler for one job."""

    def __init__(
        self,
        job: Job,
        num_tasks: int,
        clock: Clock,
        *,
        sink: RecordingSink | None,
        manager: ResourceManager | None,
    ) -> None:
        job = dataclasses.replace(job, source=held_source(job.source, job.trainer, num_tasks))
        self.job = job
        self.clock = clock
        self.source: ChunkSource = job.source
        self.state_spec: StateSpec = job.trainer.state(job.source.schema).without_notes()
        settings = SchedulerSettings(seed=job.seed, start_nodes=num_tasks)
        self.tasks = LocalTasks(job, clock)
        hearing = [HearingPolicy(policy, self.tasks.mailboxes) for policy in job.policies or ()]
        policies = [TimeLimitedPolicy(policy) for policy in hearing]
        self.scheduler = Scheduler(settings, policies if sink is None else [*map(RecordedPolicy, policies)])
        self.handler = self.scheduler if sink is None else Recorder(self.scheduler, sink)
        self.under_notice: set[NodeId] = set()
        self.managed = None if manager is None else ManagedNodes(manager)
        self.num_offers = 0
        self.inbox: deque[events.Event] = deque()
        self.changes: dict[int, int] = {}
        self.watch = Stopwatch(clock)
        self.training = Training(job, context=self.tasks.context, elapsed_s=self.watch.elapsed_s)
        self.is_rebuilding = False
        identity = JobIdentity.of(job.trainer, job.source.schema, num_parameters=len(self.training.model))
        self.resumption = Resumption(job, job.checkpoint, identity)
        self.checkpoint_trigger: CheckpointTrigger | None = None
        if job.checkpoint is not None:
            self.checkpoint_trigger = CheckpointTrigger(
                job.checkpoint, identity, self.training, self.tasks.chunks, self.saved
            )
            self.checkpoint_trigger.require_writable()
        self.lines: list[str] = []
        self.reason: str | None = None

    def run(self, runtime: InProcess) -> Outcome:
        """Feed events until the job is finished."""
        self.changes = dict(runtime.changes)
        infos = self.source.infos(self.state_spec)
        self.go_on()
        found, parameters = self.resumption.found, self.resumption.parameters
        self.inbox.append(events.ChunksDeclared(chunks=infos, merged=found, parameters=parameters))
        if self.managed is None:
            self.resize(runtime.num_tasks)
        else:
            self.ask_manager(self.managed)
            if len(self.tasks) < runtime.num_tasks:
                raise CapacityError(
                    f"the resource manager has assigned {len(self.tasks)} of {runtime.num_tasks} nodes at the "
                    "beginning; let it assign more, or lower num_tasks"
                )
        is_interrupted = False
        try:
            while self.reason is None:
                event = self.inbox.popleft()
                for effect in self.handler.handle(event, now=self.watch.elapsed_s()):
                    effects.dispatch(effect, self)
        except KeyboardInterrupt:
            if not self.training.history:  # nothing that could be returned
                raise
            is_interrupted = True
            self.reason = "interrupted"
            # A solver may have been cut off between state and model: only the state is trusted from here on.
            last = self.training.history[-ITERATIONS_LOOKED_AT:]
            usual_s = statistics.median_low(sum(record.seconds.values()) for record in last)
            if PASSES_OF_A_CERTIFICATE * usual_s <= CERTIFY_WITHIN_S:
                self.tasks.rebuild(self.training)
                self.training.certify(None, self.evaluate)
        model, certificate = self.training.model, self.training.certificate_of(self.training.iteration)
        # State is that of the last iteration, and belongs to its model.
        if is_interrupted and self.training.best and not (self.job.keep_state and certificate):
            model, certificate = self.training.best
        return Outcome(
            model=model,
            certificate=certificate,
            history=self.training.history,
            reason=self.reason or "",
            is_interrupted=is_interrupted,
            state=self.collect_state() if self.job.keep_state else None,
            ledger=JobLedger(self.scheduler.ledger.accounts()),
        )

    def go_on(self) -> None:
        """Be where the checkpoint is that the job goes on from, or at the beginning of one of its own."""
        began = self.resumption.found
        if began:
            self.watch.reset(self.resumption.at(began).restore(self.training))
        elif self.checkpoint_trigger is not None:
            self.checkpoint_trigger.require_unused()
        self.is_rebuilding = began > 0 or self.job.initial_state is not None

    def close(self) -> None:
        """End all tasks."""
        if self.checkpoint_trigger is not None:
            self.checkpoint_trigger.close()
        for task in self.tasks.values():
            task.close()

    # Effects, in the order of a round.

    def form_round(self, effect: effects.FormRound) -> None:
        self.inbox.append(events.RoundFormed(round=effect.round, members=effect.members))

    def load_chunks(self, effect: effects.LoadChunks) -> None:
        state = self.resumption.state(merged=self.scheduler.ledger.merged, began=self.scheduler.ledger.began)
        for chunk_id in effect.chunks:
            chunk = self.source.load(chunk_id, self.state_spec)
            if state is not None:
                chunk.state[...] = state[chunk.row_ids]
            self.tasks[effect.node].hold(chunk)
        self.inbox.append(events.ChunksLoaded(chunks=effect.chunks, node=effect.node, round=effect.round))

    def copy_chunks(self, effect: effects.CopyChunks) -> None:
        chunks, source, target = effect.chunks, effect.source, effect.target
        for chunk in chunks:
            self.tasks.copy_chunk(chunk, source, target)
        self.inbox.append(events.ChunksCopied(chunks=chunks, source=source, target=target, round=effect.round))

    def precopy_chunks(self, effect: effects.PrecopyChunks) -> None:
        raise ProtocolError(
            f"the scheduler orders a pre-copy of chunk {effect.chunks[0]} to {effect.target} in one process, where "
            "tasks share the rows; build it with SchedulerSettings(precopy=False)"
        )

    def commit_chunks(self, effect: effects.CommitChunks) -> None:
        """Nothing to do in one process: the scheduler's ledger is the only one."""

    def free_chunks(self, effect: effects.FreeChunks) -> None:
        for chunk in effect.chunks:
            self.tasks[effect.node].free(chunk)
        self.inbox.append(events.ChunksFreed(chunks=effect.chunks, node=effect.node))

    def attach_chunks(self, effect: effects.AttachChunks) -> None:
        self.tasks[effect.node].attach(effect.added, effect.removed)

    def notice_node(self, effect: effects.NoticeNode) -> None:
        """The task works on until it is released, and is none of those that stay."""
        self.under_notice.add(effect.node)

    def request_nodes(self, effect: effects.RequestNodes) -> None:
        """Tell the resource manager; without one, say that this runtime starts tasks by its `changes` only."""
        if self.managed is None:
            self.lines.append(no_manager_text(effect.total))
        else:
            self.managed.request(effect.total, effect.reason)

    def release_node(self, effect: effects.ReleaseNode) -> None:
        self.tasks.leave(effect.node)
        self.under_notice.discard(effect.node)
        if self.managed is not None:
            self.managed.released(effect.node)

    def save_checkpoint(self, effect: effects.SaveCheckpoint) -> None:
        """The pause that follows ends the job, and its caller has what is in memory."""

    def pause_job(self, effect: effects.PauseJob) -> None:
        raise CapacityError(effect.reason)

    def finish_job(self, effect: effects.FinishJob) -> None:
        self.reason = effect.reason

    def log(self, effect: effects.Log) -> None:
        self.lines.append(effect.text)

    def start_iteration(self, effect: effects.StartIteration) -> None:
        """Solve, merge, judge; then report the end of the iteration."""
        job, training = self.job, self.training
        if effect.messages:
            self.tasks.mailboxes.deliver(effect.messages, effect.iteration)
        if self.is_rebuilding or effect.must_rebuild:
            self.tasks.rebuild(training)
            self.is_rebuilding = False
        members = [node for node, task in self.tasks.items() if task.num_chunks]
        summed, reports = self.tasks.solve(training, members, effect, may_be_cut=True)
        job.trainer.converse(self.tasks.context)
        training.merge(summed)
        result = IterationResult(
            iteration=effect.iteration,
            samples=sum(report.samples for report in reports.values()),
            num_tasks=len(members),
            metrics=summed.metrics,
            is_complete=effect.is_complete,
            num_chunks={task.node: task.num_chunks for task in self.tasks.values()},
            seconds={node: report.duration_s for node, report in reports.items()},
            lines=tuple(self.lines),
            parameters=effect.parameters,
        )
        self.lines.clear()
        verdict = training.judge(result, self.evaluate, lambda record: job.is_ended_by_caller(record, training.model))
        self.resumption.forget_state()
        if self.checkpoint_trigger is not None:
            self.checkpoint_trigger.iteration_ended(
                result, rank=0, ranks=[0], has_stopped=verdict.action is Action.STOP
            )
        if verdict.action is Action.STOP:
            self.inbox.append(events.StopRequested(reason=verdict.reason))
        elif effect.iteration in self.changes:
            self.resize(self.changes[effect.iteration])
        elif self.managed is not None:
            self.ask_manager(self.managed)
        self.inbox.append(
            events.IterationFinished(
                round=effect.round,
                iteration=effect.iteration,
                reports=reports,
                training=(training.state_for_policies(effect.parameters),) if job.policies else (),
            )
        )

    def saved(self, iteration: int, size_bytes: int, duration_s: float) -> None:
        """A checkpoint is complete; called in the thread that wrote it."""
        self.inbox.append(events.CheckpointSaved(iteration=iteration, size_bytes=size_bytes, duration_s=duration_s))

    # Parts of an iteration.

    def evaluate(self) -> Evaluation:
        """Evaluate the present model on all tasks."""
        return self.tasks.evaluate(self.training)

    def resize(self, num_tasks: int) -> None:
        """Emulate what a resource manager would do: announce joins, or give notice to the newest tasks."""
        for _ in range(num_tasks - len(self.tasks)):
            self.join(NodeId(f"{TASK_PREFIX}{self.tasks.num_joined}"))
        for node in list(self.tasks)[num_tasks:]:
            self.inbox.append(events.LeaveNoticed(node=node))

    def ask_manager(self, managed: ManagedNodes) -> None:
        """Carry out what the resource manager says."""
        staying = [node for node in self.tasks if node not in self.under_notice]
        news = managed.poll(self.watch.elapsed_s(), staying)
        for node in news.assigned:
            self.join(node)
        for revoked in news.revoked:
            self.under_notice.add(revoked.node)
            self.inbox.append(events.LeaveNoticed(node=revoked.node))
        if news.offer is not None:
            self.num_offers += 1
            self.inbox.append(events.ResourcesOffered(offer=news.offer, number=self.num_offers))
        self.lines.extend(news.lines)

    def join(self, node: NodeId) -> None:
        """Begin a task, and announce it."""
        self.tasks.join(node)
        self.inbox.append(events.NodeJoined(node=node))

    def collect_state(self) -> Array:
        """State of all samples by global row id."""
        state = self.state_spec.zeros(self.source.schema.num_rows)
        for task in self.tasks.values():
            for chunk in task.held.values():
                state[chunk.row_ids] = chunk.state
        return state


def held_source(
    source: ChunkSource, trainer: Trainer, num_tasks: int, *, is_staged: bool = False, proc: Path = PROC
) -> ChunkSource:
    """Return the source if the tasks of this machine can hold its chunks and what solvers keep of them, else what
    leaves rows in their files if that helps. Raises CapacityError before the first chunk is loaded, with what is
    needed, what is left, and who says so.

    Args:
        is_staged: Rows of the driver are copied once for all tasks, also where its own tasks would look at them.
    """
    is_copied = source.copies_rows or (is_staged and not isinstance(source, ChunkFolder))
    headroom = memory_headroom(proc) if is_copied else None
    if headroom is None:
        return source
    state = trainer.state(source.schema).without_notes()
    needed_bytes = sum(info.size_bytes for info in source.infos(state)) + trainer.kept_bytes(source.schema, num_tasks)
    if needed_bytes <= headroom.num_bytes:
        return source
    mapped, in_files = source.mapped() if isinstance(source, ChunkFolder) else None, ""
    if mapped is not None:
        least_bytes = state.size_bytes(mapped.schema.num_rows) + trainer.kept_bytes(mapped.schema, num_tasks)
        if least_bytes <= headroom.num_bytes:
            return mapped
        in_files = f" ({least_bytes / 2**20:.1f} MiB with rows left in their files)"
    raise CapacityError(
        f"the chunks of this data set and what training keeps of their rows need {needed_bytes / 2**20:.1f} MiB of "
        f"memory{in_files}, but {headroom.source} leaves {headroom.num_bytes / 2**20:.1f} MiB; use a machine with more "
        "memory, convert with --dtype float32, or train on fewer rows"
    )
