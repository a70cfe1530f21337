"""The scheduler orders for recorded jobs what it ordered then. README.md says how a recording comes here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chicle_elastic.scheduling.replaying import Replay
from tests.scheduling.test_mutants import commit_before_the_copy_arrived, dice_are_thrown, free_before_commit

FOLDER = Path(__file__).parent
RECORDINGS = sorted(FOLDER.glob("*.recording.jsonl*"))
MAX_BYTES = 50_000
MUTANTS = (commit_before_the_copy_arrived, free_before_commit, dice_are_thrown)


def differences(path: Path) -> list[str]:
    """All of one recording."""
    replay = Replay(path)
    found = [step.difference for step in replay if step.difference is not None]
    assert replay.num_entries > 0
    return found


def test_the_recordings_are_there_and_small() -> None:
    """Of real agents and of one process."""
    assert len(RECORDINGS) >= 4
    assert [path.name for path in RECORDINGS if path.stat().st_size > MAX_BYTES] == []


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_recorded_job_gets_the_same_orders_again(path: Path) -> None:
    """Every effect of every event."""
    assert differences(path) == []


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_broken_scheduler_is_caught_by_each(
    path: Path, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording that could not fail would prove nothing."""
    mutate(monkeypatch)
    assert differences(path) != []
