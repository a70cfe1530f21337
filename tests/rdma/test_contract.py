"""RDMA keeps the contract of transports, between two devices whose packets cross a wire."""

import itertools
from collections.abc import Callable

import pytest

from chicle_elastic.transports.verbs.transport import VerbsTransport
from tests.harness.transport_contract import TransportContract
from tests.rdma.devices import HOSTS
from tests.timeouts import timeout_s


class TestVerbs(TransportContract):
    """The contract; owner and reader have different devices."""

    transport = VerbsTransport
    timeout_s = timeout_s(10)

    @pytest.fixture
    def address(self) -> Callable[[], str]:
        """Addresses of the two devices in turn."""
        hosts = itertools.cycle(HOSTS)
        return lambda: f"tcp://{next(hosts)}:0"
