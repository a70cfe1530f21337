"""What tests of real agents in the machine share. They have a folder of their own, because they import torch."""

from pathlib import Path

import pytest

from tests.rdma.skipping import skip_elsewhere


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs devices where there are none."""
    skip_elsewhere(items, Path(__file__).parent)
