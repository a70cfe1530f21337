"""Nodes on hosts of their own join, leave and die: what works on one machine works on several."""

import pytest

from tests.hosts.job import Job
from tests.hosts.lab import Lab

pytestmark = pytest.mark.hosts


def test_nodes_join_get_notice_and_lose_a_host(lab: Lab) -> None:
    """Two nodes train; a third joins; one gets SIGTERM; then the host of one dies, without a farewell."""
    job = Job(lab, work="svm")
    members = job.start_members("n1", "n2")
    (host,) = lab.boot("n3")
    members.append(job.start(host))
    job.wait_for_members(members)
    leaving = members.pop(1)
    leaving.notice()
    assert leaving.process.wait(20) == 0, leaving.process.text()
    assert list(leaving.host.leftovers()) == []
    job.wait_for_members(members)
    (host,) = lab.boot("n4")
    members.append(job.start(host))
    job.wait_for_members(members)
    dead = members.pop(1)
    lab.power_off(dead.host)
    evidence = job.end(members)
    assert dead.name in evidence.lost
    print(job.stalls())


def test_the_host_of_the_leader_dies(lab: Lab) -> None:
    """The others lose its chunks, count them as replayed, and go on."""
    job = Job(lab)
    leader, *others = job.start_members("n1", "n2", "n3")
    lab.power_off(leader.host)
    evidence = job.end(others)
    assert leader.name in evidence.lost
    print(job.stalls())
