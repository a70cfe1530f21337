"""Newton's method on real nodes: they come, go and are killed in the middle of a run."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.solvers.linear.working_set.steps import WorkingSetPhase
from tests.cluster.train_svm import PacedLinear, breast_cancer
from tests.solvers.linear_jobs import Problem, assert_optimal, is_newton_job
from tests.solvers.test_working_set import counts, state_of

LOSSES = ["hinge", "logistic"]
TOL = 1e-7


def run(
    cluster: LocalCluster,
    loss: str,
    on_iteration: Callable[[IterationRecord], bool | None] | None = None,
    *,
    min_s: float = 0.04,
    until: str = "",
) -> Outcome:
    """Breast cancer to a small gap, which NumPy has to find, too; iterations take long enough for things to happen."""
    X, y = breast_cancer()
    trainer = PacedLinear(loss=loss, C=0.1, tol=TOL, algorithm="newton", min_s=min_s, until=until)
    outcome = run_on(cluster, Problem(X=X, y=y.astype(np.int32)), trainer, on_iteration)
    assert is_newton_job(outcome)
    return outcome


def run_on(
    cluster: LocalCluster,
    data: Problem,
    trainer: PacedLinear,
    on_iteration: Callable[[IterationRecord], bool | None] | None,
) -> Outcome:
    """To the optimum."""
    job = Job(
        trainer=trainer,
        source=ArraySource(data.X, data.y, max_tasks=4),
        max_iterations=500,
        keep_state=True,
        on_iteration=on_iteration,
    )
    outcome = cluster.run(job)
    assert_optimal(data, trainer, outcome)
    return outcome


@pytest.mark.parametrize("loss", LOSSES)
def test_a_node_that_is_killed_costs_no_more_than_the_passes_without_its_rows(cluster: LocalCluster, loss: str) -> None:
    """SIGKILL in the middle; the run goes on with the other's rows, and comes to the optimum of all of them."""
    fixed = run(cluster, loss)

    def kill(record: IterationRecord) -> None:
        if record.iteration == 3:
            os.kill(cluster.members()["n1"].pid, signal.SIGKILL)

    outcome = run(cluster, loss, kill)
    assert {record.num_tasks for record in outcome.history} == {1, 2}
    assert [record.iteration for record in outcome.history] == list(range(1, len(outcome.history) + 1))
    assert outcome.ledger.replayed, "what n1 had was loaded again"
    samples = [record.samples for record in outcome.history]
    last_incomplete = max(record.iteration for record in outcome.history if record.samples < max(samples))
    # Rows that come back change the objective once more: a few steps are refused for that, and then as many passes as
    # from the beginning will do.
    assert len(outcome.history) <= last_incomplete + 4 + 1.1 * len(fixed.history)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_node_that_is_killed_while_there_is_a_working_set(cluster: LocalCluster, last: int) -> None:
    """SIGKILL in each phase; the other node goes on, whichever of the two was to solve, and finds all rows' optimum."""
    trainer = PacedLinear(C=1.0, tol=1e-6, min_s=0.04)

    def kill(record: IterationRecord) -> None:
        if record.iteration == last:
            os.kill(cluster.members()["n1"].pid, signal.SIGKILL)

    outcome = run_on(cluster, counts(), trainer, kill)
    assert {record.num_tasks for record in outcome.history} == {1, 2}
    assert outcome.ledger.replayed, "what n1 had was loaded again"
    assert state_of(outcome).phase is WorkingSetPhase.REST


def test_nodes_that_come_and_go_cost_no_iterations(cluster: LocalCluster, tmp_path: Path) -> None:
    """2, then 1, then 2 again, in the middle of a run: at most a tenth more than without."""
    fixed = run(cluster, "hinge", min_s=0)

    def scale(nodes: int) -> None:
        threading.Thread(target=cluster.scale, args=(nodes,)).start()

    steps = [
        lambda record: record.iteration == 2 and not scale(1),
        lambda record: record.num_tasks == 1 and not scale(2),
        lambda record: record.num_tasks == 2 and not (tmp_path / "all came").touch(),
    ]

    def change(record: IterationRecord) -> None:
        if steps and steps[0](record):
            steps.pop(0)

    # The last change needs the start of a process, for which the iterations that are left wait.
    outcome = run(cluster, "hinge", change, min_s=1, until=str(tmp_path / "all came"))
    counts = [record.num_tasks for record in outcome.history]
    assert (counts[0], min(counts), counts[-1]) == (2, 1, 2)
    assert len(outcome.history) <= 1.1 * len(fixed.history)


def test_all_nodes_come_to_the_very_same_state(cluster: LocalCluster) -> None:
    """Each decides for itself: two runs are equal to the last bit."""
    for loss in LOSSES:
        first, second = run(cluster, loss, min_s=0.0), run(cluster, loss, min_s=0.0)
        assert np.array_equal(first.model, second.model)
        assert first.state is not None
        assert np.array_equal(first.state, second.state)
