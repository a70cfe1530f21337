"""Lines between the processes of a local cluster: JSON, bytes and descriptors over a Unix stream socket.

    offset size type  meaning
         0    4 u32   bytes of JSON that follow, little-endian
         4    8 u64   bytes of payload behind the JSON
        12        utf-8 JSON object {"kind": ..., ...}; "fds" counts the descriptors that came with it
                  payload

Everybody here belongs to one user on one host, which the kernel vouches for (`connect`, `accept`); still nothing that
comes is ever run. Descriptors travel with the first byte of their message, so they are here when it is complete.
"""

import array
import contextlib
import json
import select
import socket
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import EADDRINUSE
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.runtime.channel import check_peer

HEAD = struct.Struct("<IQ")
MAX_JSON_BYTES = 64 << 20
MAX_FDS = 8
FDS_SPACE = MAX_FDS * struct.calcsize("i") + 64
READ_BYTES = 1 << 18
SEND_TIMEOUT_S = 10.0
"""Whoever does not read for so long is taken for gone."""


@dataclass(slots=True)
class Said:
    """One message.

    Attributes:
        kind: What it is about.
        fields: Its other fields.
        fds: Descriptors that came with it; they belong to the receiver.
        payload: Bytes that came with it.
    """

    kind: str
    fields: dict[str, Any]
    fds: list[int]
    payload: bytearray


class Line:
    """One end. Not thread-safe: whoever owns it sends and receives. A context manager that closes it.

    Args:
        sock: Connected; it belongs to the line from now on.

    Attributes:
        is_at_end: The other side is gone, and everything it said has been handed out.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(SEND_TIMEOUT_S)
        self.is_at_end = False
        self._socket = sock
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._said: deque[Said] = deque()

    def fileno(self) -> int:
        """The descriptor, for `selectors`."""
        return self._socket.fileno()

    def send(self, kind: str, *, fds: Sequence[int] = (), payload: Any = b"", **fields: Any) -> None:
        """Say something; waits while the other side's buffer is full.

        Args:
            kind: What it is about.
            fds: Descriptors to go with it; the receiver gets its own.
            payload: Bytes to go with it, anything with the buffer interface.
            fields: JSON values.

        Raises:
            ConnectionError: The other side is gone, or has not read for `SEND_TIMEOUT_S`.
        """
        text = json.dumps({"kind": kind, "fds": len(fds), **fields}, separators=(",", ":")).encode()
        view = memoryview(payload).cast("B")
        frame = HEAD.pack(len(text), len(view)) + text
        try:
            sent = socket.send_fds(self._socket, [frame], list(fds)) if fds else 0
            self._socket.sendall(frame[sent:])
            if len(view):
                self._socket.sendall(view)
        except TimeoutError as error:
            raise ConnectionError(f"the other side has not read for {SEND_TIMEOUT_S:g} s") from error
        except BrokenPipeError as error:
            raise ConnectionError("the other side is gone") from error

    def receive(self, timeout_s: float | None = None) -> Said | None:
        """Wait for the next message.

        Returns:
            The message; None when the other side is gone, or nothing came in time.

        Raises:
            ProtocolError: What came is no message.
        """
        while not self._said and not self.is_at_end:
            if not select.select([self._socket], [], [], timeout_s)[0]:
                return None
            self._read()
        return self._said.popleft() if self._said else None

    def read(self) -> list[Said]:
        """Every message that is here, without waiting.

        Raises:
            ProtocolError: What came is no message.
        """
        while not self.is_at_end and select.select([self._socket], [], [], 0)[0]:
            self._read()
        said, self._said = list(self._said), deque()
        return said

    def close(self) -> None:
        """Close the socket and descriptors that nobody took. May be called again."""
        for fd in (*self._fds, *(fd for said in self._said for fd in said.fds)):
            socket.close(fd)
        self._fds.clear()
        self._said.clear()
        self._socket.close()

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _read(self) -> None:
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(READ_BYTES, FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:  # it went with something unread
            data, ancillary, flags = b"", [], 0
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError(f"more than {MAX_FDS} descriptors came at once, or this process may open no more")
        if not data:
            self.is_at_end = True
            return
        self._buffer += data
        while (said := self._next()) is not None:
            self._said.append(said)

    def _next(self) -> Said | None:
        buffer = self._buffer
        if len(buffer) < HEAD.size:
            return None
        text_bytes, payload_bytes = HEAD.unpack_from(buffer)
        if text_bytes > MAX_JSON_BYTES:
            raise ProtocolError(f"a message of {text_bytes} bytes of JSON was announced; {MAX_JSON_BYTES} are allowed")
        start, end = HEAD.size + text_bytes, HEAD.size + text_bytes + payload_bytes
        if len(buffer) < end:
            return None
        try:
            fields = json.loads(bytes(buffer[HEAD.size : start]))
            kind, num_fds = fields.pop("kind"), fields.pop("fds")
        except (ValueError, KeyError, AttributeError) as error:
            raise ProtocolError(f"{bytes(buffer[HEAD.size : start])[:60]!r} is no message ({error!r})") from error
        if not isinstance(kind, str) or not isinstance(num_fds, int) or not 0 <= num_fds <= len(self._fds):
            raise ProtocolError(f"{kind!r} came with {len(self._fds)} descriptors and announced {num_fds!r}")
        payload = buffer[start:end]
        del buffer[:end]
        return Said(kind, fields, [self._fds.popleft() for _ in range(num_fds)], payload)


def pair() -> tuple[Line, socket.socket]:
    """A line, and the socket of its other end to hand on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    return Line(ours), theirs


def listen(address: str) -> socket.socket | None:
    """Listen at an abstract address, which leaves nothing on any disk.

    Returns:
        The listener; None when somebody else listens there already.

    Raises:
        OSError: The system has no such sockets.
    """
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


def connect(address: str) -> Line | None:
    """A line to whoever listens at an abstract address; None when nobody does.

    Raises:
        ProtocolError: It is somebody of another user.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(_name(address))
        check_peer(sock)
    except OSError:
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    return Line(sock)


def accept(listener: socket.socket) -> Line | None:
    """The line of the next who comes; None when it belongs to another user."""
    sock, _ = listener.accept()
    with contextlib.suppress(ProtocolError):
        check_peer(sock)
        return Line(sock)
    sock.close()
    return None


def fields_of(said: Said, **types: type | tuple[type, ...]) -> Mapping[str, Any]:
    """The fields of a message, after a look at their types.

    Raises:
        ProtocolError: One is missing or of another type.
    """
    for name, kind in types.items():
        if not isinstance(said.fields.get(name), kind):
            raise ProtocolError(f"{said.kind!r} came with {name}={said.fields.get(name)!r}; both ends need one release")
    return said.fields


def _name(address: str) -> str:
    return f"\0{address}"
