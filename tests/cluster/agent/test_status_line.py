"""What a node says about itself, by the states of a real scheduler and on a loop whose clock is set by hand."""

from collections.abc import Iterator

import pytest

from chicle_elastic.cluster.agent.status_line import REPEAT_S, Status, StatusLine, status_of
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.values import ChunkInfo

N0, N1 = NodeId("n0"), NodeId("n1")


@pytest.fixture
def clock() -> VirtualClock:
    """Of the loop."""
    return VirtualClock()


@pytest.fixture
def loop(clock: VirtualClock) -> Iterator[EventLoop]:
    """A loop that a test turns."""
    with EventLoop(clock=clock) as loop:
        yield loop


def test_a_node_says_how_many_nodes_it_waits_for() -> None:
    """And of how many; before it is in the job it waits to join."""
    scheduler = Scheduler(SchedulerSettings(seed=0, min_nodes=2))
    assert status_of(scheduler, (), node=N0, max_nodes=4) == Status("waits to join the job", True)
    scheduler.handle(events.ChunksDeclared(chunks=(ChunkInfo(id=ChunkId(0), size_bytes=8, num_rows=1),)), now=0.0)
    scheduler.handle(events.NodeJoined(node=N0, capacity_bytes=100), now=0.0)
    waiting = status_of(scheduler, (N0,), node=N0, max_nodes=4)
    assert waiting == Status("waits for 1 more node of 2 (2:4)", True)
    scheduler.handle(events.NodeJoined(node=N1, capacity_bytes=100), now=0.0)
    assert status_of(scheduler, (N0, N1), node=N0, max_nodes=4) is None, "the round is being formed"


def test_each_change_is_one_line_and_waiting_is_repeated(loop: EventLoop, clock: VirtualClock) -> None:
    """Every 30 s, until it is over."""
    lines: list[str] = []
    now = Status("waits", True)
    status = StatusLine(loop, N0, lambda: now, write=lines.append)

    def pass_time(seconds: float) -> list[str]:
        clock.advance(seconds)
        loop.turn(0.0)
        said, lines[:] = list(lines), []
        return said

    status.show()
    status.show()
    assert pass_time(REPEAT_S - 1) == ["chicle: n0: waits"]
    assert pass_time(2) == ["chicle: n0: waits"]
    now = Status("2 nodes in the job", False)
    status.show()
    assert pass_time(2 * REPEAT_S) == ["chicle: n0: joined: 2 nodes in the job"]
    now = Status("the job is paused", True)
    status.show()
    now = Status("3 nodes in the job", False)
    status.show()
    assert pass_time(2 * REPEAT_S) == ["chicle: n0: the job is paused", "chicle: n0: resumed: 3 nodes in the job"]
    now = Status("4 nodes in the job", False)
    status.show()
    assert pass_time(REPEAT_S) == ["chicle: n0: 4 nodes in the job"]
