"""What agents say to each other about the log, and what a replica asks its agent to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chicle_elastic.cluster.consensus.entries import Ended, Entry
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.codec import Count
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event

# Messages between agents.


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """To the lead: give this event a place. Said again to a new lead; `number` tells it apart from others."""

    origin: str
    number: Count
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """From the lead: entries from index `base` on."""

    term: Count
    base: Count
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """From the leader, to a node that lacks entries that are not kept, or many and is new: what the log has come to.

    Attributes:
        term: Of the leader.
        state: As `Log.state` returns it; in the leader, parts that are JSON text already.
    """

    term: Count
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTerm:
    """From a new lead: stop following others and say where you stand.

    Attributes:
        term: Its term.
        last_term: Term of its last entry.
        length: Length of its log.
        is_breaking: The iteration in flight cannot end by itself; end it first.
        unreached: Incarnations of the present nodes that the new leader cannot reach. An agent whose leader is among
            them, and is well, does not change over.
    """

    term: Count
    last_term: Count
    length: Count
    is_breaking: bool
    unreached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """The answer: how long the log is, what the new lead lacks, and how the iteration ended here.

    Attributes:
        term: Of the `NewTerm` that this answers.
        last_term: Term of the last entry.
        length: Length of the log.
        base: Index of the first of `tail`.
        knows_asker: The new lead is present in this log.
        tail: Entries that the new lead does not have; empty when it has all, or another history.
        ended: The iteration in flight was merged here, but its place in the log is for a lead to give.
    """

    term: Count
    last_term: Count
    length: Count
    base: Count
    knows_asker: bool = True
    tail: tuple[Entry, ...] = ()
    ended: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailed:
    """To the lead: the iteration cannot end, because this node's process group is broken."""

    round: Count
    iteration: Count
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The other answer to `NewTerm`: this agent knows a newer term, or hears a leader that the asking one does not.

    Attributes:
        term: Newest term that it knows.
    """

    term: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedDown:
    """From an agent that led or was about to: it reaches too few nodes to go on."""

    term: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """To the leader: which present nodes this one cannot reach. The latest report replaces the ones before.

    Attributes:
        unreached: Their incarnations.
    """

    unreached: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expel:
    """From the lead: your log is another history; start afresh and join again."""

    reason: str


Message: TypeAlias = (
    Propose | Append | Install | NewTerm | LogPosition | Refusal | SteppedDown | LinkReport | GroupFailed | Expel
)

LOG = "log"
"""Kind of the messages between agents that are about the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """What one agent has said to another about the log within one turn of its event loop, as it goes over their link.

    Attributes:
        messages: In their order.
        kind: `LOG`, for the agent that gets it.
    """

    messages: tuple[Message, ...]
    kind: str = LOG


# What the agent is asked to do.


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message over the link to a peer."""

    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """An entry was folded: perform the orders that concern this node.

    Attributes:
        index: Of the entry.
        entry: The entry.
        effects: The orders; iterations that are over already are left out.
        is_live: False for history from before this agent's life, which must not be performed again.
        lost_life: The life that a lead took for lost with this entry; empty for others.
    """

    index: int
    entry: Entry
    effects: Sequence[Effect]
    is_live: bool
    lost_life: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The log goes on from a state, without the entries before.

    Attributes:
        length: Of the log.
    """

    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Let the own task vote for a stop at the next boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakGroup:
    """End the own task's iteration: it waits for a member that is gone."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Ask the store for `term`, then call `claimed`, `refused`, or `store_unreachable` if there is no answer in time.

    Attributes:
        term: The term.
        known: Newest term in the store that this one may follow on; if the store holds a newer one, it refuses.
        members: Lives of the agents that the claimer can talk to, its own included; all others are out.
    """

    term: int
    known: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTerm:
    """Look into the store who leads, in a moment, and call `looked`, or `store_unreachable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expelled:
    """This replica is out of the job: end what it began, and join afresh."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """This node reaches too few others to go on, and waits for them; without a reason when it goes on again."""

    reason: str | None


Action: TypeAlias = Send | Folded | Installed | Vote | BreakGroup | Claim | CheckTerm | Expelled | Paused
