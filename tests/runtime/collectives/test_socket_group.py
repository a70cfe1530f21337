"""Sums between members that are connected to each other: threads of this process, real connections."""

import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chicle_elastic.runtime.collectives import socket_group
from chicle_elastic.runtime.collectives.socket_group import SMALL_BYTES, SocketGroup
from tests.harness.cut_sockets import cut
from tests.timeouts import timeout_s


def run(size: int, body: Callable[[SocketGroup], Any]) -> list[Any]:
    """What each member comes to."""
    peers: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for rank in range(size):
        for other in range(rank):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                peers[rank][other] = socket.create_connection(listener.getsockname())
                peers[other][rank], _ = listener.accept()
            for sock in (peers[rank][other], peers[other][rank]):
                socket_group.watch_silence(sock)
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


@pytest.mark.parametrize("length", [3, SMALL_BYTES])
@pytest.mark.parametrize("sends", [True, False])
def test_a_connection_that_is_cut_without_a_reset_is_an_error(
    length: int, sends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether something is sent on it, or both ends only wait; the error names the member at its other end."""
    monkeypatch.setattr(socket_group, "CUT_S", 1.0)
    are_cut, has_failed = threading.Barrier(3), threading.Event()

    def body(group: SocketGroup) -> str:
        group = SocketGroup(group.rank, group.peers, ["n0", "n1", "n2"])
        for other in {0, 1} - {group.rank} if group.rank < 2 else ():
            cut(group.peers[other])
        are_cut.wait(timeout_s(30))
        if group.rank and not sends:
            has_failed.wait(timeout_s(30))
            return ""

        def add_up() -> None:
            for _ in range(3):  # the member that is not cut has its first sum, and hears of it as of any end
                group.all_reduce(np.ones(length))

        with pytest.raises(OSError, match=r"cut|closed|reset|pipe") as caught:
            add_up()
        has_failed.set()
        group.shut_down()
        return str(caught.value)

    cuts = [text for text in run(3, body) if " was cut: nothing was acknowledged for " in text]
    assert cuts
    assert {text.split()[6] for text in cuts} <= {"n0", "n1"}


@pytest.mark.parametrize("length", [3, 1 << 20])
def test_a_member_that_computes_is_waited_for_and_named(
    length: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Longer than a cut connection is; also one whose socket has no room for what the others have sent."""
    monkeypatch.setattr(socket_group, "CUT_S", 0.4)
    monkeypatch.setattr(socket_group, "SLOW_S", 1.5)  # not at the first look

    def body(group: SocketGroup) -> float:
        buffer = np.ones(length)
        if group.rank == 1:
            time.sleep(5.5)  # what is tested is that nothing happens but one line, with three probes acknowledged
        for _ in range(2):
            group.all_reduce(buffer)
        return float(buffer[-1])

    with caplog.at_level(logging.WARNING, logger=socket_group.__name__):
        assert run(2, body) == [4.0, 4.0]
    [line] = [record.getMessage() for record in caplog.records]
    assert re.match(r"the task of rank 0 has waited for (?:[2-9]|\d\d+) s for that of rank 1, whose host answers", line)
