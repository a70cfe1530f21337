"""The shared state of the rendezvous, and what may become of it: pure functions from state to state.

    FORMING r   --call or come-->  FORMING r with one member more, or COMPLETE r with the last one
    COMPLETE r  --call or come-->  FORMING of a later round, with this one member
    FORMING r   --complete-->      COMPLETE r
    any         --close-->         closed; nothing follows

Members know in one of two ways for whom a round waits:

* called: the scheduler said so (`FormRound`), and everybody heard the same. The round is complete the moment that the
  last of `expected` is here, and ranks follow the order of `expected`.
* free (plain torchrun): whoever comes, between a least and a greatest number. A round after the first expects the
  members of the one before and those who waited meanwhile. The first expects nobody, and so waits a moment for more;
  so does one whose expected members do not come.

The state heals itself: a member that does not find itself in the round that it wants to be in comes again. So losing
a write (somebody put an older state back) costs time and nothing else. `serial` counts writes and never goes back:
that is how an older state, whose signature is right, is recognised.
"""

from dataclasses import dataclass, replace
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId

FORMAT = 1
MAX_MEMBERS = 512
MAX_TEXT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An agent at the rendezvous.

    Attributes:
        node: Its name.
        token: Random, one per agent process: tells a node from another that has taken its name.
        host: Address that its task can be reached at.
        port: A free port there; plain torchrun's tasks meet at the one of rank 0.
    """

    node: NodeId
    token: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousState:
    """What lies in the store.

    Attributes:
        serial: Number of writes.
        round: Number of the round; 0 before the first.
        is_complete: The members are final, in rank order.
        is_closed: The job is over.
        is_success: It has done what it was to do; of a closed one.
        members: Who is here.
        is_called: The scheduler called the round; it waits for all of `expected`, whatever happens.
        expected: Names that the round waits for, in rank order; empty when they are not known.
        waiting: Who came too late and waits for the next round; free rounds only.
        gone: Tokens of members that left after the round was complete; free rounds only.
    """

    serial: int = 0
    round: int = 0
    is_complete: bool = True
    is_closed: bool = False
    is_success: bool = False
    members: tuple[Member, ...] = ()
    is_called: bool = False
    expected: tuple[NodeId, ...] = ()
    waiting: tuple[Member, ...] = ()
    gone: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For `from_json` of any process of this format."""
        return {
            "format": FORMAT,
            "serial": self.serial,
            "round": self.round,
            "is_complete": self.is_complete,
            "is_closed": self.is_closed,
            "is_success": self.is_success,
            "members": [_member_json(member) for member in self.members],
            "is_called": self.is_called,
            "expected": list(self.expected),
            "waiting": [_member_json(member) for member in self.waiting],
            "gone": list(self.gone),
        }

    @classmethod
    def from_json(cls, value: object) -> "RendezvousState":
        """The state that `to_json` was called on.

        Raises:
            ProtocolError: It is of another format, or has no such form. (It carried the signature of the job.)
        """
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            found = value.get("format") if isinstance(value, dict) else type(value).__name__
            raise ProtocolError(
                f"the state of the rendezvous has format {found!r}, and this Chicle reads format {FORMAT}; use the "
                "same version of Chicle on every node"
            )
        try:
            return cls(
                serial=_number(value["serial"]),
                round=_number(value["round"]),
                is_complete=_flag(value["is_complete"]),
                is_closed=_flag(value["is_closed"]),
                is_success=_flag(value["is_success"]),
                members=tuple(_member(part) for part in _list(value["members"])),
                is_called=_flag(value["is_called"]),
                expected=tuple(NodeId(_text(part)) for part in _list(value["expected"])),
                waiting=tuple(_member(part) for part in _list(value["waiting"])),
                gone=tuple(_text(part) for part in _list(value["gone"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"the state of the rendezvous is malformed ({type(error).__name__}: {error}); use the same version of "
                "Chicle on every node"
            ) from error

    def member(self, node: NodeId) -> Member | None:
        """The member of this name."""
        return next((member for member in self.members if member.node == node), None)

    def missing(self) -> tuple[NodeId, ...]:
        """Expected names that are not here yet."""
        here = {member.node for member in self.members}
        return tuple(node for node in self.expected if node not in here)

    def tokens(self) -> frozenset[str]:
        """Of the members."""
        return frozenset(member.token for member in self.members)


def call(state: RendezvousState, me: Member, *, round: int, expected: tuple[NodeId, ...]) -> RendezvousState:
    """`me` takes part in a round that the scheduler called: begins it, or joins it while it is forming.

    Args:
        state: As it is, of this round or one before.
        me: Who comes.
        round: Number of the round.
        expected: Its members in rank order, `me` among them.

    Raises:
        ProtocolError: The round is there already, called for others.
    """
    if round > state.round:
        state = replace(state, round=round, is_complete=False, is_called=True, members=(), expected=expected, gone=())
    if state.expected != expected or not state.is_called:
        raise ProtocolError(
            f"round {round} was called for {_names(expected)} here and for {_names(state.expected)} elsewhere; agents "
            "of one job that do not agree are a bug, or two jobs use one run id: give each its own --rdzv-id"
        )
    if state.is_complete or me in state.members:
        return state
    members = (*state.members, me)
    if len(members) < len(expected):
        return replace(state, members=members)
    rank = {node: index for index, node in enumerate(expected)}
    members = tuple(sorted(members, key=lambda member: rank[member.node]))
    return replace(state, is_complete=True, members=members)


def come(state: RendezvousState, me: Member, *, max_nodes: int) -> RendezvousState:
    """`me` wants to be in the round that forms next, which nobody called (plain torchrun).

    A member of the complete round begins the next one, which expects the others and those who wait; who is not a
    member waits until somebody does, or joins what is forming.
    """
    if state.is_complete and (state.round == 0 or (me in state.members and me.token not in state.gone)):
        stay = [member.node for member in state.members if member.token not in state.gone]
        expected = tuple(dict.fromkeys([*stay, *(member.node for member in state.waiting)]))
        begun = replace(state, round=state.round + 1, is_complete=False, is_called=False, expected=expected, gone=())
        return replace(begun, members=(me,), waiting=())
    if me in state.members:
        return state
    if state.is_complete or len(state.members) >= max_nodes:
        return state if me in state.waiting else replace(state, waiting=(*state.waiting, me))
    members, waiting = (*state.members, me), tuple(member for member in state.waiting if member != me)
    return replace(state, members=members, waiting=waiting, is_complete=len(members) == max_nodes)


def may_complete(state: RendezvousState, *, min_nodes: int, is_quiet: bool) -> bool:
    """Whether a round that nobody called may be complete: enough are here, and either everybody who was expected came
    or nobody came for a while (`is_quiet`)."""
    enough = len(state.members) >= min_nodes and not state.is_complete and not state.is_called
    return enough and (is_quiet or bool(state.expected and not state.missing()))


def complete(state: RendezvousState) -> RendezvousState:
    """The members of a round that nobody called are final; the expected ones come first, so that ranks are stable."""
    rank = {node: index for index, node in enumerate(state.expected)}
    members = tuple(sorted(state.members, key=lambda member: rank.get(member.node, len(rank))))
    return replace(state, is_complete=True, members=members)


def depart(state: RendezvousState, me: Member) -> RendezvousState:
    """`me` takes part no more.

    A complete round keeps its ranks and remembers who is gone. A called one goes on waiting for whom it was called:
    the scheduler, who learns of the departure too, calls another.
    """
    state = replace(state, waiting=tuple(member for member in state.waiting if member != me))
    if me not in state.members:
        return state
    if state.is_complete:
        return state if me.token in state.gone else replace(state, gone=(*state.gone, me.token))
    state = replace(state, members=tuple(member for member in state.members if member != me))
    if state.is_called:
        return state
    return replace(state, expected=tuple(node for node in state.expected if node != me.node))


def close(state: RendezvousState, *, is_success: bool) -> RendezvousState:
    """The job is over. The first one who says so also says how it ended."""
    return state if state.is_closed else replace(state, is_closed=True, is_success=is_success)


def written(state: RendezvousState, *, after: int) -> RendezvousState:
    """The state as the next write, whose serial is higher than its own and than `after`."""
    return replace(state, serial=max(state.serial, after) + 1)


def _names(nodes: tuple[NodeId, ...]) -> str:
    return ", ".join(nodes) or "nobody"


def _member_json(member: Member) -> list[str | int]:
    return [member.node, member.token, member.host, member.port]


def _member(value: object) -> Member:
    node, token, host, port = _list(value)
    return Member(node=NodeId(_text(node)), token=_text(token), host=_text(host), port=_number(port))


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_MEMBERS:
        raise TypeError(f"a list of at most {MAX_MEMBERS} expected, got {type(value).__name__}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise TypeError(f"a text of at most {MAX_TEXT} characters expected, got {value!r:.80}")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise TypeError(f"a number >= 0 expected, got {value!r:.80}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"true or false expected, got {value!r:.80}")
    return value
