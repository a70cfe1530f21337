"""Frames over a blocking socket, each exchange with a deadline. What a frame is and may be: `wire`."""

import socket
import time
from typing import Any

from chicle_elastic.errors import PeerLostError
from chicle_elastic.transports.wire import (
    HEADER,
    Kind,
    Limits,
    TruncatedFrameError,
    refusal,
    unpack_header,
    unpack_json,
)


class Deadline:
    """When a blocking exchange has to be over. `timeout_s`: seconds from now; None for no limit."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def apply(self, sock: socket.socket, *, peer: str) -> None:
        """Let the next call on the socket take what time is left. Raises PeerLostError when none is left."""
        if self._end is None:
            sock.settimeout(None)
            return
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise self.passed(peer)
        sock.settimeout(left_s)

    def left_s(self) -> float | None:
        """Seconds that are left, or None for no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def passed(self, peer: str) -> PeerLostError:
        """The error that says so, to be raised; without a limit, it is the kernel that has given the connection up."""
        if self.timeout_s is None:
            return PeerLostError(f"{peer} does not answer any more; its host is gone, or the network between is cut")
        return PeerLostError(f"{peer} did not answer within {self.timeout_s:g} s; it is stopped, overloaded or cut off")


def send_all(sock: socket.socket, parts: list[memoryview], deadline: Deadline, *, peer: str) -> None:
    """Send byte views one after the other, gathered by the kernel. Raises PeerLostError when the peer closed the
    connection, or takes nothing any more."""
    parts = [part for part in parts if len(part)]
    try:
        while parts:
            deadline.apply(sock, peer=peer)
            sent = sock.sendmsg(parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]
    except TimeoutError:
        raise deadline.passed(peer) from None
    except OSError as error:
        raise PeerLostError(f"{peer} cannot be sent to any more ({error.strerror or error})") from error


def send_frame(sock: socket.socket, frame: bytes, deadline: Deadline, *, peer: str) -> None:
    """Send a packed frame. Raises PeerLostError as `send_all` does."""
    send_all(sock, [memoryview(frame)], deadline, peer=peer)


def receive_exactly(
    sock: socket.socket, into: memoryview, deadline: Deadline, *, peer: str, is_frame_begun: bool = True
) -> None:
    """Fill `into` with the next bytes, without a copy in between. Raises TruncatedFrameError when the connection ended
    within a frame, PeerLostError when it ended between two frames, or the peer is silent.

    Args:
        into: Writable memory.
        is_frame_begun: Whether these bytes continue a frame, so that an end of the connection cuts it.
    """
    position, size_bytes = 0, len(into)
    try:
        while position < size_bytes:
            deadline.apply(sock, peer=peer)
            count = sock.recv_into(into[position:])
            if not count:
                if position or is_frame_begun:
                    raise TruncatedFrameError(
                        f"{peer} closed the connection within a frame, after {position} of {size_bytes} bytes; what "
                        "came is not used"
                    )
                raise PeerLostError(f"{peer} closed the connection")
            position += count
    except TimeoutError:
        raise deadline.passed(peer) from None
    except OSError as error:
        raise PeerLostError(f"the connection to {peer} is broken ({error.strerror or error})") from error


def receive_header(
    sock: socket.socket, limits: Limits, deadline: Deadline, *, peer: str, begun: bytes = b""
) -> tuple[Kind, int]:
    """Wait for the next frame; its payload is left in the socket. Raises ProtocolError when the frame is not allowed
    (see `unpack_header`), or it is a `REFUSED` (then `RefusedError`), PeerLostError when the peer is gone or silent.

    Args:
        begun: First bytes of the header, when they have been read already.
    """
    header = bytearray(HEADER.size)
    header[: len(begun)] = begun
    rest = memoryview(header)[len(begun) :]
    receive_exactly(sock, rest, deadline, peer=peer, is_frame_begun=bool(begun))
    kind, num_bytes = unpack_header(header, limits, peer=peer)
    if kind is Kind.REFUSED:
        payload = receive_payload(sock, num_bytes, deadline, peer=peer)
        raise refusal(unpack_json(kind, payload, peer=peer), peer=peer)
    return kind, num_bytes


def receive_payload(sock: socket.socket, num_bytes: int, deadline: Deadline, *, peer: str) -> bytearray:
    """The payload of a frame whose header said how long it is; the header was judged, so this much may be taken. Raises
    PeerLostError when the peer is gone or silent."""
    payload = bytearray(num_bytes)
    receive_exactly(sock, memoryview(payload), deadline, peer=peer)
    return payload


def receive_json(sock: socket.socket, limits: Limits, deadline: Deadline, *, peer: str, begun: bytes = b"") -> Any:
    """The JSON value of the next frame; see `receive_header`."""
    kind, num_bytes = receive_header(sock, limits, deadline, peer=peer, begun=begun)
    return unpack_json(kind, receive_payload(sock, num_bytes, deadline, peer=peer), peer=peer)
