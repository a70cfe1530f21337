"""The event file: a disk that is full, that hangs or fills up; and those who read it while it grows and is rotated."""

import json
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic import disk_watch
from chicle_elastic.cluster.net.event_file import DROPPED, PLENTIFUL, SUFFIX, EventFile, EventTail, read_events
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring import line_writer
from chicle_elastic.monitoring.line_writer import NUM_KEPT, LineWriter, newest_first
from tests.timeouts import comes, timeout_s

NODE = NodeId("n0")


def test_a_disk_that_stays_full_does_not_hold_the_node_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning with the reason; TensorBoard goes on to be told. /dev/full is a real full disk."""
    (tmp_path / f"n0{SUFFIX}").symlink_to("/dev/full")
    told: list[object] = []
    with EventFile(tmp_path, NODE, tell=told.append) as file:
        file.write("joined")
        assert not file.flush(timeout_s(10))
        file.write("left")
    assert "No space left on device" in caplog.text
    assert len(caplog.records) == 1
    assert len(told) == 2


def test_a_tail_reads_each_whole_line_once(tmp_path: Path) -> None:
    """There may be no file yet, and half a line is left for the next time, also in the middle of a letter."""
    tail = EventTail(tmp_path, "n0")
    assert tail.read() == []
    path = tmp_path / f"n0{SUFFIX}"
    line = '{"kind":"left","text":"ü"}\n'.encode()
    middle = line.index("ü".encode()) + 1
    path.write_bytes(b'{"kind":"joined"}\n' + line[:middle])
    assert tail.read() == [{"kind": "joined"}]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(line[middle:])
    assert tail.read() == [{"kind": "left", "text": "ü"}]


def test_every_line_is_in_the_file_when_it_is_closed(tmp_path: Path) -> None:
    """In the order of the calls, also where an error ends the block; what JSON has no numbers for is null."""

    def fail() -> None:
        with EventFile(tmp_path, NODE) as file:
            for number in range(5000):
                file.write("iteration", iteration=number, figures={"gap": math.nan, 7: math.inf}, chunks=(1, 2))
            raise KeyError("the agent fails")

    with pytest.raises(KeyError, match="the agent fails"):
        fail()
    events = list(read_events(tmp_path))
    assert [event["iteration"] for event in events] == list(range(5000))
    assert events[0]["figures"] == {"gap": None, "7": None}
    assert (events[0]["node"], events[0]["kind"], events[0]["chunks"]) == ("n0", "iteration", [1, 2])


class Disk:
    """A disk that hangs: a pipe with nothing that reads it, until `recover`."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._content = bytearray()
        self._thread: threading.Thread | None = None

    def recover(self) -> None:
        """Take everything from now on."""
        os.set_blocking(self._fd, True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def lines(self) -> list[dict]:
        """All lines that have come, once the writer has closed the file."""
        assert self._thread is not None
        self._thread.join(timeout_s(10))
        assert not self._thread.is_alive()
        return [json.loads(line) for line in self._content.splitlines()]

    def close(self) -> None:
        """Let a writer that waits go on."""
        if self._thread is None:
            self.recover()
        self.lines()
        os.close(self._fd)

    def _read(self) -> None:
        while data := os.read(self._fd, 1 << 16):
            self._content += data


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Under the file of the node."""
    disk = Disk(tmp_path / f"n0{SUFFIX}")
    yield disk
    disk.close()


def test_a_disk_that_hangs_holds_nothing_up_and_loses_no_essential_line(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`write` returns while not a byte can be written; what was dropped is counted where it would have been."""
    monkeypatch.setattr(line_writer.LineWriter.__init__, "__kwdefaults__", _limits(max_waiting_bytes=200_000))
    num_written = 20_000
    with EventFile(tmp_path, NODE) as file:
        for number in range(num_written):
            file.write("lost" if number % 1000 == 0 else "ledger", number=number, chunks=tuple(range(30)))
        disk.recover()
    lines = disk.lines()
    come = [line for line in lines if line["kind"] != DROPPED]
    assert [line["number"] for line in come if line["kind"] == "lost"] == list(range(0, num_written, 1000))
    assert [line["number"] for line in come] == sorted(line["number"] for line in come)
    dropped = [line["count"] for line in lines if line["kind"] == DROPPED]
    assert sum(dropped) == num_written - len(come)
    assert dropped
    assert len(come) > 20
    assert come[-1]["number"] == num_written - 1, "the newest are kept"


def test_essential_lines_are_bounded_as_well(tmp_path: Path, disk: Disk) -> None:
    """The oldest go, and are counted."""
    writer = LineWriter(
        tmp_path / f"n0{SUFFIX}", told_of_drops=lambda count: b'{"count":%d}\n' % count, max_waiting_bytes=1000
    )
    for number in range(50_000):
        writer.write(b'{"number":%d}\n' % number, is_essential=True)
    disk.recover()
    writer.close()
    lines = disk.lines()
    come = [line["number"] for line in lines if "number" in line]
    assert come[-1] == 49_999
    assert sum(line.get("count", 0) for line in lines) == 50_000 - len(come)


def test_a_disk_that_hangs_is_told_of_once(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nothing more is written: by the thread that watches files in use, whatever hangs first."""
    monkeypatch.setattr(disk_watch, "HANGS_S", 0.01)
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    path = tmp_path / f"n0{SUFFIX}"
    writer = LineWriter(path, told_of_drops=lambda count: b"")
    writer.write(b'"' + b"x" * (1 << 20) + b'"\n', is_essential=True)
    assert comes(lambda: len(caplog.messages) == 1, 10)
    other = tmp_path / "other"
    with disk_watch.asking(other):
        assert comes(lambda: len(caplog.messages) == 2, 10)
    with disk_watch.asking(other):
        assert comes(lambda: len(caplog.messages) == 3, 10)
    assert all(str(told) in message for told, message in zip((path, other, other), caplog.messages, strict=True))
    disk.recover()
    writer.close()


def test_the_end_of_a_process_does_not_wait_for_ever(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`close` gives up on a disk that hangs, and says so."""
    monkeypatch.setattr(line_writer, "CLOSE_S", 0.01)
    file = EventFile(tmp_path, NODE)
    for _ in range(2000):
        file.write("ledger", chunks=tuple(range(100)))
    file.close()
    assert "the disk hangs" in caplog.text
    [writer] = [thread for thread in threading.enumerate() if thread.name == "chicle-event-file"]
    disk.recover()
    writer.join(timeout_s(10))
    assert not writer.is_alive()
    file._writer._file.close()


def _limits(**changed: int) -> dict[str, int]:
    return {**LineWriter.__init__.__kwdefaults__, **changed}


def test_a_file_is_rotated_and_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five files at most, none larger than the limit; readers find all that is left, once and in order."""
    monkeypatch.setattr(LineWriter.__init__, "__kwdefaults__", _limits(max_file_bytes=2000))
    other = EventFile(tmp_path, NodeId("n10"))
    other.write("joined")
    other.close()
    tail, seen = EventTail(tmp_path, "n0"), []
    with EventFile(tmp_path, NODE) as file:
        for number in range(300):
            file.write("iteration", iteration=number)
            if number % 3 == 0:
                assert file.flush(timeout_s(10))
            if number % 40 == 39:
                seen += [event["iteration"] for event in tail.read()]
    seen += [event["iteration"] for event in tail.read()]
    assert seen == list(range(300))
    paths = newest_first(tmp_path / f"n0{SUFFIX}")
    assert [path.exists() for path in paths] == [True] * (NUM_KEPT + 1)
    assert all(0 < path.stat().st_size <= 2000 for path in paths)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in paths} | {f"n10{SUFFIX}"}
    kept = [event["iteration"] for event in read_events(tmp_path, "n0")]
    assert kept == list(range(kept[0], 300))
    assert 0 < kept[0] < 250
    assert [event["node"] for event in read_events(tmp_path)] == ["n0"] * len(kept) + ["n10"]


def test_a_file_that_an_earlier_agent_left_counts(tmp_path: Path) -> None:
    """An agent of the same name appends; the bytes of the earlier one are part of the limit."""
    path = tmp_path / "lines"
    for number in range(3):
        writer = LineWriter(path, told_of_drops=lambda count: b"", max_file_bytes=100)
        writer.write(b"%d" % number * 59 + b"\n", is_essential=True)
        writer.close()
    assert [found.read_bytes()[:1] for found in newest_first(path) if found.exists()] == [b"2", b"1", b"0"]


def test_most_kinds_are_essential() -> None:
    """The kinds that tests and users judge a job by are kept as long as there is any room."""
    assert not PLENTIFUL & {"joined", "lost", "noticed", "round", "group", "failed", "finished", "ended", "task_died"}
