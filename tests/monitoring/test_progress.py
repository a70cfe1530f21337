"""The bar of a fit: told by a clock that the test moves."""

import io
import itertools

import pytest

from chicle_elastic.monitoring.progress import FitProgress
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.testing.virtual_clock import VirtualClock


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def record(
    iteration: int, *, gap: float | None = None, tasks: int = 2, events: tuple[str, ...] = ()
) -> IterationRecord:
    """What a fit tells."""
    figures = {} if gap is None else {"duality_gap_estimate": gap}
    return IterationRecord(
        iteration=iteration, epochs=1, time_s=1, num_tasks=tasks, samples=1, figures=figures, events=events
    )


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal is as wide as most are, wherever the tests run."""
    monkeypatch.setenv("COLUMNS", "80")


def test_a_terminal_gets_one_bar_with_gap_members_and_the_last_event() -> None:
    """Redrawn in place at most ten times a second, and gone at the end."""
    stream, clock = Terminal(), VirtualClock()
    progress = FitProgress(stream, clock, label="ChicleSVM", max_iterations=1000, tol=1e-3)
    for iteration in range(1, 101):
        gap = 10 ** (-3 * iteration / 100)
        events = ("n3 joined",) if iteration == 50 else ()
        progress.update(record(iteration, gap=gap, tasks=2 + (iteration >= 50), events=events))
        clock.advance(1 / 64)
    progress.finish()
    drawn = stream.getvalue().split("\r")[1:]
    assert len(drawn) == 99 // 7 + 2
    assert drawn[1].startswith("ChicleSVM [##------------]  14%  iteration 15  gap 3.5e-01 of 1e-03  2 members")
    assert drawn[-3].rstrip().endswith("3 members  n3 joined"), "the bar is shorter then"
    assert drawn[-2].strip() == drawn[-1] == ""
    assert max(map(len, drawn)) <= 80


def test_a_log_gets_a_plain_line_for_every_event_and_every_few_seconds() -> None:
    """No bar and no carriage return."""
    stream, clock = io.StringIO(), VirtualClock()
    progress = FitProgress(stream, clock, label="ChicleSVM", max_iterations=100)
    for iteration in range(1, 11):
        clock.advance(1)
        progress.update(record(iteration, tasks=1, events=("n1 left",) if iteration == 3 else ()))
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "ChicleSVM   3%  iteration 3  1 member  n1 left",
        "ChicleSVM   8%  iteration 8  1 member  n1 left",
    ]


@pytest.mark.parametrize("tol", [0.0, 1e-3, 10.0])
def test_the_bar_never_goes_back_and_never_beyond_its_end(tol: float) -> None:
    """Whatever the gap does: estimates go up and down, and may be 0, negative or NaN."""
    stream, clock = Terminal(), VirtualClock()
    progress = FitProgress(stream, clock, label="fit", max_iterations=12, tol=tol)
    for iteration, gap in enumerate([1.0, 0.5, 2.0, 1e-9, 0.0, -1.0, float("nan"), 0.1, 1e-3], start=1):
        clock.advance(1)
        progress.update(record(iteration, gap=gap))
    shares = [int(line.partition("%")[0].split()[-1]) for line in stream.getvalue().split("\r") if "%" in line]
    assert all(before <= after for before, after in itertools.pairwise(shares))
    assert 0 <= shares[0] <= shares[-1] <= 100


def test_without_a_gap_the_loss_is_shown() -> None:
    """For trainers that have no certificate."""
    stream, clock = Terminal(), VirtualClock()
    progress = FitProgress(stream, clock, label="fit", max_iterations=4)
    clock.advance(1)
    progress.update(IterationRecord(iteration=1, epochs=1, time_s=1, num_tasks=1, samples=1, figures={"loss": 0.25}))
    assert stream.getvalue().strip() == "fit [####----------]  25%  iteration 1  loss 0.25  1 member"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (61, "fit [#######-------]  50%  iteration 2  2 members  n3 joined"),
        (52, "fit [##---]  50%  iteration 2  2 members  n3 joined"),
        (48, "fit  50%  iteration 2  2 members  n3 joined"),
        (30, "fit  50%  iteration 2  2 memb"),
    ],
)
def test_the_bar_gives_way_to_the_words(monkeypatch: pytest.MonkeyPatch, columns: int, expected: str) -> None:
    """What happened last is worth more than the picture of a number that is there, too."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream, clock = Terminal(), VirtualClock()
    progress = FitProgress(stream, clock, label="fit", max_iterations=4)
    clock.advance(1)
    progress.update(record(2, events=("n3 joined",)))
    assert stream.getvalue() == "\r" + expected
