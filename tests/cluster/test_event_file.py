"""What happens to an event file when its disk is full."""

from pathlib import Path

import pytest

from chicle_elastic.cluster.event_file import SUFFIX, EventFile, EventTail
from chicle_elastic.ids import NodeId


def test_a_full_disk_ends_the_file_and_not_the_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning with the reason; whoever else is told goes on to be told. /dev/full is a real full disk."""
    (tmp_path / f"n0{SUFFIX}").symlink_to("/dev/full")
    told: list[object] = []
    with EventFile(tmp_path, NodeId("n0"), tell=told.append) as file:
        file.write("joined")
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
