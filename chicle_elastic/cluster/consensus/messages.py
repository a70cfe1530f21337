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
    """From the leader, to a node that lacks entries that are not kept, or many and is new: what the log has come to."""

    term: Count  # of the leader
    state: Mapping[str, Any]  # as `Log.state` returns it; in the leader, parts that are JSON text already


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTerm:
    """From a new lead: stop following others and say where you stand."""

    term: Count
    last_term: Count  # term of its last entry
    length: Count  # length of its log
    is_breaking: bool  # the iteration in flight cannot end by itself; end it first
    # incarnations of the present nodes that the new leader cannot reach. An agent whose leader is among them, and is
    # well, does not change over
    unreached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """The answer: how long the log is, what the new lead lacks, and how the iteration ended here."""

    term: Count  # of the `NewTerm` that this answers
    last_term: Count  # term of the last entry
    length: Count  # length of the log
    base: Count  # index of the first of `tail`
    knows_asker: bool = True  # the new lead is present in this log
    tail: tuple[Entry, ...] = ()  # entries that the new lead does not have; empty when it has all, or another history
    # the iteration in flight was merged here, but its place in the log is for a lead to give
    ended: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailed:
    """To the lead: the iteration cannot end, because this node's process group is broken."""

    round: Count
    iteration: Count
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The other answer to `NewTerm`: this agent knows a newer term, or hears a leader that the asking one does not."""

    term: Count  # newest term that it knows


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedDown:
    """From an agent that led or was about to: it reaches too few nodes to go on."""

    term: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """To all: this agent has read of its release, and has no vote any more."""

    length: Count  # of its log with that entry
    last_term: Count  # term of that entry


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """To the leader: which present nodes this one cannot reach. The latest report replaces the ones before."""

    unreached: tuple[str, ...]  # their incarnations
    left_out_of: Count = 0  # the round that is called without this node, which had a vote until then


@dataclass(frozen=True, slots=True, kw_only=True)
class Expel:
    """Your log is another history, or a better one has lost you: start afresh and join again."""

    reason: str


Message: TypeAlias = (
    Propose
    | Append
    | Install
    | NewTerm
    | LogPosition
    | Refusal
    | SteppedDown
    | Released
    | LinkReport
    | GroupFailed
    | Expel
)

LOG = "log"  # kind of the messages between agents that are about the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """What one agent has said to another about the log within one turn of its event loop, as their link carries it."""

    messages: tuple[Message, ...]  # in their order
    kind: str = LOG


Electorates: TypeAlias = tuple[Mapping[NodeId, str], ...]
"""Sets of incarnations, by node: a part of the job that may lead needs enough of each (`reachability`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term, as the store holds it."""

    term: int = 0  # its number; 0 before the first
    lead: str = ""
    address: str = ""  # where the leader accepts links
    members: tuple[str, ...] = ()
    electorates: Electorates = ()  # those that `lead` knew when it asked


# What the agent is asked to do.


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message over the link to a peer."""

    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """An entry was folded: perform the orders that concern this node."""

    index: int  # of the entry
    entry: Entry
    effects: Sequence[Effect]  # the orders; iterations that are over already are left out
    is_live: bool  # false for history from before this agent's life, which must not be performed again
    lost_life: str = ""  # the life that a lead took for lost with this entry; empty for others


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The log goes on from a state, without the entries before."""

    length: int  # of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Let the own task vote for a stop at the next boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakGroup:
    """End the own task's iteration: it waits for a member that is gone."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Ask the store for `term`, then call `claimed`, `refused`, or `store_unreachable` without an answer in time."""

    term: int
    known: int  # newest term in the store that this one may follow on; if the store holds a newer one, it refuses
    members: tuple[str, ...]  # lives of the agents that the claimer can talk to, its own included; all others are out


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
