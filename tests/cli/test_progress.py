"""Progress: a bar for people, plain lines for logs, told by a clock that the test moves."""

import io

import pytest

from chicle_elastic.cli.progress import Progress
from chicle_elastic.scheduling.text import bytes_text
from chicle_elastic.testing.virtual_clock import VirtualClock

MIB = 1 << 20


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_a_log_gets_one_plain_line_every_few_seconds() -> None:
    """No bar, no carriage return, and nothing at all for what takes no time."""
    stream, clock = io.StringIO(), VirtualClock()
    progress = Progress(stream, clock, label="a.csv", total=100 * MIB)
    for done in range(0, 101):
        progress.update(1000 * done, done * MIB)
        clock.advance(0.125)
    progress.close()
    assert stream.getvalue() == (
        "a.csv   40%  40.0 MiB of 100.0 MiB  40,000 rows  8 s left\n"
        "a.csv   80%  80.0 MiB of 100.0 MiB  80,000 rows  2 s left\n"
    )


def test_a_terminal_gets_a_bar_that_is_redrawn_and_cleared() -> None:
    """Redrawn in place, ten times a second at most, and gone at the end."""
    stream, clock = Terminal(), VirtualClock()
    progress = Progress(stream, clock, label="a.csv", total=100 * MIB)
    for done in range(0, 101):
        progress.update(10 * done, done * MIB)
        clock.advance(1 / 64)
    progress.close()
    drawn = stream.getvalue().split("\r")[1:]
    assert len(drawn) == 100 // 7 + 2
    assert all("\n" not in line for line in drawn)
    assert drawn[1].startswith("a.csv [##------------]  14%  14.0 MiB of 100.0 MiB  140 rows")
    assert drawn[-2].strip() == drawn[-1] == ""
    assert max(map(len, drawn)) <= 80


@pytest.mark.parametrize(
    ("total", "is_bytes", "num_rows", "done", "line"),
    [
        (2000, False, 500, 500, "a   25%  500 rows  18 s left\n"),  # the second half of a conversion counts rows
        (0, True, 1234, 0, "a  1,234 rows  6 s\n"),  # a pipe has no size
        (10, True, 0, 0, "a    0%  0 B of 10 B  0 rows\n"),  # nothing is done yet: no time is promised
    ],
)
def test_a_line_says_what_is_known(total: int, is_bytes: bool, num_rows: int, done: int, line: str) -> None:
    """After six seconds."""
    stream, clock = io.StringIO(), VirtualClock()
    progress = Progress(stream, clock, label="a", total=total, is_bytes=is_bytes)
    clock.advance(6)
    progress.update(num_rows, done)
    assert stream.getvalue() == line


def test_sizes_are_shown_in_the_unit_that_suits_them() -> None:
    """From bytes to TiB."""
    sizes = [0, 1023, 1024, 1536 * 1024, 5 << 30, 3 << 40]
    assert [bytes_text(size) for size in sizes] == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5.0 GiB", "3.0 TiB"]
