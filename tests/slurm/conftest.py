"""The tests of this folder have a Slurm of their own (`private_slurm`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.private_slurm import PrivateSlurm, reason_to_skip
from tests.tiers import mark_folder


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests, and skip them where there can be no Slurm."""
    mark_folder(items, __file__, reason_to_skip(), pytest.mark.slurm)


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
