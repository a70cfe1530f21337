"""The store is away for a while: training needs it for nothing but changes of the membership."""

import pytest

from tests.hosts.job import STORE, Job
from tests.hosts.lab import Lab

pytestmark = pytest.mark.hosts


def test_the_store_is_unreachable_for_a_while(lab: Lab) -> None:
    """Its link is down: nodes train on, and another one joins when the link is back."""
    job = Job(lab)
    members = job.start_members("n1", "n2")
    lab.network.link_down(STORE)
    job.wait_for_progress(members, iterations=100)
    lab.network.link_up(STORE)
    (host,) = lab.boot("n3")
    job.end([*members, job.start(host)])
    print(job.stalls())


def test_the_store_is_killed_and_started_again(lab: Lab) -> None:
    """It has lost everything that it held: nodes train on, publish it again, and another one joins."""
    job = Job(lab)
    members = job.start_members("n1", "n2")
    job.kill_store()
    job.wait_for_progress(members, iterations=100)
    job.start_store()
    (host,) = lab.boot("n3")
    job.end([*members, job.start(host)])
    print(job.stalls())
