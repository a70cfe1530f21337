"""Messages that a thread sends while the main thread computes.

Who sends pays for it: the message is written down, and the one who waits for it is woken, on the same processor if the
system likes. A third of a millisecond is a lot between iterations of 20, and nobody waits for these messages.
"""

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

from chicle_elastic.runtime.control import TaskMessage

Send = Callable[[TaskMessage], None]


class Outbox:
    """Sends in the order of `put`. `put`, `flush` and `close` belong to one thread.

    Args:
        send: Sends one message; it may raise ConnectionError, and then nobody needs the message. Any other error is
            raised by the next `put` or `flush`: the message cannot be said, and nothing is sent after it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._queue: SimpleQueue[TaskMessage | threading.Event | None] = SimpleQueue()
        self._is_empty = True  # since the last flush
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def put(self, message: TaskMessage) -> None:
        """Send this soon."""
        self._raise_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="chicle-outbox", daemon=True)
            self._thread.start()
        self._is_empty = False
        self._queue.put(message)

    def flush(self) -> None:
        """Wait until everything has been sent, so that what is said next is heard next."""
        if self._is_empty:
            return
        is_done = threading.Event()
        self._queue.put(is_done)
        is_done.wait()
        self._is_empty = True
        self._raise_error()

    def close(self) -> None:
        """Send what is left; then end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        has_failed = False
        while (message := self._queue.get()) is not None:
            if isinstance(message, threading.Event):
                message.set()
            elif not has_failed:
                try:
                    with contextlib.suppress(ConnectionError):
                        self._send(message)
                except Exception as error:  # whoever flushes waits for this thread, so it must not end
                    self._error, has_failed = error, True
