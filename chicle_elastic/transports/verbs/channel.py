"""The caller's end of a queue pair with all that belongs to it: READs, and the socket that it was made over."""

import select
import socket
from typing import Any

from chicle_elastic.errors import PeerLostError, ProtocolError
from chicle_elastic.transports.base import Pull
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.verbs.device import Device
from chicle_elastic.transports.verbs.failures import error_of_status
from chicle_elastic.transports.verbs.memory import MemoryKey, RegisteredMemory
from chicle_elastic.transports.verbs.queue_pair import ALARM, EndPoint, QueuePair
from chicle_elastic.transports.verbs.reads import Reads

SUCCESS = 0


class Channel:
    """For one thread at a time. Raises QueuePairError when the device makes no queue pair.

    Args:
        sock: What it is made over; it is silent while the queue pair is waited for, and its end is that of the peer.
    """

    def __init__(self, sock: socket.socket, device: Device, memory: RegisteredMemory, *, peer: str) -> None:
        self._sock, self._peer = sock, peer
        self._pair = QueuePair(device)
        self._reads = Reads(self._pair, device, memory)
        self._poll = select.poll()
        self._poll.register(self._pair.fileno(), select.POLLIN)
        self._poll.register(sock.fileno(), select.POLLIN)
        self._names = self._pair.status_names()
        self._is_closed = False
        self.end_point = self._pair.end_point  # to be told to the other end
        self.keys: dict[int, MemoryKey] = {}  # keys of the peer's arenas, by number

    def connect(self, theirs: EndPoint) -> None:
        """Be ready to read at the other end. Raises QueuePairError when the other end cannot be reached."""
        self._pair.post_receive()
        self._pair.connect(theirs, peer=self._peer)

    def ask(self, pull: Pull, key: MemoryKey | Exception) -> None:
        """Ask for a region behind those that were asked for before; or note why it cannot be asked for."""
        self._reads.add(pull, key)

    def bring(self, deadline: Deadline) -> Exception | None:
        """Wait for the region that was asked for first; returns what is wrong with it. Raises PeerLostError when the
        peer is gone or silent, or this end was told to stop, ProtocolError when the peer does not let us read there."""
        return self._reads.bring(lambda: self._turn(deadline))

    def close(self) -> None:
        """End everything that is under way. May be called again."""
        if not self._is_closed:
            self._is_closed = True
            self._pair.close()
            self._reads.close()

    def _turn(self, deadline: Deadline) -> None:
        """Wait until something has ended."""
        while not self._take_completions():
            if not self._wait(deadline.left_s()):
                self._say_what_the_socket_has()
            if deadline.left_s() == 0:
                raise deadline.passed(self._peer)

    def _take_completions(self) -> bool:
        completions = self._pair.completions()
        for each in completions:
            if each.work == ALARM:
                raise error_of_status(each.status, self._names, what="the queue pair", peer=self._peer)
            if each.status != SUCCESS:
                raise error_of_status(each.status, self._names, what=self._reads.describe(), peer=self._peer)
            self._reads.completed(each.work)
        return bool(completions)

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for an event; False when the socket has one, and the queue pair none."""
        ready: dict[int, Any] = dict(self._poll.poll(None if timeout_s is None else max(1, int(timeout_s * 1000))))
        if self._pair.fileno() in ready:
            self._pair.heed_event()
            return True
        return not ready

    def _say_what_the_socket_has(self) -> None:
        try:
            content = self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLostError(f"the connection to {self._peer} is broken ({error.strerror or error})") from error
        if content:
            raise ProtocolError(
                f"{self._peer} speaks on the socket while it is asked by RDMA; the connection is closed"
            )
        raise PeerLostError(f"{self._peer} closed the connection, or this end was told to")
