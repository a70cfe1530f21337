"""What the transports over sockets share: a listener, a pool, and requests answered one after the other.

On a connection the caller sends a request, the listener's end answers it, and so on until one of them hangs up:

    FETCH [arena, offset, size]  ->  BYTES       (tcp)
    DESCRIPTOR arena             ->  DESCRIPTOR  (shm)
    any of them                  ->  REFUSED {error, reason}

After a refusal the connection goes on; after any other error it is closed.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from chicle_elastic.closing import Closing
from chicle_elastic.errors import ChicleError, PeerLostError, ProtocolError
from chicle_elastic.transports import addresses, exchange, wire
from chicle_elastic.transports.base import FETCH_TIMEOUT_S, Check, Memory, Pull, Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_caller
from chicle_elastic.transports.listener import Listener
from chicle_elastic.transports.pool import Connection, ConnectionPool
from chicle_elastic.transports.registry import Registry
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity, greet_as_caller
from chicle_elastic.transports.wire import Kind

REQUEST_BYTES = 256
ANSWER_TIMEOUT_S = 30.0
NUM_AHEAD = 8
"""Regions that are asked for before the first of them has come: enough for the answers to follow without a gap."""


class Transport(Closing):
    """One way to move bytes, over stream sockets; subclasses say how a region travels. The rules are in `base`. Raises
    UsageError when the address cannot be listened on.

    Args:
        tls: For connections by TLS, where both ends have it; None for connections without.
    """

    scheme = ""  # what the log calls it: "tcp", "shm"
    request = Kind.FETCH  # the request that this transport answers
    refused: tuple[type[ChicleError], ...] = (ProtocolError,)
    """Errors that the caller is told as the answer to its request; any other error ends the connection."""

    def __init__(self, address: str, secret: JobSecret, *, name: str, tls: TlsIdentity | None = None) -> None:
        self.name = name
        self._secret, self._tls = secret, tls
        self._registry = Registry()
        self._pool = ConnectionPool(self._connect)
        self._listener = Listener(address, secret, purpose=self.scheme, name=name, serve=self._serve, tls=tls)

    @property
    def address(self) -> str:
        """Where peers reach it, if the host in it is one that they know."""
        return self._listener.address

    def register(self, memory: Memory) -> int:
        """Let peers read this memory, for as long as the transport lives. Returns the number of the arena: 0, 1, ... in
        the order of registration."""
        return self._registry.add(memory)

    def fetch(
        self,
        address: str,
        region: Region,
        into: memoryview,
        *,
        check: Check | None = None,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        """Copy one region of a peer into a slot. Raises ProtocolError when the peer refuses (no such region), or broke
        the protocol, SecretError when the two ends do not have the same secret, PeerLostError when the peer is gone, or
        silent, UsageError when `into` has another length than the region, or cannot be written.

        Args:
            into: Writable, exactly as long as the region.
            check: Looks at the bytes as they arrive; what it raises, `fetch` raises.
        """
        for _, error in self.fetch_each(address, [Pull(region, into, check)], timeout_s=timeout_s):
            if error is not None:
                raise error

    def fetch_each(
        self, address: str, pulls: Sequence[Pull], *, timeout_s: float = FETCH_TIMEOUT_S
    ) -> Iterator[tuple[Pull, Exception | None]]:
        """Copy several regions of a peer, one after the other; they are asked for ahead, so that no wire idles. Raises
        UsageError when a buffer does not go with its region; nothing was fetched.

        Args:
            pulls: What to copy, and where to.

        Yields:
            Every pull, in order, once all of its bytes are there: with None, or with the error that `fetch` would
            raise. When the peer is lost, the pulls that remain all end with that error.
        """
        for pull in pulls:
            pull.require_fit()
        return self._fetch_each(address, deque(pulls), timeout_s)

    def disconnect(self, address: str) -> None:
        """Drop all connections to a peer; fetches from it that are under way end with `PeerLostError`."""
        self._pool.disconnect(address)

    def close(self) -> None:
        """End everything and give the registered memory up. May be called again."""
        self._pool.close()
        self._listener.close()
        self._registry.close()

    def _fetch_each(
        self, address: str, pulls: deque[Pull], timeout_s: float
    ) -> Iterator[tuple[Pull, Exception | None]]:
        waiting = deque(pulls)
        try:
            deadline = Deadline(timeout_s)
            with self._pool.connection(address, deadline) as connection:
                while pulls:
                    while waiting and len(pulls) - len(waiting) < NUM_AHEAD:
                        self._request(connection, waiting.popleft(), deadline, peer=address)
                    try:
                        error = self._bring(connection, pulls[0], deadline, peer=address)
                    except wire.RefusedError as refused:
                        error = refused
                    yield pulls.popleft(), error
                    deadline = Deadline(timeout_s)
        except (PeerLostError, ProtocolError) as lost:
            while pulls:
                yield pulls.popleft(), lost

    def _request(self, connection: Connection, pull: Pull, deadline: Deadline, *, peer: str) -> None:
        """Ask for a region, before those that were asked for earlier have come."""

    def _bring(self, connection: Connection, pull: Pull, deadline: Deadline, *, peer: str) -> Exception | None:
        """Bring the bytes of the region that was asked for next into their place, and have them checked. Returns what
        is wrong with them. Raises RefusedError when the peer refuses and the connection is still good, PeerLostError
        when the connection is not, ProtocolError when the peer broke the protocol."""
        raise NotImplementedError

    def _answer(self, sock: socket.socket, content: Any, deadline: Deadline, *, peer: str) -> None:
        """Answer a request with these JSON values. Raises ProtocolError when there is no such region; nothing was
        sent."""
        raise NotImplementedError

    def _connect(self, address: str, deadline: Deadline) -> socket.socket:
        is_unix = address.startswith("unix:")
        connect = addresses.connect_unix if is_unix else addresses.connect_tcp
        sock = connect(address, timeout_s=deadline.left_s())
        try:
            if self._tls is not None and not is_unix:
                sock = secured = self._tls.wrap_as_caller(sock)
                greet_as_caller(secured, deadline, peer=address)
            prove_as_caller(sock, self._secret, deadline, purpose=self.scheme, name=self.name, peer=address)
        except BaseException:
            sock.close()
            raise
        return sock

    def _serve(self, sock: socket.socket, caller: str) -> None:
        def answer(kind: Kind, content: Any, deadline: Deadline) -> None:
            self._answer(sock, content, deadline, peer=caller)

        self._serve_requests(sock, caller, {self.request: REQUEST_BYTES}, answer)

    def _serve_requests(
        self, sock: socket.socket, caller: str, limits: wire.Limits, answer: Callable[[Kind, Any, Deadline], None]
    ) -> None:
        """Have one request after the other answered, until the caller hangs up between two of them.

        Args:
            answer: Answers one; what it raises of `refused`, before it sends anything, is told the caller.
        """
        while True:
            try:
                kind, num_bytes = exchange.receive_header(sock, limits, Deadline(None), peer=caller)
            except ProtocolError as error:
                exchange.send_frame(sock, wire.pack_refusal(error), Deadline(ANSWER_TIMEOUT_S), peer=caller)
                raise  # it is not known where the next frame begins
            except PeerLostError as error:
                if isinstance(error, wire.TruncatedFrameError):
                    raise
                return  # it hung up between two requests, as it should
            deadline = Deadline(ANSWER_TIMEOUT_S)
            payload = exchange.receive_payload(sock, num_bytes, deadline, peer=caller)
            try:
                answer(kind, wire.unpack_json(kind, payload, peer=caller), deadline)
            except self.refused as error:
                exchange.send_frame(sock, wire.pack_refusal(error), deadline, peer=caller)
