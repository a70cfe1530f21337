"""What `SocketGroup.exchange` does over sockets, by RDMA: where each member of a round has asked for it, and can.

Theory of operation. When the sockets of a round are connected, each member opens its device, makes a `Stream` per other
member and describes it over the socket between the two; then all add up, over sockets, how many have succeeded. All use
RDMA, or none does and a line says why. The sockets stay. Small sums go over them, and a member that is gone or breaks
the group ends them, which wakes the members that wait for its card.

A queue pair that fails ends the round, as a socket does that was cut. A line names the member at its other end; this
process offers no RDMA to rounds with that member any more, so the next round goes over sockets.
"""

import contextlib
import logging
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from chicle_elastic.errors import CapacityError, ProtocolError
from chicle_elastic.transports.verbs.device import Device, choose_port
from chicle_elastic.transports.verbs.failures import RdmaFailure
from chicle_elastic.transports.verbs.library import RdmaUnavailableError
from chicle_elastic.transports.verbs.stream import DESCRIPTION_BYTES, MOST_SLOT_BYTES, NUM_RECEIVES, SLOTS, Stream

STAGING_BYTES = 64 << 20  # of locked memory for all other members together; with more than 5 of them pieces are shorter
LOOK_S = 1.0  # how often a member that waits looks whether a connection was cut
HANG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
NO_DESCRIPTION = bytes(DESCRIPTION_BYTES)  # of a member that cannot

Views: TypeAlias = Mapping[int, Sequence[memoryview]]

logger = logging.getLogger(__name__)


class VerbsExchange:
    """One member's end of it. Used by one thread at a time. Raises ConnectionError when this host has no RDMA; the log
    says why.

    Args:
        host: Address of this member.
        device: Name of its device.
        own: Name of this member.
        peers: Sockets to the other members, by rank; they stay their owner's.
        names: Names of the other members, by rank.
        failures: OUT; names of members that cannot be reached by RDMA, this one's own where it has none.
    """

    def __init__(
        self,
        host: str,
        device: str,
        own: str,
        *,
        peers: Mapping[int, socket.socket],
        names: Mapping[int, str],
        failures: set[str],
    ) -> None:
        self._peers, self._names, self._failures = peers, names, failures
        slot_bytes = min(MOST_SLOT_BYTES, STAGING_BYTES // ((NUM_RECEIVES + SLOTS) * len(peers)))
        self._end = contextlib.ExitStack()
        self._streams: dict[int, Stream] = {}
        with contextlib.ExitStack() as on_error, self._named(own):
            opened = Device(choose_port(host, device))
            on_error.callback(opened.release)
            for rank in peers:
                stream = self._streams[rank] = Stream(opened, slot_bytes=slot_bytes, peer=names[rank])
                on_error.callback(stream.close)
            self._end = on_error.pop_all()

    def describe(self) -> dict[int, bytes]:
        """This member's ends of all streams, to be told to the members at the others; by rank, `DESCRIPTION_BYTES`."""
        return {rank: stream.describe() for rank, stream in self._streams.items()}

    def connect(self, descriptions: Mapping[int, bytes | bytearray]) -> None:
        """Connect to the ends that these describe, by rank; from now on the others may write. Raises ConnectionError
        when a member has no RDMA or cannot be reached; the log says why."""
        for rank, stream in self._streams.items():
            if descriptions[rank] == NO_DESCRIPTION:
                raise ConnectionError(f"{self._names[rank]} has no RDMA")
            with self._named(self._names[rank]):
                stream.connect(descriptions[rank])

    def exchange(self, outgoing: Views, incoming: Views, look: Callable[[set[int], float], None]) -> None:
        """See `SocketGroup.exchange`. Raises ConnectionError when a member is gone, or RDMA to it has failed.

        Args:
            look: Told every `LOOK_S` which members are waited for, and since when.
        """
        waiting = {rank: self._streams[rank] for rank in {*outgoing, *incoming}}
        ranks, poll = dict[int, int](), select.poll()
        for rank, stream in waiting.items():
            stream.begin(outgoing.get(rank, ()), incoming.get(rank, ()))
            for end, events in ((stream, select.POLLIN), (self._peers[rank], HANG_UP)):
                poll.register(end.fileno(), events)
                ranks[end.fileno()] = rank
        began_s, gone = time.monotonic(), set[int]()
        while waiting:
            has_news = False
            for rank, stream in list(waiting.items()):
                with self._named(self._names[rank]):
                    has_news |= stream.turn()
                if stream.is_done:
                    del waiting[rank]
                    for end in (stream, self._peers[rank]):
                        poll.unregister(end.fileno())
            if has_news or not waiting:
                continue
            if gone & waiting.keys():  # and what it had sent before is here
                raise ConnectionError("a member has closed its connection")
            ready = poll.poll(1e3 * LOOK_S)
            if not ready:
                look(set(waiting), began_s)
            for fd, _ in ready:
                stream = waiting[ranks[fd]]
                if fd == stream.fileno():
                    stream.heed_event()
                else:
                    gone.add(ranks[fd])

    def close(self) -> None:
        """End it; the cards write no more. May be called again."""
        self._end.close()

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Say which member an error of RDMA is about, and remember it."""
        try:
            yield
        except (RdmaFailure, RdmaUnavailableError, CapacityError, ProtocolError) as error:
            self._failures.add(name)
            logger.warning("no RDMA with %s, TCP takes over: %s", name, str(error))
            raise ConnectionError(f"RDMA: {error}") from error
