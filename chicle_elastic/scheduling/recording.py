"""The recorded stream of a job: every event with its time, and what the scheduler made of it.

A recording is JSON lines in UTF-8. It has parts; each begins with a header, and every other line is one entry, that is
an event with its effects:

    {"format": "chicle recording", "version": 8, "settings": {"seed": 0, ...}, "policies": ["Rebalance"], ...}
    {"now": 0.25, "event": {"type": "NodeJoined", "node": "n0", ...}, "effects": [{"type": "FormRound", ...}]}

The header of a scheduler that had handled nothing has its settings. That of a scheduler that went on from elsewhere
has a snapshot too (`snapshot.snapshot`), and how many entries the snapshot stands for: a node that joined late, a file
that was rotated, entries that were lost because a disk hung.

A line is written after the event was handled, so a recording that breaks off ends with the last event that had
effects. An event at which the scheduler raised has `raised`. What policies answered that the scheduler asked itself (in
one process) is in `answers`, so the policies are not needed to fold the events again.

`replaying` folds them again; any shell that is fed the same stream emits the same effects (docs/design 5). No event and
no effect has a secret in it: what agents and tasks prove to each other never reaches the scheduler.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chicle_elastic import __version__
from chicle_elastic.scheduling import codec
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.pending_policies import DecidingPolicy
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.scheduling.snapshot import snapshot
from chicle_elastic.scheduling.text import disabled_text
from chicle_elastic.values import Decision, Observations

FORMAT = "chicle recording"
VERSION = 8
NO_PLACE = "decided what a recording has no place for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Begins a part of a recording."""

    format: str
    version: int
    settings: SchedulerSettings
    policies: tuple[str, ...]
    release: str = ""
    length: codec.Count = 0  # entries of the job's log before this part
    why: str = ""  # why a part begins here, for a person
    snapshot: Any = None  # the scheduler after these entries; None where it had handled nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a policy answered when the scheduler asked it."""

    decision: Decision | None = None  # its decision; None for none
    disabled: str = ""  # why the scheduler disabled it for this answer, as the end of a sentence; empty when it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One entry."""

    now: float  # as the scheduler was told it, in seconds
    event: Event  # what happened
    effects: tuple[Effect, ...]  # what the scheduler ordered; none where it raised
    # what policies answered meanwhile, by their names; without those that decided nothing
    answers: Mapping[str, tuple[Answer, ...]] = field(default_factory=dict)
    raised: str = ""  # what the scheduler raised, "ProtocolError: ..."; empty when it raised nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _UsualLine:
    """Nearly all lines have neither answers nor errors, and are shorter without them."""

    now: float
    event: Event
    effects: tuple[Effect, ...]


class RecordingSink(Protocol):
    """Takes what is recorded. Neither method may wait: agents call them in their loop."""

    def begin(self, scheduler: Scheduler, *, length: int, state: Mapping[str, Any] | None) -> None:
        """A part begins.

        Args:
            length: Entries of the job's log before this part.
            state: A snapshot of the scheduler; None when it has handled nothing.
        """
        ...

    def add(self, scheduler: Scheduler, line: Line) -> None:
        """An entry was handled by this scheduler."""
        ...


class Recorder:
    """A scheduler whose events and effects are recorded while it works.

    Args:
        scheduler: Any; policies that it asks itself have to be `RecordedPolicy`, or a replay needs them again.
    """

    def __init__(
        self, scheduler: Scheduler, sink: RecordingSink, *, length: int = 0, state: Mapping[str, Any] | None = None
    ) -> None:
        self.scheduler = scheduler
        self._sink = sink
        self._policies = [policy for policy in scheduler.policies if isinstance(policy, RecordedPolicy)]
        sink.begin(scheduler, length=length, state=state)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """`Scheduler.handle`, recorded; what it raises is recorded too."""
        try:
            effects = self.scheduler.handle(event, now=now)
        except Exception as error:
            self._sink.add(self.scheduler, Line(now=now, event=event, effects=(), raised=raised_text(error)))
            raise
        answers = self._answers(effects) if self._policies else {}
        self._sink.add(self.scheduler, Line(now=now, event=event, effects=tuple(effects), answers=answers))
        return effects

    def _answers(self, effects: Sequence[Effect]) -> dict[str, tuple[Answer, ...]]:
        told = {policy.name: policy.heard() for policy in self._policies}
        return {name: tuple(_judged(name, heard, effects)) for name, heard in told.items() if any(heard)}


class RecordedPolicy:
    """A policy whose answers a `Recorder` takes down: they depend on code that the recording does not have."""

    def __init__(self, policy: DecidingPolicy) -> None:
        self._policy = policy
        self._heard: list[Answer | None] = []

    @property
    def name(self) -> str:
        """Of the policy."""
        return self._policy.name

    def decide(self, observations: Observations, /) -> Decision | None:
        """What the policy decides; raises what it raises."""
        self._heard.append(Answer(disabled=NO_PLACE))
        decision = self._policy.decide(observations)
        self._heard[-1] = None if decision is None else _answer(decision)
        return decision

    def heard(self) -> list[Answer | None]:
        """The answers since the last time; None for no decision."""
        heard, self._heard = self._heard, []
        return heard


def header_text(
    scheduler: Scheduler, *, length: int = 0, state: Mapping[str, Any] | None = None, why: str = ""
) -> bytes:
    """A header as JSON text with its line feed; arguments as in `Header`, and a state that was written before."""
    header = Header(
        format=FORMAT,
        version=VERSION,
        settings=scheduler.settings,
        policies=tuple(policy.name for policy in scheduler.policies),
        release=__version__,
        length=length,
        why=why,
        snapshot=state,
    )
    return codec.encode(header, is_finite=True) + b"\n"


def line_text(line: Line, *, is_checked: bool = False) -> bytes:
    """An entry as JSON text with its line feed; arguments and errors as in `codec.encode`."""
    if line.answers or line.raised:
        return codec.encode(line, is_checked=is_checked) + b"\n"
    usual = _UsualLine(now=line.now, event=line.event, effects=line.effects)
    return codec.encode(usual, is_checked=is_checked) + b"\n"


def state_of(scheduler: Scheduler) -> dict[str, Any]:
    """A snapshot for a header: parts of it are JSON text already."""
    return snapshot(scheduler, write=codec.to_raw)


def prepare() -> None:
    """Work out how lines are written; to be called before a second thread writes them (`codec.prepare`)."""
    codec.prepare((Header, Line, _UsualLine))


def raised_text(error: Exception) -> str:
    """An error of the scheduler, as a recording has it."""
    return f"{type(error).__name__}: {error}"


def _answer(decision: Any) -> Answer:
    """A copy of the decision, which its policy may change later; there is none of nonsense."""
    try:
        return Answer(decision=codec.decode(codec.encode(decision, Decision, is_checked=True), Decision))
    except Exception:  # a policy is foreign code: it may return anything
        return Answer(disabled=NO_PLACE)


def _judged(name: str, heard: Sequence[Answer | None], effects: Sequence[Effect]) -> list[Answer]:
    """The answers of a policy; the last one has the reason if the scheduler disabled the policy for it."""
    answers = [answer or Answer() for answer in heard]
    start = disabled_text(name, "")
    for effect in effects:
        if isinstance(effect, Log) and effect.text.startswith(start):
            answers[-1] = Answer(disabled=effect.text.removeprefix(start))
    return answers
