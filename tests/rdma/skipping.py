"""Tests that need the two devices of `tests.rdma.vm` are skipped elsewhere, with the reason."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

IN_THE_MACHINE = os.environ.get("CHICLE_RDMA_MACHINE") == "1"


def skip_elsewhere(items: Iterable[pytest.Item], folder: Path) -> None:
    """Skip the tests of this folder, unless this is the machine."""
    reason = "needs RDMA devices: make test-rdma has them in a virtual machine"
    for item in items:
        if not IN_THE_MACHINE and item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.skip(reason=reason))
