"""The tasks of one round at work, seen from one of them: local parts, summed over the group.

Everything that takes part of every task is here, and nothing that this task does alone. A method that sums is called by
all members, in the same order.
"""

from collections.abc import Callable, Sequence

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import Clock
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.control import Iterate
from chicle_elastic.runtime.frames import Frame, evaluation_frame, iteration_frame
from chicle_elastic.runtime.group import Group
from chicle_elastic.runtime.job import Job
from chicle_elastic.runtime.task import UniTask
from chicle_elastic.runtime.training import Evaluation, Lap, Training
from chicle_elastic.solvers.base import Budget, StopFlag, Update
from chicle_elastic.values import TaskReport


class Team:
    """The members of a round.

    Args:
        job: The job.
        task: The local task.
        training: Of this task.
        group: Connected.
        members: By rank.
        has_caller: The caller of the job wants to be told of each iteration, in some task.
        elapsed_s: Seconds since the start of the job; those of rank 0 count.

    Attributes:
        round: The round.
        rank: Of this task.
        elapsed_s: Seconds since the start of the job as of the last sum, the same in every task.
        merged: Iteration that this team merged last; 0 for none.
        members: By rank.
    """

    def __init__(
        self,
        job: Job,
        task: UniTask,
        training: Training,
        group: Group,
        members: Sequence[NodeId],
        *,
        has_caller: bool,
        elapsed_s: Callable[[], float],
    ) -> None:
        self.round = group.round
        self.rank = group.rank
        self.elapsed_s = elapsed_s()
        self.merged = 0
        self._job = job
        self._task = task
        self._training = training
        self._group = group
        self.members = tuple(members)
        self._has_caller = has_caller
        self._own_elapsed_s = elapsed_s
        self._sum = iteration_frame(len(training.model), len(training.metric_names), group.size)

    # One iteration: solve, add_up, merge; then the figures below hold.

    def solve(self, order: Iterate, stop: StopFlag, clock: Clock) -> None:
        """Make this task's part of the iteration's sum. A task without chunks has none."""
        total, devices = self._sum, self._group.device_sums
        total.clear()
        if devices is not None:
            devices.clear()
        if not self._task.num_chunks:
            self._task.reads.clear()
            return
        num_tasks = self._job.trainer.parallelism(order.num_tasks)
        budget = Budget(
            clock=clock, num_tasks=num_tasks, iteration=order.iteration, stop=stop, on_device=devices is not None
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
        """Sum the parts of all tasks.

        Args:
            has_vote: Whether this task votes for a stop at this boundary.

        Raises:
            PeerLostError: A member was lost; nothing is merged.
        """
        self._sum["votes"][0] = has_vote
        if self._group.device_sums is None:
            self._all_reduce(self._sum)
            return
        # The figures first: they come when all members are done computing, and nobody's device waits for that.
        self._all_reduce(self._sum, behind="update")
        self._group.add_up_on_devices(self._sum["update"])

    def merge(self, order: Iterate) -> Lap:
        """Take the sum into the model; it must not be looked at any more."""
        total = self._sum
        self._training.merge(total["update"], float(total["weight"][0]))
        self.merged = order.iteration
        return Lap(
            iteration=order.iteration,
            samples=round(total["samples"].sum()),
            num_tasks=int(np.count_nonzero(total["chunks"])),
            metrics=self._metrics(total),
            is_complete=order.is_complete,
            num_chunks=dict(zip(self.members, total["chunks"].astype(int).tolist(), strict=True)),
            seconds={node: report.duration_s for node, report in self.reports().items()},
            lines=order.lines,
        )

    @property
    def votes(self) -> int:
        """Tasks that voted for a stop at this boundary."""
        return round(self._sum["votes"][0])

    def reports(self) -> dict[NodeId, TaskReport]:
        """What the members that have chunks say of the iteration."""
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
        """Make the model consistent with the state of all tasks, whatever was lost or cut off.

        Raises:
            PeerLostError: A member was lost; the model is as before.
        """
        contribution = np.zeros(len(self._training.model))
        if self._task.num_chunks:
            contribution += self._task.recover(self._training.model)
        self._group.all_reduce(contribution)
        self._training.rebuild(contribution)

    def evaluate(self) -> Evaluation:
        """Evaluate the model on all tasks.

        Raises:
            PeerLostError: A member was lost.
        """
        training = self._training
        total = evaluation_frame(len(training.model), len(training.metric_names))
        if self._task.num_chunks:
            update = self._task.evaluate(training.model)
            total["contribution"][...] = update.delta
            self._fill_metrics(total, update)
            total["rows"][0] = self._task.num_rows
        self._all_reduce(total)
        return Evaluation(
            contribution=total["contribution"], metrics=self._metrics(total), num_rows=round(total["rows"][0])
        )

    def ask_callers(self, record: IterationRecord) -> bool:
        """Tell the caller of the job of an iteration, in every task; whether it ends the job there, in any of them.

        Raises:
            PeerLostError: A member was lost.
        """
        is_ended = self._job.is_ended_by_caller(record, self._training.model)
        if self._has_caller:
            answers = np.array([float(is_ended)])
            self._group.all_reduce(answers)
            is_ended = bool(answers[0])
        return is_ended

    def collect_state(self) -> Array:
        """State of all samples by global row id, in every task; zeros where chunks are missing.

        Raises:
            PeerLostError: A member was lost.
        """
        schema = self._job.source.schema
        state = self._job.trainer.state(schema).zeros(schema.num_rows)
        for chunk in self._task.held.values():
            state[chunk.row_ids] = chunk.state
        total = state.astype(np.float64).reshape(-1)
        self._group.all_reduce(total)
        return total.reshape(state.shape).astype(state.dtype)

    def wait_for_all(self) -> None:
        """Return when all members are here.

        Raises:
            PeerLostError: A member was lost.
        """
        self._group.all_reduce(np.zeros(1))

    def leave(self) -> None:
        """Close the group; members that wait in it get a PeerLostError."""
        self._group.close()

    def _all_reduce(self, total: Frame, *, behind: str | None = None) -> None:
        total["elapsed"][0] = self._own_elapsed_s() if self.rank == 0 else 0.0
        self._group.all_reduce(total.buffer if behind is None else total.behind(behind))
        self.elapsed_s = float(total["elapsed"][0])

    def _fill_metrics(self, total: Frame, update: Update) -> None:
        total["metrics"][:] = [update.metrics.get(name, 0.0) for name in self._training.metric_names]

    def _metrics(self, total: Frame) -> dict[str, float]:
        return dict(zip(self._training.metric_names, total["metrics"].tolist(), strict=True))
