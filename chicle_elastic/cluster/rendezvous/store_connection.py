"""The connection of a process to the rendezvous store. It reconnects, and no operation on it hangs.

torch's client gives up for ever when its connection breaks, and waits for ever when the store's host is silent. Here:

    an operation    ends within `OPERATION_S`: a watchdog shuts the connection down, and the operation fails
    a failure       closes the connection; the next operation makes a new one, to whichever store listens there by then
    back-off        after a failure, operations fail at once for `RETRY_FIRST_S` to `RETRY_LAST_S`, so that the threads
                    of an agent do not all wait for a host that is silent

A store that was restarted is empty, and nothing in its answers tells. `generation` does: it counts the connections, so
the caller that wrote something compares it with the one that it wrote in.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from torch.distributed import TCPStore

from chicle_elastic.clock import Clock, MonotonicClock
from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.cluster.rendezvous.store import CONNECT_TIMEOUT_S, connect_store, parse_endpoint, store_errors
from chicle_elastic.runtime.collectives.own_sockets import connections_to, endpoints_of, shut_down

T = TypeVar("T")

OPERATION_S = 2.0
"""Of one operation; a store on a busy host answers within milliseconds."""
RECONNECT_S = 8.0
"""Of one new connection: torch asks the name server about it first, and waits for 5 s when it does not answer."""
RETRY_FIRST_S = 0.1
RETRY_LAST_S = 1.0


class StoreConnection:
    """See the top of the module. Thread-safe; operations take turns.

    Args:
        endpoint: "host:port".
        clock: For the back-off.

    Attributes:
        endpoint: "host:port".
        generation: Number of connections made so far.
    """

    def __init__(self, endpoint: str, *, clock: Clock | None = None) -> None:
        self.endpoint = endpoint
        self.generation = 0
        self._host, self._port = parse_endpoint(endpoint)
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._store: TCPStore | None = None
        self._error = ""
        """Words of the last failure; the error itself would hold the frame that has the broken connection."""
        self._retry_s = self._wait_s = 0.0
        self._unreachable_since_s: float | None = None

    @property
    def unreachable_s(self) -> float | None:
        """Seconds since the first of the failures in a row, None after a success."""
        since_s = self._unreachable_since_s
        return None if since_s is None else self._clock.now() - since_s

    def connect(self, *, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Wait for the store to appear, and connect to it.

        Raises:
            StoreUnreachableError: No store answers there in time.
        """
        with self._lock:
            self._store = connect_store(self.endpoint, timeout_s=timeout_s)
            self._has_connected()

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """torch's `compare_set`: one round trip, which never waits for a key.

        Raises:
            StoreUnreachableError: The store does not answer. Whether it has executed the operation is not known.
        """
        return self.call(lambda store: bytes(store.compare_set(key, expected, desired)))

    def call(self, operation: Callable[[TCPStore], T]) -> T:
        """Perform an operation, which must not wait for other processes.

        Raises:
            StoreUnreachableError: The store does not answer. Whether it has executed the operation is not known.
        """
        with self._lock:
            if self._error and self._clock.now() < self._retry_s:
                raise StoreUnreachableError(self._error)
            try:
                if self._store is None:
                    self._store = connect_store(self.endpoint, timeout_s=RECONNECT_S, is_awaited=False)
                    self._has_connected()
                result = self._perform(self._store, operation)
            except StoreUnreachableError as error:
                self._fail(error)
                raise
            self._error, self._wait_s, self._unreachable_since_s = "", 0.0, None
            return result

    def raw(self) -> TCPStore:
        """torch's client, for torch's own agents; it is of no more use when the store was unreachable once.

        Raises:
            StoreUnreachableError: The store does not answer.
        """
        return self.call(lambda store: store)

    def _perform(self, store: TCPStore, operation: Callable[[TCPStore], T]) -> T:
        # A timer of its own per operation: agents make a few operations per second.
        watchdog = threading.Timer(OPERATION_S, lambda: shut_down(connections_to(endpoints_of(self._host, self._port))))
        watchdog.name, watchdog.daemon = "chicle-store-watchdog", True
        watchdog.start()
        try:
            with store_errors(self.endpoint):
                return operation(store)
        finally:
            watchdog.cancel()

    def _has_connected(self) -> None:
        self.generation += 1

    def _fail(self, error: StoreUnreachableError) -> None:
        now_s = self._clock.now()
        self._store, self._error = None, str(error)
        self._wait_s = min(2 * self._wait_s or RETRY_FIRST_S, RETRY_LAST_S)
        self._retry_s = now_s + self._wait_s
        if self._unreachable_since_s is None:
            self._unreachable_since_s = now_s
