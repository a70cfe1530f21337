"""A task warms up the kernels of a job of several tasks, which would wait for its first iteration."""

from typing import Any

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.runtime.cluster_task.warmup import warm_up
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer


class NotingTrainer(LinearTrainer):
    """Notes for how many tasks an iteration is begun."""

    noted: list[int] = []  # noqa: RUF012  # of the class: trainers are frozen

    def begin(self, schema: Any, model: Any, progress: Any, num_tasks: int) -> Any:
        """As of the linear models."""
        self.noted.append(num_tasks)
        return super().begin(schema, model, progress, num_tasks)


def test_the_method_is_that_of_several_tasks() -> None:
    """The hinge on one task is descended on, and by other kernels."""
    X = np.random.default_rng(0).normal(size=(200, 5))
    source = ArraySource(X, (X[:, 0] > 0).astype(np.int32), max_tasks=2)
    trainer = NotingTrainer(C=1.0, loss="hinge")
    job = Job(trainer=trainer, source=source, max_iterations=1)
    warm_up(job, trainer.state(source.schema), MonotonicClock())
    [num_tasks] = trainer.noted
    assert trainer.method(source.schema, num_tasks) == trainer.method(source.schema, 2)
    assert trainer.method(source.schema, num_tasks) != trainer.method(source.schema, 1)
