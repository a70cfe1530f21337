"""The transitions of the shared state, without a store."""

import json

import pytest

from chicle_elastic.cluster.rendezvous import state as states
from chicle_elastic.cluster.rendezvous.state import RendezvousState, RoundMember
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId


def member(name: str) -> RoundMember:
    """An agent of this name."""
    return RoundMember(node=NodeId(name), token=f"token-{name}", host="10.0.0.1", port=1234)


def names(state: RendezvousState) -> list[str]:
    """Of the members, in order."""
    return [member.node for member in state.members]


A, B, C, D = (member(name) for name in "abcd")


def test_a_free_round_expects_the_last_one_s_members_and_who_waits() -> None:
    """With the ranks of those who stay as they were."""
    state = states.complete(states.come(states.come(RendezvousState(), A, max_nodes=4), B, max_nodes=4))
    state = states.come(state, C, max_nodes=4)
    assert state.waiting == (C,)
    state = states.come(state, B, max_nodes=4)
    assert (state.round, state.expected) == (2, ("a", "b", "c"))
    state = states.come(states.come(state, C, max_nodes=4), A, max_nodes=4)
    assert states.may_complete(state, min_nodes=2, is_quiet=False)
    assert names(states.complete(state)) == ["a", "b", "c"]


def test_a_free_round_does_not_expect_who_left() -> None:
    """A leaver says so; only the dead have to be waited for."""
    state = states.complete(states.come(states.come(RendezvousState(), A, max_nodes=4), B, max_nodes=4))
    state = states.come(states.depart(state, A), B, max_nodes=4)
    assert states.may_complete(state, min_nodes=1, is_quiet=False)
    state = states.come(state, C, max_nodes=4)
    state = states.depart(state, C)
    assert names(states.complete(state)) == ["b"]


def test_a_free_round_takes_no_more_than_find_a_place() -> None:
    """The others wait."""
    state = RendezvousState()
    for me in (A, B, C):
        state = states.come(state, me, max_nodes=2)
    assert state.is_complete
    assert (names(state), state.waiting) == (["a", "b"], (C,))


def test_a_first_free_round_closes_when_nobody_comes_for_a_while() -> None:
    """And not before enough are there."""
    state = states.come(RendezvousState(), A, max_nodes=4)
    assert not states.may_complete(state, min_nodes=1, is_quiet=False)
    assert states.may_complete(state, min_nodes=1, is_quiet=True)
    assert not states.may_complete(state, min_nodes=2, is_quiet=True)


def test_the_state_survives_the_store() -> None:
    """As JSON, member for member."""
    state = states.close(
        states.come(
            RendezvousState(serial=7, round=2, expected=("a", "b"), waiting=(D,), is_complete=False), A, max_nodes=3
        ),
        is_success=True,
    )
    state = states.depart(states.complete(state), A)
    assert RendezvousState.from_json(json.loads(json.dumps(state.to_json()))) == state


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("serial", -1),
        ("serial", True),
        ("round", "3"),
        ("round", 1e300),
        ("is_complete", 1),
        ("members", [["a", "token", "host"]]),
        ("members", [["a", "token", "host", "1234"]]),
        ("members", "abc"),
        ("members", [["a", "t", "h", 1]] * 1000),
        ("expected", [""]),
        ("gone", ["x" * 1000]),
        ("waiting", None),
    ],
)
def test_a_malformed_state_is_named_and_not_half_believed(key: str, value: object) -> None:
    """It carried the signature, so it is a bug or another version; either way nothing of it is used."""
    with pytest.raises(ProtocolError, match="malformed"):
        RendezvousState.from_json(RendezvousState().to_json() | {key: value})
    with pytest.raises(ProtocolError, match="malformed"):
        RendezvousState.from_json({name: part for name, part in RendezvousState().to_json().items() if name != key})
