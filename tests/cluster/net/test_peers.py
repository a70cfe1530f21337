"""Links between two agents: however both dial each other, exactly one link stays."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.peers import Peer, PeerLinks
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints
from tests.timeouts import timeout_s

HERE = NodeAddress(bind="127.0.0.1", advertise="127.0.0.1")
ENDPOINTS = Endpoints(host="here", tcp="tcp://127.0.0.1:1")


class Agent:
    """The links of one agent in a loop of its own, and what they have told it, in order."""

    def __init__(self, node: str, secret: JobSecret, stack: ExitStack) -> None:
        self.loop = stack.enter_context(EventLoop(name=f"chicle-test-{node}"))
        self.node = NodeId(node)
        self.life = f"{node}#0"
        self.told: list[str] = []
        self.links = PeerLinks(self.loop, secret, node=self.node, address=HERE, round_store="127.0.0.1:9", users=self)
        self.links.open(life=self.life, endpoints=ENDPOINTS, job={})
        stack.callback(self.links.end_life)

    def dial(self, other: "Agent") -> None:
        self.links.dial(other.links.address, expect=other.life)

    def peer_up(self, peer: Peer) -> None:
        self.told.append(f"{peer.life} is up")

    def peer_down(self, peer: Peer, reason: str) -> None:
        self.told.append(f"{peer.life} is down: {reason}")

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        self.told.append(f"{peer.life} says {message['text']}")

    def refused(self, who: str, reason: str) -> None:
        self.told.append(f"{who} refuses: {reason}")

    def peer_is_dead(self, life: str) -> None:
        self.told.append(f"{life} is dead")


@pytest.fixture
def agents() -> Iterator[tuple[Agent, Agent]]:
    """Two agents that accept links."""
    secret = JobSecret.generate()
    with ExitStack() as stack:
        yield Agent("a", secret, stack), Agent("b", secret, stack)


def turn_until(agents: tuple[Agent, ...], is_true: Callable[[], bool]) -> None:
    """Let all loops run, one after the other, until it holds."""
    deadline_s = agents[0].loop.now() + timeout_s(10)
    while not is_true():
        assert agents[0].loop.now() < deadline_s, [agent.told for agent in agents]
        for agent in agents:
            agent.loop.turn(0.001)


def say_and_hear(agents: tuple[Agent, Agent]) -> None:
    """Each agent says a word to the other; all that both were told is that the other is up and says it."""
    a, b = agents
    turn_until(agents, lambda: bool(a.told and b.told))
    for here, there in ((a, b), (b, a)):
        here.links.send(there.node, "text", text="hello")
    turn_until(agents, lambda: len(a.told) > 1 and len(b.told) > 1)
    for _ in range(50):  # what a second link would tell comes now
        for agent in agents:
            agent.loop.turn(0.002)
    assert a.told == [f"{b.life} is up", f"{b.life} says hello"]
    assert b.told == [f"{a.life} is up", f"{a.life} says hello"]


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
@pytest.mark.parametrize("is_reversed", [False, True], ids=["a first", "b first"])
def test_two_agents_that_dial_each_other_at_once_have_one_link(
    agents: tuple[Agent, Agent], is_reversed: bool, is_busy: bool
) -> None:
    """Where each has accepted the other's link before it sees its own, no link was left: each hung up on one."""
    first, second = reversed(agents) if is_reversed else agents
    first.dial(second)
    second.dial(first)
    if is_busy:
        time.sleep(0.3)  # both links are made meanwhile; if they are not, the test is the one of idle agents
    turn_until((first, second), lambda: bool(first.told and second.told))
    say_and_hear(agents)


def test_a_link_stays_when_either_agent_dials_again(agents: tuple[Agent, Agent]) -> None:
    """The new link is closed, and neither is told of it."""
    a, b = agents
    a.dial(b)
    turn_until(agents, lambda: bool(a.told and b.told))
    a.dial(b)
    b.dial(a)
    time.sleep(0.3)
    say_and_hear(agents)
