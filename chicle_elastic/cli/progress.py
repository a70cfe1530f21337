"""How far a command is: a bar where stderr is a terminal, a plain line every few seconds where it is not."""

import shutil
from typing import TextIO

from chicle_elastic.clock import Clock
from chicle_elastic.scheduling.text import bytes_text

BAR_WIDTH = 14
REDRAW_S = 0.1
LINE_EVERY_S = 5.0


class Progress:
    """Shows how much of a known total is done, or rows alone where the total is not known.

    Args:
        total: Bytes or rows to do; 0 where that is not known.
    """

    def __init__(self, stream: TextIO, clock: Clock, *, label: str, total: int, is_bytes: bool = True) -> None:
        self._stream = stream
        self._clock = clock
        self._label = label
        self._total = total
        self._is_bytes = is_bytes
        self._is_terminal = stream.isatty()
        self._start_s = self._shown_s = clock.now()
        self._width = 0

    def update(self, num_rows: int, done: int) -> None:
        """Show that `num_rows` rows and `done` of the total are done, unless something was shown just now."""
        now_s = self._clock.now()
        if now_s - self._shown_s < (REDRAW_S if self._is_terminal else LINE_EVERY_S):
            return
        self._shown_s = now_s
        text = self._text(num_rows, done, now_s - self._start_s)
        if self._is_terminal:
            text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be redrawn
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Clear the bar, so that what comes next starts on a clean line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def _text(self, num_rows: int, done: int, elapsed_s: float) -> str:
        rows = f"{num_rows:,} rows"
        if not self._total:
            return f"{self._label}  {rows}  {elapsed_s:.0f} s"
        share = min(1.0, done / self._total)
        sizes = f"{bytes_text(done)} of {bytes_text(self._total)}  " if self._is_bytes else ""
        left = f"{elapsed_s * (1 - share) / share:.0f} s left" if share else ""
        bar = f" [{'#' * round(BAR_WIDTH * share):-<{BAR_WIDTH}}] " if self._is_terminal else "  "
        return f"{self._label}{bar}{share:4.0%}  {sizes}{rows}  {left}".rstrip()
