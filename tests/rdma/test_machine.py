"""The machine is what the other tests take it for: two devices, and READs that cross the wire between them."""

import contextlib
from collections.abc import Iterator

import pytest

from chicle_elastic.transports.verbs.device import Device, choose_port
from tests.rdma.devices import HOSTS


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
