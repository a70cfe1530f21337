"""The protocols by which a node uses torch's agent."""

from typing import Protocol

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.agent.task_supervisor import Processes
from chicle_elastic.ids import NodeId


class Rendezvous(Protocol):
    """torch's rendezvous, with Chicle's handler."""

    def meet(self, round: int, members: tuple[NodeId, ...]) -> None:
        """Take part in a round; in a worker thread."""
        ...

    def require_open(self) -> None:
        """Check that the job is not over; in a worker thread.

        Raises:
            JobClosedError: The job is over.
            StoreUnreachableError: The store does not answer.
        """
        ...


class Torch(Processes, Rendezvous, Protocol):
    """Both: torch's agent starts tasks and takes part in rendezvous."""

    memory_kills: MemoryKills

    @property
    def restarts_left(self) -> int:
        """How often the agent may still restart a task that crashed."""
        ...
