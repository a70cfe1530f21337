"""Tasks in one process that a resource manager assigns and revokes."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.errors import CapacityError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy
from chicle_elastic.resources.managers import Assigned, Revoked
from chicle_elastic.resources.schedule import Schedule
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.values import Decision, Observations, ReleaseNode, RequestNodes
from tests.resources.test_managed_nodes import Script
from tests.runtime.test_in_process import CountingSolver, CountingTrainer, regression

CLOCK = VirtualClock()


class TimedSolver(CountingSolver):
    """The first task lets a second pass."""

    def solve(self, model, budget):
        update = super().solve(model, budget)
        if budget.rank == 0:
            CLOCK.advance(1.0)
        return update


@dataclass(frozen=True)
class Wants(Policy):
    """Asks for a number of nodes after an iteration, and releases one after another."""

    after: dict[int, int] = field(default_factory=dict)
    release: int = 0
    seen: list[Observations] = field(default_factory=list)

    def decide(self, observations):
        self.seen.append(observations)
        if observations.iteration in self.after:
            return Decision(actions=(RequestNodes(self.after[observations.iteration]),), reason="the test")
        if observations.iteration == self.release:
            return Decision(actions=(ReleaseNode(max(observations.num_chunks)),), reason="the test")
        return None


def run(runtime: InProcess, *policies: Policy, iterations: int = 10) -> Outcome:
    """Iterations of one virtual second each; the state shows that each sample is processed once in each."""
    X, y = regression()
    source = ArraySource(X, y, max_tasks=8, seed=3)
    job = Job(
        trainer=CountingTrainer(solver_class=TimedSolver),
        source=source,
        max_iterations=iterations,
        policies=policies,
        keep_state=True,
    )
    outcome = runtime.run(job, clock=CLOCK)
    assert outcome.state is not None
    assert (outcome.state[:, 0, 0] == iterations).all()
    assert (outcome.state[:, 0, 1] == np.arange(203)).all()
    return outcome


def lines_of(outcome: Outcome) -> list[str]:
    """All lines of its history."""
    return [line for record in outcome.history for line in record.events]


def test_tasks_come_and_go_by_a_schedule():
    """At the boundary after the second that the schedule names; policies see the price."""
    policy = Wants()
    outcome = run(InProcess(num_tasks=2, resources=Schedule(((0, 2, 1.0), (3, 4, 0.5), (6.5, 1)))), policy)
    assert outcome.history.column("num_tasks").tolist() == [2, 2, 2, 4, 4, 4, 4, 1, 1, 1]
    assert {seen.price for seen in policy.seen} == {1.0, 0.5, None}


def test_a_policy_gets_tasks_as_far_as_there_are_some():
    """It asks for 3 of 2 when there are 4, and for 9; what it releases is not replaced, as it asked for no number."""
    policy = Wants({2: 3, 5: 9})
    outcome = run(InProcess(resources=Schedule(((0, 1), (1, 4)))), Wants({1: 1}), iterations=4)
    assert outcome.history.column("num_tasks").tolist() == [1, 4, 4, 4], "a number that is there is no reason to revoke"
    manager = Script((Assigned(NodeId("a")), Assigned(NodeId("b"))), (), (), Assigned(NodeId("c")))
    outcome = run(InProcess(num_tasks=2, resources=manager), policy)
    assert outcome.history.column("num_tasks").tolist() == [2, 2, 2, 3, 3, 3, 3, 3, 3, 3]
    assert manager.heard == [("request", 3, "the test"), ("request", 9, "the test")]
    outcome = run(InProcess(num_tasks=2, resources=Schedule(((0, 3),))), Wants(release=3))
    assert outcome.history.column("num_tasks").tolist() == [3, 3, 3, 2, 2, 2, 2, 2, 2, 2]


def test_a_manager_that_lies_is_not_believed():
    """Each lie is a line of the history, and training goes on with the tasks that are there."""
    a, b, c = map(NodeId, "abc")
    manager = Script(Assigned(a), (Assigned(a), Revoked(c)), Assigned(b), "?", (Revoked(b), Revoked(b)))
    outcome = run(InProcess(resources=manager))
    assert outcome.history.column("num_tasks").tolist() == [1, 1, 2, 2, 1, 1, 1, 1, 1, 1]
    lines = lines_of(outcome)
    assert "the resource manager assigned a, which the job has; it is left out" in lines
    assert "the resource manager revoked c, which the job does not have; that is left out" in lines
    assert any("said '?'" in line for line in lines)
    assert manager.heard == [("release", b)]


def test_a_manager_that_raises_is_not_asked_again():
    """And the job ends as it would without it."""

    class Broken(Script):
        def poll(self, now_s):
            if not self.says:
                raise OSError("the queue is down")
            return super().poll(now_s)

    outcome = run(InProcess(resources=Broken(Assigned(NodeId("a")), ())))
    lines = [line for line in lines_of(outcome) if "resource manager" in line]
    assert lines == [
        "the resource manager is not asked any more: poll raised OSError: the queue is down; the job goes on with the "
        "nodes that it has"
    ]


def test_a_job_needs_its_tasks_at_the_beginning():
    """A manager that assigns fewer is named, and so is one that takes the last task away."""
    with pytest.raises(CapacityError, match="has assigned 1 of 2 nodes"):
        run(InProcess(num_tasks=2, resources=Script(Assigned(NodeId("a")))))
    with pytest.raises(CapacityError, match="0 nodes here to stay"):
        run(InProcess(resources=Script(Assigned(NodeId("a")), Revoked(NodeId("a")))))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"changes": ((1, 2),), "resources": Schedule(((0, 1),))}, "changes or resources, and not both"),
        ({"num_tasks": 2, "resources": Schedule(((0, 1), (5, 3)))}, "1 nodes at the beginning"),
        ({"resources": Schedule(((0, 1), (5, 0)))}, "cannot go on with none"),
    ],
)
def test_runtimes_that_cannot_be(settings, says):
    """Each is refused at once."""
    with pytest.raises(UsageError, match=says):
        InProcess(**settings)


def test_chunks_are_cut_for_the_most_tasks_of_a_schedule():
    """So that each of them has some."""
    assert InProcess(resources=Schedule(((0, 2), (9, 7)))).most_tasks() == 7
