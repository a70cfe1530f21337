"""What the tests of the cluster share."""

import pytest

from chicle_elastic.cluster.store_host import StoreHost


@pytest.fixture(autouse=True, scope="session")
def libuv_has_its_pipe() -> None:
    """The first store of a process opens a pipe of libuv's that stays for good; the watch over leaks is not for it."""
    StoreHost().close()
