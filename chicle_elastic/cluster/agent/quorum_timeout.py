"""How long a node waits while the job has too few of them to go on."""

from collections.abc import Callable

from chicle_elastic.cluster.net.event_loop import EventLoop, Timer


class QuorumTimeout:
    """Gives up when the job has been short of nodes for too long without a break. Called in the loop."""

    def __init__(self, loop: EventLoop, limit_s: float, give_up: Callable[[], object]) -> None:
        self._loop, self._limit_s, self._give_up = loop, limit_s, give_up
        self._timer: Timer | None = None

    def look(self, *, is_short: bool) -> None:
        """Start or cancel the timer; to be called whenever the job may have become short of nodes or no longer is."""
        if not is_short and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif is_short and self._timer is None:
            self._timer = self._loop.later(self._limit_s, self._give_up)
