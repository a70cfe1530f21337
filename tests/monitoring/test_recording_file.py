"""The file of a recording: rotated, behind a disk that hangs, and behind a process that was killed."""

import os
import threading
from pathlib import Path

import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.line_writer import rotated
from chicle_elastic.monitoring.recording_file import RecordingFile, new_recording
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.recording import Recorder
from chicle_elastic.scheduling.replaying import Replay
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.values import TaskReport
from tests.scheduling.stage import infos
from tests.timeouts import timeout_s

A = NodeId("a")


def begin(sink: RecordingFile) -> Recorder:
    """A job with one node, in iteration 1."""
    recorder = Recorder(Scheduler(SchedulerSettings()), sink)
    recorder.handle(events.ChunksDeclared(chunks=infos(2)), now=0.0)
    recorder.handle(events.NodeJoined(node=A), now=0.0)
    recorder.handle(events.RoundFormed(round=1, members=(A,)), now=0.0)
    recorder.handle(events.ChunksLoaded(chunks=tuple(info.id for info in infos(2)), node=A, round=1), now=0.0)
    return recorder


def iterate(recorder: Recorder, first: int, last: int) -> None:
    """Iterations that end."""
    for iteration in range(first, last + 1):
        reports = {A: TaskReport(samples=1, duration_s=0.5)}
        recorder.handle(events.IterationFinished(round=1, iteration=iteration, reports=reports), now=float(iteration))


def folded(path: Path) -> Replay:
    """The recording, folded again without a difference."""
    replay = Replay(path)
    assert [step.difference for step in replay if step.difference] == []
    return replay


def test_a_job_is_recorded_whole(tmp_path: Path) -> None:
    """All entries, in order."""
    path = tmp_path / "n0.recording.jsonl"
    with RecordingFile(path) as file:
        iterate(begin(file), 1, 50)
    assert folded(path).num_entries == 54
    assert [step.index for step in Replay(path)] == list(range(1, 55))


def test_a_large_file_is_rotated_and_each_one_replays_alone(tmp_path: Path) -> None:
    """A snapshot begins the new file; no entry is missing."""
    path = tmp_path / "n0.recording.jsonl"
    with RecordingFile(path, max_file_bytes=5000) as file:
        recorder = begin(file)
        for iteration in range(1, 41):
            iterate(recorder, iteration, iteration)
            assert file.flush(timeout_s(10))
    files = [rotated(path, number) for number in (3, 2, 1) if rotated(path, number).exists()] + [path]
    assert len(files) > 1
    assert all(folded(each).num_parts == 1 for each in files)
    indices = [step.index for each in files for step in Replay(each)]
    assert indices == list(range(indices[0], 45))


def test_a_part_follows_the_half_line_of_a_process_that_was_killed(tmp_path: Path) -> None:
    """The next agent of that node appends."""
    path = tmp_path / "n0.recording.jsonl"
    with RecordingFile(path) as file:
        begin(file)
    path.write_bytes(path.read_bytes()[:-30])
    with RecordingFile(path) as file:
        begin(file)
    replay = folded(path)
    assert (replay.num_parts, replay.num_entries) == (2, 7)
    assert len(replay.notes) == 1


def test_a_disk_that_hangs_costs_entries_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The job goes on. What has no room is left out; a snapshot follows, so all that was written can be replayed."""
    pipe = tmp_path / "n0.recording.jsonl"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # so that the file can be opened; no thread reads for now
    os.set_blocking(reader, True)
    content = bytearray()

    def read() -> None:
        while data := os.read(reader, 1 << 16):
            content.extend(data)

    with RecordingFile(pipe, max_waiting_bytes=100_000) as file:
        recorder = begin(file)
        iterate(recorder, 1, 3000)
        assert "does not keep up" in caplog.text
        thread = threading.Thread(target=read)
        thread.start()
        assert file.flush(timeout_s(20))
        iterate(recorder, 3001, 3010)
    thread.join(timeout_s(20))
    assert not thread.is_alive()
    os.close(reader)
    lines = content.decode().splitlines(keepends=True)
    steps = [(step.index, step.difference) for step in Replay(lines)]
    assert all(difference is None for _, difference in steps)
    indices = [index for index, _ in steps]
    assert indices[:4] == [1, 2, 3, 4]
    assert indices[-1] == 3014
    assert len(indices) < 3014
    assert any("were left out: the disk was too slow" in line for line in lines)


def test_each_process_writes_a_file_of_its_own(tmp_path: Path) -> None:
    """The next free name; the folder is made."""
    for name in ("job", "job-2", "job-3"):
        with new_recording(tmp_path / "logs", "job") as file:
            begin(file)
        assert folded(tmp_path / "logs" / f"{name}.recording.jsonl").num_entries == 4


def test_no_empty_file_is_left_behind(tmp_path: Path) -> None:
    """By an agent whose job never began."""
    path = tmp_path / "n0.recording.jsonl"
    with RecordingFile(path):
        assert path.exists()
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Before the job begins."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"no recording can be written to the log folder .*file: .*; name another"):
        new_recording(tmp_path / "file", "job")
