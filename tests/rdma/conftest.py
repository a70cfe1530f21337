"""The tests of this folder need the two devices of `tests.rdma.vm`; elsewhere they are skipped, with the reason."""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IN_THE_MACHINE = os.environ.get("CHICLE_RDMA_MACHINE") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs devices."""
    if IN_THE_MACHINE:
        return
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("anywhere") is None:
            item.add_marker(pytest.mark.skip(reason="needs RDMA devices: make test-rdma has them in a virtual machine"))
