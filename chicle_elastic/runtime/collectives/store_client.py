"""The connections of a task to the round stores, made before they are needed and kept from round to round.

A round's store is served by the agent of its first member (`cluster.rendezvous.store`), so it changes with that member.

Why connections are made ahead. torch's client asks the name server for the name of the address that it connects to,
only to have it for a log line, and waits for the answer: 5 s where the name server is slow (measured). That wait must
not lie in a round, where all other members wait, too. So a task connects to the stores that the next round may use
before there is a round, and anew in the background when a round has lost the connection that it took.

The thread that takes a connection has it alone: while a client waits for a key of one round, no other thread can use
it.

A connection to the store of the next round may be made while this round's group connects. The group shuts all of its
connections down when it ends and finds them by when they were made, so it has to know those that are not its own
(`sockets`).
"""

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.collectives.own_sockets import (
    Endpoint,
    are_open,
    connections_to,
    endpoints_of,
    own_sockets,
)

CONNECT_TIMEOUT_S = 20.0
MAX_READY = 3
"""Connections that are kept ready: that of the last round, and those of the stores that the next one may use."""

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """One connection to a store.

    Attributes:
        store: A `torch.distributed.TCPStore`.
        sockets: Inodes of its sockets, to shut it down while it waits.
        address: Host and port of the store.
    """

    store: Any
    sockets: frozenset[int]
    address: Address


class StoreClient:
    """Connections to the store of the current round, one at a time, and prepared ones to others.

    Args:
        host: Of the store.
        port: Of the store.

    Attributes:
        has_direct_ways: Whether tasks could connect to each other in all rounds so far (`small_allreduce`).
        may_use_nccl: Whether their devices could (`nccl_allreduce`).
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.has_direct_ways = True
        self.may_use_nccl = True
        self._lock = threading.Lock()
        self._ready: dict[Address, Future[Client]] = {}
        self._endpoints: dict[Address, frozenset[Endpoint]] = {}

    def move(self, host: str, port: int) -> None:
        """The store of the current round is at this address."""
        with self._lock:
            self.host, self.port = host, port

    def prepare(self, address: Address | None = None) -> None:
        """Begin to make a connection, if none is ready or being made.

        Args:
            address: Host and port of the store; by default of the current round's.
        """
        with self._lock:
            address = address or (self.host, self.port)
            if address not in self._ready or _is_over(self._ready[address]):
                self._keep(address, self._begin(address))

    def take(self, timeout_s: float) -> Client:
        """A connection, to be given back if it is still good.

        Raises:
            PeerLostError: The store does not answer.
        """
        with self._lock:
            address = self.host, self.port
            ready = self._ready.pop(address, None)
            future = self._begin(address) if ready is None or _is_over(ready) else ready
        try:
            return future.result(timeout_s)
        except (RuntimeError, FutureTimeoutError) as error:
            detail = str(error).strip().partition("\n")[0][:200] or f"waited for {timeout_s} s"
            raise PeerLostError(
                f"the store of the round at {self.host}:{self.port} does not answer ({detail}); the agent of the "
                "round's first member serves it: is that node gone, or a firewall in between?"
            ) from error

    def give_back(self, client: Client) -> None:
        """Keep a connection for the next round."""
        future: Future[Client] = Future()
        future.set_result(client)
        with self._lock:
            self._keep(client.address, future)

    def sockets(self) -> frozenset[int]:
        """Inodes of all connections to the stores of the last rounds and of the next one, also of unfinished ones."""
        with self._lock:
            endpoints = frozenset[Endpoint]().union(*self._endpoints.values())
        return connections_to(endpoints)

    def _keep(self, address: Address, future: Future[Client]) -> None:
        self._ready.pop(address, None)
        self._ready[address] = future
        while len(self._ready) > MAX_READY:
            del self._ready[next(iter(self._ready))]
        used = {*self._ready, (self.host, self.port)}
        self._endpoints = {store: endpoints for store, endpoints in self._endpoints.items() if store in used}

    def _begin(self, address: Address) -> Future[Client]:
        future: Future[Client] = Future()
        # No daemon, as in `process_group`: the end of the interpreter must not stop a thread inside torch.
        threading.Thread(target=self._open, args=(address, future), name="chicle-rendezvous-link").start()
        return future

    def _open(self, address: Address, future: Future[Client]) -> None:
        from torch.distributed import TCPStore

        endpoints = endpoints_of(*address)
        with self._lock:
            self._endpoints[address] = endpoints  # before there is a socket
        before = own_sockets()
        timeout = timedelta(seconds=CONNECT_TIMEOUT_S)
        try:
            store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timeout)
        except RuntimeError as error:
            future.set_exception(error)
        else:
            opened = own_sockets() - before
            future.set_result(Client(store, opened & connections_to(endpoints) or opened, address))


def _is_over(future: Future[Client]) -> bool:
    """Whether a connection could not be made, or has ended since: the agent that serves the store began anew."""
    return future.done() and (future.exception() is not None or not are_open(future.result().sockets))
