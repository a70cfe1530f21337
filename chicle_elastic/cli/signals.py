"""Signals that end a command in order, so that what it began is cleaned up and no half of it stays behind."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt and SIGTERM SystemExit(143), once: later ones are ignored.

    Ignored, because people press Ctrl-C twice, and the second must not interrupt the removal of temporary files. A
    SIGINT that was ignored from outside (a job in the background of a shell) stays so. Elsewhere than in the main
    thread, where Python allows no handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
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
