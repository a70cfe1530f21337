"""Messages between the processes of a local cluster: JSON with a kind, and bytes and descriptors beside it.

A message is a frame of `transports.unix_frames`, whose text is the JSON object {"kind": ..., ...}.

Every process here belongs to one user on one host, which the kernel vouches for (`connect`, `accept`); still no code
that comes in a message is run. Code of the user's comes in the sealed memory file of a job (`user_code`).
"""

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import EADDRINUSE
from typing import Any

from chicle_elastic.closing import Closing
from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports.unix_frames import Frame, FramedSocket, Limits, require_same_user

MAX_JSON_BYTES = 64 << 20
MAX_FDS = 8
SEND_TIMEOUT_S = 10.0  # a process that does not read for so long is taken for gone
LIMITS = Limits(text_bytes=MAX_JSON_BYTES, fds=MAX_FDS, payload_bytes=None, send_timeout_s=SEND_TIMEOUT_S)
WHAT = "a connection of the local cluster"


@dataclass(slots=True)
class Received:
    """One message."""

    kind: str  # what it is about
    fields: dict[str, Any]  # its other fields
    fds: list[int]  # descriptors that came with it; they belong to the receiver
    payload: bytearray  # bytes that came with it


class Connection(Closing):
    """One end. Any thread may send; one thread receives. A context manager that closes it.

    A message that is cut off by the end of its sender is no error: tasks and agents are killed at any time.

    Args:
        sock: Connected; it belongs to the connection from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._frames = FramedSocket(sock, LIMITS, what=WHAT)

    @property
    def is_at_end(self) -> bool:
        """The other side is gone, and every message that it sent has been handed out."""
        return self._frames.is_at_end

    def fileno(self) -> int:
        """The descriptor, for `selectors`."""
        return self._frames.fileno()

    def send(self, kind: str, *, fds: Sequence[int] = (), payload: Any = b"", **fields: Any) -> None:
        """Send a message; waits while the other side's buffer is full. Raises ConnectionError when the other side is
        gone, or has not read for `SEND_TIMEOUT_S`.

        Args:
            fds: Descriptors to go with it; the receiver gets its own.
        """
        text = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
        self._frames.send(text, fds=fds, payload=payload)

    def receive(self, timeout_s: float | None = None) -> Received | None:
        """Wait for the next message. Raises ProtocolError when what came is no message. Returns the message, or None
        when the other side is gone, or nothing came in time."""
        frame = self._frames.receive(timeout_s)
        return None if frame is None else _decode([frame])[0]

    def read(self) -> list[Received]:
        """Every message that is here, without waiting. Raises ProtocolError when what came is no message."""
        return _decode(self._frames.read())

    def shut_down(self) -> None:
        """End both directions: whoever waits in `receive`, here or at the other side, finds the end."""
        self._frames.shut_down()

    def close(self) -> None:
        """Close the socket, and descriptors that were not handed out. May be called again."""
        self._frames.close()


def _decode(frames: Sequence[Frame]) -> list[Received]:
    """The messages of frames; where one is refused, the descriptors of all of them are closed."""
    received = []
    try:
        for frame in frames:
            fields = json.loads(frame.text)
            kind = fields.pop("kind")
            if not isinstance(kind, str):
                raise TypeError(f"kind is {kind!r}")
            received.append(Received(kind, fields, frame.fds, frame.payload))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        for fd in (fd for each in frames for fd in each.fds):
            os.close(fd)
        raise ProtocolError(f"{frame.text[:60]!r} is no message ({error!r})") from error
    return received


def pair() -> tuple[Connection, socket.socket]:
    """A connection, and the socket of its other end to hand on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    return Connection(ours), theirs


def listen(address: str) -> socket.socket | None:
    """Listen at an abstract address, which leaves nothing on any disk. Raises OSError when the system has no such
    sockets. Returns the listener, None when another process listens there already."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(_name(address))
        sock.listen(64)
    except OSError as error:
        sock.close()
        if error.errno == EADDRINUSE:
            return None
        raise
    return sock


def connect(address: str) -> Connection | None:
    """A connection to the process that listens at an abstract address; None when none does. Raises ProtocolError when
    it is a process of another user."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(_name(address))
        require_same_user(sock, WHAT)
    except OSError:
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    return Connection(sock)


def accept(listener: socket.socket) -> Connection | None:
    """The connection of the next process that comes; None when that belongs to another user."""
    sock, _ = listener.accept()
    with contextlib.suppress(ProtocolError):
        require_same_user(sock, WHAT)
        return Connection(sock)
    sock.close()
    return None


def fields_of(message: Received, **types: type | tuple[type, ...]) -> Mapping[str, Any]:
    """The fields of a message, after a look at their types. Raises ProtocolError when one is missing or of another
    type."""
    for name, kind in types.items():
        if not isinstance(message.fields.get(name), kind):
            value = message.fields.get(name)
            raise ProtocolError(f"{message.kind!r} came with {name}={value!r}; both ends need one release")
    return message.fields


def _name(address: str) -> str:
    return f"\0{address}"
