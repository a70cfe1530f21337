"""What the transports over sockets share: a listener, a pool, messages, and requests answered one after the other.

On a connection the caller sends a request, the listener's end answers it, and so on until one of them hangs up:

    FETCH [arena, offset, size]  ->  BYTES      (tcp)         MESSAGE value  ->  ACCEPTED
    DESCRIPTOR arena             ->  DESCRIPTOR (shm)         any of them    ->  REFUSED {error, reason}

After a refusal the connection goes on; after any other error it is closed.
"""

import queue
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Self

from chicle_elastic.errors import CapacityError, PeerLostError, ProtocolError
from chicle_elastic.transports import addresses, exchange, wire
from chicle_elastic.transports.base import FETCH_TIMEOUT_S, Check, Memory, Message, Pull, Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_caller
from chicle_elastic.transports.listener import Listener
from chicle_elastic.transports.pool import Connection, ConnectionPool
from chicle_elastic.transports.registry import Registry
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.wire import Kind

REQUEST_BYTES = 256
INBOX_BYTES = 1 << 20
INBOX_MESSAGES = 1024
ANSWER_TIMEOUT_S = 30.0
NUM_AHEAD = 8
"""Regions that are asked for before the first of them has come: enough for the answers to follow without a gap."""


class SocketTransport:
    """A transport over stream sockets; `TcpTransport` and `ShmTransport` say how a region travels.

    Args:
        address: Where to listen.
        secret: Of the job.
        name: Of this node.

    Raises:
        UsageError: The address cannot be listened on.
    """

    scheme = ""
    request = Kind.FETCH
    """The request that this transport answers, next to messages."""

    def __init__(self, address: str, secret: JobSecret, *, name: str) -> None:
        self.name = name
        self._secret = secret
        self._registry = Registry()
        self._inbox: queue.Queue[Message] = queue.Queue(INBOX_MESSAGES)
        self._pool = ConnectionPool(self._connect)
        self._listener = Listener(address, secret, purpose=self.scheme, name=name, serve=self._serve)

    @property
    def address(self) -> str:
        """Where peers reach it, if the host in it is one that they know."""
        return self._listener.address

    def register(self, memory: Memory) -> int:
        """See `base.Transport`."""
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
        """See `base.Transport`."""
        for _, error in self.fetch_each(address, [Pull(region, into, check)], timeout_s=timeout_s):
            if error is not None:
                raise error

    def fetch_each(
        self, address: str, pulls: Sequence[Pull], *, timeout_s: float = FETCH_TIMEOUT_S
    ) -> Iterator[tuple[Pull, Exception | None]]:
        """See `base.Transport`."""
        for pull in pulls:
            pull.require_fit()
        return self._fetch_each(address, deque(pulls), timeout_s)

    def send(self, address: str, content: Any, *, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        """See `base.Transport`."""
        frame = wire.pack_json(Kind.MESSAGE, content)
        deadline = Deadline(timeout_s)
        with self._pool.connection(address, deadline) as connection:
            exchange.send_frame(connection.sock, frame, deadline, peer=address)
            exchange.receive_header(
                connection.sock, {Kind.ACCEPTED: 0, Kind.REFUSED: wire.REASON_BYTES}, deadline, peer=address
            )

    def receive(self, timeout_s: float = 0.0) -> Message | None:
        """See `base.Transport`."""
        try:
            return self._inbox.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return None

    def disconnect(self, address: str) -> None:
        """See `base.Transport`."""
        self._pool.disconnect(address)

    def close(self) -> None:
        """See `base.Transport`."""
        self._pool.close()
        self._listener.close()
        self._registry.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

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
        """Bring the bytes of the region that was asked for next into their place, and have them checked.

        Returns:
            What is wrong with them.

        Raises:
            RefusedError: The peer refuses; the connection is still good.
            PeerLostError: The connection is not.
            ProtocolError: The peer broke the protocol.
        """
        raise NotImplementedError

    def _answer(self, sock: socket.socket, content: Any, deadline: Deadline, *, peer: str) -> None:
        """Answer a request with these JSON values.

        Raises:
            ProtocolError: There is no such region; nothing was sent.
        """
        raise NotImplementedError

    def _connect(self, address: str, deadline: Deadline) -> socket.socket:
        connect = addresses.connect_unix if address.startswith("unix:") else addresses.connect_tcp
        sock = connect(address, timeout_s=deadline.left_s())
        try:
            prove_as_caller(sock, self._secret, deadline, purpose=self.scheme, name=self.name, peer=address)
        except BaseException:
            sock.close()
            raise
        return sock

    def _serve(self, sock: socket.socket, caller: str) -> None:
        limits = {self.request: REQUEST_BYTES, Kind.MESSAGE: INBOX_BYTES}
        while True:
            try:
                kind, num_bytes = exchange.receive_header(sock, limits, Deadline(None), peer=caller)
            except ProtocolError as error:
                exchange.send_frame(sock, wire.pack_refusal(error), Deadline(ANSWER_TIMEOUT_S), peer=caller)
                raise  # nobody knows where the next frame begins
            except PeerLostError as error:
                if isinstance(error, wire.TruncatedFrameError):
                    raise
                return  # it hung up between two requests, as it should
            deadline = Deadline(ANSWER_TIMEOUT_S)
            payload = exchange.receive_payload(sock, num_bytes, deadline, peer=caller)
            try:
                content = wire.unpack_json(kind, payload, peer=caller)
                if kind is Kind.MESSAGE:
                    self._accept(Message(caller, content))
                    exchange.send_frame(sock, wire.pack_header(Kind.ACCEPTED, 0), deadline, peer=caller)
                else:
                    self._answer(sock, content, deadline, peer=caller)
            except (ProtocolError, CapacityError) as error:
                exchange.send_frame(sock, wire.pack_refusal(error), deadline, peer=caller)

    def _accept(self, message: Message) -> None:
        try:
            self._inbox.put_nowait(message)
        except queue.Full:
            raise CapacityError(
                f"{self.name} has {INBOX_MESSAGES} messages that nobody took; send fewer, or receive more often"
            ) from None
