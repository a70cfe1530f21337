"""What the tests of transfers share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.cluster.net.event_loop import EventLoop
from tests.cluster.transfer.transfer_nodes import Pair, connected


@pytest.fixture
def pair(loop: EventLoop, tmp_path: Path) -> Iterator[Pair]:
    """A node that holds a chunk, and one that holds none."""
    with connected(loop, tmp_path) as pair:
        yield pair
