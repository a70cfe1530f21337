"""Links that fail and come back, between two hosts or of one; the others go on meanwhile."""

import itertools
import socket

import pytest

from chicle_elastic.errors import PeerLostError
from chicle_elastic.transports.exchange import Deadline, receive_exactly
from tests.hosts.job import Job
from tests.hosts.lab import Lab

pytestmark = pytest.mark.hosts


def test_the_link_of_a_node_fails_and_comes_back(lab: Lab) -> None:
    """Down for a second, down for ten, and open in one direction only: one job sees it all."""
    job = Job(lab)
    leader, node, third = members = job.start_members("n1", "n2", "n3")
    lab.network.link_down(node.name)
    job.hold(1.0)
    lab.network.link_up(node.name)
    job.wait_for_members(members)
    # Retransmissions may take the rest of the two seconds after which a silent node is lost: either is right.
    print("down for a second", job.stalls(), [event["who"] for event in leader.events("lost")] or "no loss")
    lab.network.link_down(node.name)
    job.wait_for_progress([leader, third])
    job.hold(7.0)
    lab.network.link_up(node.name)
    job.wait_for_members(members)
    assert node.name in {event["who"] for event in leader.events("lost")}
    print("down for ten seconds", job.stalls())
    lab.network.cut_one_way((node.name, leader.name))
    job.wait_for_progress_of_any(*itertools.combinations(members, 2))
    lab.network.heal()
    job.wait_for_members(members)
    lab.network.cut_one_way((job.leader(), third.name))
    job.wait_for_progress_of_any(*itertools.combinations(members, 2))
    lab.network.heal()
    job.end(members)
    assert lab.network.counts()["blocked"] > 0
    print("all", job.stalls())


@pytest.mark.parametrize("cut", ["cut", "cut_one_way"])
def test_followers_do_not_hear_each_other(lab: Lab, cut: str) -> None:
    """Both reach the leader, which goes on with one of them at least; all do when the link is healed."""
    job = Job(lab)
    _, one, other = members = job.start_members("n1", "n2", "n3")
    getattr(lab.network, cut)((one.name, other.name))
    job.wait_for_progress_of_any(*itertools.combinations(members, 2))
    lab.network.heal()
    job.end(members)
    print(job.stalls())


def test_the_kernel_gives_a_connection_up_that_has_no_deadline(lab: Lab) -> None:
    """Its ETIMEDOUT is Python's TimeoutError, although no time was set; the error names the peer."""
    a, b = lab.boot("a", "b")
    with b.inside(lambda: socket.create_server((b.addresses[0], 0))) as listener:
        ours = a.inside(lambda: socket.create_connection(listener.getsockname()))
        theirs, _ = listener.accept()
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
                ours.setsockopt(socket.IPPROTO_TCP, option, 1)
            lab.network.cut(("a", "b"))
            with pytest.raises(PeerLostError, match="b does not answer any more"):
                receive_exactly(ours, memoryview(bytearray(1)), Deadline(None), peer="b")
