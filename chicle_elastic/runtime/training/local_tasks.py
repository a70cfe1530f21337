"""The tasks of a job in one process, which take turns: the in-process runtime, and the simulator with real work."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from chicle_elastic.chunks.views import Array, Chunk
from chicle_elastic.clock import Clock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.training import Evaluation, Training
from chicle_elastic.runtime.training.uni_task import TRAINER, LocalContext, Mailboxes, UniTask
from chicle_elastic.scheduling.effects import StartIteration
from chicle_elastic.solvers.base import Budget, Summed
from chicle_elastic.values import TaskReport


class LocalTasks(dict[NodeId, UniTask]):
    """The tasks by node, in the order in which they joined."""

    def __init__(self, job: Job, clock: Clock) -> None:
        super().__init__()
        self.num_joined = 0
        self._job, self._clock = job, clock
        self.mailboxes = Mailboxes(policy.name for policy in job.policies or ())
        self.context = LocalContext(TRAINER, [job.seed, 0], self.mailboxes)  # the trainer's

    def join(self, node: NodeId) -> None:
        """Give a node a task."""
        self.num_joined += 1
        self.mailboxes.add(node)
        context = LocalContext(node, [self._job.seed, self.num_joined], self.mailboxes)
        self[node] = UniTask(node, self._job.trainer, context, self._clock, self._job.source.schema)

    def leave(self, node: NodeId) -> None:
        """End the task of a node."""
        self.pop(node).close()
        self.mailboxes.remove(node)

    def copy_chunk(self, chunk: ChunkId, source: NodeId, target: NodeId) -> None:
        """Copy a chunk. Rows never change, so the copy may share them; state does, and must not be shared."""
        held = self[source].held[chunk]
        self[target].hold(dataclasses.replace(held, state=held.state.copy()))

    def solve(
        self, training: Training, nodes: Sequence[NodeId], order: StartIteration, *, may_be_cut: bool
    ) -> tuple[Summed, dict[NodeId, TaskReport]]:
        """Let these tasks solve, one after the other. Returns the sum of their updates, and a report of each.

        Args:
            may_be_cut: Whether a deadline among the parameters holds.
        """
        num_tasks = self._job.trainer.parallelism(len(nodes))
        size = training.begin(num_tasks)
        weighted_sum: Array | None = None
        weight, reports = 0.0, {}
        metrics = dict.fromkeys(training.metric_names, 0.0)
        for rank, node in enumerate(nodes):
            budget = Budget(
                clock=self._clock,
                num_tasks=num_tasks,
                iteration=order.iteration,
                deadline_s=training.deadline_s(order.parameters, self._clock.now()) if may_be_cut else None,
                progress=training.begun,
                rank=rank,
                num_ranks=len(nodes),
                is_complete=order.is_complete,
                parameters=order.parameters,
            )
            update, duration_s = self[node].solve(training.model, budget)
            weighted = update.delta
            if update.weight != 1.0:
                weighted *= update.weight
            if weighted_sum is None:
                weighted_sum = weighted
            else:
                weighted_sum += weighted
            weight += update.weight
            for name, value in update.metrics.items():
                metrics[name] += value
            reports[node] = TaskReport(samples=update.samples, duration_s=duration_s)
        delta = np.zeros(size) if weighted_sum is None else weighted_sum
        return Summed(delta=delta, weight=weight, metrics=metrics, num_tasks=len(nodes)), reports

    def rebuild(self, training: Training) -> None:
        """Make the model consistent with the state of all tasks."""
        contribution = np.zeros_like(training.model)
        for task in self.values():
            contribution += task.recover(training.model)
        training.rebuild(contribution)

    def evaluate(self, training: Training) -> Evaluation:
        """Evaluate the model on all tasks, and rebuild it from their state to compare."""
        contribution = np.zeros_like(training.model)
        totals = dict.fromkeys(training.metric_names, 0.0)
        num_rows, without = 0, ""
        for task in self.values():
            update = task.evaluate(training.model, training.progress)
            contribution += update.delta
            for name, value in update.metrics.items():
                totals[name] += value
            num_rows += task.num_rows
            without = without or task.without_evaluate
        return Evaluation(contribution=contribution, metrics=totals, num_rows=num_rows, without_evaluate=without)

    def chunks(self) -> list[Chunk]:
        """Chunks that all tasks together have been given."""
        return [chunk for task in self.values() for chunk in task.chunks]
