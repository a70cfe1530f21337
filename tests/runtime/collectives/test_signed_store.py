"""How often the members of a group ask the store, and that reading together verifies each value."""

from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import TCPStore

from chicle_elastic.errors import SecretError
from chicle_elastic.runtime.collectives.signed_store import signed_store
from chicle_elastic.transports.secret import JobSecret
from tests.runtime.collectives.members import store

__all__ = ["store"]

SECRET = JobSecret(b"s" * 32)
NUM_MEMBERS = 4


class Watched:
    """A store, and the names of the operations that reached it."""

    def __init__(self, store: TCPStore) -> None:
        self.store, self.operations = store, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.operations.append(name)
        return getattr(self.store, name)


@pytest.fixture
def watched(store, request):
    """Where all members have written their value under the prefix of the test."""
    prefix = request.node.name
    for rank in range(NUM_MEMBERS):
        signed_store(store, prefix, SECRET).set(f"0/{rank}", f"value {rank}")
    return Watched(store)


def ask_like_gloo(signed) -> list[bytes]:
    """Wait for one rank after the other, and read it."""
    values = []
    for rank in range(NUM_MEMBERS):
        signed.wait([f"0/{rank}"], timedelta(seconds=20))
        values.append(signed.get(f"0/{rank}"))
    return values


def test_members_are_read_together(watched, request):
    """Each question would be a round trip, or two."""
    signed = signed_store(watched, request.node.name, SECRET, num_members=NUM_MEMBERS)
    assert ask_like_gloo(signed) == [f"value {rank}".encode() for rank in range(NUM_MEMBERS)]
    assert watched.operations == ["wait", "multi_get"]


def test_values_of_other_groups_are_read_one_by_one(watched, request):
    """NCCL's only key ends with a number, too, and no member writes the next one."""
    for num_members in (0, 1):
        signed = signed_store(watched, request.node.name, SECRET, num_members=num_members)
        assert signed.get("0/3") == b"value 3"
    assert watched.operations == ["multi_get"] * 2


def test_each_value_is_verified(watched, request):
    """Also that of a member that was not asked for yet."""
    watched.store.set(f"{request.node.name}/0/3", watched.store.get(f"{request.node.name}/0/2"))
    signed = signed_store(watched, request.node.name, SECRET, num_members=NUM_MEMBERS)
    with pytest.raises(SecretError):
        signed.get("0/0")
