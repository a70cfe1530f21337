"""Recordings as text: a sink that keeps them line by line, at once, and what folds them again."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.pending_policies import DecidingPolicy
from chicle_elastic.scheduling.recording import Line, header_text, line_text
from chicle_elastic.scheduling.replaying import Replay, difference_text
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


def replay(
    recording: Path | str | Iterable[str], policies: Sequence[DecidingPolicy] = ()
) -> Iterator[tuple[Event, list[Effect]]]:
    """Fold a recording again, with the arguments of `Replay`; yields every event with its effects, now and then. Raises
    ProtocolError when it cannot be read, or an effect is another one now; the message names the line."""
    for step in Replay(recording, policies):
        if step.difference is not None:
            raise ProtocolError(difference_text(step))
        yield step.line.event, list(step.effects)
