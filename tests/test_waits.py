"""Lines about long waits: where they go, what silences them, and that a short wait has none."""

import logging
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from chicle_elastic import waits
from chicle_elastic.waits import Wait
from tests.programs import run_python
from tests.timeouts import comes, timeout_s

LOGGER = "chicle"
AT_ONCE_S = 0.01
NEVER_S = 1e6


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """The level of the logger is that of a fresh process, before and after."""
    logger = logging.getLogger(LOGGER)
    before = logger.level
    logger.setLevel(logging.NOTSET)
    yield
    logger.setLevel(before)


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in which nothing has set up logging; `tell` is there."""
    return run_python("-c", "from chicle_elastic.waits import tell\n" + program, **environment)


def test_a_long_wait_is_explained_by_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """While it lasts, as a record of level INFO."""
    with Wait("importing the world", after_s=AT_ONCE_S) as wait:
        assert comes(lambda: wait.is_told, 10, poll_s=0.001)
    assert [(record.name, record.levelno, record.getMessage()) for record in caplog.records] == [
        (LOGGER, logging.INFO, "importing the world")
    ]


def test_a_short_wait_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """And leaves no thread that would still tell it."""
    num_threads = threading.active_count()
    with Wait("blinking", after_s=NEVER_S) as wait:
        assert threading.active_count() == num_threads + 1
    assert comes(lambda: threading.active_count() <= num_threads, 10, poll_s=0.001)
    assert not wait.is_told
    assert not caplog.records


def test_a_wait_that_is_over_is_not_told_however_late_its_timer_is(caplog: pytest.LogCaptureFixture) -> None:
    """The timer has gone off and waits for the screen while the wait ends."""
    wait = Wait("too late", after_s=0.0)
    with waits.screen:
        wait.start()
        wait.stop()
    wait._timer.join()
    assert not caplog.records


BASIC, LOGGER_OF_OURS = "logging.basicConfig()", "logging.getLogger('chicle')"


@pytest.mark.parametrize(
    ("setup", "environ", "shown"),
    [
        ("pass", {}, "chicle: starting\n"),  # stdout belongs to the program
        (BASIC, {}, "INFO:chicle:starting\n"),  # also where the root logger is for warnings only, as it is by default
        ("logging.basicConfig(level='INFO')", {}, "INFO:chicle:starting\n"),
        # Some notebooks come with a handler for warnings only, which does not swallow the line.
        (f"{BASIC}; logging.root.handlers[0].setLevel('WARNING')", {}, "chicle: starting\n"),
        (f"{LOGGER_OF_OURS}.setLevel(logging.WARNING)", {}, ""),
        (f"{LOGGER_OF_OURS}.disabled = True", {}, ""),
        ("logging.disable(logging.INFO)", {}, ""),
        ("pass", {"CHICLE_WAITS": "OFF"}, ""),
        ("pass", {"CHICLE_WAITS": "0"}, ""),
        ("import sys; sys.stderr = None", {}, ""),  # as with pythonw
    ],
)
def test_a_line_goes_where_the_program_sends_it(setup: str, environ: dict[str, str], shown: str) -> None:
    """To its handlers in their form, else to stderr; logging and the environment silence it."""
    done = run(f"import logging\n{setup}\ntell('starting')\nprint('on')", **environ)
    assert (done.stdout, done.stderr) == ("on\n", shown)


def test_the_line_comes_above_a_bar_of_tqdm() -> None:
    """And not behind it, on the same line."""
    pytest.importorskip("tqdm")
    program = (
        "import sys, tqdm\n"
        "with tqdm.tqdm(total=2, ncols=40) as bar:\n"
        "    bar.update()\n"
        "    tell('starting')\n"
        "    bar.update()\n"
    )
    lines = run(program).stderr.replace("\r", "\n").split("\n")
    assert "chicle: starting" in lines


def test_the_line_comes_above_the_bar_of_a_fit() -> None:
    """On a terminal: the bar is cleared, the line is written, and the bar is drawn again below it."""
    program = """
import sys
from chicle_elastic import waits
from chicle_elastic.monitoring import progress
from chicle_elastic.monitoring.records import IterationRecord
from estimators.watch import watcher
progress.REDRAW_S = 0.0
record = IterationRecord(iteration=1, epochs=1, time_s=1, num_tasks=1, samples=1, figures={"duality_gap": 0.5})
with watcher("Fit", verbose=1, logdir=None, max_iter=2, tol=0.1) as told:
    told.on_iteration(record)
    waits.tell("starting")
    told.on_iteration(record)
waits.tell("after")
"""
    shown = run_on_terminal(program)
    before, after = shown.split("chicle: starting\r\n")
    cleared = before.split("\r")
    assert cleared[1].startswith("Fit [")
    assert cleared[2].strip() == ""
    assert cleared[-1] == ""
    assert after.startswith("\rFit [")
    assert shown.endswith("\rchicle: after\r\n")


def run_on_terminal(program: str) -> str:
    """What a terminal gets of a program, on stdout and stderr."""
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs, stdin=theirs)
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        assert child.wait(timeout_s(60)) == 0, shown
    finally:
        os.close(ours)
    return shown.decode()


def test_lines_are_told_through_another_process(caplog: pytest.LogCaptureFixture) -> None:
    """As long as there is one to tell them."""
    told: list[str] = []
    with waits.tell_through(told.append):
        waits.tell("compiling")
    waits.tell("here again")
    assert told == ["compiling"]
    assert caplog.messages == ["here again"]


def test_where_nobody_is_told_no_thread_is_started(caplog: pytest.LogCaptureFixture) -> None:
    """A process that forks may have none."""
    with waits.tell_through(None):
        num_threads = threading.active_count()
        with Wait("compiling", after_s=NEVER_S):
            assert threading.active_count() == num_threads
        waits.tell("compiling")
    assert not caplog.records
