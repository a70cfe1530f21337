"""Handlers that hold the loop are told of by name, and other agents hear from this one meanwhile."""

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.peers import PeerLinks, new_incarnation
from chicle_elastic.cluster.net.watchdog import REST_S, SlowHandler
from chicle_elastic.ids import NodeId
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints
from tests.timeouts import timeout_s


class Stage:
    """A loop on a virtual clock, and what its watchdog tells."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.told: list[SlowHandler] = []
        self.loop = EventLoop(clock=self.clock, tell_slow=self.told.append)

    def plan(self, duration_s: float) -> None:
        """A handler that takes so long."""
        self.clock.advance(duration_s)

    def let_plan(self, duration_s: float) -> None:
        """Run it in the loop."""
        self.loop.soon(functools.partial(self.plan, duration_s))
        self.loop.turn(0.0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A stage whose loop is closed at the end."""
    stage = Stage()
    yield stage
    stage.loop.close()


def test_a_slow_handler_is_told_of_by_name(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """With its duration; one that is quick enough is not."""
    with caplog.at_level(logging.INFO):
        stage.let_plan(0.05)
        assert not stage.told
        stage.let_plan(0.08)
    [slow] = stage.told
    assert (slow.handler, round(slow.duration_s, 3), slow.num_untold) == ("Stage.plan", 0.08, 0)
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.INFO, "Stage.plan held the event loop for 80 ms")
    ]


def test_a_handler_that_is_slow_again_and_again_is_told_of_once_in_a_while(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """The next line says how often and how long at most; it is a warning if that is alarming."""
    for duration_s in (0.1, 0.2, 0.7, 0.1):
        stage.let_plan(duration_s)
    assert len(stage.told) == 1
    stage.clock.advance(REST_S)
    with caplog.at_level(logging.INFO):
        stage.let_plan(0.1)
    assert [(slow.num_untold, round(slow.longest_s, 3)) for slow in stage.told] == [(0, 0.1), (3, 0.7)]
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, "Stage.plan held the event loop for 100 ms, and 3 times before for up to 700 ms")
    ]


def test_timers_and_results_of_workers_have_names(stage: Stage) -> None:
    """Whatever the loop calls is watched."""
    stage.loop.later(1.0, functools.partial(stage.plan, 0.3))
    stage.clock.advance(1.0)
    stage.loop.turn(0.0)
    has_worked = threading.Event()
    stage.loop.work(has_worked.set, lambda _: stage.plan(0.4))
    assert has_worked.wait(timeout_s(10))
    while len(stage.told) < 2:
        stage.loop.turn(0.05)
    assert stage.told[0].handler == "Stage.plan"
    assert "test_timers_and_results_of_workers_have_names" in stage.told[1].handler


def test_a_handler_that_raises_is_judged_as_well(stage: Stage) -> None:
    """And the exception goes on."""

    def fail() -> None:
        stage.clock.advance(0.2)
        raise KeyError("x")

    stage.loop.soon(fail)
    with pytest.raises(KeyError):
        stage.loop.turn(0.0)
    assert len(stage.told) == 1
    assert stage.loop.busy_since_s is None


class Users:
    """Callbacks of peer links: who is up, who is gone."""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.down: list[str] = []

    def peer_up(self, peer: object) -> None:
        self.up.set()

    def peer_down(self, peer: object, reason: str) -> None:
        self.down.append(reason)

    def peer_says(self, peer: object, message: object) -> None:
        raise AssertionError(message)

    def refused(self, who: str, reason: str) -> None:
        raise AssertionError(reason)


HERE = NodeAddress(bind="127.0.0.1", advertise="127.0.0.1")


def test_a_busy_agent_is_heard_of() -> None:
    """One handler of a holds its loop until b has heard five times from a, which only another thread can tell it."""
    secret = JobSecret.generate()
    with ExitStack() as stack:
        loops = [stack.enter_context(EventLoop(name=f"chicle-test-{name}")) for name in "ab"]
        users = [Users(), Users()]
        ends = [
            PeerLinks(loop, secret, node=NodeId(name), address=HERE, round_store="127.0.0.1:9", users=user)
            for loop, name, user in zip(loops, "ab", users, strict=True)
        ]
        for end, name in zip(ends, "ab", strict=True):
            end.open(
                life=new_incarnation(NodeId(name)), endpoints=Endpoints(host="here", tcp="tcp://127.0.0.1:1"), job={}
            )
            stack.callback(end.end_life)
        ends[1].dial(ends[0].address)
        while not (users[0].up.is_set() and users[1].up.is_set()):
            for loop in loops:
                loop.turn(0.01)
        is_over = threading.Event()
        num_heard = 0

        def listen() -> None:
            nonlocal num_heard
            while num_heard < 5:
                heard_s = ends[1].peers[NodeId("a")].heard_s
                while ends[1].peers[NodeId("a")].heard_s == heard_s:
                    loops[1].turn(0.05)
                num_heard += 1
            is_over.set()

        listener = threading.Thread(target=listen, daemon=True)

        def plan() -> None:
            listener.start()
            assert is_over.wait(timeout_s(20)), "b hears nothing while a is busy"

        loops[0].soon(plan)
        loops[0].turn(0.0)
        listener.join()
        assert num_heard == 5
        assert not users[1].down
