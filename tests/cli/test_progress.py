"""Progress: a bar for people, plain lines for logs, told by a clock that the test moves."""

import io

from chicle_elastic.cli.progress import Progress, format_bytes
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


def test_rows_of_a_known_number_are_shown_without_bytes() -> None:
    """The second half of a conversion counts rows."""
    stream, clock = io.StringIO(), VirtualClock()
    progress = Progress(stream, clock, label="writing", total=2000, is_bytes=False)
    clock.advance(6)
    progress.update(500, 500)
    assert stream.getvalue() == "writing   25%  500 rows  18 s left\n"


def test_without_a_known_size_rows_and_time_are_shown() -> None:
    """A pipe has no size."""
    stream, clock = io.StringIO(), VirtualClock()
    progress = Progress(stream, clock, label="pipe", total=0)
    clock.advance(6)
    progress.update(1234, 0)
    assert stream.getvalue() == "pipe  1,234 rows  6 s\n"


def test_nothing_done_yet_promises_no_time() -> None:
    """No division by the 0 bytes that are done."""
    stream, clock = io.StringIO(), VirtualClock()
    progress = Progress(stream, clock, label="a", total=10)
    clock.advance(6)
    progress.update(0, 0)
    assert stream.getvalue() == "a    0%  0 B of 10 B  0 rows\n"


def test_sizes_are_shown_in_the_unit_that_suits_them() -> None:
    """From bytes to TiB."""
    sizes = [0, 1023, 1024, 1536 * 1024, 5 << 30, 3 << 40]
    assert [format_bytes(size) for size in sizes] == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5.0 GiB", "3.0 TiB"]
