"""The protocols by which a node has its task started, takes part in rendezvous, and asks for other nodes."""

import signal
from collections.abc import Callable
from typing import Protocol

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import effects, events


class Launcher(Protocol):
    """Starts the tasks of a node, one at a time, and takes part in its rendezvous: the agent as `Node` sees it."""

    memory_kills: MemoryKills
    restarts_left: int  # how often the agent may still restart a task that crashed

    def start_task(
        self, *, started: Callable[[int], object], ended: Callable[[], object], is_restart: bool = False
    ) -> None:
        """Have a task started; the one before has ended. Never waits.

        Args:
            started: Called in the loop with the process id of the task.
            ended: Called in the loop when the task has ended.
        """

    def signal_task(self, number: signal.Signals) -> None:
        """Send a signal to the task and its processes; to nobody when none runs. Never waits."""

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
