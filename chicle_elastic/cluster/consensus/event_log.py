"""What the replicated log tells its agent: entries in one order, the same at every agent, and where it stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from chicle_elastic.cluster.consensus.messages import Folded
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.events import Event


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
    seen: int  # number of the last event of this incarnation that has its place; 0 for none


class LogSubscriber(Protocol):
    """Told of every change of the log, in the loop."""

    def folded(self, folded: Folded) -> None:
        """An entry was folded."""

    def installed(self, length: int) -> None:
        """This node joins with the state of a log of so many entries, and without these."""

    def vote(self) -> None:
        """The own task is to vote for a stop at the next boundary: an event waits for its place."""

    def break_group(self, reason: str) -> None:
        """The own task is to end its iteration: it waits for a member that is gone."""

    def paused(self, reason: str | None) -> None:
        """This node reaches too few others to go on, and waits for them; None: it goes on again."""

    def expelled(self, reason: str) -> None:
        """The others go on without this incarnation; the node has to begin another one."""
