"""The tests of this folder have a Slurm of their own (`private_slurm`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.private_slurm import PrivateSlurm, reason_to_skip


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests, and skip them where there can be no Slurm."""
    reason = reason_to_skip()
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slurm)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[PrivateSlurm]:
    """A Slurm with three nodes, which nothing outlives."""
    with PrivateSlurm(tmp_path / "slurm", 3) as slurm:
        yield slurm


@pytest.fixture
def accounted_slurm(tmp_path: Path) -> Iterator[PrivateSlurm]:
    """The same with slurmdbd."""
    reason = reason_to_skip(has_accounting=True)
    if reason is not None:
        pytest.skip(reason)
    with PrivateSlurm(tmp_path / "slurm", 3, has_accounting=True) as slurm:
        yield slurm
