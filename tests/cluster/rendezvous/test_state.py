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


A, D = member("a"), member("d")


def test_the_state_survives_the_store() -> None:
    """As JSON, member for member."""
    state = states.close(
        states.come(
            RendezvousState(serial=7, round=2, expected=("a", "b"), waiting=(D,), is_complete=False), A, max_nodes=3
        ),
        is_success=True,
    )
    state = states.complete(state)
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
        ("waiting", None),
    ],
)
def test_a_malformed_state_is_named_and_not_half_believed(key: str, value: object) -> None:
    """It carried the signature, so it is a bug or another version; either way nothing of it is used."""
    with pytest.raises(ProtocolError, match="malformed"):
        RendezvousState.from_json(RendezvousState().to_json() | {key: value})
    with pytest.raises(ProtocolError, match="malformed"):
        RendezvousState.from_json({name: part for name, part in RendezvousState().to_json().items() if name != key})
