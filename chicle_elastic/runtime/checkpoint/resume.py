"""The checkpoint that a task resumes from: one that it finds itself, or the one that the job has agreed upon.

A task looks for the newest checkpoint before it declares the job. The agents' log holds the one that the job uses, as
the first task declared it: every round and every order to load names it (`began`), and a task that has found another
one reads that instead.
"""

import threading

from chicle_elastic.chunks.places import place_of
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.runtime.checkpoint.format import Checkpoint, JobIdentity
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.job import Job


class Resumption:
    """Finds the checkpoint of one task; thread-safe. Raises DataError when there are checkpoints, but none is complete,
    MissingExtraError when they are at a URL, and a package for it is not installed, UnreachablePlaceError when they are
    at a URL that does not answer, UsageError when the newest one is of another job."""

    def __init__(self, job: Job, settings: CheckpointSettings | None, identity: JobIdentity) -> None:
        self._job, self._identity = job, identity
        self._folder = None if settings is None else place_of(settings.folder, purpose="a folder of checkpoints")
        self._lock = threading.Lock()
        self._newest: Checkpoint | None = None
        if settings is not None and self._folder is not None and settings.resume:
            self._newest = checkpoint.newest(self._folder, identity)
        # iteration of the newest checkpoint, if the job is to resume from one; else 0
        self.found = 0 if self._newest is None else self._newest.iteration
        # what policies had set then, by name, as far as the trainer still has it. None where the job has no policies
        # any more, and no deadline: that was for nodes that were slow then
        self.parameters: dict[str, float] = {}
        if self._newest is not None and job.policies != ():
            tunables = job.trainer.tunables(job.source.schema)
            found = self._newest.parameters
            self.parameters = {name: value for name, value in found.items() if name in tunables}

    def at(self, iteration: int) -> Checkpoint:
        """The checkpoint of an iteration. Raises DataError when it is not there, or damaged, UsageError when it is of
        another job."""
        with self._lock:
            if self._newest is None or self._newest.iteration != iteration:
                found = None
                if self._folder is not None:
                    found = checkpoint.newest(self._folder, self._identity, iteration=iteration)
                if found is None:
                    where = "no folder of checkpoints is named" if self._folder is None else f"{self._folder} has none"
                    raise DataError(
                        f"the job resumes from the checkpoint of iteration {iteration}, but {where}; every node needs "
                        "the same --checkpoint, a URL or a folder on storage that all of them share"
                    )
                self._newest = found
            return self._newest

    def state(self, *, merged: int, began: int) -> Array | None:
        """State for the chunks that a task loads now, by global row id; None for initial state. Raises DataError when
        the checkpoint is not there, or damaged."""
        if merged != began:
            return None
        return self.at(began).state if began else self._job.initial_state

    def forget_state(self) -> None:
        """An iteration is merged: chunks loaded from now on get initial state, so free the memory of the checkpoint."""
        with self._lock:
            self._newest = None
