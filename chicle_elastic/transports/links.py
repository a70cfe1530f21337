"""Links: small messages between two agents, both of which have proven the job secret.

A link is made for an event loop: it has a descriptor for a selector, `send` and `receive` never wait, and what the
kernel does not take at once is kept until `flush`. The end of a connection shows at once (`PeerLostError`); a host that
is merely silent does not, so the agents at its two ends send heartbeats.

    listener = LinkListener("tcp://0.0.0.0:0", secret, name="n1")     connect("tcp://host:port", secret, name="n2")
    selector.register(listener, EVENT_READ)                           -> a link, ready to use
    listener.accept() -> a link that has been proven, or None

Messages arrive once, whole and in order, or the link is lost. `send` may be called from any thread, the rest from one.
"""

import queue
import socket
import threading
from collections import deque
from typing import Any

from chicle_elastic.closing import Closing
from chicle_elastic.errors import PeerLostError
from chicle_elastic.transports import addresses, wire
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_caller
from chicle_elastic.transports.listener import PROOF_TIMEOUT_S, Listener
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity, greet_as_caller
from chicle_elastic.transports.wire import Kind

PURPOSE = "link"
MAX_UNSENT_BYTES = 2 * wire.MESSAGE_BYTES
READ_BYTES = 1 << 16

_LIMITS = {Kind.MESSAGE: wire.MESSAGE_BYTES}


class Link(Closing):
    """One end of a link; made by `connect` or `LinkListener.accept`. A context manager that closes it."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._sock = sock
        self._sock.setblocking(False)
        self._lock = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self._num_unsent = 0
        self._incoming = bytearray()
        self._lost: PeerLostError | None = None

    def fileno(self) -> int:
        """For a selector: readable when a message or the end may be there, writable for `flush`; -1 once closed."""
        return self._sock.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits for the kernel: then select for writing too, and call `flush`."""
        return bool(self._unsent)

    def send(self, message: Any) -> None:
        """Send JSON values. Never waits. Raises ProtocolError when the message is not made of JSON values, or too long,
        PeerLostError when the link is lost, or the peer has not read for so long that too much is waiting."""
        self._send(wire.pack_json(Kind.MESSAGE, message))

    def send_frame(self, frame: bytes) -> None:
        """Send a message that `wire` has packed already, perhaps for several links; otherwise like `send`."""
        self._send(frame)

    def flush(self) -> None:
        """Send what is waiting, as far as the kernel takes it. Never waits. Raises PeerLostError when the link is
        lost."""
        with self._lock:
            self._flush()

    def receive(self) -> list[Any]:
        """All messages that are here. Never waits. What came before the end of a connection is returned first; the next
        call raises. Raises PeerLostError when the peer closed the link, or died, ProtocolError when the peer broke the
        protocol; close the link."""
        while self._lost is None:
            try:
                data = self._sock.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._lost = PeerLostError(f"the link to {self.peer} is broken ({error.strerror or error})")
                break
            if not data:
                cut = f" within a message, of which {len(self._incoming)} bytes had come" if self._incoming else ""
                kind = wire.TruncatedFrameError if self._incoming else PeerLostError
                self._lost = kind(f"{self.peer} closed the link{cut}")
            self._incoming += data
            if len(data) < READ_BYTES:
                break
        messages = self._take_messages()
        if self._lost is not None and not messages:
            raise self._lost
        return messages

    def close(self) -> None:
        """Hang up; what waits to be sent is lost. May be called again."""
        self._sock.close()

    def __repr__(self) -> str:
        return f"Link(peer={self.peer!r}{', closed' if self._sock.fileno() < 0 else ''})"

    def _send(self, frame: bytes) -> None:
        with self._lock:
            if self._num_unsent + len(frame) > MAX_UNSENT_BYTES:
                raise PeerLostError(
                    f"{self.peer} does not read its messages: {self._num_unsent} bytes wait for it; treat it as lost"
                )
            self._unsent.append(memoryview(frame))
            self._num_unsent += len(frame)
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent[0])
                self._num_unsent -= sent
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise PeerLostError(f"{self.peer} cannot be sent to any more ({error.strerror or error})") from error

    def _take_messages(self) -> list[Any]:
        messages = []
        position, size = 0, wire.HEADER.size
        while len(self._incoming) - position >= size:
            header = self._incoming[position : position + size]
            kind, num_bytes = wire.unpack_header(header, _LIMITS, peer=self.peer)
            end = position + size + num_bytes
            if len(self._incoming) < end:
                break
            messages.append(wire.unpack_json(kind, self._incoming[position + size : end], peer=self.peer))
            position = end
        del self._incoming[:position]
        return messages


class LinkListener(Closing):
    """Where links come in. A context manager that closes it; links that were accepted stay open. Raises UsageError when
    the address cannot be listened on.

    Args:
        address: "tcp://host:port", port 0 for any free one.
    """

    def __init__(
        self,
        address: str,
        secret: JobSecret,
        *,
        name: str,
        proof_timeout_s: float = PROOF_TIMEOUT_S,
        tls: TlsIdentity | None = None,
    ) -> None:
        self._links: queue.SimpleQueue[Link] = queue.SimpleQueue()
        self._bell_receiver, self._bell_sender = socket.socketpair()
        self._bell_receiver.setblocking(False)
        try:
            self._listener = Listener(
                address,
                secret,
                purpose=PURPOSE,
                name=name,
                serve=self._take,
                gives_away=True,
                proof_timeout_s=proof_timeout_s,
                tls=tls,
            )
        except BaseException:
            self._bell_receiver.close()
            self._bell_sender.close()
            raise
        # where it listens, with the port it has got; what to publish if the host in it is known to others
        self.address = self._listener.address

    def fileno(self) -> int:
        """For a selector: readable when `accept` has a link."""
        return self._bell_receiver.fileno()

    def accept(self) -> Link | None:
        """The next link whose other end has proven the secret, or None. Never waits."""
        try:
            self._bell_receiver.recv(1)
        except BlockingIOError:
            return None
        return self._links.get()

    def close(self) -> None:
        """Stop listening, and hang up on links that the caller has not accepted. May be called again."""
        self._listener.close()
        if self._bell_receiver.fileno() < 0:
            return
        while (link := self.accept()) is not None:
            link.close()
        self._bell_receiver.close()
        self._bell_sender.close()

    def _take(self, sock: socket.socket, caller: str) -> None:
        self._links.put(Link(sock, caller))
        self._bell_sender.send(b"!")


def connect(
    address: str,
    secret: JobSecret,
    *,
    name: str,
    timeout_s: float = PROOF_TIMEOUT_S,
    tls: TlsIdentity | None = None,
) -> Link:
    """Make a link to a `LinkListener`. Waits until both ends have proven the secret. Raises TlsError when they do not
    accept each other's certificates, or only one of them speaks TLS, SecretError when the two ends do not have the same
    secret, ProtocolError when the other end is no agent, or of another version, PeerLostError when no process answers.

    Args:
        tls: For a link by TLS; None for one without.
    """
    deadline = Deadline(timeout_s)
    sock = addresses.connect_tcp(address, timeout_s=timeout_s)
    try:
        if tls is not None:
            sock = secured = tls.wrap_as_caller(sock)
            greet_as_caller(secured, deadline, peer=address)
        return Link(sock, prove_as_caller(sock, secret, deadline, purpose=PURPOSE, name=name, peer=address))
    except BaseException:
        sock.close()
        raise
