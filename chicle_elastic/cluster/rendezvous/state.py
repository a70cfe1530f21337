"""The shared state of the rendezvous and its transitions: pure functions from state to state.

    FORMING r   --come-->      FORMING r with one member more, or COMPLETE r with the last one
    COMPLETE r  --come-->      FORMING of the next round, with this one member
    FORMING r   --complete-->  COMPLETE r
    any         --close-->     closed; nothing follows

Only plain torchrun forms rounds here; the agents of a Chicle job form theirs in the replicated log, and close the state
when the job is over. Any node may join a round, between a minimum and a maximum number. A round after the first expects
the members of the previous one and the nodes that waited meanwhile. The first round has no expected nodes, and so waits
for further nodes until none has arrived for a while; so does a round whose expected members do not arrive.

The state heals itself: a node that does not find itself in the round that it wants to be in joins again. So a lost
write (an older state was put back into the store) costs time and nothing else. `serial` counts writes and never
decreases: by it an agent recognises an older state, whose signature is right.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, TypeAlias

import msgspec

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import codec

FORMAT = 3
MAX_MEMBERS = 512
MAX_TEXT = 256

Name: TypeAlias = Annotated[NodeId, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMember:
    """An agent at the rendezvous."""

    node: Name
    token: Text  # random, one per agent process: distinguishes two agents that use the same node name
    host: Text
    port: Number  # a free port there; plain torchrun's tasks connect to the one of rank 0


Members: TypeAlias = Annotated[tuple[RoundMember, ...], codec.COMPACT, msgspec.Meta(max_length=MAX_MEMBERS)]
Names: TypeAlias = Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_MEMBERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousState:
    """The state of the rendezvous, as the store holds it."""

    serial: Number = 0
    round: Number = 0  # number of the round; 0 before the first
    is_complete: bool = True
    is_closed: bool = False  # the job is over
    is_success: bool = False  # of a closed job: it has finished its work
    members: Members = ()
    expected: Names = ()  # names that the round waits for, in rank order; empty when they are not known
    waiting: Members = ()

    def to_json(self) -> dict[str, Any]:
        """For `from_json` of any process of this format."""
        values: dict[str, Any] = codec.to_values(self)
        return {"format": FORMAT, **values}

    @classmethod
    def from_json(cls, value: object) -> "RendezvousState":
        """The state that `to_json` was called on. Raises ProtocolError when it has another format, or is malformed. (It
        carried the signature of the job.)"""
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            found = value.get("format") if isinstance(value, dict) else type(value).__name__
            raise ProtocolError(
                f"the state of the rendezvous has format {found!r}, and this Chicle reads format {FORMAT}; use the "
                "same version of Chicle on every node"
            )
        values = {name: part for name, part in value.items() if name != "format"}
        try:
            if missing := [field.name for field in fields(cls) if field.name not in values]:
                raise ProtocolError(f"{missing[0]!r} is missing")
            state: RendezvousState = codec.from_values(values, cls)
        except ProtocolError as error:
            raise ProtocolError(
                f"the state of the rendezvous is malformed ({error}); use the same version of Chicle on every node"
            ) from error
        return state

    def missing(self) -> tuple[NodeId, ...]:
        """Expected nodes that have not arrived yet."""
        here = {member.node for member in self.members}
        return tuple(node for node in self.expected if node not in here)


def come(state: RendezvousState, me: RoundMember, *, max_nodes: int) -> RendezvousState:
    """`me` wants to be in the next round. A member of the complete round begins the next one, which expects the other
    members and the waiting nodes; a node that is no member joins a forming round, or waits until a member begins
    one."""
    if state.is_complete and (state.round == 0 or me in state.members):
        expected = tuple(dict.fromkeys(member.node for member in (*state.members, *state.waiting)))
        begun = replace(state, round=state.round + 1, is_complete=False, expected=expected)
        return replace(begun, members=(me,), waiting=())
    if me in state.members:
        return state
    if state.is_complete or len(state.members) >= max_nodes:
        return state if me in state.waiting else replace(state, waiting=(*state.waiting, me))
    members, waiting = (*state.members, me), tuple(member for member in state.waiting if member != me)
    return replace(state, members=members, waiting=waiting, is_complete=len(members) == max_nodes)


def drop(state: RendezvousState, silent: Collection[RoundMember]) -> RendezvousState:
    """Some nodes do not wait any more; one that lives comes again."""
    return replace(state, waiting=tuple(member for member in state.waiting if member not in silent))


def may_complete(state: RendezvousState, *, min_nodes: int, is_quiet: bool) -> bool:
    """Whether a round may be complete: enough nodes have arrived, and either all expected ones are among them or
    no node has arrived for a while (`is_quiet`)."""
    enough = len(state.members) >= min_nodes and not state.is_complete
    return enough and (is_quiet or bool(state.expected and not state.missing()))


def complete(state: RendezvousState) -> RendezvousState:
    """Make the members of a round final; the expected ones come first, so that ranks are stable."""
    rank = {node: index for index, node in enumerate(state.expected)}
    members = tuple(sorted(state.members, key=lambda member: rank.get(member.node, len(rank))))
    return replace(state, is_complete=True, members=members)


def close(state: RendezvousState, *, is_success: bool) -> RendezvousState:
    """The job is over. The first agent that closes it also decides `is_success`."""
    return state if state.is_closed else replace(state, is_closed=True, is_success=is_success)


def written(state: RendezvousState, *, after: int) -> RendezvousState:
    """The state with the serial of the next write, which is higher than its own and than `after`."""
    return replace(state, serial=max(state.serial, after) + 1)
