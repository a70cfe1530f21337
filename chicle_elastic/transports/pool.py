"""Connections to peers, kept open between requests: one per request that is under way."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from chicle_elastic.errors import PeerLostError
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.wire import RefusedError

MAX_IDLE = 8


class Companion(Protocol):
    """What lives as long as a connection."""

    def close(self) -> None:
        """End it; called once."""


class Connection:
    """A connection whose two ends have proven the secret."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock  # the socket
        # descriptor and size of each arena of the peer that came over it, by number; closed with it
        self.descriptors: dict[int, tuple[int, int]] = {}
        self.companion: Companion | None = None  # what else was made over it, such as a queue pair; closed with it
        # whether it is to be closed after the request that is under way, also when that goes well: shm reads on in the
        # memory of a peer that has gone
        self.is_interrupted = False

    def is_usable(self) -> bool:
        """Whether the peer is there and silent, as it has to be between two requests."""
        self.sock.setblocking(False)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # the end of the connection, or bytes that no request asked for

    def interrupt(self) -> None:
        """Wake the thread that waits on it, with an error, and do not keep it."""
        self.is_interrupted = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        self.sock.close()
        for fd, _ in self.descriptors.values():
            os.close(fd)
        self.descriptors.clear()
        if self.companion is not None:
            self.companion.close()


class ConnectionPool:
    """Idle and busy connections, by address. Thread-safe.

    Args:
        connect: Makes a connection to an address, until a deadline.
    """

    def __init__(self, connect: Callable[[str, Deadline], socket.socket]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: dict[str, list[Connection]] = {}  # addresses without a connection are not kept
        self._busy: dict[str, set[Connection]] = {}
        self._is_closed = False

    @contextlib.contextmanager
    def connection(self, address: str, deadline: Deadline) -> Iterator[Connection]:
        """A connection for one request; it is kept for the next one unless the request broke it. Raises PeerLostError
        when no process answers, or the pool is closed, SecretError when the two ends do not have the same secret,
        ProtocolError when the other end is no agent of this version."""
        connection = self._take_idle(address) or self._open(address, deadline)
        is_good = False
        try:
            yield connection
            is_good = True
        except RefusedError:
            is_good = True
            raise
        finally:
            self._give_back(address, connection, is_good=is_good)

    def disconnect(self, address: str) -> None:
        """Close idle connections to an address and break busy ones."""
        with self._lock:
            idle = self._idle.pop(address, [])
            for connection in self._busy.get(address, ()):
                connection.interrupt()  # while no request can give it back
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Disconnect from all peers, for good. May be called again."""
        with self._lock:
            self._is_closed = True
            addresses = {*self._idle, *self._busy}
        for address in addresses:
            self.disconnect(address)

    def _take_idle(self, address: str) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(address)
                if not idle:
                    return None
                connection = idle.pop()
                if not idle:
                    del self._idle[address]
                self._busy.setdefault(address, set()).add(connection)
            if connection.is_usable():
                return connection
            self._give_back(address, connection, is_good=False)

    def _open(self, address: str, deadline: Deadline) -> Connection:
        connection = Connection(self._connect(address, deadline))
        with self._lock:
            if not self._is_closed:
                self._busy.setdefault(address, set()).add(connection)
                return connection
        connection.close()
        raise PeerLostError(f"the transport is closed; nothing can be fetched from {address} any more")

    def _give_back(self, address: str, connection: Connection, *, is_good: bool) -> None:
        with self._lock:
            busy = self._busy[address]
            busy.discard(connection)
            if not busy:
                del self._busy[address]
            has_room = len(self._idle.get(address, ())) < MAX_IDLE
            if is_good and has_room and not connection.is_interrupted and not self._is_closed:
                self._idle.setdefault(address, []).append(connection)
                return
        connection.close()
