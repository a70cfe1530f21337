"""Event loops that a test turns."""

import time
from collections.abc import Callable

from chicle_elastic.cluster.net.event_loop import EventLoop
from tests.timeouts import timeout_s


def turn_until(is_there: Callable[[], object], *loops: EventLoop, seconds: float = 30.0) -> None:
    """Let loops turn, one after the other, until something holds."""
    end_s = time.monotonic() + timeout_s(seconds)
    while not is_there():
        assert time.monotonic() < end_s
        for loop in loops:
            loop.turn(0.05 if len(loops) == 1 else 0.001)
