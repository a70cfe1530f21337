"""Explains a wait that looks like a hang by one line, once it has lasted for a second.

    with Wait("importing torch (some seconds, once)"):
        import torch

    chicle: importing torch (some seconds, once)

Fits print nothing by default, as those of scikit-learn; but the first compilation of the kernels takes ten seconds, and
so does the start of a local cluster: a new user would press Ctrl-C. `verbose=0` does not silence these lines, because
it is the default and does not express a wish. To silence them:

    CHICLE_WAITS=off                                        in the environment
    logging.getLogger("chicle").setLevel(logging.WARNING)   in a program

The lines are records of level INFO of that logger. Where the program has handlers for them, these show them; where it
has none, they go to stderr, which leaves stdout to the program, and above a bar that is being drawn. In a notebook they
go to stdout, because it shows stderr as if something were wrong.

A task of a local cluster, whose output the user does not see, has the driver print its lines: `tell_through`.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from chicle_elastic import notebook
from chicle_elastic.settings import Settings
from chicle_elastic.surroundings import encodable, write

__all__ = ["PATIENCE_S", "Wait", "above", "cleared", "screen", "tell", "tell_through"]

PATIENCE_S = 1.0  # how long a wait may last without a line

Say: TypeAlias = Callable[[str], None]

logger = logging.getLogger("chicle")
screen = threading.RLock()  # held by the thread that draws a bar, and while a line is written above it

_bars: list[Callable[[], None]] = []
_others: list[Say | None] = []  # the last one counts


class Wait:
    """A line that is shown if the wait is not over after a moment; a context manager that lasts as long as the wait.

    Args:
        text: What takes so long, with the time that it takes and whether it will take it again.
    """

    def __init__(self, text: str, *, after_s: float = PATIENCE_S) -> None:
        self.text = text  # as given; it may be changed while it has not been told
        self.is_told = False  # whether the line was shown
        self._is_over = False
        self._timer = threading.Timer(max(0.0, after_s), self._tell)
        self._timer.name, self._timer.daemon = "chicle-wait", True

    def start(self) -> "Wait":
        """The wait begins."""
        if not _others or _others[-1] is not None:
            self._timer.start()
        return self

    def stop(self) -> None:
        """The wait is over: no line comes any more. May be called again."""
        with screen:
            self._is_over = True
        self._timer.cancel()

    def __enter__(self) -> "Wait":
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _tell(self) -> None:
        with screen:
            if not self._is_over:
                self.is_told = True
                tell(self.text)


def tell(text: str) -> None:
    """Show a line now, unless the user does not want such lines."""
    if _others:
        say = _others[-1]
        if say is not None:
            say(text)
        return
    if not Settings.from_environment().tells_waits:
        return
    if logger.level == logging.NOTSET:  # otherwise the level of the root logger, WARNING, would be inherited
        logger.setLevel(logging.INFO)
    if not logger.isEnabledFor(logging.INFO):
        return
    with cleared():
        if _has_handler():
            logger.info("%s", text)
        else:
            _print(f"chicle: {text}")


@contextmanager
def above(clear: Callable[[], None]) -> Iterator[None]:
    """Within this, a bar is drawn: lines are written after it was cleared, and it is drawn again below them."""
    _bars.append(clear)
    try:
        yield
    finally:
        _bars.remove(clear)


@contextmanager
def cleared() -> Iterator[None]:
    """Within this, no bar is on the terminal, so that other text can be printed."""
    with screen:
        for clear in _bars:
            clear()
        yield


@contextmanager
def tell_through(say: Say | None) -> Iterator[None]:
    """Within this, `say` gets the lines, in the thread of a wait; with None there are no lines and no such threads."""
    _others.append(say)
    try:
        yield
    finally:
        _others.remove(say)


def _has_handler() -> bool:
    """Whether the program has set up logging so that a line of this logger is shown."""
    current: logging.Logger | None = logger
    while current is not None:
        if any(handler.level <= logging.INFO for handler in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False


def _print(line: str) -> None:
    """Write to stderr, or below the cell, above the bars of tqdm where the program draws some."""
    stream = sys.stdout if notebook.is_here() else sys.stderr
    if stream is None:  # a program without a console
        return
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is not None:
        tqdm.write(encodable(line, stream), file=stream)
    else:
        write(line + "\n", stream)
