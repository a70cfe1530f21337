"""Links between two agents: however both dial each other, exactly one link stays."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from chicle_elastic.ids import NodeId
from chicle_elastic.transports.secret import JobSecret
from tests.cluster.loops import turn_until
from tests.cluster.net.linked_agents import Agent


@pytest.fixture
def agents() -> Iterator[tuple[Agent, Agent]]:
    """Two agents that accept links."""
    secret = JobSecret.generate()
    with ExitStack() as stack:
        yield Agent("a", secret, stack), Agent("b", secret, stack)


def say_and_hear(agents: tuple[Agent, Agent]) -> None:
    """Each agent says a word to the other; all that both were told is that the other is up and says it."""
    a, b = agents
    turn_until(lambda: a.told and b.told, a.loop, b.loop)
    for here, there in ((a, b), (b, a)):
        here.links.send(there.node, "text", text="hello")
    turn_until(lambda: len(a.told) > 1 and len(b.told) > 1, a.loop, b.loop)
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
    turn_until(lambda: first.told and second.told, first.loop, second.loop)
    say_and_hear(agents)


def test_a_link_stays_when_either_agent_dials_again(agents: tuple[Agent, Agent]) -> None:
    """The new link is closed, and neither is told of it."""
    a, b = agents
    a.dial(b)
    turn_until(lambda: a.told and b.told, a.loop, b.loop)
    a.dial(b)
    b.dial(a)
    time.sleep(0.3)
    say_and_hear(agents)


def test_a_word_to_all_is_heard_by_those_that_have_a_link(agents: tuple[Agent, Agent]) -> None:
    """Encoded once, and not for who is not there."""
    a, b = agents
    a.dial(b)
    turn_until(lambda: a.told and b.told, a.loop, b.loop)
    a.links.broadcast("text", text="all")
    a.links.send_text([NodeId("nobody"), b.node], b'{"kind": "text", "text": "some"}')
    turn_until(lambda: len(b.told) == 3, a.loop, b.loop)
    assert b.told[1:] == ["a#0 says all", "a#0 says some"]


def test_an_agent_of_another_job_is_told_at_each_attempt_and_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    """Both logs say in what the jobs differ; a node that waits to join dials several times in a second."""
    secret = JobSecret.generate()
    with ExitStack() as stack:
        a, b = (Agent(name, secret, stack, data=data) for name, data in (("a", "other"), ("b", "model 1")))
        for _ in range(3):
            before = len(a.told + b.told)
            b.dial(a)
            turn_until(lambda before=before: len(a.told + b.told) > before, a.loop, b.loop)
        for _ in range(50):  # whoever was refused hangs up
            a.loop.turn(0.002)
            b.loop.turn(0.002)
    assert all("other at a" in told and "model 1 at b" in told for told in a.told + b.told)
    assert len(caplog.messages) <= 2
