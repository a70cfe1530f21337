"""What the tests of the cluster share."""

import pytest

from chicle_elastic.cluster.store_host import StoreHost
from tests.runtime.cluster_driver import start_fork_server


@pytest.fixture(autouse=True, scope="session")
def libuv_has_its_pipe() -> None:
    """The first store of a process opens a pipe of libuv's that stays for good; the watch over leaks is not for it."""
    StoreHost().close()


@pytest.fixture(autouse=True, scope="session")
def fork_server() -> None:
    """It stays until the tests are over; the watch over leaks is not for it."""
    start_fork_server()
