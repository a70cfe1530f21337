"""A sink of recordings that keeps them as text, line by line, at once."""

from collections.abc import Callable, Mapping
from typing import Any

from chicle_elastic.scheduling.recording import Line, header_text, line_text
from chicle_elastic.scheduling.scheduler import Scheduler


class TextSink:
    """Takes a recording as text, line by line, at once."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def begin(self, scheduler: Scheduler, *, length: int, state: Mapping[str, Any] | None) -> None:
        """Of `RecordingSink`."""
        self._write(header_text(scheduler, length=length, state=state).decode())

    def add(self, scheduler: Scheduler, line: Line) -> None:
        """Of `RecordingSink`. Raises ValueError when a number in it is not finite, or a value is of another type than
        the event has."""
        self._write(line_text(line, is_checked=True).decode())
