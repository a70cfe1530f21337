"""Four nodes fall apart in two groups: one group goes on, and all nodes are in one job when the network is healed."""

import pytest

from tests.hosts.job import Job, Node
from tests.hosts.lab import Lab
from tests.timeouts import comes

pytestmark = pytest.mark.hosts

UNREACHED_S = 8.0
"""Longer than a node that reaches no agent waits before it begins the job anew."""
LEADER, *FOLLOWERS = range(4)


def fall_apart(job: Job, members: list[Node], side: list[int], *, both_have_store: bool) -> None:
    """Cut the nodes in two groups; the larger one goes on. The nodes are numbered, the one that leads first.

    Of two halves that goes on which the store grants the next term.
    """
    leader = job.leader()
    members = sorted(members, key=lambda node: node.name != leader)
    here = [members[number] for number in side]
    there = [node for node in members if node not in here]
    job.part(here, there, has_store=(True, both_have_store))
    if both_have_store and len(here) == len(there):
        job.wait_for_progress_of_any(here, there)
    else:
        job.wait_for_progress(here if len(here) >= len(there) else there)


def test_four_nodes_fall_apart_and_one_side_has_the_store(lab: Lab) -> None:
    """Six partitions, one after the other: three nodes go on without the store, two with it; the others join again."""
    job = Job(lab)
    members = job.start_members("n1", "n2", "n3", "n4")
    for side in (
        [LEADER],
        [FOLLOWERS[0]],
        [LEADER, FOLLOWERS[0]],
        FOLLOWERS[:2],
        [LEADER, *FOLLOWERS[:2]],
        FOLLOWERS,
    ):
        fall_apart(job, members, side, both_have_store=False)
        lab.network.heal()
        job.wait_for_members(members)
        print(f"nodes with the store: {side}; longest stalls so far: {job.stalls()}")
    job.end(members)


@pytest.mark.parametrize(
    "side",
    [
        pytest.param([LEADER], id="the leader alone"),
        pytest.param([FOLLOWERS[0]], id="a follower alone"),
        pytest.param([LEADER, FOLLOWERS[0]], id="two and two"),
    ],
)
def test_four_nodes_fall_apart_and_all_have_the_store(lab: Lab, side: list[int]) -> None:
    """One side goes on; the other does not begin a job of its own, and joins again when the network is healed."""
    job = Job(lab)
    members = job.start_members("n1", "n2", "n3", "n4")
    fall_apart(job, members, side, both_have_store=True)
    job.hold(UNREACHED_S)
    job.require_one_job()
    lab.network.heal()
    job.end(members)
    print(job.stalls())


def test_a_firewall_leaves_a_joining_node_only_the_store(lab: Lab) -> None:
    """The node waits or gives up; the job outlives the loss of a member meanwhile, and is the only job."""
    job = Job(lab)
    members = job.start_members("n1", "n2", "n3")
    (host,) = lab.boot("n4")
    lab.network.cut(*((host.name, node.name) for node in members))
    joiner = job.start(host)
    assert comes(lambda: joiner.last("hot") is not None, 40), job.describe("no task is ready on n4")
    job.hold(UNREACHED_S)
    job.require_one_job()
    dead = members.pop()
    dead.kill()
    job.wait_for_progress(members)
    lab.network.heal()
    if joiner.is_running:
        members.append(joiner)
    else:
        assert joiner.process.poll() == 1, joiner.process.text()
    job.end(members)
    print(job.stalls())
