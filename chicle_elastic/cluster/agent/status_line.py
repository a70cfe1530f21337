"""What a node says about itself on stderr: what it waits for, and when the job trains, pauses and resumes.

One line per change, and once more every `REPEAT_S` while the node waits: a person who looks at the output of a node
that does nothing finds the reason at its end.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from chicle_elastic.cluster.net.event_loop import EventLoop, Timer
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.scheduler import Scheduler, State
from chicle_elastic.scheduling.text import count_text

REPEAT_S = 30.0
JOINING = "waits to join the job"


@dataclass(frozen=True, slots=True)
class Status:
    """A status of the node."""

    text: str
    is_waiting: bool  # whether something has to happen before the node trains


def status_of(scheduler: Scheduler, present: tuple[NodeId, ...], *, node: NodeId, max_nodes: int) -> Status | None:
    """The status of a node by its scheduler; None between two of them, in a boundary for example."""
    if node not in present:
        return Status(JOINING, True)
    if scheduler.is_short_of_nodes:
        needed = scheduler.needed_nodes
        missing = count_text(max(1, needed - len(present)), "more node")
        paused = "the job is paused and " if scheduler.state is State.PAUSED else ""
        return Status(f"{paused}waits for {missing} of {needed} ({scheduler.settings.min_nodes}:{max_nodes})", True)
    if scheduler.state is State.PAUSED:
        return Status(f"the job is paused: {scheduler.pause_reason}", True)
    if scheduler.state is State.RUNNING:
        return Status(f"{count_text(len(present), 'node')} in the job", False)
    return None


class StatusLine:
    """Prints the status of a node. Everything is called in the loop."""

    def __init__(
        self,
        loop: EventLoop,
        node: NodeId,
        status: Callable[[], Status | None],
        *,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self._loop, self._node, self._status, self._write = loop, node, status, write or _to_stderr
        self._last: Status | None = None
        self._timer: Timer | None = None
        self._is_member = False

    def show(self) -> None:
        """Print the status if it has changed; to be called whenever it may have."""
        status = self._status()
        if status is None or status == self._last:
            return
        self._print(status)

    def close(self) -> None:
        """Print nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _print(self, status: Status) -> None:
        verb = ""
        if not status.is_waiting and (self._last is None or self._last.is_waiting):
            verb = "resumed: " if self._is_member else "joined: "
        self._is_member = not status.text.startswith(JOINING) and (self._is_member or not status.is_waiting)
        self._last = status
        self._write(f"chicle: {self._node}: {verb}{status.text}")
        self.close()
        if status.is_waiting:
            self._timer = self._loop.later(REPEAT_S, self._repeat)

    def _repeat(self) -> None:
        status = self._status()
        if status is not None and status.is_waiting:
            self._print(status)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
