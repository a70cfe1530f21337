"""Handlers that hold the loop are told of by name, and other agents hear from this one meanwhile."""

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.watchdog import REST_S, SlowHandler
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.transports.secret import JobSecret
from tests.cluster.loops import turn_until
from tests.cluster.net.linked_agents import Agent
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
    turn_until(lambda: len(stage.told) == 2, stage.loop)
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


def test_a_busy_agent_is_heard_of() -> None:
    """One handler of a holds its loop until b has heard five times from a, which only another thread can tell it."""
    secret = JobSecret.generate()
    with ExitStack() as stack:
        a, b = (Agent(name, secret, stack) for name in "ab")
        b.dial(a)
        turn_until(lambda: a.told and b.told, a.loop, b.loop)
        is_over = threading.Event()

        def listen() -> None:
            for _ in range(5):
                heard_s = b.links.peers[a.node].heard_s
                while b.links.peers[a.node].heard_s == heard_s:
                    b.loop.turn(0.05)
            is_over.set()

        listener = threading.Thread(target=listen, daemon=True)

        def plan() -> None:
            listener.start()
            assert is_over.wait(timeout_s(20)), "b hears nothing while a is busy"

        a.loop.soon(plan)
        a.loop.turn(0.0)
        listener.join()
        assert b.told == [f"{a.life} is up"]
