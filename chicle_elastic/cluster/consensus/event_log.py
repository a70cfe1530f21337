"""What an agent sees of the replicated log: events go in at one end, and come out in one order at every agent.

`ReplicatedLog` is the log of a cluster. What stands behind it (replica, leader, followers, terms) concerns no other
part of the agent: the effect executor and the node know this file alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from chicle_elastic.cluster.consensus.entries import Ended
from chicle_elastic.cluster.consensus.messages import Folded
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """What all entries so far have come to, and how this node stands in it; later entries do not change it."""

    incarnation: str  # of this node; another one begins with an empty log
    length: int
    first_term: int  # term of the first entry, the number of the job; 0 when there is none
    # nodes that joined and were neither lost nor released, in the order in which they joined
    present: tuple[NodeId, ...]
    members: tuple[NodeId, ...]
    electorate: Mapping[NodeId, str]  # incarnations that may vote on who leads (`reachability`), by node
    asked: tuple[NodeId, ...]
    reported: frozenset[NodeId]
    in_flight: tuple[int, int] | None  # round and iteration of the iteration that runs; None at a boundary
    is_steady: bool  # iterations follow each other, and nothing else is ordered, until an event is appended
    loss_round: int | None  # round in which something was lost or cut off, as long as no model was rebuilt since
    lines: tuple[str, ...]  # what happened at the boundary before the iteration in flight, in words
    is_live: bool  # this incarnation has joined: orders to its node are its own
    is_awaiting: bool  # the task of this node is in the iteration in flight, and its end will be told
    proposed: tuple[Event, ...]  # events of this node that have no place in the log yet, in their order


class LogSubscriber(Protocol):
    """Told of every change of the log, in the loop."""

    def folded(self, folded: Folded) -> None:
        """An entry was folded."""
        ...

    def installed(self, length: int) -> None:
        """This node joins with the state of a log of so many entries, and without these."""
        ...

    def vote(self) -> None:
        """The own task is to vote for a stop at the next boundary: an event waits for its place."""
        ...

    def break_group(self, reason: str) -> None:
        """The own task is to end its iteration: it waits for a member that is gone."""
        ...

    def paused(self, reason: str | None) -> None:
        """This node reaches too few others to go on, and waits for them; None: it goes on again."""
        ...

    def expelled(self, reason: str) -> None:
        """The others go on without this incarnation; the node has to begin another one."""
        ...


class EventLog(Protocol):
    """One sequence of events for all agents of a job, and the scheduler of this agent, which has folded it.

    `append`, `subscribe` and `snapshot` are what every log has. The rest is there because a boundary must not wait for
    a round trip: the end of an iteration is known to all members by their all-reduce, so each agent appends it by
    itself (`iteration_ended`) instead of proposing it, and says so when it cannot (`iteration_broke`). And the ledger
    is too large to be copied for every question, so `scheduler` is shared.
    """

    @property
    def scheduler(self) -> Scheduler:
        """Has folded all entries; to be read only, and not to be kept: another incarnation has another one."""
        ...

    def append(self, event: Event) -> None:
        """Something happened on this node: propose it. It comes to the subscribers when it has its place, behind all
        that this node appended before; it is kept and proposed again until then, also when the leader changes. It is
        lost only with this incarnation."""
        ...

    def iteration_ended(self, ended: Ended, *, votes: int, goes_on: bool = False) -> None:
        """The own task has merged an iteration: append its end without asking, unless a task has voted for a stop.

        Args:
            votes: Tasks that voted for a stop, the same number everywhere; the leader gives the end its place then.
        """
        ...

    def iteration_broke(self, round: int, iteration: int, reason: str, *, merged: Ended | None = None) -> None:
        """The own task cannot end an iteration with the others; `merged` if it got as far as the merge."""
        ...

    def subscribe(self, subscriber: LogSubscriber) -> None:
        """Tell it of every entry from now on, in order, and after those that subscribed before it."""
        ...

    def snapshot(self) -> LogSnapshot:
        """What all entries so far have come to."""
        ...
