"""Recordings are folded again, entry by entry: does the scheduler order what it ordered then?

In: a recording (`recording`), perhaps cut off in its last line or in that of a part whose process was killed.
Out: `Step`s, each with the scheduler after it and with the first effect that is another one now, if there is any.
"""

import gzip
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic import __version__
from chicle_elastic.errors import ContractError, ProtocolError, UsageError
from chicle_elastic.scheduling import codec
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.pending_policies import DecidingPolicy
from chicle_elastic.scheduling.recording import FORMAT, VERSION, Answer, Header, Line, raised_text
from chicle_elastic.scheduling.scheduler import Scheduler
from chicle_elastic.scheduling.snapshot import restore
from chicle_elastic.values import Decision, Observations

_HEADER_BEGIN = '{"format":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One entry, folded again."""

    number: int  # of the entry in this recording, from 1
    index: int  # its number in the log of the job, from 1; larger than `number` where the recording begins later
    where: str  # the line: "n1.recording.jsonl:7"
    line: Line  # as it was recorded
    effects: tuple[Effect, ...]  # what the scheduler orders now
    difference: str | None  # the first effect that is another one, or error, in words; None when all are equal
    scheduler: Scheduler  # after the entry; the next step changes it


class Replay:
    """Folds a recording again; to be iterated once.

    Args:
        recording: Path of a file, compressed if it ends with .gz, or its lines.
        policies: Those that the job had, with the same parameters, to be asked again; by default the answers that the
            recording has are taken.
    """

    def __init__(self, recording: Path | str | Iterable[str], policies: Sequence[DecidingPolicy] = ()) -> None:
        self.num_entries = self.num_parts = 0
        self.notes: list[str] = []  # what a person should know of lines that were left out
        self._recording, self._policies = recording, tuple(policies)
        self._name = str(recording) if isinstance(recording, str | Path) else "recording"
        self._scheduler: Scheduler | None = None
        self._index = 0
        self._answering: tuple[_AnsweringPolicy, ...] = ()
        self._release = ""

    def __iter__(self) -> Iterator[Step]:
        """Every entry in its order. Raises ProtocolError when a line cannot be read; the message has file, line and
        reason. Raises OSError when the file cannot be read."""
        with ExitStack() as stack:
            lines: Iterable[str]
            if isinstance(self._recording, str | Path):
                lines = stack.enter_context(_lines_of(Path(self._recording)))
            else:
                lines = self._recording
            broken: tuple[str, ProtocolError] | None = None
            is_whole = False
            for number, text in enumerate(lines, start=1):
                where = f"{self._name}:{number}"
                is_whole = text.endswith("\n")
                if broken is not None:
                    if text.isspace():
                        continue
                    # A process that was killed while it wrote leaves half a line; the next one begins a part behind it.
                    if self.num_entries == 0 or not text.startswith(_HEADER_BEGIN):
                        raise broken[1]
                    self._note_cut(broken[0])
                    broken = None
                try:
                    if text.startswith(_HEADER_BEGIN) or self._scheduler is None:
                        self._begin(text, where)
                        continue
                    if text.isspace():
                        continue
                    line = _read(text, Line)
                except ProtocolError as error:
                    broken = (where, ProtocolError(f"{where}: {error}{self._remedy()}{self._what_is_left()}"))
                    if self._scheduler is None:
                        raise broken[1] from None
                    continue
                yield self._fold(line, where)
            if broken is not None:
                if is_whole:
                    raise broken[1]
                self._note_cut(broken[0])
            if self._scheduler is None:
                raise ProtocolError(f"{self._name}:1: not a line of a recording: the file is empty")

    def _note_cut(self, where: str) -> None:
        self.notes.append(f"{where} is cut off: the process ended while it wrote the line, which is left out")

    def _remedy(self) -> str:
        if self._release in ("", __version__):
            return ""
        return f"; chicle-elastic {self._release} recorded it and this is {__version__}: replay it with the former"

    def _what_is_left(self) -> str:
        if self._scheduler is None:
            return "; recordings are the files *.recording.jsonl of a log folder"
        return f"; the {self.num_entries} entries before it can be replayed" if self.num_entries else ""

    def _begin(self, text: str, where: str) -> None:
        data: dict[str, Any] = _read(text, dict[str, Any])
        self._release = str(data.get("release") or "")
        if (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise ProtocolError(
                f"found {data.get('format')!r} version {data.get('version')}, and this release reads {FORMAT!r} "
                f"version {VERSION}; replay it with the release that recorded it"
            )
        header: Header = codec.from_values(data, Header)
        names = tuple(policy.name for policy in self._policies)
        self._answering = ()
        if header.policies != names:
            if names and not header.policies:
                raise ProtocolError(
                    f"replay was given {', '.join(names)}, and the scheduler of this job asked no policies: those of a "
                    "cluster run in its tasks and cannot be asked again, but their decisions are in the recording; "
                    "leave out --policies"
                )
            if names:
                raise ProtocolError(f"the job had the policies {header.policies}, and replay was given {names}")
            self._answering = tuple(_AnsweringPolicy(name) for name in header.policies)
        policies = self._answering or self._policies
        try:
            if header.snapshot is None:
                scheduler = Scheduler(header.settings, policies)
            else:
                scheduler = restore(header.snapshot, policies)
        except UsageError as error:
            raise ProtocolError(str(error)) from error
        self._scheduler, self._index = scheduler, header.length
        self.num_parts += 1

    def _fold(self, line: Line, where: str) -> Step:
        scheduler = self._scheduler
        assert scheduler is not None
        for policy in self._answering:
            policy.answers = deque(line.answers.get(policy.name, ()))
        raised = ""
        effects: tuple[Effect, ...] = ()
        try:
            effects = tuple(scheduler.handle(line.event, now=line.now))
        except Exception as error:  # a fault of the scheduler, which a recording is to reproduce
            raised = raised_text(error)
        self.num_entries += 1
        self._index += 1
        difference = _difference(line, effects, raised)
        return Step(
            number=self.num_entries,
            index=self._index,
            where=where,
            line=line,
            effects=effects,
            difference=None if difference is None else f"{difference}{self._remedy()}",
            scheduler=scheduler,
        )


def difference_text(step: Step) -> str:
    """At which entry the effects differ, and how."""
    kind = type(step.line.event).__name__
    return (
        f"{step.where}: entry {step.number}, {kind} at {step.line.now:.3f} s: {step.difference}; the recording was "
        "made by another version, with other policies, or was changed"
    )


class _AnsweringPolicy:
    """Answers what the policy of this name had answered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: deque[Answer] = deque()

    def decide(self, _: Observations, /) -> Decision | None:
        """The recorded decision; an answer that the policy was disabled for is an error with the same words."""
        if not self.answers:
            return None
        answer = self.answers.popleft()
        if answer.disabled:
            raise ContractError(answer.disabled)
        return answer.decision


@contextmanager
def _lines_of(path: Path) -> Iterator[Iterable[str]]:
    """The lines of a file; a compressed one that is cut off or bent is a `ProtocolError`."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", errors="replace") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProtocolError(f"{path}: cannot be unpacked: {error}") from error


def _read(text: str, kind: Any) -> Any:
    try:
        return codec.decode(text, kind)
    except ProtocolError as error:
        hint = "" if text.rstrip().endswith("}") else "; was the file cut off?"
        raise ProtocolError(f"not a line of a recording: {error}{hint}") from error


def _difference(line: Line, now: Sequence[Effect], raised: str) -> str | None:
    if line.raised != raised:
        return f"the scheduler raised {line.raised or 'nothing'} and raises {raised or 'nothing'} now"
    for index in range(max(len(line.effects), len(now))):
        before = line.effects[index] if index < len(line.effects) else None
        after = now[index] if index < len(now) else None
        if before != after:
            return f"effect {index + 1} was {before or 'not there'} and is {after or 'not there'} now"
    return None
