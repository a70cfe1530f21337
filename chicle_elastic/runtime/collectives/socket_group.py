"""Collectives of the members of a round, over sockets of their own: the only ones over hosts. Where all members have
asked for RDMA and can, large buffers go by it (`verbs_exchange`), in the same steps and so with the same bits.

Theory of operation. One TCP connection between every two members. Each member listens, publishes its address in the
store (signed) and connects to the members of lower rank; both ends of a connection prove the secret of the round before
anything else is said (`transports.handshake`). Then, with parts of a buffer numbered by rank:

    all-reduce     each member sends part p to member p, which adds all up, by rank, and sends the sum to all others
    of few values  each member sends its buffer to all others, and adds up what it receives, by rank
    broadcast      the root sends part p to receiver p, which sends it to all others; few values it sends to all itself

Each byte of a large buffer travels twice whatever the number of members, as in a ring, but in two steps; a small one
takes one step, and so does a broadcast to one receiver. All members get the same bits. A member sends and receives
large buffers at the same time, as the kernel has room and bytes, so no order of arrival can deadlock. A member may be
one small sum ahead of another one, never two: each sum needs the buffers of all. So at most two are in transfer to a
member, which fit into the buffers of its socket, and it may send before it receives. A waiting thread wakes when its
connections are shut down, or a member is gone.

Silence. A task may compute for hours, and the kernel of its host acknowledges meanwhile: segments, and keep-alive
probes where none are sent. A member that waits looks once a second; a connection on which nothing was acknowledged for
`CUT_S` was cut without a reset, as by a firewall that has forgotten it. (The agents' links, which tell a dead host
after 2 s, may be whole.) The member breaks the group then, and the next round makes new connections. A task that is
waited for and whose host acknowledges is named in a line after `SLOW_S`.

Measured on 4 tasks of 2 busy cores against gloo (torch 2.13), medians of the ratios of pairs: 0.03 for 1 KB, 0.4 for
1 MB, 0.8 for 10 MB. gloo hands each collective from one thread to another.
"""

import contextlib
import itertools
import logging
import queue
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.collectives.signed_store import SignedStore
from chicle_elastic.transports import addresses
from chicle_elastic.transports.addresses import PortRange
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_caller
from chicle_elastic.transports.listener import Listener
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret

if TYPE_CHECKING:
    from chicle_elastic.runtime.collectives.verbs_exchange import VerbsExchange

PURPOSE = "sums"
OFFER = " rdma"  # behind the rank, in the name that a member has in the handshake
SMALL_BYTES = 1 << 14  # of a buffer that goes to all others as a whole
MOST_DIALS = 16  # members that are connected to at the same time
SLICE_S = 0.05  # how long to wait for a connection until looking whether the group is broken
LOOK_S = 1  # how often a member that waits looks at its connections
CUT_S = 8.0
MIN_PROBES = 3  # that were not acknowledged: after a pause of its own host a member has sent none yet
SLOW_S = 30.0
PROBE_IDLE_S, PROBE_EVERY_S, MOST_PROBES = 2, 1, 60  # the kernel's own verdict is to come after that of `CUT_S`
TCP_INFO = struct.Struct("2x2B52xI")  # of struct tcp_info: retransmits, probes, last_ack_recv in ms
SOCKET_BUFFER_BYTES = 1 << 20  # asked for; the kernel gives at most net.core.wmem_max and rmem_max

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNetwork:
    """Where this member listens, and how the members of the round recognise each other."""

    address: NodeAddress  # of this node
    # of this round, the same for all its members and derived from the job's; tasks do not know that one
    secret: JobSecret = field(repr=False)
    rdma: str = ""  # the device that large buffers may go by; "" for none

    @classmethod
    def of(
        cls, *, bind: str, advertise: str, first_port: int = 0, last_port: int = 0, key: str, rdma: str = ""
    ) -> "GroupNetwork":
        """From the values of a message; `key` is the text of the secret of the round."""
        address = NodeAddress(bind=bind, advertise=advertise, ports=PortRange(first_port, last_port))
        return cls(address=address, secret=JobSecret.from_text(key, where="a key of a round"), rdma=rdma)


class SocketGroup:
    """One member's end of it. Used by one thread at a time.

    Args:
        peers: A connected socket per other member, by rank; this object closes them.
        names: Nodes of the members, by rank.
        offering: Ranks of the members that ask for RDMA.
    """

    def __init__(
        self,
        rank: int,
        peers: Mapping[int, socket.socket],
        names: Sequence[str] = (),
        offering: Collection[int] = (),
    ) -> None:
        self.rank = rank
        self._offering = offering
        self._verbs: VerbsExchange | None = None
        self.peers = dict(peers)
        self._names = names
        self._told: set[int] = set()  # members that a line has named as slow
        self._size = len(peers) + 1
        self._rows: Array = np.empty((self._size, 0))

    @classmethod
    def connect(
        cls,
        rank: int,
        size: int,
        *,
        store: SignedStore,
        network: GroupNetwork,
        is_over: Callable[[], bool],
        timeout_s: float,
        names: Sequence[str] = (),
        wants_rdma: bool = False,
    ) -> "SocketGroup":
        """Connect to all other members, who do the same. Raises UsageError when this node cannot listen, e.g. no port
        of its range is free, PeerLostError when a member did not connect in time, or the group was broken, SecretError
        when a process without the secret of the round answers at a member's address."""
        own = f"{rank}{OFFER if wants_rdma else ''}"
        offering = {rank} if wants_rdma else set[int]()
        peers: dict[int, socket.socket] = {}
        arrived: queue.SimpleQueue[tuple[str, socket.socket]] = queue.SimpleQueue()
        deadline = Deadline(timeout_s)
        with contextlib.ExitStack() as on_error:
            on_error.callback(lambda: _close_all(peers, arrived))
            with Listener(
                network.address.to_listen(),
                network.secret,
                purpose=PURPOSE,
                name=own,
                serve=lambda sock, caller: arrived.put((caller, sock)),
                gives_away=True,
                proof_timeout_s=timeout_s,
            ) as listener:
                own_address = network.address.to_tell(listener.address)
                told = store.trade(str(rank), own_address, [str(other) for other in range(rank)], wait_s=timeout_s)
                if told is None:
                    raise PeerLostError(f"not all of the {rank} lower ranks told their address within {timeout_s:g} s")

                def dial(other: int) -> None:
                    address = told[other].decode()
                    sock = peers[other] = addresses.connect_tcp(address, timeout_s=deadline.left_s())
                    name = prove_as_caller(sock, network.secret, deadline, purpose=PURPOSE, name=own, peer=address)
                    if name.removesuffix(OFFER) != str(other):
                        raise PeerLostError(f"rank {name} answers at {address}, the address of rank {other}")
                    if name.endswith(OFFER):
                        offering.add(other)

                _for_all(range(rank), dial)
                for name, sock in _arrivals(arrived, rank=rank, size=size, is_over=is_over, timeout_s=timeout_s):
                    other = int(name.removesuffix(OFFER))
                    peers[other] = sock
                    if name.endswith(OFFER):
                        offering.add(other)
            on_error.pop_all()
        for sock in peers.values():
            sock.settimeout(None)  # a task may compute for hours
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
            watch_silence(sock)
        return cls(rank, peers, names, offering)

    def use_rdma(self, *, host: str, device: str, failures: set[str]) -> None:
        """Go over to RDMA for all buffers of more than `SMALL_BYTES`, if all members ask for it and can; a line says
        why not. All members call it. Raises OSError as `all_reduce` does.

        Args:
            host: Address of this member.
            device: Name of its device; "" where it shall not use RDMA.
            failures: OUT; names of members that cannot be reached by RDMA, this one's own where it has none.
        """
        if not device:
            return
        if without := {self.rank, *self.peers}.difference(self._offering):
            logger.info("the model goes by TCP: %s offers no RDMA", ", ".join(map(self._name, sorted(without))))
            return
        from chicle_elastic.runtime.collectives.verbs_exchange import NO_DESCRIPTION, VerbsExchange

        with contextlib.ExitStack() as on_error:
            verbs = None
            num_ready = np.zeros(1)
            names = {other: self._name(other) for other in self.peers}
            with contextlib.suppress(ConnectionError):  # which is logged
                verbs = VerbsExchange(
                    *(host, device, self._name(self.rank)), peers=self.peers, names=names, failures=failures
                )
                on_error.callback(verbs.close)
            ours = dict.fromkeys(self.peers, NO_DESCRIPTION) if verbs is None else verbs.describe()
            theirs = {other: bytearray(NO_DESCRIPTION) for other in self.peers}
            self.exchange(
                {other: [memoryview(ours[other])] for other in self.peers},
                {other: [memoryview(theirs[other])] for other in self.peers},
            )
            if verbs is not None:
                with contextlib.suppress(ConnectionError):
                    verbs.connect(theirs)
                    num_ready[0] = 1
            self.all_reduce(num_ready)
            if num_ready[0] == self._size:
                on_error.pop_all()
                self._verbs = verbs
                logger.info("the model goes by RDMA: all %d members can, this one by %s", self._size, device)
            else:
                logger.info("the model goes by TCP: not all of the %d members can use RDMA", self._size)

    @property
    def way(self) -> str:
        """Say by what large buffers go: "tcp" or "rdma"."""
        return "tcp" if self._verbs is None else "rdma"

    def all_reduce(self, buffer: Array) -> None:
        """Replace `buffer` by the sum of the members' buffers, in place; the same bits for every member. Raises OSError
        when a member is gone, or the connections were shut down; the content of `buffer` is undefined.

        Args:
            buffer: ndarray of shape (n,), float64 or float32, in which it is added up, by rank; C-contiguous; the same
                n and dtype for every member.
        """
        if buffer.nbytes <= SMALL_BYTES:
            self._add_up_small(buffer)
            return
        parts = _parts(len(buffer), self._size)
        own = buffer[parts[self.rank]]
        rows = self._rows_of(own)
        self.exchange(
            {other: [_bytes(buffer[parts[other]])] for other in self.peers},
            {other: [_bytes(rows[other])] for other in self.peers},
        )
        total = rows[0] if self.rank else own  # added up by rank, and where it lies: a large part is not copied
        for other in range(1, self._size):
            row, out = (own if other == self.rank else rows[other]), (own if other >= self.rank else total)
            total = np.add(total, row, out=out)
        self.exchange(
            {other: [_bytes(own)] for other in self.peers},
            {other: [_bytes(buffer[parts[other]])] for other in self.peers},
        )

    def broadcast(self, buffer: Array, *, root: int, to: Sequence[int]) -> None:
        """Replace `buffer` of the members `to` by that of the member `root`, in place; no other member calls it, or has
        to wait for it. Raises OSError as `all_reduce` does.

        Args:
            to: Ranks, the same for all of them, with or without `root`.
        """
        to = [rank for rank in to if rank != root]
        is_small = buffer.nbytes <= SMALL_BYTES
        pieces = [slice(None)] * len(to) if is_small else _parts(len(buffer), len(to))
        parts = {rank: [_bytes(buffer[piece])] for rank, piece in zip(to, pieces, strict=True)}
        if root == self.rank:
            self.exchange(parts, {})
            return
        own = parts.pop(self.rank)
        self.exchange({}, {root: own})
        if not is_small:
            self.exchange(dict.fromkeys(parts, own), parts)

    def exchange(
        self, outgoing: Mapping[int, Sequence[memoryview]], incoming: Mapping[int, Sequence[memoryview]]
    ) -> None:
        """Send to some members and receive from some, at the same time; returns when all bytes are with the kernel or
        here. A receiver knows how many bytes come. Raises OSError as `all_reduce`.

        Args:
            outgoing: By rank, what is sent to the member, one view after the other.
            incoming: By rank, OUT; where to put what comes from the member.
        """
        if self._verbs is not None:
            self._verbs.exchange(outgoing, incoming, self._look_at_silence)
            return
        to_send = {rank: left for rank, views in outgoing.items() if (left := deque(filter(len, views)))}
        to_fill = {rank: left for rank, views in incoming.items() if (left := deque(filter(len, views)))}
        with selectors.DefaultSelector() as selector:
            for rank in {*to_send, *to_fill}:
                selector.register(self.peers[rank], _wanted(rank in to_send, rank in to_fill), rank)
            began_s = time.monotonic()
            while to_send or to_fill:
                ready = selector.select(LOOK_S)
                if not ready:
                    self._look_at_silence({*to_send, *to_fill}, began_s)
                for key, _ in ready:
                    rank, sock = key.data, self.peers[key.data]
                    _send_some(sock, to_send, rank)
                    _receive_some(sock, to_fill, rank)
                    wanted = _wanted(rank in to_send, rank in to_fill)
                    if not wanted:
                        selector.unregister(sock)
                    elif wanted != key.events:
                        selector.modify(sock, wanted, rank)

    def shut_down(self) -> None:
        """End the connections; a thread that waits on them wakes up. From any thread, but not after `close`."""
        for sock in self.peers.values():
            with contextlib.suppress(OSError):  # it has ended already
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections. May be called again."""
        if self._verbs is not None:
            self._verbs.close()
        for sock in self.peers.values():
            sock.close()

    def _add_up_small(self, buffer: Array) -> None:
        content, rows = _bytes(buffer), self._rows_of(buffer)
        # Each member begins with another peer, so that not all wait for the same one.
        others = [(self.rank + step) % self._size for step in range(1, self._size)]
        for other in others:
            self.peers[other].sendall(content)
        rows[self.rank] = buffer
        for other in others:
            row, began_s = _bytes(rows[other]), None
            while len(row):
                try:
                    row = row[_received(self.peers[other], row) :]
                except BlockingIOError:  # nothing came for `LOOK_S`
                    began_s = began_s or time.monotonic() - LOOK_S
                    self._look_at_silence({other}, began_s)
        np.add.reduce(rows, axis=0, out=buffer)

    def _look_at_silence(self, awaited: set[int], began_s: float) -> None:
        """Name members that are waited for since long. Raises ConnectionError when a connection was cut."""
        for other, sock in self.peers.items():
            retransmits, probes, silent_ms = TCP_INFO.unpack(
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
            )
            if retransmits + probes >= MIN_PROBES and silent_ms > 1e3 * CUT_S:
                raise ConnectionError(
                    f"the connection to the task of {self._name(other)} was cut: nothing was acknowledged for "
                    f"{silent_ms / 1e3:.0f} s"
                )
        waited_s = time.monotonic() - began_s
        if waited_s > SLOW_S and (slow := awaited - self._told):
            self._told |= slow
            logger.warning(
                "the task of %s has waited for %.0f s for that of %s, whose host answers: it computes, or it hangs",
                self._name(self.rank),
                waited_s,
                ", ".join(map(self._name, sorted(slow))),
            )

    def _name(self, rank: int) -> str:
        return self._names[rank] if self._names else f"rank {rank}"

    def _rows_of(self, row: Array) -> Array:
        """Return an array with a row like this one for each member; its content is undefined."""
        if self._rows.shape[1] != len(row) or self._rows.dtype != row.dtype:
            self._rows = np.empty((self._size, len(row)), dtype=row.dtype)
        return self._rows


def _parts(num_values: int, count: int) -> list[slice]:
    bounds = [num_values * number // count for number in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]


def _for_all(ranks: Sequence[int], dial: Callable[[int], None]) -> None:
    """Dial all of them in threads, as each takes three round trips; then raise the first error. The threads are
    daemons: one that waits for a silent member does not keep a process that ends."""
    left, ended = iter(ranks), queue.SimpleQueue[Exception | None]()

    def work() -> None:
        for rank in left:
            try:
                dial(rank)
                ended.put(None)
            except Exception as error:
                ended.put(error)

    for _ in range(min(MOST_DIALS, len(ranks))):
        threading.Thread(target=work, name="chicle-dial", daemon=True).start()
    errors = [error for error in [ended.get() for _ in ranks] if error is not None]
    if errors:
        raise errors[0]


def _arrivals(
    arrived: "queue.SimpleQueue[tuple[str, socket.socket]]",
    *,
    rank: int,
    size: int,
    is_over: Callable[[], bool],
    timeout_s: float,
) -> Iterator[tuple[str, socket.socket]]:
    missing = {str(other) for other in range(rank + 1, size)}
    end_s = time.monotonic() + timeout_s
    while missing:
        if is_over():
            raise PeerLostError("the group was broken")
        if time.monotonic() > end_s:
            raise PeerLostError(f"rank {', '.join(sorted(missing))} of {size} did not connect within {timeout_s:g} s")
        with contextlib.suppress(queue.Empty):
            name, sock = arrived.get(timeout=SLICE_S)
            if (other := name.removesuffix(OFFER)) not in missing:
                sock.close()
                continue
            missing.discard(other)
            yield name, sock


def watch_silence(sock: socket.socket) -> None:
    """Have the kernel ask for a sign of life where nothing is sent, and end a read without bytes after `LOOK_S`."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, MOST_PROBES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", LOOK_S, 0))


def _wanted(is_sending: bool, is_receiving: bool) -> int:
    return selectors.EVENT_WRITE * is_sending | selectors.EVENT_READ * is_receiving


def _send_some(sock: socket.socket, left: dict[int, deque[memoryview]], rank: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while rank in left:
            _shorten(left, rank, sock.send(left[rank][0], socket.MSG_DONTWAIT))


def _receive_some(sock: socket.socket, left: dict[int, deque[memoryview]], rank: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while rank in left:
            _shorten(left, rank, _received(sock, left[rank][0], socket.MSG_DONTWAIT))


def _shorten(left: dict[int, deque[memoryview]], rank: int, num_bytes: int) -> None:
    """Take the bytes that are done from the first view of a member."""
    views = left[rank]
    view = views.popleft()[num_bytes:]
    if len(view):
        views.appendleft(view)
    elif not views:
        del left[rank]


def _received(sock: socket.socket, view: memoryview, flags: int = 0) -> int:
    count = sock.recv_into(view, flags=flags)
    if not count:
        raise ConnectionError("a member has closed its connection")
    return count


def _bytes(values: Array) -> memoryview:
    return values.data.cast("B") if len(values) else memoryview(b"")


def _close_all(peers: Mapping[int, socket.socket], arrived: "queue.SimpleQueue[tuple[str, socket.socket]]") -> None:
    for sock in peers.values():
        sock.close()
    with contextlib.suppress(queue.Empty):
        while True:
            arrived.get_nowait()[1].close()
