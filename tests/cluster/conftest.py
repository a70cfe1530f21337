"""What the tests of the cluster share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.cluster.net.event_loop import EventLoop
from tests.harness.chaos_nodes import ChaosNodes
from tests.harness.forked import start_fork_server


@pytest.fixture(autouse=True, scope="session")
def fork_server() -> None:
    """It stays until the tests are over; the watch over leaks is not for it."""
    start_fork_server()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ChaosNodes]:
    """A job that counts, without nodes yet."""
    with ChaosNodes(tmp_path / "job", work="count", min_ms=20, max_nodes=8) as nodes:
        yield nodes


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """A loop that a test turns."""
    with EventLoop() as loop:
        yield loop
