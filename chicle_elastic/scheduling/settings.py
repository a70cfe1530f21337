"""What a scheduler is told once."""

from dataclasses import dataclass
from numbers import Integral

from chicle_elastic.errors import UsageError
from chicle_elastic.values import HISTORY_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Numbers that the scheduler goes by; the same for every agent of a job."""

    seed: int = 0  # of all random choices, >= 0
    min_nodes: int = 1  # fewer nodes than these pause the job, >= 1
    max_nodes: int | None = None  # more nodes than these are not asked for, >= min_nodes; None for no limit
    start_nodes: int | None = None  # nodes that the job waits for at its start, >= min_nodes; by default `min_nodes`
    max_copy_attempts: int = 3  # orders to copy a chunk to one node before another is tried, >= 1
    max_load_attempts: int = 3  # loads of one chunk that may fail before the job is paused, >= 1
    history_length: int = HISTORY_LENGTH  # iterations whose reports policies can look at, >= 1
    precopy: bool = False  # rows are copied ahead of their chunks, while iterations run (`transitions`)

    def __post_init__(self) -> None:
        limits = {"seed": 0, "min_nodes": 1, "max_copy_attempts": 1, "max_load_attempts": 1, "history_length": 1}
        for name, least in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise UsageError(f"SchedulerSettings({name}={value!r}): it must be an integer >= {least}")
        if self.max_nodes is not None and self.max_nodes < self.min_nodes:
            raise UsageError(
                f"SchedulerSettings(max_nodes={self.max_nodes}, min_nodes={self.min_nodes}): a job that may have no "
                "more nodes than these never has enough"
            )
        if self.start_nodes is not None and self.start_nodes < self.min_nodes:
            raise UsageError(
                f"SchedulerSettings(start_nodes={self.start_nodes}, min_nodes={self.min_nodes}): a job cannot start "
                "with fewer nodes than it needs"
            )
