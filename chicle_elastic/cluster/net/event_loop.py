"""The event loop of an agent: descriptors, timers, and the results of worker threads.

All decisions are made in the thread of the loop, so none of their state needs a lock. Whatever may block (the
rendezvous store, a connection to a peer, the bytes of a chunk, a checksum) is done by a worker thread, whose result
comes back as a call in the loop: `loop.work(do, then)`. Workers have lanes (`worker_lanes`), so that a claim does not
wait behind chunks.
"""

import contextlib
import functools
import heapq
import os
import selectors
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from chicle_elastic.clock import Clock, MonotonicClock
from chicle_elastic.closing import Closing
from chicle_elastic.cluster.net.watchdog import SlowHandler, Watchdog
from chicle_elastic.cluster.net.worker_lanes import Lane, WorkerLanes
from chicle_elastic.ids import NodeId

T = TypeVar("T")


class HasFileno(Protocol):
    """What a selector can watch."""

    def fileno(self) -> int:
        """Its descriptor."""


class Timer:
    """A call that is due later, until `cancel`."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call: Callable[[], object] | None = call

    @property
    def is_due(self) -> bool:
        """Whether it was neither called nor cancelled."""
        return self._call is not None

    def cancel(self) -> None:
        """Do not call. May be called again, and after the call."""
        self._call = None

    def take(self) -> Callable[[], object] | None:
        """What is to be called now; None if it was called or cancelled before."""
        call, self._call = self._call, None
        return call


def is_registered(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Whether a selected key is still watched; looked up by number, because a closed source has no descriptor."""
    now = selector.get_map().get(key.fd)
    return now is not None and now.fileobj is key.fileobj


class EventLoop(Closing):
    """See the top of the module. A context manager that closes it.

    Args:
        tell_slow: Called in the loop when a handler has held it for long; see `watchdog`.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        name: str = "chicle-agent",
        tell_slow: Callable[[SlowHandler], object] | None = None,
    ) -> None:
        self.clock = clock or MonotonicClock()
        # when the handler began that runs now; None between handlers. Any thread may read it
        self.busy_since_s: float | None = None
        self._watchdog = Watchdog(tell_slow)
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._num_timers = 0
        self._calls: deque[Callable[[], object]] = deque()
        self._wake_receiver, self._wake_sender = os.pipe()
        os.set_blocking(self._wake_sender, False)
        os.set_blocking(self._wake_receiver, False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._workers = WorkerLanes(name)
        self._is_closed = False

    # From the thread of the loop.

    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self.clock.now()

    def watch(self, source: HasFileno | int, on_ready: Callable[[], object], *, writing: bool = False) -> None:
        """Call `on_ready` whenever the descriptor is readable, or also writable; replaces an earlier watch."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        try:
            self._selector.modify(source, events, on_ready)
        except KeyError:
            self._selector.register(source, events, on_ready)

    def forget(self, source: HasFileno | int) -> None:
        """Stop watching a descriptor; call it before the descriptor is closed. May be called again."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call after a delay."""
        timer = Timer(call)
        self._num_timers += 1
        heapq.heappush(self._timers, (self.now() + delay_s, self._num_timers, timer))
        return timer

    def work(
        self,
        do: Callable[[], T],
        then: Callable[["Future[T]"], object],
        *,
        lane: Lane = Lane.LOCAL,
        peer: NodeId | None = None,
    ) -> None:
        """Run `do` in a worker thread, then call `then` in the loop with the future, which is done.

        Args:
            do: May raise; the future has the exception, and one that is no `ChicleError` is in the log as well.
            then: Called in the loop, unless that was closed first.
            peer: The node whose bytes `do` fetches; few fetches of one peer run at a time, and in their order.
        """
        future = self._workers.submit(do, lane=lane, peer=peer)
        future.add_done_callback(lambda done: self.soon(functools.partial(then, done)))

    def turn(self, timeout_s: float) -> None:
        """Wait at most so long for descriptors, calls or timers, and handle all that are ready."""
        if self._calls:
            timeout_s = 0.0
        elif self._timers:
            timeout_s = max(0.0, min(timeout_s, self._timers[0][0] - self.now()))
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_receiver, 4096)
            elif is_registered(self._selector, key):  # an earlier call of this turn may have closed it
                self._run(key.data)
        for _ in range(len(self._calls)):
            self._run(self._calls.popleft())
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].take()
            if call is not None:
                self._run(call)

    def _run(self, call: Callable[[], object]) -> None:
        began_s = self.busy_since_s = self.now()
        try:
            call()
        finally:
            self.busy_since_s = None
            self._watchdog.ran(call, began_s, self.now())

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
        self._workers.close()
        self._selector.close()
        os.close(self._wake_receiver)
        os.close(self._wake_sender)
