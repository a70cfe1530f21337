"""Messages over a queue pair: frames in fragments, by SEND and RECEIVE, with credits.

A SEND needs a RECEIVE that was posted before, or the card tries again and gives up in the end. So nobody sends without
a credit: each end begins with as many as the other has receives, every fragment takes one, and the receiver gives it
back, in the header of a fragment of its own, once the receive is posted again.

    offset size type  meaning
         0    4 u32   credits that are given back
         4    4 u32   bytes of a frame that follow; 0 in a fragment that only gives credits back

Frames are those of `wire`, and end where their header says. What is sent lies in buffers of the lane until the card has
sent it.
"""

import struct
from collections import deque
from collections.abc import Callable

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports.verbs.device import Device
from chicle_elastic.transports.verbs.memory import private_memory
from chicle_elastic.transports.verbs.queue_pair import QueuePair
from chicle_elastic.transports.wire import HEADER, Kind, Limits, unpack_header

FRAGMENT = struct.Struct("<II")
FRAGMENT_BYTES = 8192
NUM_FRAGMENTS = 8
"""Receives of each end, and credits of the other at the beginning. Both ends have to agree."""

SENDS, RECEIVES = 1 << 32, 2 << 32
"""Work requests of a lane have these numbers, plus that of the buffer."""


class Lane:
    """Messages of one queue pair. For one thread at a time.

    Args:
        pair: Not connected yet: the receives are posted first.
        device: Its device.
    """

    def __init__(self, pair: QueuePair, device: Device) -> None:
        self._pair = pair
        self._buffers = private_memory(device, 2 * NUM_FRAGMENTS * FRAGMENT_BYTES)  # receives, then sends
        self._free = deque(range(NUM_FRAGMENTS, 2 * NUM_FRAGMENTS))
        self._credits = NUM_FRAGMENTS
        self._owed = 0
        self._arrived: deque[bytes] = deque()
        for number in range(NUM_FRAGMENTS):
            self._post_receive(number)

    def send(self, frame: bytes, turn: Callable[[], None]) -> None:
        """Send a frame.

        Args:
            frame: Header and payload.
            turn: Waits until the queue pair has done something, and tells `completed`.
        """
        rest = memoryview(frame)
        while rest:
            while not self._credits or not self._free:
                turn()
            part, rest = rest[: FRAGMENT_BYTES - FRAGMENT.size], rest[FRAGMENT_BYTES - FRAGMENT.size :]
            self._send_fragment(part)

    @property
    def has_arrived(self) -> bool:
        """Whether a frame has begun to come."""
        return bool(self._arrived)

    def receive(self, limits: Limits, turn: Callable[[], None], *, peer: str) -> tuple[Kind, bytes]:
        """Kind and payload of the next frame.

        Args:
            limits: What may come.
            turn: As for `send`.
            peer: Who sends, for messages.

        Raises:
            ProtocolError: The frame is not allowed, or is not made as it should be.
        """
        content = bytearray(self._next(turn))
        if len(content) < HEADER.size:
            raise ProtocolError(f"{peer} sent a fragment of {len(content)} bytes where a frame begins")
        kind, num_bytes = unpack_header(memoryview(content)[: HEADER.size], limits, peer=peer)
        while len(content) < HEADER.size + num_bytes:
            content += self._next(turn)
        if len(content) > HEADER.size + num_bytes:
            raise ProtocolError(f"{peer} sent {len(content)} bytes for a frame of {HEADER.size + num_bytes}")
        return kind, bytes(memoryview(content)[HEADER.size :])

    def completed(self, work: int, num_bytes: int, *, peer: str) -> None:
        """A work request of the lane has succeeded.

        Raises:
            ProtocolError: What came is no fragment.
        """
        if work < RECEIVES:
            self._free.append(work - SENDS)
            self._give_credits_back()
            return
        number = work - RECEIVES
        fragment = bytes(self._buffer(number)[:num_bytes])
        self._post_receive(number)
        self._owed += 1
        if num_bytes < FRAGMENT.size:
            raise ProtocolError(f"{peer} sent a fragment of {num_bytes} bytes, which has no header")
        credits, size_bytes = FRAGMENT.unpack_from(fragment)
        self._credits += credits
        if self._credits > NUM_FRAGMENTS or size_bytes != num_bytes - FRAGMENT.size:
            raise ProtocolError(f"{peer} sent a fragment with {credits} credits and {size_bytes} of {num_bytes} bytes")
        if size_bytes:
            self._arrived.append(fragment[FRAGMENT.size :])
        self._give_credits_back()

    def close(self) -> None:
        """Give the buffers up; the queue pair is closed."""
        self._buffers.close()

    def _next(self, turn: Callable[[], None]) -> bytes:
        while not self._arrived:
            turn()
        return self._arrived.popleft()

    def _give_credits_back(self) -> None:
        """Before the other end has none; most go back with what is sent anyway."""
        if 2 * self._owed >= NUM_FRAGMENTS and self._credits and self._free:
            self._send_fragment(memoryview(b""))

    def _send_fragment(self, part: memoryview) -> None:
        number = self._free.popleft()
        size_bytes = FRAGMENT.size + len(part)
        buffer = self._buffer(number)
        FRAGMENT.pack_into(buffer, 0, self._owed, len(part))
        buffer[FRAGMENT.size : size_bytes] = part
        self._owed = 0
        self._credits -= 1
        self._pair.post_send(
            SENDS + number,
            address=self._buffers.address + number * FRAGMENT_BYTES,
            size_bytes=size_bytes,
            key=self._buffers.local_key,
        )

    def _post_receive(self, number: int) -> None:
        self._pair.post_receive(
            RECEIVES + number,
            address=self._buffers.address + number * FRAGMENT_BYTES,
            size_bytes=FRAGMENT_BYTES,
            key=self._buffers.local_key,
        )

    def _buffer(self, number: int) -> memoryview:
        return self._buffers.view[number * FRAGMENT_BYTES :][:FRAGMENT_BYTES]
