"""Sums between devices, run over gloo on the device "cpu": everything but NCCL itself (`test_nccl` has that).

Real processes, a real store, real connections, as in `test_process_group`, which has what sums over hosts do as well.
"""

import pytest

from tests.runtime.collectives.members import DEVICES, start, store
from tests.timeouts import timeout_s

pytest.importorskip("torch", reason="needs torch")

__all__ = ["start", "store"]


def test_a_sum_is_that_over_the_host_with_the_same_bits_for_every_member(start):
    """Tensors and arrays, each with its factor, and zeros of a member that has nothing to add."""
    body = (
        DEVICES
        + """
connect(group)
connect_devices(group, num_values=5000)
rng = np.random.default_rng(rank)
for turn in range(3):
    vector, factor = rng.normal(size=5000).astype(np.float32), 3.0 + rank
    staged = np.multiply(vector, factor, out=np.empty(5000))
    group.device_sums.clear()
    if (rank + turn) % 3:
        group.device_sums.put(torch.from_numpy(vector) if turn else vector, factor)
    else:
        staged[:] = 0
    out = np.full(5000, np.nan)
    group.add_up_on_devices(out)
    parts = group.all_gather(staged)
    np.testing.assert_allclose(out, parts.sum(axis=0), rtol=0, atol=1e-12)
    say(zlib.crc32(out.tobytes()))
group.close()
"""
    )
    members = start(body, body, body)
    for _ in range(3):
        assert len({member.hear() for member in members}) == 1
    for member in members:
        member.end()


def test_training_with_updates_on_devices_is_that_over_the_host_to_the_bit(start):
    """Two tasks of local SGD with batch norm and outer momentum, each way once; with two the order is no matter.

    Updates without a step lie in host memory, and a task without chunks has none.
    """
    body = (
        DEVICES
        + """
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.control.messages import Iterate
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.uni_task import LocalContext, Mailboxes, UniTask
from chicle_elastic.runtime.cluster_task.round import RoundContext
from chicle_elastic.runtime.training.training import Training
from chicle_elastic.solvers.base import StopFlag
from tests.solvers import nets

source, clock = nets.source(), MonotonicClock()

def train(group):
    trainer = nets.trainer(nets.network(has_norm=True), outer_momentum=0.5)
    job = Job(trainer=trainer, source=source, max_iterations=99)
    context = LocalContext("n", np.random.default_rng(0), Mailboxes())
    task = UniTask(NodeId("n"), trainer, context, clock)
    for number in range(rank, source.num_chunks, size):
        task.hold(source.load(ChunkId(number), trainer.state(source.schema)))
    task.attach(list(task.held), [])
    training = Training(job, context=context, elapsed_s=lambda: 0.0, keeps_address=True)
    if group.round == 2:
        connect_devices(group, num_values=len(training.model))
    team = RoundContext(job, task, training, group, ["a", "b"], has_caller=False, elapsed_s=lambda: 0.0)
    stop = StopFlag()
    for iteration in range(1, 8):
        if iteration == 4:
            stop.set()
        if iteration == 6 and rank == 1:
            task.attach([], task.attached)
        order = Iterate(round=group.round, iteration=iteration, is_complete=True, num_tasks=2)
        team.solve(order, stop, clock)
        team.add_up(has_vote=iteration == 5)
        assert team.votes == 2 * (iteration == 5)
        lap = team.merge(order)
        assert lap.samples == {4: 0, 6: 32, 7: 32}.get(iteration, 64)
        stop.clear()
    team.leave()
    return training.model

for round in (1, 2):
    group = make(round)
    connect(group)
    assert group.device_sums is None
    model = train(group)
    assert (group.device_sums is not None) == (round == 2)
    assert np.isfinite(model[:-7]).all()
    say(zlib.crc32(model.tobytes()))
"""
    )
    members = start(body, body)
    models = {member.hear() for _ in range(2) for member in members}
    assert len(models) == 1
    assert models != {""}
    for member in members:
        member.end()


@pytest.mark.parametrize("has_devices", [(True, True), (True, False), (False, False)])
def test_all_members_see_the_same_offers_in_the_gather_that_a_round_begins_with(start, has_devices):
    """So that all go the same way; one without a device sends everybody over the host."""
    body = (
        f"has_device = {has_devices}[rank]"
        + """
from chicle_elastic.runtime.cluster_task.catch_up import TaskPosition, gather
from chicle_elastic.runtime.collectives.backend_choice import DeviceOffer, choose_backend
offer = DeviceOffer(digest=bytes([rank + 250] * 18), nccl=22809) if has_device else DeviceOffer()
connect(group)
own = TaskPosition(merged=3, last_certificate=rank, must_recover=True, has_caller=False, device=offer)
standings = gather(group, own)
assert standings[rank] == own
way = choose_backend([standing.device for standing in standings])
say(way.is_by_nccl, way.reason, standings)
"""
    )
    members = start(body, body)
    (words,) = {member.hear() for member in members}
    assert words.startswith(str(all(has_devices)))


def test_nobody_has_devices_where_one_member_fails_and_nobody_tries_again(start):
    """The others are not kept waiting for long, and sums over the host go on."""
    body = (
        DEVICES
        + """
def fail(store, rank, size):
    raise RuntimeError("no NCCL today")

connect(group)
connect_devices(group, make_group=fail if rank else make_gloo, timeout_s=1)
say(group.device_sums, may_use_nccl, group.all_gather(np.ones(1)).sum())
group.close()
group = make(2)
attempt(connect, group)
"""
    )
    members = start(body, body, body)
    assert {member.hear() for member in members} == {"None False 3.0"}
    assert {member.hear() for member in members} == {"done"}


def test_where_nccl_cannot_be_used_the_round_goes_over_the_host(start):
    """A torch without NCCL says so at once, and NCCL does when it finds no GPU."""
    body = (
        DEVICES
        + """
from chicle_elastic.runtime.collectives.nccl_allreduce import nccl_group
connect(group)
connect_devices(group, make_group=nccl_group)
say(group.device_sums, may_use_nccl, "TORCH_NCCL_BLOCKING_WAIT" in os.environ)
"""
    )
    assert {member.hear() for member in start(body, body)} == {"None False False"}


def test_a_sum_that_comes_out_wrong_is_not_used(start):
    """As from two kinds of NCCL that do not know of each other."""
    body = (
        DEVICES
        + """
class Alone(ProcessGroupGloo):
    def size(self):
        return 2

connect(group)
connect_devices(group, make_group=lambda store, rank, size: Alone(store, 0, 1, timedelta(seconds=9)) if rank else
    Alone(torch.distributed.HashStore(), 0, 1, timedelta(seconds=9)))
say(group.device_sums)
"""
    )
    assert {member.hear() for member in start(body, body)} == {"None"}


def test_connecting_devices_can_be_broken_while_a_peer_does_not_come(start):
    """A member died after the gather; the others must not wait for it."""
    body = (
        DEVICES
        + """
connect(group)
breaker = later(lambda: (hear(), group.break_()))
say("connects")
attempt(connect_devices, group)
breaker.join()
say(may_use_nccl)
group.close()
"""
    )
    first, second = start(body, DEVICES + "connect(group); hear()")
    assert first.hear() == "connects"
    first.tell()
    word, waited_s, *_ = first.hear().split()
    assert word == "lost"
    assert float(waited_s) < timeout_s(10)
    assert first.hear() == "True", "a member that was lost is no reason to go over the host from now on"
    first.end()
    second.tell()
