"""The control channel between an agent and its task: messages of `control` as JSON, in frames of a Unix socket.

`transports.unix_frames` has the layout of a frame, and how descriptors travel with it; here they are handed out in the
order in which they came.

The socket has a random name and lies in no folder, so an agent that is killed leaves nothing behind. All users of the
host may see the name: each side checks that the other belongs to its own user.
"""

import contextlib
import json
import os
import socket
from collections import deque
from typing import Any

from chicle_elastic.closing import Closing
from chicle_elastic.errors import PeerLostError, ProtocolError, UsageError
from chicle_elastic.runtime.control.messages import VERSION, AgentMessage, Hello, Message, TaskMessage, Welcome
from chicle_elastic.scheduling import codec
from chicle_elastic.transports import addresses
from chicle_elastic.transports.unix_frames import (
    FramedSocket,
    Limits,
    require_same_user,
    require_unix_sockets,
)

MAX_FRAME_BYTES = 256 << 20
MAX_FDS = 16
LIMITS = Limits(text_bytes=MAX_FRAME_BYTES, fds=MAX_FDS)
WHAT = "the control channel"


class Channel(Closing):
    """One end of a control channel. Any thread may send; one thread receives. A context manager that closes it.

    Args:
        sock: Connected; it belongs to the channel from now on.
        known: Union of the messages that may come.
    """

    def __init__(self, sock: socket.socket, known: Any) -> None:
        self._frames = FramedSocket(sock, LIMITS, what=WHAT)
        self._known = known
        self._fds: deque[int] = deque()

    @classmethod
    def connect(cls, address: str, *, timeout_s: float = 10.0) -> "Channel":
        """The task's end. Raises ProtocolError when no process listens there, or one of another user does."""
        require_unix_sockets()
        try:
            sock = addresses.connect_unix(address, timeout_s=timeout_s)
        except (PeerLostError, UsageError) as error:
            raise ProtocolError(
                f"no agent listens: {error}; a task is started by its agent, with python -m chicle_elastic.launch"
            ) from error
        try:
            require_same_user(sock, WHAT)
        except BaseException:
            sock.close()
            raise
        return cls(sock, AgentMessage)

    @property
    def is_at_end(self) -> bool:
        """The other side is gone, every message that it sent has been handed out, and none was cut off."""
        return self._frames.is_at_end and not self._frames.num_partial_bytes

    def fileno(self) -> int:
        """The descriptor, for `selectors`."""
        return self._frames.fileno()

    def send(self, message: Message, *, fd: int | None = None) -> None:
        """Send a message; waits while the other side's buffer is full. Raises ConnectionError when the other side is
        gone."""
        self._frames.send(codec.encode(message, Message), fds=() if fd is None else (fd,))

    @property
    def wants_to_write(self) -> bool:
        """Whether posted messages wait for the other side: call `flush` when the descriptor is writable."""
        return self._frames.wants_to_write

    def post(self, message: Message, *, fd: int | None = None) -> None:
        """Send a message and never wait; an end that uses this does not use `send`. Raises NotReadingError when the
        other side has not read for so long that too much waits for it, ConnectionError when the other side is gone.

        Args:
            fd: Descriptor to go with it; the receiver gets its own, and the caller may close this one at once.
        """
        self._frames.post(codec.encode(message, Message), fds=() if fd is None else (fd,))

    def flush(self) -> None:
        """Send what waits, as far as the other side reads. Never waits. Raises ConnectionError when the other side is
        gone."""
        self._frames.flush()

    def receive(self) -> Message | None:
        """Wait for the next message. Raises ProtocolError when what came is no message. Returns the message; None when
        the other side is gone."""
        frame = self._frames.receive()
        if frame is None:
            self._require_whole_messages()
            return None
        self._fds.extend(frame.fds)
        return decode(frame.text, self._known)

    def read(self) -> list[Message]:
        """Every message that is here, without waiting; for use when the descriptor is readable. Raises ProtocolError
        when what came is no message."""
        frames = self._frames.read()
        if not frames:
            self._require_whole_messages()
        for frame in frames:  # first all descriptors: `close` closes them where a message is refused
            self._fds.extend(frame.fds)
        return [decode(frame.text, self._known) for frame in frames]

    def take_fd(self) -> int:
        """The descriptor that came with the message that was received last; it belongs to the caller. Raises
        ProtocolError when none came."""
        if not self._fds:
            raise ProtocolError("a message came without the descriptor that belongs to it; both ends need one release")
        return self._fds.popleft()

    def shut_down(self) -> None:
        """End the conversation: both sides receive the end. From any thread; `close` comes later."""
        with contextlib.suppress(OSError):
            self._frames.shut_down()

    def close(self) -> None:
        """Close the socket, and descriptors that were not taken. May be called again."""
        while self._fds:
            os.close(self._fds.popleft())
        self._frames.close()

    def _require_whole_messages(self) -> None:
        num_bytes = self._frames.num_partial_bytes
        if self._frames.is_at_end and num_bytes:
            raise ProtocolError(f"the control channel ended inside a message, after {num_bytes} bytes of it")


class Listener(Closing):
    """The agent's side: waits for its task. A context manager that closes it. Raises UsageError when there are no Unix
    sockets here, or another socket has this address."""

    def __init__(self, address: str) -> None:
        require_unix_sockets()
        self.address = address
        self._socket = addresses.listen_unix(address)

    def fileno(self) -> int:
        """The descriptor, for `selectors`: readable when a task has come."""
        return self._socket.fileno()

    def accept(self) -> Channel:
        """Take the next task; waits when there is none. Raises ProtocolError when it belongs to another user."""
        sock, _ = self._socket.accept()
        try:
            require_same_user(sock, WHAT)
        except BaseException:
            sock.close()
            raise
        return Channel(sock, TaskMessage)

    def close(self) -> None:
        """Stop listening. May be called again."""
        self._socket.close()


def new_address() -> str:
    """An address for a listener that no other has."""
    return addresses.new_unix("control")


def decode(text: bytes, known: Any) -> Message:
    """The message in JSON text. Raises ProtocolError when it is no such message, and the text says which part is wrong;
    or the other side has another version."""
    try:
        message: Message = codec.decode(text, known)
    except ProtocolError:
        _require_version(_version_in(text))  # a greeting of another version may have other fields
        raise
    if isinstance(message, Hello | Welcome):
        _require_version(message.version)
    return message


def _version_in(text: bytes) -> Any:
    """The version that a greeting names, whatever else is in it; ours for anything else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return VERSION
    is_greeting = isinstance(data, dict) and data.get("type") in (Hello.__name__, Welcome.__name__)
    return data.get("version", VERSION) if is_greeting else VERSION


def _require_version(found: Any) -> None:
    if found != VERSION:
        raise ProtocolError(
            f"the other end of the control channel speaks version {found!r} and this one version {VERSION}; agent and "
            "task need the same release of chicle-elastic"
        )
