"""The store is away for a while: training needs it for nothing but changes of the membership."""

import pytest

from tests.hosts.job import STORE, Job
from tests.hosts.lab import Lab

pytestmark = pytest.mark.hosts


@pytest.mark.parametrize("is_killed", [False, True], ids=["its link is down", "it is killed, and comes back empty"])
def test_the_store_is_away_for_a_while(lab: Lab, is_killed: bool) -> None:
    """Nodes train on; when the store is back they publish again what it has lost, and another one joins."""
    job = Job(lab)
    members = job.start_members("n1", "n2")
    if is_killed:
        job.kill_store()
    else:
        lab.network.link_down(STORE)
    job.wait_for_progress(members, iterations=100)
    if is_killed:
        job.start_store()
    else:
        lab.network.link_up(STORE)
    (host,) = lab.boot("n3")
    job.end([*members, job.start(host)])
    print(job.stalls())
