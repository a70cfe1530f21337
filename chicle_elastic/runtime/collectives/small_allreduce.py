"""All-reduce of small buffers: every member sends its buffer to every other member, and adds up the received ones.

gloo hands each collective from one thread to another, and that dominates the cost of a sum of a few hundred bytes: 0.8
to 1 ms with four tasks on two cores; direct connections take 0.05 to 0.1 ms (measured). Every iteration contains a sum
of a small buffer, so for small models that is most of its time.

Theory of operation. One TCP connection between every two members, made while the round's group is set up: all members
listen, exchange their addresses (by a gather over gloo), and each connects to those of lower rank, to which it proves
by a token from the same gather that it is a member. A second gather tells whether all members have all connections. A
process waits only once, for a few seconds, for a member that it cannot connect to: from then on it offers no address,
and in later rounds no member tries.

A member may be one sum ahead of another one, never two: each sum needs the buffers of all members. So at most two
buffers are in transfer to a member, which fit into the buffers of its socket, and sending before receiving cannot
deadlock.

A waiting thread wakes when its connections are shut down (`process_group.ProcessGroup.break_`), or a member is gone.
"""

import contextlib
import ipaddress
import secrets
import socket
import struct
import time
from collections.abc import Callable

import numpy as np

from chicle_elastic.chunks.views import Array

MAX_BYTES = 1 << 14
"""Of a buffer; larger ones are for gloo, whose ring sends less."""
SOCKET_BUFFER_BYTES = 1 << 17
HELLO = struct.Struct("<QI")
HELLO_S = 1.0
"""For the hello: a foreign process that sends nothing must not keep members waiting."""
SLICE_S = 0.05
CONNECT_S = 3.0
"""For connecting: members that can connect do so within milliseconds."""
PORT = 16
"""Index of the port in the row that a member gathers; the bytes of its address stand before it."""
TOKEN_BITS = 53
"""Of a token, so that it is exact as a float64."""


class SmallAllReduce:
    """Connections of one member to all others.

    Args:
        rank: Of this member.
        peers: A connected socket per other member, by rank; this object closes them.
    """

    def __init__(self, rank: int, peers: dict[int, socket.socket]) -> None:
        size = len(peers) + 1
        # Each member begins with another peer, so that not all wait for the same one.
        self._peers = [(other, peers[other]) for step in range(1, size) if (other := (rank + step) % size) in peers]
        self._rank, self._size = rank, size
        self._rows: Array = np.empty((size, 0))

    @classmethod
    def connect(
        cls,
        rank: int,
        size: int,
        *,
        host: str | None,
        gather: Callable[[Array], Array],
        is_over: Callable[[], bool],
        timeout_s: float,
    ) -> "SmallAllReduce | None":
        """Connect to all other members, who do the same.

        Args:
            rank: Of this member.
            size: Number of members.
            host: Address of this host that the others can reach, IPv4 or IPv6; None offers none.
            gather: Gathers the float64 rows of all members, by rank; every member calls it twice.
            is_over: Whether the group was broken meanwhile.
            timeout_s: How long connecting may take.

        Returns:
            None, for every member, when a member offered no address or two members could not connect.

        Raises:
            RuntimeError: Raised by `gather`.
        """
        peers: dict[int, socket.socket] = {}
        with contextlib.ExitStack() as stack:
            stack.callback(_close_all, peers)
            family = socket.AF_INET6 if host is not None and ":" in host else socket.AF_INET
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            token = secrets.randbits(TOKEN_BITS)
            addresses = gather(_endpoints(listener, host, token))
            if not addresses[:, PORT].all():
                return None
            end_s = time.monotonic() + timeout_s
            try:
                for other in range(rank):
                    peers[other] = _dial(addresses[other], rank, end_s)
                while len(peers) < size - 1:
                    other, sock = _accept(listener, token, end_s, is_over)
                    if rank < other < size and other not in peers:
                        peers[other] = sock
                    else:
                        sock.close()
            except OSError:
                pass  # the gather below tells the others
            is_whole = len(peers) == size - 1
            if not gather(np.array([float(is_whole)])).all():
                return None
            stack.pop_all()
            listener.close()
        for sock in peers.values():
            sock.settimeout(None)  # a task may compute for hours, and the agents detect silent peers
        return cls(rank, peers)

    def add_up(self, buffer: Array) -> None:
        """Replace `buffer` by the sum of the members' buffers, in place; the same bits for every member.

        Args:
            buffer: ndarray of shape (n,), float64, C-contiguous, at most `MAX_BYTES`; the same n for every member.

        Raises:
            OSError: A member is gone, or the connections were shut down; the content of `buffer` is undefined.
        """
        if self._rows.shape[1] != len(buffer):
            self._rows = np.empty((self._size, len(buffer)))
        content = buffer.data.cast("B")
        for _, sock in self._peers:
            sock.sendall(content)
        self._rows[self._rank] = buffer
        for other, sock in self._peers:
            _receive(sock, self._rows[other].data.cast("B"))
        np.add.reduce(self._rows, axis=0, out=buffer)  # by rank, so every member gets the same bits

    def close(self) -> None:
        """Close the connections. May be called again."""
        for _, sock in self._peers:
            sock.close()


def _endpoints(listener: socket.socket, host: str | None, token: int) -> Array:
    """The address as one of IPv6, the port and the token; zeros where this member cannot listen."""
    row = np.zeros(PORT + 2)
    with contextlib.suppress(OSError):
        if host is not None:
            listener.bind((host, 0))
            listener.listen()
            address = ipaddress.IPv6Address(host if ":" in host else f"::ffff:{host}")
            row[:] = [*address.packed, listener.getsockname()[1], token]
    return row


def _dial(address: Array, rank: int, end_s: float) -> socket.socket:
    *octets, port, token = (int(value) for value in address.tolist())
    ipv6 = ipaddress.IPv6Address(bytes(octets))
    sock = socket.create_connection((str(ipv6.ipv4_mapped or ipv6), port), timeout=_left(end_s))
    try:
        _prepare(sock)
        sock.sendall(HELLO.pack(token, rank))
    except OSError:
        sock.close()
        raise
    return sock


def _accept(
    listener: socket.socket, token: int, end_s: float, is_over: Callable[[], bool]
) -> tuple[int, socket.socket]:
    """The next member that knows the token; closes connections of processes that do not."""
    while not is_over():
        listener.settimeout(min(SLICE_S, _left(end_s)))
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            continue
        with contextlib.suppress(OSError):
            _prepare(sock)
            sock.settimeout(min(HELLO_S, _left(end_s)))
            hello = bytearray(HELLO.size)
            _receive(sock, memoryview(hello))
            said, other = HELLO.unpack(hello)
            if said == token:
                return other, sock
        sock.close()
    raise ConnectionError("the group was broken")


def _close_all(peers: dict[int, socket.socket]) -> None:
    for sock in peers.values():
        sock.close()


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


def _receive(sock: socket.socket, content: memoryview) -> None:
    """Fill `content`."""
    done = 0
    while done < len(content):
        count = sock.recv_into(content[done:])
        if not count:
            raise ConnectionError("a member has closed its connection")
        done += count


def _left(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("members did not connect in time")
    return left_s
