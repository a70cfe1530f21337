"""What tests of several solvers share."""

import pytest

from chicle_elastic.solvers.linear import methods


@pytest.fixture
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the few rows of a test stand for many: no working set, however many tasks."""
    monkeypatch.setattr(methods, "FEW_VALUES", 0)
    monkeypatch.setattr(methods, "MOST_ROWS", 0)
