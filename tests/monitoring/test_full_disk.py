"""Files of a job on a disk that is full for a while: they go on when there is room, and hold whole entries only."""

from pathlib import Path

import pytest

from tests.mounts import run_mounted

DISK = """
import os, sys, time
from pathlib import Path
from chicle_elastic.monitoring import line_writer

line_writer.RETRY_S = 0.05
disk = Path("disk").absolute()

def fill():
    with open(disk / "fill", "wb", buffering=0) as file:
        try:
            while file.write(bytes(512)):
                pass
        except OSError:
            pass

def is_written(writer):
    until_s = time.monotonic() + 60
    while not writer.flush(1.0) and time.monotonic() < until_s:
        time.sleep(0.01)
    return writer.flush(1.0)
"""
EVENTS = """
from chicle_elastic.cluster.net.event_file import EventFile, read_events

with EventFile(disk, "n0") as file:
    for number in range(300):
        if number == 50:
            assert file.flush(60)
            fill()
        if number == 200:
            assert not file.flush(60)
            (disk / "fill").unlink()
            assert is_written(file)
        file.write("round", number=number, text="x" * 700)
        if 50 <= number < 200:
            file.flush(60)
            assert [event["number"] for event in read_events(disk)] == list(range(len(list(read_events(disk)))))
print([event["number"] for event in read_events(disk)] == list(range(300)))
"""
RECORDING = """
from chicle_elastic.monitoring.recording_file import RecordingFile
from tests.monitoring.test_recording_file import begin, folded, iterate

path = disk / "n0.recording.jsonl"
with RecordingFile(path, max_file_bytes={max_file_bytes}, max_waiting_bytes={max_waiting_bytes}) as file:
    recorder = begin(file)
    iterate(recorder, 1, 20)
    assert file.flush(60)
    fill()
    iterate(recorder, 21, 2000)
    assert not file.flush(60)
    (disk / "fill").unlink()
    assert is_written(file)
    iterate(recorder, 2001, 2010)
print([step.index for step in folded(path)][-1] == 2014)
"""
BOARD = """
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.monitoring.tensorboard import TensorBoardWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

with TensorBoardWriter(disk / "run", draw=None) as writer:
    for number in range(1, 301):
        if number == 50:
            assert writer._writer.flush(60)
            fill()
        if number == 200:
            assert not writer._writer.flush(60)
            (disk / "fill").unlink()
            assert is_written(writer._writer)
        writer.write(IterationRecord(iteration=number, epochs=1.0, time_s=number, num_tasks=1, samples=1))
board = EventAccumulator(str(disk / "run"), size_guidance={"scalars": 0})
board.Reload()
print([event.step for event in board.Scalars("job/epochs")] == list(range(1, 301)))
"""


@pytest.mark.parametrize(
    "program",
    [
        EVENTS,
        RECORDING.format(max_file_bytes=1 << 20, max_waiting_bytes=16 << 20),
        RECORDING.format(max_file_bytes=30_000, max_waiting_bytes=16 << 20),
        RECORDING.format(max_file_bytes=1 << 20, max_waiting_bytes=20_000),
        BOARD,
    ],
    ids=["event file", "recording", "recording that is rotated", "recording with entries left out", "TensorBoard"],
)
def test_a_file_goes_on_when_there_is_room_again(tmp_path: Path, program: str) -> None:
    """Nothing is lost that could wait; no half of an entry stays before the next one."""
    (tmp_path / "disk").mkdir()
    run = run_mounted("mount -t tmpfs -o size=2m tmpfs $folder/disk", DISK + program, folder=tmp_path)
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr
    assert run.stderr.count("No space left on device") == 1
