"""Far and lossy networks, and clocks that differ."""

import pytest

from tests.hosts.job import Job
from tests.hosts.lab import Lab

pytestmark = pytest.mark.hosts


def test_frames_take_20_ms_and_one_in_a_hundred_is_lost(lab: Lab) -> None:
    """Nodes train, a third joins, one leaves; no node is declared dead."""
    job = Job(lab)
    lab.network.delay(0.02)
    lab.network.loss(0.01)
    members = job.start_members("n1", "n2")
    (host,) = lab.boot("n3")
    members.append(job.start(host))
    job.wait_for_members(members)
    leaving = members.pop(0)
    leaving.notice()
    assert leaving.process.wait(20) == 0, leaving.process.text()
    evidence = job.end(members)
    assert not evidence.lost
    assert lab.network.counts()["lost"] > 0
    print(job.stalls())


def test_monotonic_clocks_are_a_year_apart(lab: Lab) -> None:
    """One host was started long before the other: agents compare no clocks."""
    job = Job(lab)
    hosts = [*lab.boot("n1"), *lab.boot("n2", monotonic_offset_s=365 * 86400)]
    members = [job.start(host) for host in hosts]
    job.wait_for_members(members)
    members[0].kill()
    evidence = job.end(members[1:])
    assert evidence.lost.keys() == {"n1"}
