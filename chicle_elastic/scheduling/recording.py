"""The recorded stream of a job: every event with its time, and what the scheduler made of it.

A recording is JSON lines in UTF-8. The first is the header, every other one event:

    {"format": "chicle recording", "version": 3, "settings": {"seed": 0, ...}, "policies": ["Rebalance"]}
    {"now": 0.25, "event": {"type": "NodeJoined", "node": "n0", ...}, "effects": [{"type": "FormRound", ...}]}

A line is written after the event was handled, so a recording that breaks off ends with the last event that had
effects.
`replay` folds the events again; any shell that is fed the same stream emits the same effects (docs/design 5).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.scheduling import codec
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.pending_policies import DecidingPolicy
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings

FORMAT = "chicle recording"
VERSION = 3
"""Version 1 had the format "chicle story", and events about a single chunk, which are gone. Version 2 had decisions of
policies as numbers of chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    format: str
    version: int
    settings: SchedulerSettings
    policies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    now: float
    event: Event
    effects: tuple[Effect, ...]


class Recorder:
    """A scheduler that writes its recording while it works.

    Args:
        scheduler: Has handled nothing yet.
        write: Takes one line, with its line feed; the `write` of an open text file will do.
    """

    def __init__(self, scheduler: Scheduler, write: Callable[[str], object]) -> None:
        self.scheduler = scheduler
        self._write = write
        names = tuple(policy.name for policy in scheduler.policies)
        self._write_line(_Header(format=FORMAT, version=VERSION, settings=scheduler.settings, policies=names))

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """`Scheduler.handle`, written down."""
        effects = self.scheduler.handle(event, now=now)
        self._write_line(_Line(now=now, event=event, effects=tuple(effects)))
        return effects

    def _write_line(self, line: _Header | _Line) -> None:
        self._write(codec.encode(line, is_checked=True).decode() + "\n")


def replay(
    recording: Path | str | Iterable[str], policies: Sequence[DecidingPolicy] = (), *, name: str = "recording"
) -> Iterator[tuple[Event, list[Effect]]]:
    """Fold a recording again.

    Args:
        recording: Path of a file, or its lines.
        policies: Those that the job had, with the same parameters.
        name: What to call lines that come from no file, for messages.

    Yields:
        Every event with the effects that it has now, which are those that it had then.

    Raises:
        ProtocolError: The recording cannot be read, or an effect is another one now; the message names the line.
    """
    with ExitStack() as stack:
        if isinstance(recording, str | Path):
            name = str(recording)
            lines: Iterable[str] = stack.enter_context(open(recording, encoding="utf-8", errors="replace"))
        else:
            lines = recording
        numbered = enumerate(lines, start=1)
        scheduler = _read_header(numbered, policies, name)
        for number, line in numbered:
            where = f"{name}:{number}"
            try:
                told: _Line = _read(line, _Line)
                now = scheduler.handle(told.event, now=told.now)
            except ProtocolError as error:
                raise ProtocolError(f"{where}: {error}") from error
            _compare(told.effects, now, where)
            yield told.event, now


def _read_header(numbered: Iterator[tuple[int, str]], policies: Sequence[DecidingPolicy], name: str) -> Scheduler:
    """A scheduler that begins as the recorded one did."""
    where = f"{name}:1"
    _, line = next(numbered, (1, ""))
    try:
        data: dict[str, Any] = _read(line, dict[str, Any])
        if (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise ProtocolError(
                f"found {data.get('format')!r} version {data.get('version')}, and this release reads {FORMAT!r} "
                f"version {VERSION}; replay it with the release that recorded it"
            )
        header: _Header = codec.from_values(data, _Header)
        names = tuple(policy.name for policy in policies)
        if header.policies != names:
            raise ProtocolError(f"the job had the policies {header.policies}, and replay was given {names}")
        return Scheduler(header.settings, policies)
    except (ProtocolError, UsageError) as error:
        raise ProtocolError(f"{where}: {error}") from error


def _read(line: str, kind: Any) -> Any:
    try:
        return codec.decode(line, kind)
    except ProtocolError as error:
        hint = "" if line.rstrip().endswith("}") else "; was the file cut off?"
        raise ProtocolError(f"not a line of a recording: {error}{hint}") from error


def _compare(then: Sequence[Effect], now: Sequence[Effect], where: str) -> None:
    for index in range(max(len(then), len(now))):
        before = then[index] if index < len(then) else None
        after = now[index] if index < len(now) else None
        if before != after:
            raise ProtocolError(
                f"{where}: effect {index + 1} was {before or 'not there'} and is {after or 'not there'} now; the "
                "recording was made by another version, with other policies, or was changed"
            )
