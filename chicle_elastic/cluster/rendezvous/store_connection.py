"""The connection of a process to the rendezvous store. It reconnects, and no operation on it hangs.

A client (`key_values`) is of no more use when an operation has failed. Here:

    an operation    ends within `OPERATION_S`, and fails when the store has not answered by then
    a failure       closes the connection; the next operation makes a new one, to whichever store listens there by then
    back-off        after a failure, operations fail at once for `RETRY_FIRST_S` to `RETRY_LAST_S`, so that the threads
                    of an agent do not all wait for a host that is silent

A store that was restarted is empty, and nothing in its answers tells. `generation` does: it counts the connections, so
the caller that wrote something compares it with the one that it wrote in.
"""

import threading
from collections.abc import Callable
from typing import Self, TypeVar

from chicle_elastic.clock import Clock, MonotonicClock
from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.cluster.rendezvous.store import CONNECT_TIMEOUT_S, connect_store
from chicle_elastic.errors import PeerLostError, ProtocolError
from chicle_elastic.transports.key_values import KeyValueClient

T = TypeVar("T")

OPERATION_S = 2.0  # of one operation; a store on a busy host answers within milliseconds
RECONNECT_S = 8.0  # of one new connection; a name server may take 5 s to say where the store is
RETRY_FIRST_S = 0.1
RETRY_LAST_S = 1.0


class StoreConnection:
    """See the top of the module. Thread-safe; operations take turns."""

    def __init__(self, endpoint: str, *, clock: Clock | None = None) -> None:
        self.endpoint = endpoint
        self.generation = 0
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._store: KeyValueClient | None = None
        self._error = ""
        """Words of the last failure; the error itself would hold the frame that has the broken connection."""
        self._retry_s = self._wait_s = 0.0

    def connect(self, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Self:
        """Wait for the store to appear, and connect to it; returns this object. Raises StoreUnreachableError when no
        store answers there in time."""
        with self._lock:
            self._connected(connect_store(self.endpoint, timeout_s=timeout_s))
        return self

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes, /) -> bytes:
        """See `KeyValueClient.compare_set`. Raises StoreUnreachableError when the store does not answer. Whether it has
        executed the operation is not known."""
        return self.call(lambda store: store.compare_set(key, expected, desired))

    def call(self, operation: Callable[[KeyValueClient], T]) -> T:
        """Perform an operation, which must not wait for other processes. Raises StoreUnreachableError when the store
        does not answer. Whether it has executed the operation is not known."""
        with self._lock:
            if self._error and self._clock.now() < self._retry_s:
                raise StoreUnreachableError(self._error)
            try:
                store = self._store or self._connected(
                    connect_store(self.endpoint, timeout_s=RECONNECT_S, is_awaited=False)
                )
                result = operation(store)
            except StoreUnreachableError as error:
                self._fail(error)
                raise
            except (PeerLostError, ProtocolError) as error:
                unreachable = StoreUnreachableError(
                    f"the rendezvous store at {self.endpoint} does not answer ({error}); no node can join without it: "
                    "check the driver or the --store-only process, which serves it, and start it again there"
                )
                self._fail(unreachable)
                raise unreachable from error
            self._error, self._wait_s = "", 0.0
            return result

    def _connected(self, store: KeyValueClient) -> KeyValueClient:
        store.operation_s = OPERATION_S
        self._store = store
        self.generation += 1
        return store

    def _fail(self, error: StoreUnreachableError) -> None:
        self._store, self._error = None, str(error)  # a client closes itself when it fails
        self._wait_s = min(2 * self._wait_s or RETRY_FIRST_S, RETRY_LAST_S)
        self._retry_s = self._clock.now() + self._wait_s
