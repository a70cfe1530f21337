"""The recorded stream of a job: every event with its time, and what the scheduler made of it.

A story is JSON lines in UTF-8. The first is the header, every other one event:

    {"format": "chicle story", "version": 1, "settings": {"seed": 0, ...}, "policies": ["Rebalance"]}
    {"now": 0.25, "event": {"type": "NodeJoined", "node": "n0", ...}, "effects": [{"type": "FormRound", ...}]}

A line is written after the event was handled, so a story that breaks off ends with the last event that had effects.
`replay` folds the events again; any shell that is fed the same stream emits the same effects (DESIGN 5).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.scheduling.codec import decode_effect, decode_event, decode_fields, encode, encode_fields
from chicle_elastic.scheduling.council import Adviser
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.machine import Scheduler, SchedulerSettings

FORMAT = "chicle story"
VERSION = 1


class Recorder:
    """A scheduler that writes its story while it works.

    Args:
        scheduler: Has handled nothing yet.
        write: Takes one line, with its line feed; the `write` of an open text file will do.
    """

    def __init__(self, scheduler: Scheduler, write: Callable[[str], object]) -> None:
        self.scheduler = scheduler
        self._write = write
        self._write_line(
            {
                "format": FORMAT,
                "version": VERSION,
                "settings": encode_fields(scheduler.settings),
                "policies": [policy.name for policy in scheduler.policies],
            }
        )

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """`Scheduler.handle`, written down."""
        effects = self.scheduler.handle(event, now=now)
        self._write_line({"now": now, "event": encode(event), "effects": [encode(effect) for effect in effects]})
        return effects

    def _write_line(self, data: dict[str, Any]) -> None:
        self._write(json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n")


def replay(
    story: Path | str | Iterable[str], policies: Sequence[Adviser] = (), *, name: str = "story"
) -> Iterator[tuple[Event, list[Effect]]]:
    """Fold a story again.

    Args:
        story: Path of a file, or its lines.
        policies: Those that the job had, with the same parameters.
        name: What to call lines that come from no file, for messages.

    Yields:
        Every event with the effects that it has now, which are those that it had then.

    Raises:
        ProtocolError: The story cannot be read, or an effect is another one now; the message names the line.
    """
    with ExitStack() as stack:
        if isinstance(story, str | Path):
            name = str(story)
            lines: Iterable[str] = stack.enter_context(open(story, encoding="utf-8", errors="replace"))
        else:
            lines = story
        numbered = enumerate(lines, start=1)
        scheduler = _read_header(numbered, policies, name)
        for number, line in numbered:
            where = f"{name}:{number}"
            data = _read_object(line, where, keys={"now", "event", "effects"})
            try:
                event = decode_event(data["event"])
                then = [decode_effect(effect) for effect in _as_list(data["effects"])]
                now_s = _as_seconds(data["now"])
                now = scheduler.handle(event, now=now_s)
            except ProtocolError as error:
                raise ProtocolError(f"{where}: {error}") from error
            _compare(then, now, where)
            yield event, now


def _read_header(numbered: Iterator[tuple[int, str]], policies: Sequence[Adviser], name: str) -> Scheduler:
    where = f"{name}:1"
    _, line = next(numbered, (1, ""))
    header = _read_object(line, where, keys={"format", "version", "settings", "policies"})
    if header["format"] != FORMAT:
        raise ProtocolError(f"{where}: the format is {header['format']!r} and not {FORMAT!r}")
    if header["version"] != VERSION:
        raise ProtocolError(f"{where}: the story has version {header['version']}; this release reads version {VERSION}")
    names = [policy.name for policy in policies]
    if header["policies"] != names:
        raise ProtocolError(f"{where}: the job had the policies {header['policies']}, and replay was given {names}")
    try:
        return Scheduler(decode_fields(SchedulerSettings, header["settings"], "settings"), policies)
    except (ProtocolError, UsageError) as error:
        raise ProtocolError(f"{where}: {error}") from error


def _read_object(line: str, where: str, *, keys: set[str]) -> dict[str, Any]:
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ProtocolError(f"{where}: not a line of a story ({error}); was the file cut off?") from error
    if not isinstance(data, dict) or data.keys() != keys:
        raise ProtocolError(f"{where}: expected an object with {', '.join(sorted(keys))}")
    return data


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _as_list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ProtocolError("effects are not a list")
    return data


def _as_seconds(data: Any) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise ProtocolError(f"now is {data!r} and not a number of seconds")
    return float(data)


def _compare(then: Sequence[Effect], now: Sequence[Effect], where: str) -> None:
    for index in range(max(len(then), len(now))):
        before = then[index] if index < len(then) else None
        after = now[index] if index < len(now) else None
        if before != after:
            raise ProtocolError(
                f"{where}: effect {index + 1} was {before or 'not there'} and is {after or 'not there'} now; the story "
                "was recorded by another version, with other policies, or was changed"
            )
