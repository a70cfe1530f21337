"""Which way updates on devices are summed: decided by a pure function from what all members offer."""

import numpy as np
import pytest

from chicle_elastic.runtime.collectives.backend_choice import (
    DIGEST_BYTES,
    OFFER,
    DeviceOffer,
    choose_backend,
    device_of_updates,
)
from tests.solvers import nets

HOST = DeviceOffer()


def offer(number, *, nccl=22809):
    """Of a GPU with this number."""
    return DeviceOffer(digest=bytes([number] * DIGEST_BYTES), nccl=nccl)


def test_members_with_a_gpu_each_sum_by_nccl():
    """However many they are."""
    for size in (2, 3, 64):
        way = choose_backend([offer(rank) for rank in range(1, size + 1)])
        assert way.is_by_nccl
        assert f"each of the {size} members" in way.reason


@pytest.mark.parametrize(
    ("offers", "reason"),
    [
        ([offer(1)], "one member has nothing to add up"),
        ([HOST], "one member has nothing to add up"),
        ([HOST, HOST], "all updates lie in host memory"),
        ([offer(1), HOST, offer(2)], "rank 1 of 3 has no CUDA device"),
        ([offer(1), offer(2, nccl=0)], "rank 1 of 2 has no NCCL, or it has failed before"),
        ([offer(1, nccl=0), offer(2, nccl=0)], "rank 0 of 2 has no NCCL"),
        ([offer(1), offer(2, nccl=22703)], "rank 0 of 2 has NCCL 22809 and rank 1 has 22703"),
        ([offer(1), offer(2), offer(1)], "ranks 0 and 2 of 3 share one GPU"),
    ],
)
def test_everybody_goes_over_the_host_where_one_member_cannot_do_otherwise(offers, reason):
    """With the reason; the order of the ranks is the same for all, so all say the same."""
    way = choose_backend(offers)
    assert not way.is_by_nccl
    assert reason in way.reason


@pytest.mark.parametrize("given", [HOST, offer(255), offer(255, nccl=0), DeviceOffer(digest=bytes(17) + b"\1", nccl=1)])
def test_an_offer_travels_as_numbers_and_comes_back_exactly(given):
    """float64 holds each of them; an offer of host memory is zeros, as it must be in jobs without devices."""
    row = given.row()
    assert (row.shape, row.dtype) == ((OFFER,), np.float64)
    assert DeviceOffer.from_row(row) == given
    assert row.any() == bool(given.digest)


def test_a_trainer_in_host_memory_offers_none():
    """And CUDA is not asked."""
    assert device_of_updates(nets.trainer()) is None
    assert device_of_updates(nets.trainer(device="cpu:0")) is None
    assert DeviceOffer.of(None, may_use_nccl=True) == HOST
