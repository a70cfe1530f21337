"""Frames over a Unix stream socket, descriptors beside them: how processes of one user on one host talk.

    offset size type  meaning
         0    4 u32   bytes of text that follow, little-endian
         4    4 u32   descriptors that came with the frame
         8    8 u64   bytes of payload behind the text
        16       text: a message of the two ends, as they encode it
                 payload: raw bytes, such as a model

Descriptors travel with the first byte of their frame (SCM_RIGHTS), so they are here when the frame is complete. A
stream and not packets, because a packet has to fit the socket's buffer, and the list of a million chunks does not.

An end either waits for its peer (`send`) or never does (`post`, `flush`): an event loop must not stand still because
another process is stopped. What the kernel does not take is kept then, up to a limit, with its descriptors.

An abstract socket has a name that all users of the host can see and connect to, so each end calls `require_same_user`
before it reads or writes.
"""

import array
import errno
import os
import select
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chicle_elastic.errors import ProtocolError, UsageError

HEAD = struct.Struct("<IIQ")
READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one end of a connection accepts."""

    text_bytes: int
    fds: int
    # longest payload of a frame; None for no limit but memory, which is only taken as bytes come
    payload_bytes: int | None = 0
    send_timeout_s: float | None = None  # a peer that has not read for so long counts as gone; None to wait for it
    unsent_bytes: int = 64 << 20  # most bytes of frames that wait for a peer that does not read (`FramedSocket.post`)


class NotReadingError(ConnectionError):
    """The peer lives, and has not read for so long that too much waits for it."""


@dataclass(slots=True)
class _Unsent:
    """What is left of a frame; its descriptors are duplicates, which are closed when its first byte is sent."""

    rest: memoryview
    fds: list[int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame."""

    text: bytes
    fds: list[int]  # descriptors that came with it; they belong to the receiver
    payload: bytearray  # bytes that came with it


class FramedSocket:
    """One end. Any thread may send; one thread receives. `sock`: connected; it belongs to this object from now on."""

    def __init__(self, sock: socket.socket, limits: Limits, *, what: str) -> None:
        sock.settimeout(limits.send_timeout_s)
        self._socket, self._limits, self._what = sock, limits, what
        self._send_lock = threading.Lock()
        self._has_ended = False
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._frames: deque[Frame] = deque()
        self._unsent: deque[_Unsent] = deque()
        self._num_unsent_bytes = 0

    @property
    def is_at_end(self) -> bool:
        """The peer is gone, and every frame that it sent has been handed out."""
        return self._has_ended and not self._frames

    @property
    def num_partial_bytes(self) -> int:
        """Bytes of a frame that is not complete; at the end of the connection it never will be."""
        return len(self._buffer)

    def fileno(self) -> int:
        """The descriptor, for `selectors`."""
        return self._socket.fileno()

    def send(self, text: bytes, *, fds: Sequence[int] = (), payload: Any = b"") -> None:
        """Send a frame; waits while the peer's buffer is full. Raises ConnectionError when the peer is gone, or has not
        read for `Limits.send_timeout_s`.

        Args:
            fds: Descriptors to go with it; the receiver gets its own.
        """
        view = memoryview(payload).cast("B")
        frame = HEAD.pack(len(text), len(fds), len(view)) + text
        with self._send_lock:
            assert not self._unsent, "an end that posts frames does not send any besides"
            try:
                sent = socket.send_fds(self._socket, [frame], list(fds)) if fds else 0
                self._socket.sendall(frame[sent:] if sent else frame)
                if len(view):
                    self._socket.sendall(view)
            except TimeoutError as error:
                timeout_s = self._limits.send_timeout_s
                raise ConnectionError(f"the other end of {self._what} has not read for {timeout_s:g} s") from error
            except BrokenPipeError as error:
                raise ConnectionError(f"the other end of {self._what} is gone") from error

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the peer: call `flush` when the descriptor is writable."""
        return bool(self._unsent)

    def post(self, text: bytes, *, fds: Sequence[int] = ()) -> None:
        """Send a frame and never wait: what the kernel does not take is kept for `flush`. Raises NotReadingError where
        more than `Limits.unsent_bytes` would wait for the peer (this frame is not sent), ConnectionError when the peer
        is gone.

        Args:
            fds: Descriptors to go with it; the receiver gets its own, and the caller may close these at once.
        """
        frame = HEAD.pack(len(text), len(fds), 0) + text
        with self._send_lock:
            if self._unsent and self._num_unsent_bytes + len(frame) > self._limits.unsent_bytes:
                raise NotReadingError(
                    f"the other end of {self._what} does not read: {self._num_unsent_bytes} bytes in "
                    f"{len(self._unsent)} messages wait for it, and at most {self._limits.unsent_bytes} may; the "
                    "process is stopped, or hangs"
                )
            sent = 0 if self._unsent else self._send_some(memoryview(frame), fds)
            if sent < len(frame):
                kept = [] if sent else [os.dup(fd) for fd in fds]
                self._unsent.append(_Unsent(memoryview(frame)[sent:], kept))
                self._num_unsent_bytes += len(frame) - sent

    def flush(self) -> None:
        """Send what waits, as far as the kernel takes it. Never waits. Raises ConnectionError when the peer is gone;
        nothing waits any more."""
        with self._send_lock:
            try:
                while self._unsent:
                    unsent = self._unsent[0]
                    sent = self._send_some(unsent.rest, unsent.fds)
                    self._num_unsent_bytes -= sent
                    if sent:
                        _close_all(unsent.fds)
                    if sent < len(unsent.rest):
                        unsent.rest = unsent.rest[sent:]
                        return
                    self._unsent.popleft()
            except ConnectionError:
                self._drop_unsent()
                raise

    def receive(self, timeout_s: float | None = None) -> Frame | None:
        """Wait for the next frame. Raises ProtocolError when what came is no frame within the limits. Returns the
        frame, or None when the peer is gone, or nothing came for `timeout_s`."""
        while not self._frames and not self._has_ended:
            if not self._is_readable(timeout_s):
                return None
            self._read_once()
        return self._frames.popleft() if self._frames else None

    def read(self) -> list[Frame]:
        """Every frame that is here, without waiting. Raises ProtocolError when what came is no frame within the
        limits."""
        while not self._has_ended and self._is_readable(0.0):
            self._read_once()
        frames, self._frames = list(self._frames), deque()
        return frames

    def shut_down(self) -> None:
        """End the conversation: both ends receive the end. From any thread; `close` comes later. Raises OSError when
        the connection has ended already."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, and descriptors of frames that were not handed out. May be called again."""
        for fd in (*self._fds, *(fd for frame in self._frames for fd in frame.fds)):
            os.close(fd)
        self._fds.clear()
        self._frames.clear()
        self._drop_unsent()
        self._socket.close()

    def _send_some(self, view: memoryview, fds: Sequence[int]) -> int:
        """Send as much as the kernel takes; the descriptors go with the first byte. Returns the number of bytes."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            return self._socket.sendmsg([view], ancillary, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except BrokenPipeError as error:
            raise ConnectionError(f"the other end of {self._what} is gone") from error

    def _drop_unsent(self) -> None:
        for unsent in self._unsent:
            _close_all(unsent.fds)
        self._unsent.clear()
        self._num_unsent_bytes = 0

    def _is_readable(self, timeout_s: float | None) -> bool:
        poll = select.poll()  # and not select.select, which knows no descriptor above 1023
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else 1000.0 * max(0.0, timeout_s)))

    def _read_once(self) -> None:
        """Take what is here, and make frames of it."""
        try:
            # Not socket.recv_fds: in Python 3.11 it forgets the flags.
            data, ancillary, flags, _ = self._socket.recvmsg(
                READ_BYTES, socket.CMSG_SPACE(self._limits.fds * struct.calcsize("i")), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:  # the peer closed with something unread
            data, ancillary, flags = b"", [], 0
        fds = array.array("i")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            if len(fds) < self._limits.fds:
                raise ProtocolError(
                    f"descriptors that came over {self._what} are lost: {os.strerror(errno.EMFILE)} in this process; "
                    "raise `ulimit -n`"
                )
            raise ProtocolError(f"more than {self._limits.fds} descriptors came at once over {self._what}")
        if not data:
            self._has_ended = True
            return
        self._buffer += data
        while (frame := self._next_frame()) is not None:
            self._frames.append(frame)

    def _next_frame(self) -> Frame | None:
        """The first frame in the buffer, if it is complete."""
        buffer, limits = self._buffer, self._limits
        if len(buffer) < HEAD.size:
            return None
        text_bytes, num_fds, payload_bytes = HEAD.unpack_from(buffer)
        for what, size, limit in (
            ("message", text_bytes, limits.text_bytes),
            ("payload", payload_bytes, limits.payload_bytes),
        ):
            if limit is not None and size > limit:
                raise ProtocolError(
                    f"a {what} of {size} bytes was announced over {self._what}; at most {limit} are allowed"
                )
        text_end, end = HEAD.size + text_bytes, HEAD.size + text_bytes + payload_bytes
        if len(buffer) < end:
            return None
        if num_fds > len(self._fds):
            raise ProtocolError(
                f"{num_fds} descriptors were announced over {self._what} and {len(self._fds)} came; both ends need "
                "one release"
            )
        text, payload = bytes(buffer[HEAD.size : text_end]), buffer[text_end:end]
        del buffer[:end]
        return Frame(text, [self._fds.popleft() for _ in range(num_fds)], payload)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def require_unix_sockets() -> None:
    """Refuse systems without the sockets that a cluster needs. Raises UsageError when this is not Linux."""
    if sys.platform != "linux":
        raise UsageError(f"a cluster needs Linux, but this is {sys.platform}; fit in process (runtime=None) instead")


def require_same_user(sock: socket.socket, what: str) -> None:
    """Refuse to talk to a process of another user; the kernel says who it is (SO_PEERCRED). Raises ProtocolError when
    the process at the other end belongs to another user."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        raise ProtocolError(
            f"process {pid} at the other end of {what} belongs to user {uid}, not to {os.geteuid()}; both processes "
            "have to run as the same user"
        )
