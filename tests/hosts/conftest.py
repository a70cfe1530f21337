"""The tests of this folder run on several hosts, which are namespaces of this machine (`lab`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.settings import environment_with
from tests.harness.forked import start_fork_server
from tests.hosts.lab import Lab, reason_to_skip


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests, and skip them where there can be no hosts."""
    reason = reason_to_skip()
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.hosts)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


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
