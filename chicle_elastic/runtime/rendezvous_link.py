"""The connection of a task to the rendezvous store, kept from round to round and made before it is needed.

Why it is kept. torch's client asks the name server for the name of the address that it connects to, only to have it
for a log line, and waits for the answer: 5 s where the name server is slow (measured). That wait must not lie in a
round, where all other members wait, too. So the first connection is made before the node joins, and the next one in the
background when one was taken and is lost.

Whoever takes the connection has it alone: a client that waits for a key of one round lets nobody else ask.
"""

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.connections import own_sockets

CONNECT_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One connection to the store.

    Attributes:
        store: A `torch.distributed.TCPStore`.
        sockets: Inodes of its sockets, to shut it down while it waits.
    """

    store: Any
    sockets: frozenset[int]


class RendezvousLink:
    """Connections to one store, one at a time.

    Args:
        host: Of the store.
        port: Of the store.

    Attributes:
        has_direct_ways: Whether tasks could connect to each other in all rounds so far (`mesh_sums`).
        has_device_ways: Whether their devices could (`device_sums`).
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.has_direct_ways = True
        self.has_device_ways = True
        self._lock = threading.Lock()
        self._next: Future[Client] | None = None

    def prepare(self) -> None:
        """Begin to make a connection, if there is none to be taken."""
        with self._lock:
            if self._next is None:
                self._next = self._begin()

    def take(self, timeout_s: float) -> Client:
        """A connection, to be given back if it is still good.

        Raises:
            PeerLostError: The store does not answer.
        """
        with self._lock:
            future, self._next = self._next or self._begin(), None
        try:
            return future.result(timeout_s)
        except (RuntimeError, FutureTimeoutError) as error:
            detail = str(error).strip().partition("\n")[0][:200] or f"waited for {timeout_s} s"
            raise PeerLostError(
                f"the rendezvous store at {self.host}:{self.port} does not answer ({detail}); it lives with the driver "
                "of the job, and the job ends with it"
            ) from error

    def give_back(self, client: Client) -> None:
        """Keep a connection for the next round."""
        with self._lock:
            self._next = Future()
            self._next.set_result(client)

    def _begin(self) -> Future[Client]:
        future: Future[Client] = Future()
        # No daemon, as in `group`: the end of the interpreter must not cut torch off.
        threading.Thread(target=self._open, args=(future,), name="chicle-rendezvous-link").start()
        return future

    def _open(self, future: Future[Client]) -> None:
        from torch.distributed import TCPStore

        before = own_sockets()
        timeout = timedelta(seconds=CONNECT_TIMEOUT_S)
        try:
            store = TCPStore(self.host, self.port, is_master=False, wait_for_workers=False, timeout=timeout)
        except RuntimeError as error:
            future.set_exception(error)
        else:
            future.set_result(Client(store, own_sockets() - before))
