"""The tests of this folder run on several hosts, which are namespaces of this machine (`lab`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.settings import environment_with
from tests.harness.forked import start_fork_server
from tests.hosts.lab import Lab, reason_to_skip
from tests.tiers import mark_folder


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests, and skip them where there can be no hosts."""
    mark_folder(items, __file__, reason_to_skip(), pytest.mark.hosts)


@pytest.fixture(autouse=True, scope="session")
def fork_server() -> None:
    """It stays until the tests are over; the watch over leaks is not for it."""
    if reason_to_skip() is None:
        with environment_with("OPENBLAS_NUM_THREADS", "1"):  # no process with threads enters a mount namespace
            start_fork_server()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Hosts with good names, IPv4 and IPv6; none of them is started yet."""
    with Lab(tmp_path / "hosts") as lab:
        yield lab
