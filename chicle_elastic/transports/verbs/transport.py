"""Chunks by one-sided RDMA READ; see the top of the package."""

import logging
import socket
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports import addresses, exchange, wire
from chicle_elastic.transports.base import Memory, Pull
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.pool import Connection
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.sockets import REQUEST_BYTES, Transport
from chicle_elastic.transports.verbs.channel import Channel
from chicle_elastic.transports.verbs.device import Device, choose_port
from chicle_elastic.transports.verbs.failures import QueuePairError
from chicle_elastic.transports.verbs.memory import MemoryKey, RegisteredMemory
from chicle_elastic.transports.verbs.queue_pair import EndPoint, QueuePair
from chicle_elastic.transports.wire import Kind

END_POINT_BYTES = 512

_REQUESTS = {Kind.QUEUE_PAIR: END_POINT_BYTES, Kind.MEMORY_KEY: REQUEST_BYTES}
_ANSWERS = {**_REQUESTS, Kind.REFUSED: wire.REASON_BYTES}

_log = logging.getLogger(__name__)


class VerbsTransport(Transport):
    """A `Transport`; addresses are "tcp://host:port", where queue pairs are made. Raises RdmaUnavailableError with the
    exact reason when RDMA cannot be used here, UsageError when the address cannot be listened on.

    Args:
        host: By which peers reach this host; by default the listening address.
        device: Name of the RDMA device; by default the one with the address `host`, else the first.
    """

    scheme = "verbs"
    refused = (ProtocolError, QueuePairError)

    def __init__(
        self, address: str, secret: JobSecret, *, name: str, host: str | None = None, device: str | None = None
    ) -> None:
        self.port = choose_port(host or addresses.parse_listen(address)[0], device)  # the port of the device
        self._device = Device(self.port)
        self._memory = RegisteredMemory(self._device)
        try:
            super().__init__(address, secret, name=name)
        except BaseException:
            self._device.release()
            raise
        self._is_held = True
        _log.info("%s uses %s port %d at %s for RDMA", name, self.port.device, self.port.number, self.port.gid)

    def register(self, memory: Memory) -> int:
        """See `Transport`. The pages are locked, and this process stands still until they are. Raises CapacityError
        when this process may not lock that much. The arena has a number, and peers are told why it cannot be read."""
        return self._memory.add(memory)

    def place_of(self, view: memoryview) -> tuple[int, int] | None:
        """Address and key under which the card writes into this view; None where it goes through the staging area."""
        return self._memory.place_of(view)

    def close(self) -> None:
        """See `Transport`."""
        super().close()
        if self._is_held:
            self._is_held = False
            self._device.release()

    # As the caller.

    def _request(self, connection: Connection, pull: Pull, deadline: Deadline, *, peer: str) -> None:
        channel = self._channel(connection, deadline, peer=peer)
        number = pull.region.arena
        key: MemoryKey | Exception | None = channel.keys.get(number)
        if key is None:
            try:
                exchange.send_frame(connection.sock, wire.pack_json(Kind.MEMORY_KEY, number), deadline, peer=peer)
                content = exchange.receive_json(connection.sock, _ANSWERS, deadline, peer=peer)
                key = channel.keys[number] = MemoryKey.from_json(content, peer=peer)
            except wire.RefusedError as refused:
                key = refused
        channel.ask(pull, key)

    def _bring(self, connection: Connection, pull: Pull, deadline: Deadline, *, peer: str) -> Exception | None:
        return self._channel(connection, deadline, peer=peer).bring(deadline)

    def _channel(self, connection: Connection, deadline: Deadline, *, peer: str) -> Channel:
        """The queue pair of a connection, made by its first request."""
        channel = connection.companion
        if isinstance(channel, Channel):
            return channel
        channel = Channel(connection.sock, self._device, self._memory, peer=peer)
        try:
            frame = wire.pack_json(Kind.QUEUE_PAIR, channel.end_point.to_json())
            exchange.send_frame(connection.sock, frame, deadline, peer=peer)
            content = exchange.receive_json(connection.sock, _ANSWERS, deadline, peer=peer)
            channel.connect(EndPoint.from_json(content, peer=peer))
        except BaseException as error:
            channel.close()  # and not kept, also where the connection is
            if isinstance(error, wire.RefusedError) and error.error == QueuePairError.__name__:
                raise QueuePairError(str(error)) from error
            raise
        connection.companion = channel
        return channel

    # As the listener.

    def _serve(self, sock: socket.socket, caller: str) -> None:
        pairs: list[QueuePair] = []  # one at most

        def answer(kind: Kind, content: Any, deadline: Deadline) -> None:
            if kind is Kind.MEMORY_KEY:
                reply: Any = self._key(content, caller).to_json()
            else:
                if pairs:
                    raise ProtocolError(f"{caller} asks for a second queue pair on one connection")
                pairs.append(self._answering_pair(content, caller))
                reply = pairs[0].end_point.to_json()
            exchange.send_frame(sock, wire.pack_json(kind, reply), deadline, peer=caller)

        try:
            self._serve_requests(sock, caller, _REQUESTS, answer)
        finally:
            for pair in pairs:
                pair.close()

    def _answering_pair(self, content: Any, caller: str) -> QueuePair:
        """A queue pair whose card answers the caller's READs; nothing here waits for it."""
        theirs = EndPoint.from_json(content, peer=caller)
        pair = QueuePair(self._device)
        try:
            pair.connect(theirs, peer=caller)
        except BaseException:
            pair.close()
            raise
        return pair

    def _key(self, content: Any, caller: str) -> MemoryKey:
        if type(content) is not int:
            raise ProtocolError(f"{caller} asks for the key of {content!r:.80}, which is no number of an arena")
        return self._memory.key(content)
