"""Sums between members that are connected to each other: threads of this process, real connections."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chicle_elastic.runtime.collectives.socket_group import SMALL_BYTES, SocketGroup
from tests.timeouts import timeout_s


def run(size: int, body: Callable[[SocketGroup], Any]) -> list[Any]:
    """What each member comes to."""
    peers: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for rank in range(size):
        for other in range(rank):
            peers[rank][other], peers[other][rank] = socket.socketpair()
    results: list[Any] = [None] * size

    def member(rank: int) -> None:
        results[rank] = body(SocketGroup(rank, peers[rank]))

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s(30))
        assert not thread.is_alive()
    for socks in peers:
        SocketGroup(0, socks).close()
    return results


@pytest.mark.parametrize("size", [2, 3, 5])
def test_everybody_has_the_same_sums(size: int) -> None:
    """Of small and large buffers, many one after the other, with members that are not in step."""
    lengths = [1, 7, SMALL_BYTES // 8, SMALL_BYTES // 8 + 1, 7, 0, 2] * 15

    def body(group: SocketGroup) -> list[Any]:
        rng = np.random.default_rng(group.rank)
        sums = []
        for length in lengths:
            buffer = rng.normal(size=length)
            group.all_reduce(buffer)
            sums.append(buffer)
        return sums

    results = run(size, body)
    rngs = [np.random.default_rng(rank) for rank in range(size)]
    for number, length in enumerate(lengths):
        expected = np.sum([rng.normal(size=length) for rng in rngs], axis=0)
        for sums in results:
            np.testing.assert_array_equal(sums[number], results[0][number])
            np.testing.assert_allclose(sums[number], expected, atol=1e-12)


@pytest.mark.parametrize("length", [3, SMALL_BYTES])
def test_a_member_that_is_gone_is_an_error(length: int) -> None:
    """Its connections end with it."""

    def body(group: SocketGroup) -> bool:
        if group.rank == 1:
            group.close()
            return False
        with pytest.raises(OSError, match=r"closed|reset|pipe"):
            group.all_reduce(np.ones(length))
        return True

    assert run(2, body) == [True, False]


@pytest.mark.parametrize("length", [5, SMALL_BYTES])
def test_float32_is_added_up_as_it_is(length: int) -> None:
    """Half the bytes of float64, between sums of that; by rank, so the same bits for every member."""

    def body(group: SocketGroup) -> Any:
        buffer = np.random.default_rng(group.rank).normal(size=length).astype(np.float32)
        wide = np.ones(length)
        group.all_reduce(wide)
        group.all_reduce(buffer)
        assert wide[0] == 3
        return buffer

    results = run(3, body)
    rows = [np.random.default_rng(rank).normal(size=length).astype(np.float32) for rank in range(3)]
    for found in results:
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, rows[0] + rows[1] + rows[2])


def test_members_send_each_other_views_of_any_size() -> None:
    """Two members send another part each to a third, more than its socket takes at once; empty views are no matter."""
    parts = [np.random.default_rng(number).bytes(size) for number, size in enumerate((1, 0, 3 << 20, 70_000))]

    def body(group: SocketGroup) -> Any:
        if group.rank < 2:
            group.exchange({2: [memoryview(part) for part in parts[group.rank :: 2]]}, {})
            return None
        found = [bytearray(len(part)) for part in parts]
        incoming = {rank: [memoryview(part) for part in found[rank::2]] for rank in range(2)}
        group.exchange({}, incoming)
        return [bytes(part) for part in found]

    assert run(3, body) == [None, None, parts]
