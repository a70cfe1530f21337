"""Real nodes that the embedded resource manager starts and stops, as policies ask for them or a schedule says."""

import os
import signal
import threading
import time

import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Chunk, StateSpec
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.resources.schedule import Schedule, ScheduleStep
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.values import ChunkInfo
from tests.cluster.local.local_trainers import Steps
from tests.cluster.train_svm import PacedCocoa
from tests.runtime.test_in_process_resources import lines_of
from tests.solvers.linear_jobs import problem

MANY = 100_000
"""Iterations; the tests end their jobs before."""


def assert_complete(outcome: Outcome, rows: int) -> None:
    """The ledger has all rows, and none of them twice."""
    assert sum(account.rows for account in outcome.ledger) == rows
    assert None not in {account.owner for account in outcome.ledger}
    assert not outcome.ledger.replayed, "no node was lost: all were given back or came"


def test_a_policy_gets_the_nodes_that_it_asks_for() -> None:
    """It asks for 4 of 2, later for 3, and then for more than the cluster may have: that is denied, and said."""
    data = problem(rows=800)

    def is_denied(record: IterationRecord) -> bool:
        return any("9 nodes are wanted" in line for line in record.events)

    with LocalCluster((1, 4), start_nodes=2) as cluster:
        job = Job(
            trainer=PacedCocoa(C=0.1, tol=0.0, min_s=0.02),
            source=ArraySource(data.X, data.y, max_tasks=4),
            max_iterations=MANY,
            on_iteration=is_denied,
            policies=(Steps(totals=(4, 3, 9)),),
        )
        outcome = cluster.run(job)
        names = set(cluster.members())
        while members := cluster.members():
            names |= members.keys()
        assert names <= {"n0", "n1", "n2", "n3", "n4"}, "no agent is started in place of those that end with the job"
    assert_complete(outcome, 800)
    counts = outcome.history.column("num_tasks")
    changes = [int(count) for count, before in zip(counts, [0, *counts], strict=False) if count != before]
    assert changes[0] == 2, "a job waits for the nodes that it is to begin with"
    assert [count for count in changes if count != 1][-2:] == [4, 3]
    lines = lines_of(outcome)
    assert "Steps wants 4 nodes: 2 more at hand" in lines
    assert "Steps wants 3 nodes: 0 more at hand" in lines
    assert any(line.startswith("Steps wants 9 nodes: ") for line in lines)
    assert any("the resource manager has " in line and "more now" in line for line in lines)


def test_the_next_leader_knows_what_is_wanted() -> None:
    """The first member is killed when four nodes are wanted: they come all the same, another one in its place."""
    data = problem(rows=800)
    killed: list[int] = []

    with LocalCluster((1, 4), start_nodes=2, grace_s=5) as cluster:

        def kill(record: IterationRecord) -> bool:
            if not killed and any("Steps wants 4" in line for line in record.events):
                killed.append(cluster.members()["n0"].agent_pid)
                os.kill(killed[0], signal.SIGKILL)
            return bool(killed) and record.num_tasks == 4

        job = Job(
            trainer=PacedCocoa(C=0.1, tol=0.0, min_s=0.02),
            source=ArraySource(data.X, data.y, max_tasks=4),
            max_iterations=MANY,
            on_iteration=kill,
            policies=(Steps(totals=(4,)),),
        )
        outcome = cluster.run(job)
    assert killed
    assert outcome.history[-1].num_tasks == 4
    assert sum(account.rows for account in outcome.ledger) == 800


@pytest.mark.slow
def test_nodes_come_and_go_by_a_schedule() -> None:
    """Two nodes, then four, then the first two again; each change is a notice or a join, and the ledger is exact."""
    data = problem(rows=800)
    schedule = Schedule(((0, 2, 1.0), (3, 4, 0.5), (9, 2, 2.0)))
    seen: list[float] = []

    def is_over(record: IterationRecord) -> bool:
        seen.append(time.monotonic())
        return seen[-1] - seen[0] > schedule.steps[-1].start_s and record.num_tasks == 2

    with LocalCluster((2, 4), resources=schedule) as cluster:
        job = Job(
            trainer=PacedCocoa(C=0.1, tol=0.0, min_s=0.02),
            source=ArraySource(data.X, data.y, max_tasks=4),
            max_iterations=MANY,
            on_iteration=is_over,
            policies=(),
        )
        outcome = cluster.run(job)
    assert_complete(outcome, 800)
    assert outcome.history.members.keys() == {"n0", "n1", "n2", "n3"}
    assert {account.owner for account in outcome.ledger} == {"n0", "n1"}


STAGING_S = 5.0


class SlowSource:
    """Rows that come late: when both nodes are there, and the schedule would have taken one away."""

    def __init__(self, source: ArraySource, cluster: LocalCluster) -> None:
        self.source, self.cluster = source, cluster
        self.schema, self.copies_rows = source.schema, source.copies_rows
        self.began_s: float | None = None

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """Those of the source."""
        return self.source.infos(state)

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk, after the wait."""
        self.began_s = self.began_s or time.monotonic()
        while time.monotonic() < self.began_s + STAGING_S or len(self.cluster.members()) < 2:
            threading.Event().wait(0.05)
        return self.source.load(chunk_id, state)


def test_the_clock_of_a_schedule_starts_when_the_data_is_there() -> None:
    """A node that the schedule takes away later than at second 0 has taken part, however long the staging takes."""
    data, seen = problem(rows=800), []

    def is_over(record: IterationRecord) -> bool:
        seen.append(record.num_tasks)
        return record.num_tasks == 1 and (2 in seen or len(seen) > 500)

    steps = (ScheduleStep(0.0, 2), ScheduleStep(STAGING_S - 2.0, 1))
    with LocalCluster((1, 2), resources=Schedule(steps), grace_s=1) as cluster:
        job = Job(
            trainer=PacedCocoa(C=0.1, tol=0.0, min_s=0.02),
            source=SlowSource(ArraySource(data.X, data.y, max_tasks=2), cluster),
            max_iterations=MANY,
            on_iteration=is_over,
            policies=(),
        )
        outcome = cluster.run(job)
    assert 2 in seen
    assert seen[-1] == 1
    assert_complete(outcome, 800)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nodes": (2, 4), "start_nodes": 1}, "begins with 2 to 4 nodes"),
        ({"nodes": 2, "start_nodes": True}, "start_nodes=True"),
        ({"nodes": (1, 2), "resources": 4}, "takes a Schedule"),
        ({"nodes": (1, 2), "resources": Schedule(((0, 3),))}, r"say nodes=\(3, 3\)"),
        ({"nodes": (2, 4), "resources": Schedule(((0, 4), (9, 1)))}, r"say nodes=\(1, 4\)"),
        ({"nodes": (1, 2), "start_nodes": 1, "resources": Schedule(((0, 2),))}, "and not both"),
    ],
)
def test_clusters_that_cannot_be(settings: dict[str, object], says: str) -> None:
    """Each is refused at once, with what to say instead."""
    with pytest.raises(UsageError, match=says):
        LocalCluster(**settings)  # type: ignore[arg-type]


def test_a_cluster_with_a_schedule_is_not_scaled_by_hand() -> None:
    """The schedule says how many nodes there are."""
    with pytest.raises(UsageError, match="the schedule"):
        LocalCluster((1, 2), resources=Schedule(((0, 2),))).scale(1)
