"""Sums between members that are connected to each other: threads of this process, real connections."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chicle_elastic.chunks.views import Array
from chicle_elastic.runtime.collectives.small_allreduce import MAX_BYTES, PORT, SmallAllReduce
from tests.timeouts import timeout_s

HOST = "127.0.0.1"
Seen = Callable[[int, Array], Array]


class Meeting:
    """Members of one round, each a thread; `gather` is what gloo does for them otherwise.

    Args:
        size: Number of members.
        seen: What a member sees of the gathered rows, given its rank.
    """

    def __init__(self, size: int, seen: Seen = lambda rank, rows: rows) -> None:
        self.size, self._seen = size, seen
        self._barrier = threading.Barrier(size, timeout=timeout_s(20))
        self._rows: dict[int, Array] = {}
        self.is_over = False
        self.num_gathers = 0

    def gather(self, rank: int, row: Array) -> Array:
        """Everybody's row."""
        self._rows[rank] = row
        self.num_gathers += rank == 0
        self._barrier.wait()
        rows = np.array([self._rows[other] for other in range(self.size)])
        self._barrier.wait()
        return self._seen(rank, rows)

    def connect(self, rank: int, limit_s: float = 20.0, *, host: str | None = HOST) -> SmallAllReduce | None:
        """The mesh of one member."""
        return SmallAllReduce.connect(
            rank,
            self.size,
            host=host,
            gather=lambda row: self.gather(rank, row),
            is_over=lambda: self.is_over,
            timeout_s=timeout_s(limit_s),
        )

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        """What each member comes to."""
        results: list[Any] = [None] * self.size

        def member(rank: int) -> None:
            results[rank] = body(rank)

        threads = [threading.Thread(target=member, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s(30))
            assert not thread.is_alive()
        return results


@pytest.mark.parametrize(("size", "host"), [(2, HOST), (3, "::1"), (5, "127.0.0.9")])
def test_everybody_has_the_same_sums(size: int, host: str) -> None:
    """Of any length up to the largest, many one after the other, with members that are not in step; IPv6, too."""
    lengths = [1, 7, MAX_BYTES // 8, 7] * 25
    meeting = Meeting(size)

    def body(rank: int) -> list[Array]:
        mesh = meeting.connect(rank, host=host)
        assert mesh is not None
        rng = np.random.default_rng(rank)
        sums = []
        for length in lengths:
            buffer = rng.normal(size=length)
            mesh.add_up(buffer)
            sums.append(buffer)
        mesh.close()
        return sums

    results = meeting.run(body)
    rngs = [np.random.default_rng(rank) for rank in range(size)]
    for number, length in enumerate(lengths):
        expected = np.sum([rng.normal(size=length) for rng in rngs], axis=0)
        for sums in results:
            np.testing.assert_array_equal(sums[number], results[0][number])
            np.testing.assert_allclose(sums[number], expected, atol=1e-12)


def test_nobody_has_a_mesh_when_two_cannot_connect() -> None:
    """Here member 2 is told of a port where nobody listens."""
    with socket.socket() as closed:
        closed.bind((HOST, 0))  # and does not listen

        def seen(rank: int, rows: Array) -> Array:
            if rank == 2 and rows.shape[1] > 1:
                rows[1, PORT] = closed.getsockname()[1]
            return rows

        meeting = Meeting(3, seen)
        assert meeting.run(lambda rank: meeting.connect(rank, limit_s=0.5)) == [None, None, None]


@pytest.mark.parametrize("host", [None, "192.0.2.1"], ids=["no address", "the address of nobody"])
def test_nobody_tries_to_connect_when_one_cannot_be_reached(host: str | None) -> None:
    """Without waiting: a member that offers nothing is seen by all, and there is no second gather."""
    meeting = Meeting(3)
    assert meeting.run(lambda rank: meeting.connect(rank, 1000, host=host if rank == 1 else HOST)) == [None] * 3
    assert meeting.num_gathers == 1


def test_a_stranger_is_hung_up_on() -> None:
    """It knows no token, whatever rank it says it has; and one that says nothing keeps nobody waiting for long."""
    strangers: list[socket.socket] = []

    def seen(rank: int, rows: Array) -> Array:
        if rank == 0 and rows.shape[1] > 1:
            for word in (bytes(12), b""):
                stranger = socket.create_connection((HOST, int(rows[0, PORT])), timeout=timeout_s(10))
                stranger.sendall(word)
                strangers.append(stranger)
        return rows

    meeting = Meeting(2, seen)

    def body(rank: int) -> float:
        mesh = meeting.connect(rank)
        assert mesh is not None
        buffer = np.ones(3)
        mesh.add_up(buffer)
        mesh.close()
        return float(buffer[0])

    assert meeting.run(body) == [2.0, 2.0]
    for stranger in strangers:
        with stranger:
            assert is_hung_up(stranger)


def is_hung_up(sock: socket.socket) -> bool:
    """Whether the other side has closed or reset a connection."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_member_that_is_gone_is_an_error() -> None:
    """Its connections end with it."""
    meeting = Meeting(2)

    def body(rank: int) -> bool:
        mesh = meeting.connect(rank)
        assert mesh is not None
        if rank == 1:
            mesh.close()
            return False
        with pytest.raises(OSError, match=r"closed|reset|pipe"):
            mesh.add_up(np.ones(3))
        mesh.close()
        return True

    assert meeting.run(body) == [True, False]


def test_waiting_for_a_member_that_does_not_come_can_be_ended() -> None:
    """It died between the two gathers, and the round is broken."""

    def seen(rank: int, rows: Array) -> Array:
        meeting.is_over = True
        return rows

    meeting = Meeting(2, seen)

    def body(rank: int) -> SmallAllReduce | None:
        if rank == 0:
            return meeting.connect(0, limit_s=1000)
        meeting.gather(1, np.ones(PORT + 2))
        meeting.gather(1, np.zeros(1))
        return None

    assert meeting.run(body) == [None, None]
