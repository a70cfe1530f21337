"""Values in the store that carry the signature of a round."""

from datetime import timedelta

import pytest
from torch.distributed import DistStoreError, PrefixStore

from chicle_elastic.errors import SecretError
from chicle_elastic.runtime.collectives.signed_store import SignedStore
from chicle_elastic.runtime.collectives.torch_store import torch_store
from chicle_elastic.transports.secret import JobSecret
from tests.runtime.collectives.members import store

__all__ = ["store"]

SECRET = JobSecret(b"s" * 32)
KEYS = ["0/0", "0/1"]


def test_each_value_is_verified(store, request):
    """A value under another key, one of another secret, and one that is not signed are not believed."""
    prefix = request.node.name
    signed = SignedStore(store, prefix, SECRET)
    assert signed.get_all(KEYS, wait_s=0.01) is None
    for key in KEYS:
        signed.set(key, f"value {key}")
    assert signed.get_all(KEYS) == [b"value 0/0", b"value 0/1"]
    other = SignedStore(store, prefix, JobSecret(b"o" * 32))
    moved = store.get(f"{prefix}/0/0")
    for foreign in (
        lambda: store.set(f"{prefix}/0/1", moved),
        lambda: other.set("0/1", "x"),
        lambda: store.set(f"{prefix}/0/1", "x"),
    ):
        foreign()
        with pytest.raises(SecretError):
            signed.get_all(KEYS)
        with pytest.raises(SecretError):
            torch_store(signed).get("0/1")


def test_torch_finds_its_operations(store, request):
    """Those of NCCL and of the agents of plain torchrun, through a prefix of torch's own; they wait as torch's do."""
    outer = torch_store(store)
    inner = PrefixStore(request.node.name, outer)
    inner.set("key", "value")
    assert inner.get("key") == b"value"
    assert [inner.add("count", 2), inner.add("count", 3)] == [2, 5]
    assert inner.get("count") == b"5"
    inner.multi_set(["a", "b"], ["1", "2"])
    assert inner.multi_get(["a", "b"]) == [b"1", b"2"]
    assert inner.check(["a", "b"])
    assert not inner.check(["a", "c"])
    inner.wait(["a"])
    with pytest.raises(DistStoreError):
        inner.wait(["c"], timedelta(milliseconds=20))
