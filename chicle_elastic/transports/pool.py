"""Connections to peers, kept open between requests: one per request that is under way."""

import contextlib
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

from chicle_elastic.errors import PeerLostError
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.wire import RefusedError

MAX_IDLE = 8


class Connection:
    """A connection whose two ends have proven the secret.

    Attributes:
        sock: The socket.
        descriptors: Descriptor and size of each arena of the peer that came over it, by number; closed with it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.descriptors: dict[int, tuple[int, int]] = {}

    def is_usable(self) -> bool:
        """Whether the peer is there and silent, as it has to be between two requests."""
        self.sock.setblocking(False)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # the end of the connection, or bytes that nobody asked for

    def interrupt(self) -> None:
        """Wake whoever waits on it, with an error."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        self.sock.close()
        for fd, _ in self.descriptors.values():
            os.close(fd)
        self.descriptors.clear()


class ConnectionPool:
    """Idle and busy connections, by address. Thread-safe.

    Args:
        connect: Makes a connection to an address, until a deadline.
    """

    def __init__(self, connect: Callable[[str, Deadline], socket.socket]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: defaultdict[str, list[Connection]] = defaultdict(list)
        self._busy: defaultdict[str, set[Connection]] = defaultdict(set)
        self._is_closed = False

    @contextlib.contextmanager
    def connection(self, address: str, deadline: Deadline) -> Iterator[Connection]:
        """A connection for one request; it is kept for the next one unless the request broke it.

        Raises:
            PeerLostError: Nobody answers, or the pool is closed.
            SecretError: The two ends do not have the same secret.
            ProtocolError: The other end is no agent of this version.
        """
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
            idle, busy = self._idle.pop(address, []), list(self._busy[address])
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.interrupt()

    def close(self) -> None:
        """Disconnect from everybody, for good. May be called again."""
        with self._lock:
            self._is_closed = True
            addresses = {*self._idle, *self._busy}
        for address in addresses:
            self.disconnect(address)

    def _take_idle(self, address: str) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle[address]:
                    return None
                connection = self._idle[address].pop()
                self._busy[address].add(connection)
            if connection.is_usable():
                return connection
            self._give_back(address, connection, is_good=False)

    def _open(self, address: str, deadline: Deadline) -> Connection:
        connection = Connection(self._connect(address, deadline))
        with self._lock:
            if not self._is_closed:
                self._busy[address].add(connection)
                return connection
        connection.close()
        raise PeerLostError(f"the transport is closed; nothing can be fetched from {address} any more")

    def _give_back(self, address: str, connection: Connection, *, is_good: bool) -> None:
        with self._lock:
            self._busy[address].discard(connection)
            if is_good and not self._is_closed and len(self._idle[address]) < MAX_IDLE:
                self._idle[address].append(connection)
                return
        connection.close()
