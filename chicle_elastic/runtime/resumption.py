"""What a task goes on from: a checkpoint that it finds itself, or the one that the job has agreed upon.

A task looks for the newest checkpoint before it declares the job. Which one counts is in the log of the agents, as the
first task declared it: that is told with every round and every order to load (`began`), and a task that has found
another one reads that instead.
"""

import threading
from pathlib import Path

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError
from chicle_elastic.runtime import checkpoint
from chicle_elastic.runtime.checkpoint import Checkpoint, JobIdentity
from chicle_elastic.runtime.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.job import Job


class Resumption:
    """Of one task; thread-safe.

    Args:
        job: The job.
        settings: Of its checkpoints; None where there are none.
        identity: Of the job.

    Attributes:
        found: Iteration of the newest checkpoint, if the job is to go on from one; else 0.

    Raises:
        DataError: There are checkpoints, and none is whole.
        UsageError: The newest one is of another job.
    """

    def __init__(self, job: Job, settings: CheckpointSettings | None, identity: JobIdentity) -> None:
        self._job, self._identity = job, identity
        self._folder = None if settings is None else Path(settings.folder)
        self._lock = threading.Lock()
        self._newest: Checkpoint | None = None
        if settings is not None and settings.resume:
            self._newest = checkpoint.newest(Path(settings.folder), identity)
        self.found = 0 if self._newest is None else self._newest.iteration

    def at(self, iteration: int) -> Checkpoint:
        """The checkpoint of an iteration.

        Raises:
            DataError: It is not there, or damaged.
            UsageError: It is of another job.
        """
        with self._lock:
            if self._newest is None or self._newest.iteration != iteration:
                found = None
                if self._folder is not None:
                    found = checkpoint.newest(self._folder, self._identity, iteration=iteration)
                if found is None:
                    where = "no folder of checkpoints is named" if self._folder is None else f"{self._folder} has none"
                    raise DataError(
                        f"the job goes on from the checkpoint of iteration {iteration}, and {where}; every node needs "
                        "the same --checkpoint folder, on storage that all of them share"
                    )
                self._newest = found
            return self._newest

    def state(self, *, merged: int, began: int) -> Array | None:
        """State that chunks get which are loaded now, by global row id; None for fresh state.

        Args:
            merged: Last merged iteration.
            began: Iteration that the job goes on from; 0 where it begins.

        Raises:
            DataError: The checkpoint is not there, or damaged.
        """
        if merged != began:
            return None
        return self.at(began).state if began else self._job.initial_state

    def forget_state(self) -> None:
        """An iteration is merged: what is loaded from now on begins afresh, so the memory can be used again."""
        with self._lock:
            self._newest = None
