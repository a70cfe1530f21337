"""Sums between devices by NCCL: `make test-gpu`, on a machine that has a card; some of it needs two.

The same seam runs over gloo in `test_nccl_allreduce`, on any machine. Nothing here pretends to be NCCL.
"""

import signal

import pytest
import torch

from tests.runtime.collectives.members import start, store
from tests.timeouts import timeout_s

__all__ = ["start", "store"]

NUM_CARDS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_CARDS == 0, reason=f"torch {torch.__version__} sees no CUDA device here"),
]
two_cards = pytest.mark.skipif(
    NUM_CARDS < 2, reason=f"NCCL between two members needs two GPUs, and here are {NUM_CARDS}"
)

PRELUDE = """
import torch
from chicle_elastic.runtime.cluster_task.catch_up import TaskPosition, gather
from chicle_elastic.runtime.collectives.backend_choice import DeviceOffer, choose_backend

def stand(group, card):
    device = torch.device("cuda", card)
    offer = DeviceOffer.of(device, may_use_nccl=may_use_nccl)
    own = TaskPosition(merged=0, last_certificate=0, must_recover=False, has_caller=False, device=offer)
    return choose_backend([position.device for position in gather(group, own)])

may_use_nccl = True

def connect_devices(group, card, num_values=100_000):
    global may_use_nccl
    may_use_nccl = group.connect_devices(device=torch.device("cuda", card), num_values=num_values)

def add_up(group, vector, factor):
    group.device_sums.put(torch.from_numpy(vector).cuda(), factor)
    out = np.empty(len(vector))
    group.add_up_on_devices(out)
    return out
"""


def test_a_group_of_one_sums_to_what_staging_over_the_host_gives(start):
    """To the bit, for tensors and arrays; the next round has a group of its own, while the one before ends."""
    [member] = start(
        PRELUDE
        + """
for round in range(1, 4):
    group = make(round)
    connect(group)
    connect_devices(group, 0)
    assert "TORCH_NCCL_BLOCKING_WAIT" not in os.environ
    for turn in range(3):
        vector = np.random.default_rng([round, turn]).normal(size=100_000).astype(np.float32)
        expected = np.multiply(vector, 13.0, out=np.empty(100_000))
        np.testing.assert_array_equal(add_up(group, vector, 13.0), expected)
        group.device_sums.put(vector, 13.0)
        out = np.full(100_000, np.nan)
        group.add_up_on_devices(out)
        np.testing.assert_array_equal(out, expected)
        group.device_sums.clear()
        group.add_up_on_devices(out)
        assert not out.any()
    group.close()
say("equal")
"""
    )
    assert member.hear() == "equal"
    member.end()


def test_no_thread_of_torch_watches_over_such_a_group(start):
    """It would end the process when a peer dies, and torch's elastic agent asks for that."""
    [member] = start(
        "import os; os.environ['TORCH_NCCL_ASYNC_ERROR_HANDLING'] = '1'"
        + PRELUDE
        + """
from pathlib import Path
connect(group)
connect_devices(group, 0)
assert group.device_sums is not None
names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
say([name for name in names if name.startswith("pt_nccl")])
group.close()
"""
    )
    assert member.hear() == "[]"
    member.end()


def test_an_offer_names_the_card_and_not_its_number(start):
    """It is the same each time, and NCCL is in it until it has failed."""
    [member] = start(
        PRELUDE
        + """
from chicle_elastic.runtime.collectives.backend_choice import DIGEST_BYTES, device_of_updates
from tests.solvers import nets
device = device_of_updates(nets.trainer(device="cuda"))
assert device == torch.device("cuda", 0)
offer = DeviceOffer.of(device, may_use_nccl=True)
assert len(offer.digest) == DIGEST_BYTES
assert offer == DeviceOffer.of(torch.device("cuda", 0), may_use_nccl=True) == DeviceOffer.from_row(offer.row())
without = DeviceOffer.of(device, may_use_nccl=False)
say(offer.nccl > 20000, without.nccl, without.digest == offer.digest)
"""
    )
    assert member.hear() == "True 0 True"
    member.end()


def test_two_members_on_one_card_go_over_the_host(start):
    """They agree on that; where they did not, NCCL refuses or is left behind, and the round goes on."""
    body = (
        PRELUDE
        + """
connect(group)
way = stand(group, 0)
say(way.is_by_nccl, way.reason)
connect_devices(group, 0)
say(group.device_sums, group.all_gather(np.ones(1)).sum(), stand(group, 0).reason)
group.close()
"""
    )
    members = start(body, body)
    assert {member.hear() for member in members} == {"False ranks 0 and 1 of 2 share one GPU, which NCCL refuses"}
    assert {member.hear() for member in members} == {"None 2.0 rank 0 of 2 has no NCCL, or it has failed before"}
    for member in members:
        member.end()


@two_cards
def test_two_members_on_two_cards_sum_by_nccl(start):
    """The same bits for both, and with two those of the host; in each round by a group of its own."""
    body = (
        PRELUDE
        + """
torch.cuda.set_device(rank)
for round in (1, 2, 3):
    group = make(round)
    connect(group)
    assert stand(group, rank).is_by_nccl
    connect_devices(group, rank)
    for turn in range(5):
        vector = np.random.default_rng([round, turn, rank]).normal(size=100_000).astype(np.float32)
        total = add_up(group, vector, 3.0 + rank)
        staged = np.multiply(vector, 3.0 + rank, out=np.empty(100_000))
        group.all_reduce(staged)
        np.testing.assert_array_equal(total, staged)
        say(zlib.crc32(total.tobytes()))
    group.close()
"""
    )
    members = start(body, body)
    for _ in range(15):
        assert len({member.hear() for member in members}) == 1
    for member in members:
        member.end()


@two_cards
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_break_ends_a_sum_of_nccl_that_waits_for_a_peer(start, is_killed):
    """The peer is silent, or dead without NCCL's notice; the survivor can go on with its card, and sum again."""
    waits = (
        PRELUDE
        + """
connect(group)
connect_devices(group, 0)
say("connected")
breaker = later(lambda group=group, main=threading.get_ident(): break_when_it_waits(group, main))
attempt(add_up, group, np.ones(100_000), 1.0)
breaker.join()
group.close()
say(torch.ones(10, device="cuda:0").sum().item())
"""
    )
    silent = PRELUDE + "torch.cuda.set_device(1); connect(group); connect_devices(group, 1); say('connected'); hear()"
    first, second = start(waits, silent)
    assert {first.hear(), second.hear()} == {"connected"}
    if is_killed:
        second.process.kill()
    else:
        second.signal(signal.SIGSTOP)

    first.tell()
    word, waited_s, *_ = first.hear().split()
    assert word == "lost"
    assert float(waited_s) < timeout_s(20)
    assert first.hear() == "10.0"
    first.end()
