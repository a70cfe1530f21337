"""The collective operations of one round, from the view of one task: local parts, summed over the group.

Every operation that involves all tasks is here, and none that a task does alone. All members call a method that sums,
in the same order.
"""

from collections.abc import Callable, Sequence

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import Clock
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.collectives.reduce_layout import ReduceBuffer, evaluation_buffer, iteration_buffer
from chicle_elastic.runtime.control.messages import Iterate
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.training import Evaluation, IterationResult, Training
from chicle_elastic.runtime.training.uni_task import UniTask
from chicle_elastic.solvers.base import Budget, StopFlag, Summed, Update
from chicle_elastic.values import TaskReport


class RoundContext:
    """The members of a round."""

    def __init__(
        self,
        job: Job,
        task: UniTask,
        training: Training,
        group: ProcessGroup,
        members: Sequence[NodeId],
        *,
        has_caller: bool,
        elapsed_s: Callable[[], float],
    ) -> None:
        self.round = group.round
        self.rank = group.rank  # of this task
        self.elapsed_s = elapsed_s()  # seconds since the start of the job as of the last sum, the same in every task
        self.merged = 0  # iteration that this round has merged last; 0 for none
        self._job = job
        self._task = task
        self._training = training
        self._group = group
        self.members = tuple(members)  # by rank
        self._has_caller = has_caller
        self._own_elapsed_s = elapsed_s
        self._sum = iteration_buffer(len(training.model), len(training.metric_names), group.size)

    # One iteration: solve, add_up, merge; then the figures below hold.

    def solve(self, order: Iterate, stop: StopFlag, clock: Clock) -> None:
        """Compute this task's part of the iteration's sum. A task without chunks has none."""
        num_tasks = self._job.trainer.parallelism(order.num_tasks)
        size = self._training.begin(num_tasks)
        if size != len(self._sum["update"]):
            self._sum = iteration_buffer(size, len(self._training.metric_names), self._group.size)
        total, devices = self._sum, self._group.device_sums
        total.clear()
        if devices is not None:
            devices.clear()
        if not self._task.num_chunks:
            self._task.reads.clear()
            return
        budget = Budget(
            clock=clock,
            num_tasks=num_tasks,
            iteration=order.iteration,
            deadline_s=self._training.deadline_s(order.parameters, clock.now()),
            stop=stop,
            on_device=devices is not None,
            progress=self._training.begun,
            rank=self.rank,
            num_ranks=self._group.size,
            is_complete=order.is_complete,
            parameters=order.parameters,
        )
        update, duration_s = self._task.solve(self._training.model, budget)
        if devices is None:
            np.multiply(update.delta, update.weight, out=total["update"])
        else:
            devices.put(update.delta, update.weight)
        total["weight"][0] = update.weight
        self._fill_metrics(total, update)
        total["samples"][self.rank] = update.samples
        total["seconds"][self.rank] = duration_s
        total["chunks"][self.rank] = self._task.num_chunks
        total["rows"][self.rank] = self._task.num_rows

    def add_up(self, *, has_vote: bool) -> None:
        """Sum the parts of all tasks. Raises PeerLostError when a member was lost; the model is unchanged."""
        self._sum["votes"][0] = has_vote
        if self._group.device_sums is None:
            self._all_reduce(self._sum)
            return
        # The metrics first: their sum ends when all members have computed, so no device waits for that.
        self._all_reduce(self._sum, behind="update")
        self._group.add_up_on_devices(self._sum["update"])

    def merge(self, order: Iterate) -> IterationResult:
        """Merge the sum into the model; the buffer of the sum must not be read afterwards."""
        total = self._sum
        metrics, num_tasks = self._metrics(total), int(np.count_nonzero(total["chunks"]))
        weight = float(total["weight"][0])
        self._training.merge(Summed(delta=total["update"], weight=weight, metrics=metrics, num_tasks=num_tasks))
        self.merged = order.iteration
        return IterationResult(
            iteration=order.iteration,
            samples=round(total["samples"].sum()),
            num_tasks=num_tasks,
            metrics=metrics,
            is_complete=order.is_complete,
            num_chunks=dict(zip(self.members, total["chunks"].astype(int).tolist(), strict=True)),
            seconds={node: report.duration_s for node, report in self.reports().items()},
            lines=order.lines,
            parameters=order.parameters,
        )

    @property
    def votes(self) -> int:
        """Tasks that voted for a stop at this boundary."""
        return round(self._sum["votes"][0])

    def reports(self) -> dict[NodeId, TaskReport]:
        """The reports of the members that have chunks on the iteration."""
        columns = (self._sum[name].tolist() for name in ("samples", "seconds", "chunks"))
        return {
            member: TaskReport(samples=round(samples), duration_s=seconds)
            for member, samples, seconds, chunks in zip(self.members, *columns, strict=True)
            if chunks
        }

    def holdings(self) -> tuple[dict[NodeId, int], dict[NodeId, int]]:
        """Chunks, and samples in them, that each member had in the iteration."""
        chunks, rows = (self._sum[name].astype(int).tolist() for name in ("chunks", "rows"))
        return dict(zip(self.members, chunks, strict=True)), dict(zip(self.members, rows, strict=True))

    # Between iterations.

    def recover(self) -> None:
        """Make the model consistent with the state of all tasks, after a loss or an aborted iteration. Raises
        PeerLostError when a member was lost; the model is as before."""
        contribution = np.zeros(len(self._training.model))
        if self._task.num_chunks:
            contribution += self._task.recover(self._training.model)
        self._group.all_reduce(contribution)
        self._training.rebuild(contribution)

    def evaluate(self) -> Evaluation:
        """Evaluate the model on all tasks. Raises PeerLostError when a member was lost."""
        training = self._training
        total = evaluation_buffer(len(training.model), len(training.metric_names), self._group.size)
        if self._task.num_chunks:
            update = self._task.evaluate(training.model, training.progress)
            total["contribution"][...] = update.delta
            self._fill_metrics(total, update)
            total["rows"][0] = self._task.num_rows
        self._all_reduce(total)
        return Evaluation(
            contribution=total["contribution"],
            metrics=self._metrics(total),
            num_rows=round(total["rows"][0]),
            without_evaluate=self._task.without_evaluate,
        )

    def ask_callers(self, record: IterationRecord) -> bool:
        """Call the callbacks of the job in every task; whether one of them, in any task, ends the job there. Raises
        PeerLostError when a member was lost."""
        is_ended = self._job.is_ended_by_caller(record, self._training.model)
        if self._has_caller:
            answers = np.array([float(is_ended)])
            self._group.all_reduce(answers)
            is_ended = bool(answers[0])
        return is_ended

    def collect_state(self) -> Array:
        """State of all samples by global row id, in every task; zeros where chunks are missing. Raises PeerLostError
        when a member was lost."""
        schema = self._job.source.schema
        state = self._job.trainer.state(schema).zeros(schema.num_rows)
        for chunk in self._task.held.values():
            state[chunk.row_ids] = chunk.state
        total = state.astype(np.float64).reshape(-1)
        self._group.all_reduce(total)
        return total.reshape(state.shape).astype(state.dtype)

    def wait_for_all(self) -> None:
        """Return when all members have called it. Raises PeerLostError when a member was lost."""
        self._group.all_reduce(np.zeros(1))

    def leave(self) -> None:
        """Close the group; members that wait in it get a PeerLostError."""
        self._group.close()

    def _all_reduce(self, total: ReduceBuffer, *, behind: str | None = None) -> None:
        total["elapsed"][:] = 0.0
        total["elapsed"][self.rank] = self._own_elapsed_s()
        self._group.all_reduce(total.buffer if behind is None else total.behind(behind))
        self.elapsed_s = float(total["elapsed"].max())

    def _fill_metrics(self, total: ReduceBuffer, update: Update) -> None:
        total["metrics"][:] = [update.metrics.get(name, 0.0) for name in self._training.metric_names]

    def _metrics(self, total: ReduceBuffer) -> dict[str, float]:
        return dict(zip(self._training.metric_names, total["metrics"].tolist(), strict=True))
