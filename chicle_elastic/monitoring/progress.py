"""One bar for a fit: how far, who takes part, and what happened last.

    ChicleSVM [#######-------]  52%  iteration 120  gap 3.1e-02 of 1e-03  4 members  n3 joined

On a terminal it is redrawn in place, and where that is narrow the bar gives way to the words. In a notebook it is a bar
below the cell, and stays as it was at the end. Elsewhere a plain line is written, when something has happened or a few
seconds have passed.
"""

import html
import math
import shutil
from typing import Any, TextIO

from chicle_elastic import waits
from chicle_elastic.clock import Clock
from chicle_elastic.monitoring.records import PARAMETERS_PREFIX, IterationRecord, Transition
from chicle_elastic.surroundings import write

BAR_WIDTH = 14
LEAST_BAR_WIDTH = 3
REDRAW_S = 0.1
LINE_EVERY_S = 5.0
GAPS = ("duality_gap", "duality_gap_estimate")
LOSSES = ("objective", "loss")


class NotebookBar:
    """A line with a bar below the cell of a notebook, from its first text on.

    A bar is a display with a number, which every frontend of Jupyter updates. A notebook that is saved or executed
    without a frontend keeps what the bar showed last.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, label: str, share: float, text: str) -> None:
        """Replace what the bar shows."""
        data = {
            "text/plain": f"{label} {share:4.0%}  {text}",
            "text/html": (
                '<div style="font-family: var(--jp-code-font-family, monospace); white-space: pre-wrap">'
                f'{html.escape(label)} <progress value="{share:.3f}" max="1" style="vertical-align: middle">'
                f"</progress> {share:4.0%}  {html.escape(text)}</div>"
            ),
        }
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class FitProgress:
    """Shows the records of one fit.

    Args:
        stream: Where to; `isatty` decides on the form.
        tol: Gap at which the fit ends; 0 where only the iterations end it.
        max_epochs: Passes over the data that end the fit, whatever the iterations are; None where they do not.
        place: In a notebook, where to draw; `stream` is not used then.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Clock,
        *,
        label: str,
        max_iterations: int,
        tol: float = 0.0,
        max_epochs: int | None = None,
        place: NotebookBar | None = None,
    ) -> None:
        self._stream, self._clock, self._place = stream, clock, place
        self._label, self._max_iterations, self._tol = label, max_iterations, tol
        self._max_epochs = max_epochs
        self._is_drawn = place is not None or stream.isatty()
        self._last: IterationRecord | None = None
        self._shown_s = clock.now()
        self._first_gap: float | None = None
        self._share = 0.0
        self._event = ""
        self._width = 0

    def update(self, record: IterationRecord) -> None:
        """Show an iteration, unless one was shown just now."""
        with waits.screen:
            self._update(record)

    def _update(self, record: IterationRecord) -> None:
        self._last = record
        if record.news:
            self._event = record.news[-1]
        has_news = bool(record.news) and not self._is_drawn
        now_s = self._clock.now()
        self._share = max(self._share, self._share_of(record))
        if not has_news and now_s - self._shown_s < (REDRAW_S if self._is_drawn else LINE_EVERY_S):
            return
        self._shown_s = now_s
        if self._place is not None:
            self._place.show(self._label, self._share, self._text(record))
            return
        if self._is_drawn:
            most = shutil.get_terminal_size().columns - 1  # a line that wraps could not be redrawn
            text = self._with_bar(f"{self._share:4.0%}  {self._text(record)}", most)[:most]
            write("\r" + text.ljust(self._width), self._stream)
            self._width = len(text)
        else:
            write(f"{self._label} {self._share:4.0%}  {self._text(record)}\n", self._stream)

    def note(self, transition: Transition) -> None:
        """Show a change of the membership, where a bar is drawn with the next iteration."""
        if self._is_drawn:
            self._event = transition.words()
        else:
            write(f"{self._label} {transition.words()}\n", self._stream)

    def end(self, reason: str, *, is_interrupted: bool) -> None:
        """The job has ended, and why."""
        has_gap = self._last is not None and any(name in self._last.figures for name in GAPS)
        self._event = reason if is_interrupted or not has_gap else ""  # it would say the gap again
        if not is_interrupted:
            self._share = 1.0

    def finish(self) -> None:
        """Nothing more will come: in a notebook the bar shows the last iteration, elsewhere it is cleared."""
        if self._place is not None and self._last is not None:
            text = f"{self._text(self._last)}  {self._last.time_s:.3g} s"
            self._place.show(self._label, self._share, text)
        self.clear()

    def clear(self) -> None:
        """Clear the bar from a terminal, so that what comes next starts on a clean line."""
        with waits.screen:
            if self._width:
                write("\r" + " " * self._width + "\r", self._stream)
                self._width = 0

    def _share_of(self, record: IterationRecord) -> float:
        """How far the fit is, from 0 to 1: by digits of the gap, or by iterations, whichever is farther. Gaps shrink by
        factors, so the bar moves with their logarithm."""
        share = record.iteration / self._max_iterations
        if self._max_epochs is not None:
            share = record.epochs / self._max_epochs
        gap = next((record.figures[name] for name in GAPS if name in record.figures), math.nan)
        if gap > 0 and self._tol > 0:
            if self._first_gap is None:
                self._first_gap = gap
            if self._first_gap > self._tol:
                way = math.log(self._first_gap / self._tol)
                share = max(share, math.log(self._first_gap / max(gap, self._tol)) / way)
        return min(1.0, max(0.0, share))

    def _with_bar(self, text: str, most: int) -> str:
        width = min(BAR_WIDTH, most - len(f"{self._label} [] {text}"))
        bar = f"[{'#' * round(width * self._share):-<{width}}] " if width >= LEAST_BAR_WIDTH else ""
        return f"{self._label} {bar}{text}"

    def _text(self, record: IterationRecord) -> str:
        parts = [f"iteration {record.iteration}"]
        figures = record.figures
        gap = next((f"gap {figures[name]:.1e}" for name in GAPS if name in figures), None)
        if gap is not None:
            parts.append(f"{gap} of {self._tol:.0e}" if self._tol > 0 else gap)
        else:
            own = (name for name in figures if not name.startswith(PARAMETERS_PREFIX))
            parts += [f"{name} {figures[name]:.6g}" for name in (*LOSSES, *own) if name in figures][:1]
        parts.append(f"{record.num_tasks} member{'s' if record.num_tasks != 1 else ''}")
        return "  ".join([*parts, self._event]).rstrip()
