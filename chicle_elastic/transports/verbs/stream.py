"""Bytes both ways between two processes, in pieces that the cards copy from registered memory to registered memory.

Theory of operation. Each end has slots to send from and slots to receive into. A piece is one SEND; it arrives in the
slot of the oldest receive that is posted. The receiver copies it to where its caller wants it, posts the slot again and
says so by a SEND of no bytes, which takes a slot for a moment, too. So a sender has at most `SLOTS` pieces under way
that the receiver has not emptied, twice as many receives are posted, and no card ever waits for one. A peer may be
ahead: its pieces wait in their slots.

The pieces of a call are of that call alone: the receiver knows how many bytes come, as over a socket. The sender's call
ends when the peer's card has acknowledged all of them, so nothing is lost when this end closes then.

Why not WRITE with immediate: Soft-RoCE of Linux 6.1 ends it with REM_INV_REQ_ERR once a packet is lost; SENDs go on.
"""

import json
from collections import deque
from collections.abc import Iterable

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports.verbs.device import Device
from chicle_elastic.transports.verbs.failures import error_of_status
from chicle_elastic.transports.verbs.memory import private_memory
from chicle_elastic.transports.verbs.queue_pair import MAX_SENDS, EndPoint, QueuePair

SLOTS = 4  # to send from
NUM_RECEIVES = 2 * SLOTS
MOST_SLOT_BYTES = 1 << 20
DESCRIPTION_BYTES = 512

_PIECE, _RETURN = NUM_RECEIVES, NUM_RECEIVES + 1  # numbers of SENDs; that of a receive is its slot


class Stream:
    """One end of it, for one thread at a time. Raises QueuePairError when there is no memory or queue pair for it.

    Args:
        slot_bytes: Longest piece, the same at both ends.
        peer: Name of the other end, for messages.
    """

    def __init__(self, device: Device, *, slot_bytes: int, peer: str) -> None:
        self._slot_bytes, self._peer = slot_bytes, peer
        self._pair = QueuePair(device, num_receives=NUM_RECEIVES)
        self._is_closed = False
        try:
            self._memory = private_memory(device, (NUM_RECEIVES + SLOTS) * slot_bytes)
            for slot in range(NUM_RECEIVES):
                self._post_receive(slot)
        except BaseException:
            self._pair.close()
            raise
        self._names = self._pair.status_names()
        self._to_send: deque[memoryview] = deque()
        self._to_fill: deque[memoryview] = deque()
        self._arrived: deque[tuple[int, int]] = deque()  # slots with pieces, and how long these are
        self._num_sent = self._num_acknowledged = self._num_emptied = 0  # our pieces: by us, the card, the peer
        self._num_owed = 0  # slots that the peer is to be told of
        self._num_under_way = 0  # SENDs that have not ended

    def describe(self) -> bytes:
        """This end, to be told to the other one: `DESCRIPTION_BYTES`."""
        content = {**self._pair.end_point.to_json(), "slot_bytes": self._slot_bytes}
        return json.dumps(content).encode().ljust(DESCRIPTION_BYTES)

    def connect(self, description: bytes | bytearray) -> None:
        """Be ready for the other end, which may send from now on. Raises ProtocolError when it describes itself
        wrongly, QueuePairError when it cannot be reached."""
        try:
            content = json.loads(description)
        except ValueError:
            content = None
        theirs = EndPoint.from_json(content, peer=self._peer)
        if content.get("slot_bytes") != self._slot_bytes:
            raise ProtocolError(f"{self._peer} sends pieces of another length; are both of one release?")
        self._pair.connect(theirs, peer=self._peer)

    def fileno(self) -> int:
        """Readable when `turn` may have something to do; then call `heed_event`."""
        return self._pair.fileno()

    def heed_event(self) -> None:
        """Take the event that made `fileno` readable."""
        self._pair.heed_event()

    def begin(self, outgoing: Iterable[memoryview], incoming: Iterable[memoryview]) -> None:
        """Set what `turn` sends to the other end and what it fills with the bytes from there, OUT."""
        self._to_send, self._to_fill = deque(filter(len, outgoing)), deque(filter(len, incoming))

    @property
    def is_done(self) -> bool:
        """Whether all bytes of `begin` are at the other end, or here."""
        return not self._to_send and not self._to_fill and self._num_acknowledged == self._num_sent

    def turn(self) -> bool:
        """Do what needs no waiting; returns False when nothing has come or ended. Raises RdmaFailure when the queue
        pair has an error, ProtocolError when the other end sends more than was to come."""
        completions = self._pair.completions()
        for each in completions:
            if each.status:
                raise error_of_status(each.status, self._names, what="a SEND", peer=self._peer)
            if each.work >= NUM_RECEIVES:
                self._num_under_way -= 1
                self._num_acknowledged += each.work == _PIECE
            elif each.num_bytes:
                self._arrived.append((each.work, each.num_bytes))
            else:
                self._num_emptied += 1
                self._post_receive(each.work)
        while self._arrived and self._to_fill:
            self._empty_slot(*self._arrived.popleft())
        while self._num_owed and self._num_under_way < MAX_SENDS:
            self._num_owed -= 1
            self._send(_RETURN, 0, 0)
        while self._to_send and self._num_sent - min(self._num_acknowledged, self._num_emptied) < SLOTS:
            if self._num_under_way == MAX_SENDS:
                break
            self._fill_slot()
        return bool(completions)

    def close(self) -> None:
        """End all of it; the cards write no more. May be called again."""
        if not self._is_closed:
            self._is_closed = True
            self._pair.close()
            self._memory.close()

    def _empty_slot(self, slot: int, size_bytes: int) -> None:
        begin, end = slot * self._slot_bytes, slot * self._slot_bytes + size_bytes
        while begin < end:
            if not self._to_fill:
                raise ProtocolError(f"{self._peer} sends more bytes than it was to")
            room = self._to_fill.popleft()
            size = min(len(room), end - begin)
            room[:size] = self._memory.view[begin : begin + size]
            begin += size
            if size < len(room):
                self._to_fill.appendleft(room[size:])
        self._post_receive(slot)
        self._num_owed += 1

    def _fill_slot(self) -> None:
        slot = NUM_RECEIVES + self._num_sent % SLOTS
        position = slot * self._slot_bytes
        end = position + self._slot_bytes
        while self._to_send and position < end:
            view = self._to_send.popleft()
            size = min(len(view), end - position)
            self._memory.view[position : position + size] = view[:size]
            position += size
            if size < len(view):
                self._to_send.appendleft(view[size:])
        self._num_sent += 1
        self._send(_PIECE, slot, position - slot * self._slot_bytes)

    def _send(self, work: int, slot: int, size_bytes: int) -> None:
        self._num_under_way += 1
        address = self._memory.address + slot * self._slot_bytes
        self._pair.post_send(work, address=address, size_bytes=size_bytes, key=self._memory.local_key)

    def _post_receive(self, slot: int) -> None:
        address = self._memory.address + slot * self._slot_bytes
        self._pair.post_receive(slot, address=address, size_bytes=self._slot_bytes, key=self._memory.local_key)
