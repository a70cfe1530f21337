"""What the tests of loops share: agents and tasks are forked from processes that have everything imported."""

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import fork_server
from tests.loop.forked_tasks import TaskServer

__all__ = ["fork_server"]


@pytest.fixture(autouse=True, scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskServer]:
    """It stays until the tests are over; the watch over leaks is not for it."""
    with TaskServer(tmp_path_factory.mktemp("tasks")) as server:
        yield server
