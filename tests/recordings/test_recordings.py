"""The scheduler orders for recorded jobs what it ordered then. README.md says how a recording comes here."""

from pathlib import Path

import pytest

from chicle_elastic.scheduling.replaying import Replay
from tests.scheduling.test_mutants import MUTANTS

FOLDER = Path(__file__).parent
RECORDINGS = sorted(FOLDER.glob("*.recording.jsonl*"))
MAX_BYTES = 50_000


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


@pytest.mark.parametrize("name", ["commit before the copy", "free before commit", "dice are thrown"])
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_broken_scheduler_is_caught_by_each(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that could not fail would prove nothing."""
    monkeypatch.setattr(*MUTANTS[name][:-1])
    assert differences(path) != []
