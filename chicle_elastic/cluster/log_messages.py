"""What agents say to each other about the log, and what a replica asks its agent to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chicle_elastic.cluster.entries import (
    Ended,
    Entry,
    decode_ended,
    decode_entries,
    encode_ended,
    encode_entries,
)
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.codec import decode_event, encode
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event

# Messages between agents.


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """To the lead: give this event a place. Said again to a new lead; `number` tells it apart from others."""

    origin: str
    number: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """From the lead: entries from index `base` on."""

    term: int
    base: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """From the lead, to somebody who lacks entries that are not kept, or many and is new: what the log has come to.

    Attributes:
        term: Of the lead.
        state: As `Log.state` returns it.
    """

    term: int
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTerm:
    """From a new lead: stop following others and say where you stand.

    Attributes:
        term: Its term.
        last_term: Term of its last entry.
        length: Length of its log.
        is_breaking: The iteration in flight cannot end by itself; end it first.
    """

    term: int
    last_term: int
    length: int
    is_breaking: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
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

    term: int
    last_term: int
    length: int
    base: int
    knows_asker: bool = True
    tail: tuple[Entry, ...] = ()
    ended: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """To the lead: the iteration cannot end, because this node's process group is broken."""

    round: int
    iteration: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expel:
    """From the lead: your log is another history; start afresh and join again."""

    reason: str


Message: TypeAlias = Propose | Append | Install | NewTerm | Standing | Broke | Expel

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
    """End the own task's iteration: it waits for somebody who is gone."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Try to become the lead of `term` in the store, then say `claimed` or `refused`.

    Attributes:
        term: The term; the store must hold the one before, or none.
        members: Lives of the agents that the claimer can talk to, its own included; all others are out.
    """

    term: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Look into the store who leads, in a moment, and say `looked`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expelled:
    """This replica is out of the job: end what it began, and join afresh."""

    reason: str


Action: TypeAlias = Send | Folded | Installed | Vote | BreakGroup | Claim | Look | Expelled


def encode_message(message: Message) -> dict[str, Any]:
    """A message as JSON values, with its "type"."""
    data: dict[str, Any] = {"type": type(message).__name__}
    for name in message.__dataclass_fields__:
        data[name] = getattr(message, name)
    if isinstance(message, Propose):
        data["event"] = encode(message.event)
    elif isinstance(message, Append):
        data["entries"] = encode_entries(message.entries)
    elif isinstance(message, Standing):
        data["tail"], data["ended"] = encode_entries(message.tail), encode_ended(message.ended)
    return data


_SCALARS: dict[type[Message], dict[str, type]] = {
    Propose: {"origin": str, "number": int},
    Append: {"term": int, "base": int},
    Install: {"term": int},
    NewTerm: {"term": int, "last_term": int, "length": int, "is_breaking": bool},
    Standing: {"term": int, "last_term": int, "length": int, "base": int, "knows_asker": bool},
    Broke: {"round": int, "iteration": int, "reason": str},
    Expel: {"reason": str},
}
MESSAGE_TYPES = {cls.__name__: cls for cls in _SCALARS}


def decode_message(data: Any) -> Message:
    """A message from JSON values.

    Raises:
        ProtocolError: It is none; the message says what is wrong.
    """
    tag = data.get("type") if isinstance(data, dict) else None
    if not isinstance(tag, str) or tag not in MESSAGE_TYPES:
        raise ProtocolError(f"a message about the log has a type out of {', '.join(MESSAGE_TYPES)}, not {tag!r}")
    cls = MESSAGE_TYPES[tag]
    values: dict[str, Any] = {}
    for name, kind in _SCALARS[cls].items():
        value = data.get(name)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise ProtocolError(f"{tag}.{name} is {value!r} and not a {kind.__name__} >= 0")
        values[name] = value
    if cls is Propose:
        values["event"] = decode_event(data.get("event"))
    elif cls is Append:
        values["entries"] = decode_entries(data.get("entries"))
    elif cls is Install:
        values["state"] = data.get("state")  # looked at where it is installed
    elif cls is Standing:
        values["tail"], values["ended"] = decode_entries(data.get("tail")), decode_ended(data.get("ended"))
    return cls(**values)
