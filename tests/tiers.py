"""Tests of a folder that need a machine of their kind are marked, and skipped elsewhere with the reason."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

NO_RDMA = (
    None
    if os.environ.get("CHICLE_RDMA_MACHINE") == "1"
    else "needs RDMA devices: make test-rdma has them in a virtual machine"
)


def mark_folder(items: Iterable[pytest.Item], conftest: str, reason: str | None, *marks: pytest.MarkDecorator) -> None:
    """Mark the tests beside a conftest, and skip them where there is a reason; before -m looks at the marks."""
    for item in items:
        if item.path.is_relative_to(Path(conftest).parent):
            for mark in marks if reason is None else (*marks, pytest.mark.skip(reason=reason)):
                item.add_marker(mark)
