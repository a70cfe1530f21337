"""The machine is what the other tests take it for: two devices, and READs that cross the wire between them."""

import contextlib
from collections.abc import Iterator

import pytest

from chicle_elastic.transports.verbs.device import Device, choose_port
from chicle_elastic.transports.verbs.memory import Mapped
from chicle_elastic.transports.verbs.queue_pair import QueuePair
from tests.rdma.devices import HOSTS, WIRES, packets_of

SIZE_BYTES = 1 << 16


@pytest.fixture
def devices() -> Iterator[list[Device]]:
    """Both, open."""
    with contextlib.ExitStack() as stack:
        devices = [Device(choose_port(host)) for host in HOSTS]
        for device in devices:
            stack.callback(device.release)
        yield devices


def test_each_address_has_its_device() -> None:
    """The port is found by the address that a transport listens on, and its GID is made from it."""
    ports = [choose_port(host) for host in HOSTS]
    assert [port.device for port in ports] == ["rxe0", "rxe1"]
    assert [port.ip for port in ports] == list(HOSTS)
    assert [port.mtu for port in ports] == [5, 5]


def test_a_read_crosses_the_wire(devices: list[Device]) -> None:
    """The smallest READ that there is: two queue pairs, two pieces of memory, no transport."""
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(contextlib.closing(QueuePair(device))) for device in devices]
        memories = [Mapped(device, SIZE_BYTES, is_for_peers=True) for device in devices]
        for memory in memories:
            stack.callback(memory.close)
        memories[0].view[:] = bytes(range(256)) * (SIZE_BYTES // 256)
        for ours, theirs in (pairs, pairs[::-1]):
            ours.connect(theirs.end_point, peer="the other")
        before = [packets_of(wire) for wire in WIRES]
        pairs[1].post_read(
            7,
            address=memories[1].address,
            size_bytes=SIZE_BYTES,
            key=memories[1].local_key,
            their_address=memories[0].address,
            their_key=memories[0].remote_key,
        )
        done = []
        while not done:
            done = pairs[1].completions()
        assert [(each.work, each.status) for each in done] == [(7, 0)]
        assert memories[1].view == memories[0].view
        sent = [packets_of(wire) - count for wire, count in zip(WIRES, before, strict=True)]
        assert sent[0] >= SIZE_BYTES // 4096, "the bytes go from the first to the second"
        assert sent[1] >= 1, "and the request the other way"
