"""Where and when a job is saved."""

import os
from dataclasses import dataclass

from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.records import IterationRecord

DEFAULT_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """Where and when checkpoints are written; the same in every task of a job.

    Attributes:
        folder: On storage that all nodes share, or a URL that fsspec knows ("s3://bucket/job"). It belongs to one job.
        every_iterations: Write one after so many iterations, >= 1; 0 to go by `every_s` alone.
        every_s: Write one when so many seconds have passed, > 0; 0 to go by `every_iterations` alone. With neither, a
            minute.
        resume: Resume from the newest checkpoint in the folder, if there is one.
        keep: Number of checkpoints to keep, >= 1.
    """

    folder: str
    every_iterations: int = 0
    every_s: float = 0.0
    resume: bool = False
    keep: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", os.fspath(self.folder))  # a Path is as good, and cannot be sent to a node
        if self.every_iterations < 0 or not 0 <= self.every_s < float("inf") or self.keep < 1 or not self.folder:
            raise UsageError(
                f"{self} is invalid: give a folder, every_iterations >= 0, every_s >= 0 and finite, and keep >= 1"
            )

    @property
    def pace(self) -> str:
        """When checkpoints are written, to compare; tasks with different intervals would never complete one."""
        return f"{self.every_iterations} iterations, {self.interval_s:g} s"

    def is_due(self, record: IterationRecord, before: IterationRecord | None) -> bool:
        """Say whether one is written after an iteration; the same in every task, as records are."""
        if self.every_iterations and record.iteration % self.every_iterations == 0:
            return True
        every_s = self.interval_s
        return bool(every_s) and record.time_s // every_s > (before.time_s if before else 0.0) // every_s

    @property
    def interval_s(self) -> float:
        """Seconds between two checkpoints; 0 to go by iterations alone."""
        return self.every_s if self.every_s or self.every_iterations else DEFAULT_EVERY_S
