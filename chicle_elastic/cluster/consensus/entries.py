"""What the common log of a job is made of: events in their place.

An entry is either *sequenced* (the lead gave it its place) or *in band*: when all tasks have finished an iteration
without a vote, every agent knows so from the numbers of the all-reduce and appends the same entry by itself.

Two entries are equal when all their fields are; logs that differ at any index belong to different histories. The term
of an entry is that of the lead which sequenced it; an in-band entry has the term of the entry before it, so that all
agents write the same one whatever they have heard of a new lead meanwhile. Therefore, as in Raft, two logs with an
entry of the same index and term are equal up to there.

Time is part of an entry, because the scheduler is told it: sequenced entries carry the lead's clock, continued from
the entry before; an in-band entry adds the longest duration in its reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.events import Event
from chicle_elastic.values import TaskReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event in its place."""

    now: float  # seconds since the job began; never decreases
    event: Event
    term: int  # of the lead that sequenced it
    origin: str = ""  # life of the agent that proposed it; empty for what the protocol itself adds
    number: int = 0  # counts the proposals of `origin`, from 1; 0 without one


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An iteration that was merged, as every task that got the sum knows it."""

    round: int
    iteration: int
    reports: Mapping[NodeId, TaskReport]  # of every member, the same everywhere: they rode in the all-reduce
    stop_reason: str | None = None  # the trainer's verdict ends the job here; None to go on

    def events(self) -> tuple[Event, ...]:
        """What goes into the log for it."""
        finished = events.IterationFinished(round=self.round, iteration=self.iteration, reports=self.reports)
        if self.stop_reason is None:
            return (finished,)
        # First the request, then the boundary that it takes effect at.
        return (events.StopRequested(reason=self.stop_reason), finished)
