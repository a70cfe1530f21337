"""The tests of this folder need the two devices of `tests.rdma.vm`."""

import pytest

from tests.tiers import NO_RDMA, mark_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs devices where there are none."""
    mark_folder(items, __file__, NO_RDMA)
