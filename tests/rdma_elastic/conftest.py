"""What tests of real agents in the machine share. They have a folder of their own, because they import torch."""

import pytest

from tests.tiers import NO_RDMA, mark_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs devices where there are none."""
    mark_folder(items, __file__, NO_RDMA)
