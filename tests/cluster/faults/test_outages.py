"""Outages of links and of the store on real agents, one at a time; chaos deals them at random (`testing.outages`)."""

import random

import pytest

from tests.cluster.faults.chaos_jobs import end, start, wait_for_members
from tests.harness.chaos_nodes import ChaosNodes
from tests.harness.faults import read_fired
from tests.harness.outages import Outage, faults_of, smaller_part
from tests.timeouts import comes

pytestmark = pytest.mark.chaos  # too long for `make test`

PARTED_S = 3.0


@pytest.mark.parametrize("outage", [Outage.LEAD_PARTED, Outage.MEMBER_PARTED], ids=lambda it: it.value)
def test_a_part_joins_again_when_the_others_hear_it(nodes: ChaosNodes, outage: Outage) -> None:
    """The part cannot go on alone: it pauses, or leaves for a new incarnation; the judge finds one job."""
    members = start(nodes, 3)
    part, others = smaller_part(outage, members, members[0], random.Random(1))
    nodes.arm(faults_of(outage, part, others, number=1, seconds=PARTED_S))
    assert comes(lambda: any(node.last("expelled") or node.last("paused") for node in members), 40)
    # Iterations of all may still be written down now: only those after the outage say that the part is back.
    over_s = max(fault["time"] for fault in read_fired(nodes.fired)) + PARTED_S
    assert comes(lambda: any(node.last("iteration")["time"] > over_s for node in members), 40)
    end(nodes, members)


def test_a_pair_that_is_cut_goes_on_as_long_as_their_tasks_reach_each_other(nodes: ChaosNodes) -> None:
    """The agents of two followers do not hear each other; the iterations do not need them to."""
    members = start(nodes, 3)
    part, others = smaller_part(Outage.PAIR_CUT, members, members[0], random.Random(1))
    nodes.arm(faults_of(Outage.PAIR_CUT, part, others, number=1, seconds=PARTED_S))
    assert comes(lambda: bool(read_fired(nodes.fired)), 40)
    end(nodes, members)


def test_a_store_that_is_started_again_is_filled_and_lets_nodes_join(nodes: ChaosNodes) -> None:
    """What chaos does with its store: all members go on, and another node joins."""
    members = start(nodes, 2)
    nodes.kill_store()
    wait_for_members(nodes, members)
    assert not nodes.has_store
    nodes.start_store()
    assert comes(lambda: nodes.has_store, 40)
    end(nodes, [*members, nodes.start()])
