"""The one loop of an agent: descriptors, timers, and results of work that other threads do.

Everything that decides anything runs in the thread of the loop, so nothing there needs a lock. What may wait (the
rendezvous store, a connection to a peer, the bytes of a chunk, a checksum) is done by a worker thread, whose result
comes back as a call in the loop: `loop.work(do, then)`.
"""

import contextlib
import heapq
import os
import selectors
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from chicle_elastic.clock import Clock, MonotonicClock

T = TypeVar("T")

NUM_WORKERS = 8


class HasFileno(Protocol):
    """What a selector can watch."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...


class Timer:
    """A call that is due later; `cancel` takes it back."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call: Callable[[], object] | None = call

    @property
    def is_due(self) -> bool:
        """Whether it was neither called nor taken back."""
        return self._call is not None

    def cancel(self) -> None:
        """Do not call. May be called again, and after the call."""
        self._call = None

    def fire(self) -> None:
        """Call now, unless that was done or taken back."""
        call, self._call = self._call, None
        if call is not None:
            call()


def is_registered(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Whether a key that was selected is still watched; by its number, because a closed source has none any more."""
    now = selector.get_map().get(key.fd)
    return now is not None and now.fileobj is key.fileobj


class EventLoop:
    """See the top of the module. A context manager that closes it.

    Args:
        clock: For timers.
        name: Of its threads.
    """

    def __init__(self, *, clock: Clock | None = None, name: str = "chicle-agent") -> None:
        self.clock = clock or MonotonicClock()
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._num_timers = 0
        self._calls: deque[Callable[[], object]] = deque()
        self._wake_receiver, self._wake_sender = os.pipe()
        os.set_blocking(self._wake_sender, False)
        os.set_blocking(self._wake_receiver, False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._workers = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix=f"{name}-work")
        self._is_closed = False

    # From the thread of the loop.

    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self.clock.now()

    def watch(self, source: HasFileno, on_ready: Callable[[], object], *, writing: bool = False) -> None:
        """Call `on_ready` whenever the descriptor is readable, or also writable; replaces an earlier watch."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        try:
            self._selector.modify(source, events, on_ready)
        except KeyError:
            self._selector.register(source, events, on_ready)

    def forget(self, source: HasFileno) -> None:
        """Watch a descriptor no more; before it is closed. May be called again."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call after a delay."""
        timer = Timer(call)
        self._num_timers += 1
        heapq.heappush(self._timers, (self.now() + delay_s, self._num_timers, timer))
        return timer

    def work(self, do: Callable[[], T], then: Callable[["Future[T]"], object]) -> None:
        """Let a worker thread do something, then call `then` with its future, which is done, in the loop."""
        future = self._workers.submit(do)
        future.add_done_callback(lambda done: self.soon(lambda: then(done)))

    def turn(self, timeout_s: float) -> None:
        """Wait for something to happen, at most so long, and handle all of it."""
        if self._calls:
            timeout_s = 0.0
        elif self._timers:
            timeout_s = max(0.0, min(timeout_s, self._timers[0][0] - self.now()))
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_receiver, 4096)
            elif is_registered(self._selector, key):  # a call before may have closed it
                key.data()
        for _ in range(len(self._calls)):
            self._calls.popleft()()
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2].fire()

    # From any thread, and from signal handlers.

    def soon(self, call: Callable[[], object]) -> None:
        """Call in the loop, at its next turn."""
        self._calls.append(call)
        if not self._is_closed:
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(self._wake_sender, b"!")

    # The end.

    def close(self) -> None:
        """Wait for the workers and close everything. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._selector.close()
        os.close(self._wake_receiver)
        os.close(self._wake_sender)

    def __enter__(self) -> "EventLoop":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
