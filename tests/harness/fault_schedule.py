"""The faults at named steps that chaos strikes with: a deck of cards, dealt from seed to seed so that all are played.

A fault that waits for a step by chance waits long: chunks move only when a node joins, leaves or is lost. So a card
says who is the victim, at which step, and what has to happen so that this node comes to that step.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Any

FAULTS_PER_JOB = 4
"""A job begins where the one before is expected to have stopped; one that plays more goes on in the next one's."""


class Victim(Enum):
    """Whom a fault strikes."""

    LEAD = "the lead"
    MEMBER = "a member"
    SUCCESSOR = "the next lead"
    NEWCOMER = "a newcomer"
    LEAVER = "a leaver"


class Cause(Enum):
    """What makes the victim come to the step."""

    NOTHING = "nothing"
    JOIN = "a node joins"
    NOTICE = "a node is noticed"
    LOSS = "a node is killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFault:
    """One fault."""

    action: str  # what strikes
    step: str  # where
    victim: Victim  # whom
    # why the victim comes there. A leaver causes its own notice, a newcomer its own join, and where the next lead is
    # the victim it is the lead that is killed.
    cause: Cause
    where: Mapping[str, Any] = field(default_factory=dict)  # values that the step has to come with
    occurrence: int = 1  # the step has to be reached so often


_APPENDED = "log.appended"
_BOTH = (Victim.LEAD, Victim.MEMBER)
PLACES: tuple[tuple[str, Cause, tuple[Victim, ...], dict[str, Any]], ...] = (
    ("task.spawned", Cause.JOIN, (Victim.NEWCOMER,), {}),
    ("memory.before_taken", Cause.JOIN, (Victim.NEWCOMER,), {}),
    ("task.ready", Cause.JOIN, (Victim.NEWCOMER,), {}),
    ("join.before_announce", Cause.JOIN, (Victim.NEWCOMER,), {}),
    ("join.announced", Cause.JOIN, (Victim.NEWCOMER,), {}),
    (_APPENDED, Cause.JOIN, _BOTH, {"event": "NodeJoined"}),
    (_APPENDED, Cause.NOTICE, _BOTH, {"event": "LeaveNoticed"}),
    (_APPENDED, Cause.LOSS, _BOTH, {"event": "NodeLost"}),
    (_APPENDED, Cause.JOIN, _BOTH, {"event": "RoundFormed"}),
    # Rows travel ahead of a newcomer, and of a leaver: the target fetches what the source has told.
    ("rows.before_told", Cause.JOIN, _BOTH, {}),
    ("rows.before_fetch", Cause.JOIN, (Victim.NEWCOMER,), {}),
    ("rows.before_fetch", Cause.NOTICE, (Victim.MEMBER,), {}),
    ("rows.arrived", Cause.JOIN, (Victim.NEWCOMER,), {}),
    ("rows.arrived", Cause.NOTICE, (Victim.MEMBER,), {}),
    (_APPENDED, Cause.JOIN, _BOTH, {"event": "PrecopiesEnded"}),
    # A copy is the target's; the node that reads that it was made may be its source: between copy and commit.
    ("copy.before_fetch", Cause.JOIN, (Victim.NEWCOMER,), {}),
    ("copy.before_commit", Cause.NOTICE, (Victim.MEMBER,), {}),
    ("copy.committed", Cause.JOIN, (Victim.NEWCOMER,), {}),
    ("copy.committed", Cause.NOTICE, _BOTH, {}),
    (_APPENDED, Cause.JOIN, _BOTH, {"event": "ChunksCopied"}),
    # Between commit and free.
    ("commit.done", Cause.JOIN, (*_BOTH, Victim.NEWCOMER), {}),
    ("free.before", Cause.JOIN, _BOTH, {}),
    ("free.done", Cause.JOIN, _BOTH, {}),
    ("load.before_commit", Cause.LOSS, _BOTH, {}),
    ("lead.before_claim", Cause.LOSS, (Victim.SUCCESSOR,), {}),
    ("lead.claimed", Cause.LOSS, (Victim.SUCCESSOR,), {}),
    ("round.before_inventory", Cause.JOIN, _BOTH, {}),
    ("round.before_rendezvous", Cause.LOSS, _BOTH, {}),
    ("round.formed", Cause.JOIN, _BOTH, {}),
    ("iteration.before_start", Cause.NOTHING, _BOTH, {}),
    ("iteration.ended", Cause.NOTHING, _BOTH, {}),
    ("notice.received", Cause.NOTICE, (Victim.LEAVER,), {}),
    ("leave.before_exit", Cause.NOTICE, (Victim.LEAVER,), {}),
    ("link.heard", Cause.NOTHING, _BOTH, {}),
)
KILL = "kill"
OTHER_ACTIONS = ("kill_task", "stop", "delay", "cut")
REPEATED = frozenset(
    {
        "rows.before_told",
        "rows.before_fetch",
        "rows.arrived",
        "copy.before_fetch",
        "copy.committed",
        "commit.done",
        "free.before",
        "free.done",
    }
)
"""Steps that are reached once per chunk: the fault strikes at one of the first."""


def all_faults() -> tuple[ScheduledFault, ...]:
    """All cards, in an order that is always the same: each place with a kill twice, and once with another action."""
    rng = random.Random(20)
    places = [(step, cause, victim, where) for step, cause, victims, where in PLACES for victim in victims]
    actions = (KILL, KILL, "")
    faults = []
    for number, ((step, cause, victim, where), action) in enumerate(product(places, actions)):
        action = action or OTHER_ACTIONS[number // len(actions) % len(OTHER_ACTIONS)]
        occurrence = rng.randint(1, 3) if step in REPEATED else 1
        faults.append(
            ScheduledFault(action=action, step=step, victim=victim, cause=cause, where=where, occurrence=occurrence)
        )
    for step in ("rows.before_fetch", "copy.before_fetch"):
        faults += [ScheduledFault(action="drop", step=step, victim=Victim.NEWCOMER, cause=Cause.JOIN)] * 3
    rng.shuffle(faults)
    return tuple(faults)


def schedule_of(job: int) -> Iterator[ScheduledFault]:
    """The cards of one job, without end.

    Args:
        job: Number of the job, from 0; the next one begins where this one is expected to stop.
    """
    faults = all_faults()
    position = job * FAULTS_PER_JOB
    while True:
        yield faults[position % len(faults)]
        position += 1
