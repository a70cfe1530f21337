"""Signals that end a command in order, so that what it began is cleaned up and no half of it stays behind."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from chicle_elastic.clock import Clock, MonotonicClock

EXIT_TERMINATED = 128 + signal.SIGTERM
DEAF_S = 2.0
"""People press Ctrl-C twice, and the second must not interrupt the removal of temporary files. But not deaf for ever:
Python drops an exception that is raised while it happens to run a finaliser, and then the command is to be asked again.
"""


@contextlib.contextmanager
def orderly_end(clock: Clock | None = None) -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt and SIGTERM SystemExit(143); for `DEAF_S` seconds after that, both do nothing. A
    SIGINT that was ignored from outside (a job in the background of a shell) stays so. Elsewhere than in the main
    thread, where Python allows no handlers, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    clock = clock or MonotonicClock()
    deaf_until_s = float("-inf")

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal deaf_until_s
        now_s = clock.now()
        if now_s < deaf_until_s:
            return
        deaf_until_s = now_s + DEAF_S
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_TERMINATED)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
