"""What a node needs of torch's agent."""

from typing import Protocol

from chicle_elastic.cluster.task_side import Processes
from chicle_elastic.ids import NodeId


class Rendezvous(Protocol):
    """How nodes meet for a round: torch's rendezvous, with Chicle's handler."""

    def meet(self, round: int, members: tuple[NodeId, ...], timeout_s: float) -> None:
        """Take part and wait for the others; in a worker thread."""
        ...

    def abandon(self, round: int, reason: str) -> None:
        """Wait no longer for this round or one before it."""
        ...

    def require_open(self) -> None:
        """See that the job is not over; in a worker thread.

        Raises:
            JobClosedError: It is.
            StoreLostError: The store is gone.
        """
        ...


class Torch(Processes, Rendezvous, Protocol):
    """What torch's agent does for a node."""

    @property
    def restarts_left(self) -> int:
        """How often a task that crashed may still be started again."""
        ...
