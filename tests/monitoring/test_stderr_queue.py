"""What Python prints on stderr while nobody reads it: nobody waits, and what is lost is counted."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from chicle_elastic.monitoring import line_writer
from chicle_elastic.monitoring.stderr_queue import stderr_queue


@contextlib.contextmanager
def pipe_in_place_of_stderr() -> Iterator[BinaryIO]:
    """Within this, stderr is a pipe with this other end."""
    receiver, sender = os.pipe()
    with open(receiver, "rb") as reader, open(sender, "w") as stderr, contextlib.redirect_stderr(stderr):
        yield reader


def test_nobody_waits_for_stderr_and_what_was_dropped_is_counted() -> None:
    """The lines that come are whole and in order, the newest among them; a pipe may be one that does not block."""
    lines: list[bytes] = []
    with pipe_in_place_of_stderr() as reader:
        reading = threading.Thread(target=lambda: lines.extend(reader))
        stderr = sys.stderr
        os.set_blocking(stderr.fileno(), False)
        with stderr_queue():
            for number in range(50_000):
                print(number, "x" * 60, file=sys.stderr)
            reading.start()
        stderr.close()
        reading.join()
    numbers = [int(line.split()[0]) for line in lines if not line.startswith(b"chicle")]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 49_999
    dropped = [int(line.split()[1]) for line in lines if line.startswith(b"chicle")]
    assert dropped
    assert sum(dropped) == 50_000 - len(numbers)


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """And prints no more, not even a line about it."""
    monkeypatch.setattr(line_writer, "CLOSE_S", 0.01)
    with pipe_in_place_of_stderr() as reader:
        with stderr_queue():
            print("x" * 1_000_000, file=sys.stderr)
        [writer] = [thread for thread in threading.enumerate() if thread.name == "chicle-stderr"]
        assert len(reader.read(1_000_001)) == 1_000_001
        writer.join()


def test_a_stderr_that_is_closed_or_absent_is_no_error(tmp_path: Path) -> None:
    """Neither is a pipe that nobody reads any more."""
    with pipe_in_place_of_stderr() as reader:
        reader.close()
        with stderr_queue():
            print("x", file=sys.stderr)
    closed = (tmp_path / "closed").open("w")
    closed.close()
    for stream in (None, closed):
        with contextlib.redirect_stderr(stream), stderr_queue():
            assert sys.stderr is stream
