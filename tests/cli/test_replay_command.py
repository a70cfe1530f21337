"""`chicle replay`: equal or not, at which entry, and what the scheduler knew there."""

import gzip
import shutil
from pathlib import Path

import pytest

from chicle_elastic.cli.main import main
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.recording import Recorder
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from tests.harness.text_sink import TextSink
from tests.scheduling.stage import infos

N0 = NodeId("n0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One node loads two of three chunks."""
    path = tmp_path / "n0.recording.jsonl"
    with path.open("w", encoding="utf-8") as file:
        recorder = Recorder(Scheduler(SchedulerSettings()), TextSink(file.write))
        recorder.handle(events.ChunksDeclared(chunks=infos(3)), now=0.0)
        recorder.handle(events.NodeJoined(node=N0, capacity_bytes=1 << 30), now=0.25)
        recorder.handle(events.RoundFormed(round=1, members=(N0,)), now=0.5)
        for chunk in infos(2):
            recorder.handle(events.ChunksLoaded(chunks=(chunk.id,), node=N0, round=1), now=1.0)
    return path


def test_equal_effects_are_said_and_end_with_0(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several files at once, too."""
    other = shutil.copy(path, path.with_name("n1.recording.jsonl"))
    assert main(["replay", str(path), str(other)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{name}: 5 entries, all effects are equal" for name in (path, other)]


def test_the_first_entry_that_differs_is_named_and_ends_with_1(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the line of the file, the event, and both effects."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"FormRound","round":1', '"FormRound","round":2'), encoding="utf-8")
    assert main(["replay", str(path)]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert f"{path}:3: entry 2, NodeJoined at 0.250 s: effect 1 was FormRound(round=2" in said.err
    assert "and is FormRound(round=1" in said.err


def test_until_prints_the_state_of_the_scheduler(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a person looks for first: state, members, chunks by node."""
    assert main(["replay", str(path), "--until", "4"]) == 0
    said = capsys.readouterr().out
    assert f"entry 4 ({path}:5), entry 4 of the job's log, at 1.000 s" in said
    assert "event    ChunksLoaded(chunks=(0,), node='n0', round=1)" in said
    for line in ('  state           "moving"', "    loading    2 (1-2)", "    owned      1 (0)", '  formed   ["n0"]'):
        assert line in said.splitlines()


def test_until_shows_the_state_of_the_entry_that_differs_before_the_complaint(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that the entry can be looked into."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"FormRound","round":1', '"FormRound","round":2'), encoding="utf-8")
    assert main(["replay", str(path), "--until", "2"]) == 1
    said = capsys.readouterr()
    assert '  state           "forming"' in said.out.splitlines()
    assert "effect 1 was" in said.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--until", "6"], "5 entries; the first one is 1"),
        (["--until", "0"], "5 entries; the first one is 1"),
        (["another", "--until", "1"], "name one file"),
    ],
)
def test_an_entry_that_is_not_there_is_an_error_of_usage(
    path: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    assert main(["replay", str(path), *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_a_file_that_is_cut_off_is_replayed_up_to_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job was killed; the note says which line is left out."""
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["replay", str(path)]) == 0
    said = capsys.readouterr().out
    assert "4 entries, all effects are equal\n" in said
    assert f"{path}:6 is cut off: the process ended while it wrote the line, which is left out" in said


def test_a_compressed_recording_is_read_and_a_damaged_one_is_named(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its suffix."""
    packed = path.with_name("n0.recording.jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert main(["replay", str(packed)]) == 0
    assert "5 entries, all effects are equal" in capsys.readouterr().out
    packed.write_bytes(packed.read_bytes()[:-40])
    assert main(["replay", str(packed)]) == 1
    assert f"{packed}: cannot be unpacked" in capsys.readouterr().err


def test_a_bent_line_says_what_is_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The entries before it are good for --until."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:4], "bent\n", *lines[5:]]), encoding="utf-8")
    assert main(["replay", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"{path}:5: not a line of a recording: 'bent" in said
    assert "the 3 entries before it can be replayed" in said
    assert main(["replay", str(path), "--until", "3"]) == 0


def test_a_foreign_file_and_a_missing_one_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and no stack trace."""
    foreign = tmp_path / "picture.png"
    foreign.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00" + bytes(range(256)))
    assert main(["replay", str(foreign)]) == 1
    said = capsys.readouterr().err
    assert f"{foreign}:1: not a line of a recording" in said
    assert "recordings are the files *.recording.jsonl of a log folder" in said
    assert main(["replay", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
