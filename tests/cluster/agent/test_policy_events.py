"""What one agent tells the log for policies, and what it says of decisions that the log never takes."""

from typing import Any

import pytest

from chicle_elastic.cluster.agent.policy_events import PolicyEvents
from chicle_elastic.cluster.consensus.replicated_log import ReplicatedLog
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.values import SetParameter


@pytest.fixture
def log(loop: EventLoop) -> ReplicatedLog:
    """Of an agent that has found no leader: what it proposes stays with it."""
    nothing: Any = None
    settings = SchedulerSettings()
    return ReplicatedLog(loop, NodeId("n0"), "n0#1", make_scheduler=lambda: Scheduler(settings), host=nothing)


def test_decisions_of_an_incarnation_that_was_expelled_have_their_lines(log: ReplicatedLog) -> None:
    """One was proposed, and one waited here; the next incarnation knows of none."""
    lines: list[str] = []
    told = PolicyEvents(log, lines.append)
    for iteration in (1, 2):
        wish = SetParameter("rate", 2.0)
        told.proposed(events.Proposal(policy="tune", round=0, actions=(wish,), reason="?", iteration=iteration))
    assert len(log.snapshot().proposed) == 1
    told.lose("it was declared dead")
    assert lines == [
        f"decision of policy tune after iteration {iteration} is refused: it was declared dead" for iteration in (1, 2)
    ]
    log.begin("n0#2")
    told.lose("it was declared dead")
    assert len(lines) == 2


def test_one_checkpoint_waits_for_a_boundary_however_many_are_saved(log: ReplicatedLog) -> None:
    """The newest of the others waits at its author."""
    told = PolicyEvents(log, print)
    for iteration in (5, 6, 7):
        told.saved(saved(iteration))
    told.iteration_begins()
    assert log.snapshot().proposed == (saved(5),)
    log.begin("n0#2")
    told.iteration_begins()
    told.iteration_begins()
    assert log.snapshot().proposed == (saved(7),)


def saved(iteration: int) -> events.CheckpointSaved:
    """A checkpoint."""
    return events.CheckpointSaved(iteration=iteration, size_bytes=8, duration_s=0.5)
