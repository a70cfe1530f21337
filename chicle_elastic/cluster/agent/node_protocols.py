"""The protocols by which a node has its task started, takes part in rendezvous, and asks for other nodes."""

import signal
from typing import Protocol

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import effects, events


class Launcher(Protocol):
    """Starts the tasks of a node, one at a time, and takes part in its rendezvous: the agent as `Node` sees it."""

    memory_kills: MemoryKills
    restarts_left: int  # how often the agent may still restart a task that crashed

    def start_task(self, *, is_restart: bool = False) -> int:
        """Start a task; returns its process id."""

    def task_exit(self, timeout_s: float = 0.0) -> TaskEnd | None:
        """How the task ended, or None while it runs."""

    def stop_task(self, *, number: signal.Signals = signal.SIGTERM, grace_s: float = 5.0) -> None:
        """End the task."""

    def meet(self, round: int, members: tuple[NodeId, ...]) -> None:
        """Take part in a round; in a worker thread."""

    def require_open(self) -> None:
        """Check that the job is not over; in a worker thread. Raises JobClosedError when the job is over,
        StoreUnreachableError when the store does not answer."""


class ResourceLink(Protocol):
    """The way of an agent to the resource manager of its job. Used in the loop; no method waits.

    Every agent of the job performs the same requests, each at its time; the manager takes the one with the highest
    number. Every agent hears of each offer, and the first member of the round tells the log. So neither is lost with
    an agent.
    """

    offer: events.ResourcesOffered | None  # the last offer that came; None before the first one

    def request(self, effect: effects.RequestNodes) -> None:
        """Tell the resource manager what the job wants."""

    def finish(self, reason: str, *, has_failed: bool) -> None:
        """Tell it that the job is over, and needs no node in place of those that end now."""
