"""Messages that a thread sends while the main thread computes.

Sending costs the sender: it encodes the message, and the kernel wakes the receiver, possibly on the same processor. A
third of a millisecond is a lot between iterations of 20 ms, and no process waits for these messages.
"""

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

from chicle_elastic.runtime.control.messages import TaskMessage

Send = Callable[[TaskMessage], None]


class SendQueue:
    """Sends in the order of `put`. `put`, `flush` and `close` belong to one thread.

    Args:
        send: Sends one message. A ConnectionError means that the agent is gone, and drops the message. The next `put`
            or `flush` raises any other error: the message cannot be encoded, and no later one is sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._queue: SimpleQueue[TaskMessage | threading.Event | None] = SimpleQueue()
        self._is_empty = True  # since the last flush
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def put(self, message: TaskMessage) -> None:
        """Queue a message."""
        self._raise_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="chicle-outbox", daemon=True)
            self._thread.start()
        self._is_empty = False
        self._queue.put(message)

    def flush(self) -> None:
        """Wait until the queue is sent, so that a message sent directly afterwards keeps its order."""
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
                except Exception as error:  # `flush` waits for this thread, so it must not end
                    self._error, has_failed = error, True
