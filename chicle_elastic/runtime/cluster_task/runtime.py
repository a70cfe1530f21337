"""The runtime of a script that agents start on every node: `cluster_runtime().run(job)`.

    from chicle_elastic import ArraySource, Job, LinearTrainer, cluster_runtime

    runtime = cluster_runtime()
    source = ArraySource(X, y, max_tasks=runtime.most_tasks())
    outcome = runtime.run(Job(trainer=LinearTrainer(), source=source, max_iterations=100))

Every task runs the same script and so builds the same job. `run` returns in every task that stays to the end, with the
same outcome; in the task of a node that leaves, the process ends inside `run`, with exit code 0.
"""

import gc
import os
from dataclasses import dataclass

from chicle_elastic.clock import MonotonicClock
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.training.blas_threads import blas_threads_of
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.settings import Settings

LEAVING_NICENESS = 10  # of the process of a task whose node leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRuntime:
    """Run a job as one of the tasks of a cluster. A process runs one job.

    Args:
        began_s: When the job began, by `time.monotonic` of this host; by default when `run` is called.
    """

    control: str
    max_nodes: int
    began_s: float | None = None

    def most_tasks(self) -> int:
        """Largest number of tasks there will be; data is cut so that each of them gets chunks."""
        return self.max_nodes

    def run(self, job: Job) -> Outcome:
        """Take part in the job to its end. Raises SystemExit with the exit code 0 when this node leaves the job before
        its end, JobFailedError when another task failed, and the job with it, ProtocolError when the agent is gone, or
        runs another version, ContractError when the job's solver broke the contract of chunks. Where the node leaves,
        the shutdown of Python takes half a second of a processor that other tasks may iterate on. So the process lowers
        its priority, and skips the last search for cycles (`gc.freeze`)."""
        from chicle_elastic.runtime.cluster_task.task import ClusterTask

        try:
            with blas_threads_of(job.trainer):
                return ClusterTask(job, self.control, MonotonicClock(), began_s=self.began_s).run()
        except SystemExit:
            _give_way()
            raise


def _give_way() -> None:
    gc.freeze()
    if hasattr(os, "nice"):
        os.nice(LEAVING_NICENESS)


def cluster_runtime(settings: Settings | None = None) -> ClusterRuntime:
    """The runtime of this process, which an agent has to have started. Raises UsageError when this process was not
    started by an agent."""
    settings = settings or Settings.from_environment()
    if settings.control is None:
        raise UsageError(
            "this process is not a task of a cluster (CHICLE_CONTROL is not set); start the script with "
            "python -m chicle_elastic.launch, or use InProcess()"
        )
    return ClusterRuntime(control=settings.control, max_nodes=settings.max_nodes)
