"""The control channel between an agent and its task: frames over a Unix stream socket, descriptors beside them.

    offset size type  meaning
         0    4 u32   bytes of JSON that follow, little-endian, at most `MAX_FRAME_BYTES`
         4        utf-8 JSON object: a message of `control`

A descriptor travels with the first byte of its message (SCM_RIGHTS), so it is here when the message is complete;
descriptors are handed out in the order in which they came. A stream and not packets, because a packet has to fit the
socket's buffer, and the list of a million chunks does not.

The socket has a random name and lies in no folder, so an agent that is killed leaves nothing behind. All users of the
host may see the name: each side checks that the other belongs to its own user.
"""

import array
import contextlib
import json
import os
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Mapping
from types import TracebackType

from chicle_elastic.errors import PeerLostError, ProtocolError, UsageError
from chicle_elastic.runtime.control import AGENT_TYPES, TASK_TYPES, Message, decode, encode
from chicle_elastic.transports import addresses

MAX_FRAME_BYTES = 256 << 20
MAX_FDS = 16
READ_BYTES = 1 << 16
LENGTH = struct.Struct("<I")
FDS_SPACE = MAX_FDS * struct.calcsize("i") + 64  # 64 for the header of the control message


class Channel:
    """One end of a control channel. Any thread may send; one thread receives. A context manager that closes it.

    Args:
        sock: Connected; it belongs to the channel from now on.
        known: Types of the messages that may come.

    Attributes:
        is_at_end: The other side is gone, and everything it said has been handed out.
    """

    def __init__(self, sock: socket.socket, known: Mapping[str, type]) -> None:
        self.is_at_end = False
        self._socket = sock
        self._known = known
        self._send_lock = threading.Lock()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    @classmethod
    def connect(cls, address: str, *, timeout_s: float = 10.0) -> "Channel":
        """The task's end.

        Args:
            address: Of the agent's `Listener`.
            timeout_s: How long the agent may take to answer.

        Raises:
            ProtocolError: Nobody listens there, or somebody of another user does.
        """
        require_unix_sockets()
        try:
            sock = addresses.connect_unix(address, timeout_s=timeout_s)
        except (PeerLostError, UsageError) as error:
            raise ProtocolError(
                f"no agent listens: {error}; a task is started by its agent, with python -m chicle_elastic.launch"
            ) from error
        try:
            sock.settimeout(None)
            check_peer(sock)
        except BaseException:
            sock.close()
            raise
        return cls(sock, AGENT_TYPES)

    def fileno(self) -> int:
        """The descriptor, for `selectors`."""
        return self._socket.fileno()

    def send(self, message: Message, *, fd: int | None = None) -> None:
        """Say something; waits while the other side's buffer is full.

        Args:
            message: What.
            fd: Descriptor to go with it; the receiver gets its own.

        Raises:
            ConnectionError: The other side is gone.
        """
        text = json.dumps(encode(message), allow_nan=False, separators=(",", ":")).encode()
        frame = LENGTH.pack(len(text)) + text
        with self._send_lock:
            sent = 0
            if fd is not None:
                sent = socket.send_fds(self._socket, [frame], [fd])
            self._socket.sendall(frame[sent:] if sent else frame)

    def receive(self) -> Message | None:
        """Wait for the next message.

        Returns:
            The message; None when the other side is gone.

        Raises:
            ProtocolError: What came is no message.
        """
        while True:
            message = self._next_message()
            if message is not None or self.is_at_end:
                return message
            self._read(0)

    def read(self) -> list[Message]:
        """Every message that is here, without waiting; for use when the descriptor is readable.

        Raises:
            ProtocolError: What came is no message.
        """
        with contextlib.suppress(BlockingIOError):
            self._read(socket.MSG_DONTWAIT)
        messages = []
        while (message := self._next_message()) is not None:
            messages.append(message)
        return messages

    def take_fd(self) -> int:
        """The descriptor that came with the message that was received last; it belongs to the caller.

        Raises:
            ProtocolError: None came.
        """
        if not self._fds:
            raise ProtocolError("a message came without the descriptor that belongs to it; both ends need one release")
        return self._fds.popleft()

    def shut_down(self) -> None:
        """End the conversation: both sides receive the end. From any thread; `close` comes later."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and descriptors that nobody took. May be called again."""
        while self._fds:
            os.close(self._fds.popleft())
        self._socket.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, flags: int) -> None:
        """Read once."""
        try:
            # Not socket.recv_fds: in Python 3.11 it forgets the flags.
            data, ancillary, message_flags, _ = self._socket.recvmsg(
                READ_BYTES, FDS_SPACE, flags | socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:  # it went with something unread
            data, ancillary, message_flags = b"", [], 0
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        if message_flags & socket.MSG_CTRUNC:
            raise ProtocolError(f"more than {MAX_FDS} descriptors came at once, or this process may open no more")
        if data:
            self._buffer += data
        elif self._buffer:
            raise ProtocolError(f"the control channel ended inside a message, after {len(self._buffer)} bytes of it")
        else:
            self.is_at_end = True

    def _next_message(self) -> Message | None:
        """The first message in the buffer, if it is complete."""
        buffer = self._buffer
        if len(buffer) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(buffer)
        if size > MAX_FRAME_BYTES:
            raise ProtocolError(f"a message of {size} bytes was announced; at most {MAX_FRAME_BYTES} are allowed")
        end = LENGTH.size + size
        if len(buffer) < end:
            return None
        text = bytes(buffer[LENGTH.size : end])
        del buffer[:end]
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ProtocolError(f"{text[:60]!r} came over the control channel and is no JSON ({error})") from error
        return decode(data, self._known)


class Listener:
    """The agent's side: waits for its task. A context manager that closes it.

    Args:
        address: Of the socket, from `new_address`; the task has to know it.

    Raises:
        UsageError: There are no Unix sockets here, or somebody has this address.
    """

    def __init__(self, address: str) -> None:
        require_unix_sockets()
        self.address = address
        self._socket = addresses.listen_unix(address)

    def fileno(self) -> int:
        """The descriptor, for `selectors`: readable when a task has come."""
        return self._socket.fileno()

    def accept(self) -> Channel:
        """Take the next task; waits when there is none.

        Raises:
            ProtocolError: It belongs to another user.
        """
        sock, _ = self._socket.accept()
        try:
            check_peer(sock)
        except BaseException:
            sock.close()
            raise
        return Channel(sock, TASK_TYPES)

    def close(self) -> None:
        """Stop listening. May be called again."""
        self._socket.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def new_address() -> str:
    """An address for a listener that no other has."""
    return addresses.new_unix("control")


def require_unix_sockets() -> None:
    """Refuse systems without the sockets that a cluster needs.

    Raises:
        UsageError: This is not Linux.
    """
    if sys.platform != "linux":
        raise UsageError(f"a cluster needs Linux, but this is {sys.platform}; fit in process (runtime=None) instead")


def check_peer(sock: socket.socket) -> None:
    """Refuse to talk to a process of another user.

    Raises:
        ProtocolError: The other end belongs to somebody else.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        raise ProtocolError(
            f"process {pid} at the other end of the control channel belongs to user {uid}, not to {os.geteuid()}; "
            "agent and task have to run as the same user"
        )
