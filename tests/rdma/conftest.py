"""The tests of this folder need the two devices of `tests.rdma.vm`."""

from pathlib import Path

import pytest

from tests.rdma.skipping import skip_elsewhere


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs devices where there are none."""
    skip_elsewhere(items, Path(__file__).parent)
