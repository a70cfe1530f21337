"""Large buffers of a group go by RDMA, with the bits of TCP; where RDMA fails a line says so and TCP goes on.

Members are threads of this process. Their sockets are on `lo`, so all bytes on the wire between the two devices are
those of RDMA, and a wire that is cut leaves the sockets whole.
"""

import logging
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.collectives import verbs_exchange
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.collectives.socket_group import SMALL_BYTES, GroupNetwork
from chicle_elastic.transports.key_values import KeyValueServer
from chicle_elastic.transports.verbs.stream import NUM_RECEIVES, SLOTS
from tests.rdma.devices import WIRES, bytes_of, cut_wire, mend_wire, tool
from tests.timeouts import comes, timeout_s

TCP: Sequence[str] = ("", "", "")
RDMA: Sequence[str] = ("rxe0", "rxe1", "rxe0")
SLOT_BYTES = 1 << 16
MODEL_BYTES = (4 * SLOTS + 1) * SLOT_BYTES
"""Of the largest sum. Without RDMA a few packets that look for neighbours are on the wire."""
Body = Callable[[ProcessGroup], Any]


class Members:
    """Members of one round after the other; each remembers to whom it had no RDMA."""

    def __init__(self, store: tuple[str, int], size: int) -> None:
        self._store, self.size = store, size
        self.failures: list[set[str]] = [set() for _ in range(size)]
        self._num_rounds = 0

    def run(self, devices: Sequence[str], body: Body) -> list[Any]:
        """What the body comes to in each member of a new round, or its error."""
        self._num_rounds += 1
        results: list[Any] = [None] * self.size

        def member(rank: int) -> None:
            names = [f"n{number}" for number in range(self.size)]
            group = ProcessGroup(
                round=self._num_rounds, rank=rank, size=self.size, names=names, rdma_failures=self.failures[rank]
            )
            network = GroupNetwork.of(bind="127.0.0.1", advertise="127.0.0.1", key="ab" * 32, rdma=devices[rank])
            try:
                group.begin(self._store, prefix=f"{id(self)}/{self._num_rounds}/", network=network)
                group.connect()
                results[rank] = body(group)
            except Exception as error:
                results[rank] = error
            finally:
                group.close()

        threads = [threading.Thread(target=member, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s(30))
            assert not thread.is_alive()
        return results


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of a megabyte, which an emulated processor computes soon, are of many pieces."""
    monkeypatch.setattr(verbs_exchange, "STAGING_BYTES", (NUM_RECEIVES + SLOTS) * SLOT_BYTES)


@pytest.fixture
def store() -> Iterator[tuple[str, int]]:
    """Address of the store of all rounds."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = KeyValueServer(listener)
    yield listener.getsockname()
    server.close()


def wire_bytes() -> int:
    """Bytes that both devices have sent."""
    return sum(map(bytes_of, WIRES))


def sums(group: ProcessGroup) -> list[bytes]:
    """Sums of buffers that fit into no slot, one or many, between small ones, and the model of one member."""
    rng = np.random.default_rng(group.rank)
    lengths = [1, SMALL_BYTES // 8 + 1, 7, MODEL_BYTES // 8 + 3, 0, 9_999, 5, 40_000] * 2
    results = []
    for length in lengths:
        buffer = rng.normal(size=length).astype(np.float32 if length == 40_000 else np.float64)
        group.all_reduce(buffer)
        results.append(buffer.tobytes())
    model = rng.normal(size=300_001)
    group.broadcast(model, root=group.size - 1, to=range(group.size))
    return [*results, model.tobytes()]


@pytest.mark.parametrize("size", [2, 3])
def test_the_sums_are_those_of_tcp_bit_by_bit(store: tuple[str, int], size: int) -> None:
    """And they went over the wire between the devices."""
    members = Members(store, size)
    by_tcp = members.run(TCP, sums)
    before = wire_bytes()
    by_rdma = members.run(RDMA, sums)
    num_bytes = wire_bytes() - before
    assert isinstance(by_tcp[0], list)
    assert all(found == by_tcp[0] for found in by_tcp + by_rdma)
    assert num_bytes > MODEL_BYTES
    assert members.failures == [set()] * size


def test_no_bit_is_wrong_when_packets_are_lost(store: tuple[str, int]) -> None:
    """One in a hundred, both ways: the cards send them again."""
    members = Members(store, 2)
    by_tcp = members.run(TCP, sums)
    for wire in WIRES:
        tool(f"tc qdisc add dev {wire} root netem loss 1%")
    try:
        by_rdma = members.run(RDMA, sums)
        lost = sum(int(re.findall(r"dropped (\d+)", tool(f"tc -s qdisc show dev {wire}"))[0]) for wire in WIRES)
    finally:
        for wire in WIRES:
            tool(f"tc qdisc del dev {wire} root")
    assert by_rdma == by_tcp
    assert lost, "nothing was shown"


def test_a_wire_that_is_cut_ends_the_round_in_a_line_and_tcp_goes_on(
    store: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of a round: both members have an error in time, and the same sums by TCP in the next round."""
    members, cut = Members(store, 2), threading.Barrier(2, cut_wire)

    def body(group: ProcessGroup) -> None:
        group.all_reduce(np.ones(1 << 17))
        cut.wait(timeout_s(30))
        group.all_reduce(np.ones(1 << 17))

    caplog.set_level(logging.INFO, "chicle_elastic")
    try:
        assert all(isinstance(error, PeerLostError) for error in members.run(RDMA, body))
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert lines
        for line in lines:
            # No answer, or no way: the kernel forgets the routes with the link.
            assert re.match(r"no RDMA with n[01], TCP takes over: a SEND failed \((RETRY_EXC|LOC_QP_OP)_ERR\): n", line)
        before = wire_bytes()
        by_tcp = members.run(RDMA, sums)
        assert wire_bytes() - before < MODEL_BYTES
        assert "the model goes by TCP: n" in caplog.text
    finally:
        mend_wire()
    assert by_tcp == members.run(TCP, sums)
    assert len(lines) == sum(map(len, members.failures))
    for failures in members.failures:
        failures.clear()
    before = wire_bytes()
    assert by_tcp == members.run(RDMA, sums)
    assert wire_bytes() - before > MODEL_BYTES


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        (("rxe0", ""), "the model goes by TCP: n1 offers no RDMA"),
        (("rxe0", "mlx5_7"), "no RDMA with n1, TCP takes over: there is no RDMA device 'mlx5_7'; there is rxe0, rxe1"),
    ],
)
def test_one_member_without_it_is_enough_for_tcp(
    store: tuple[str, int], devices: Sequence[str], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not ask for RDMA, or has no such device: the round is formed, and a line says why it goes by TCP."""
    members = Members(store, 2)
    caplog.set_level(logging.INFO, "chicle_elastic")
    before = wire_bytes()
    assert members.run(devices, sums) == members.run(TCP, sums)
    assert wire_bytes() - before < MODEL_BYTES
    assert line in caplog.text


@pytest.mark.parametrize("is_break", [True, False])
def test_a_member_that_waits_for_a_card_wakes_up(store: tuple[str, int], is_break: bool) -> None:
    """When another thread breaks its group, and when the other member leaves."""
    groups: list[ProcessGroup] = []
    threads: list[int] = []
    has_begun = threading.Event()

    def body(group: ProcessGroup) -> None:
        group.all_reduce(np.ones(SMALL_BYTES))
        if group.rank == 0:
            groups.append(group)
            threads.append(threading.get_ident())
            has_begun.set()
            group.all_reduce(np.ones(SMALL_BYTES))
        has_begun.wait(timeout_s(30))
        waits = verbs_exchange.VerbsExchange.exchange.__code__
        assert comes(lambda: sys._current_frames()[threads[0]].f_code is waits, timeout_s(30), poll_s=0.001)
        if is_break:
            groups[0].break_()

    members = Members(store, 2)
    assert isinstance(members.run(RDMA, body)[0], PeerLostError)
    assert members.failures == [set(), set()]
