"""Real nodes, one of them ten times slower for a while: a deadline bounds the iterations meanwhile."""

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.evaluate.throttled import Pace, ThrottledCocoa
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.policies.straggler import Straggler
from chicle_elastic.runtime.training.job import Job
from tests.solvers.linear_jobs import problem, recompute


def test_a_slow_node_is_cut_for_as_long_as_it_is_slow() -> None:
    """The agents agree on the deadline, accept parts of chunks while it holds, and w = w(alpha) in the end."""
    data = problem(rows=800)
    pace = Pace(row_s=1e-4, slow=("n1",), since=10, until=40)
    trainer = ThrottledCocoa(C=0.1, tol=0.0, pace=pace)

    def is_well_again(record: IterationRecord) -> bool:
        return record.iteration > pace.until and any("no deadline any more" in line for line in record.events)

    with LocalCluster(3) as cluster:
        job = Job(
            trainer=trainer,
            source=ArraySource(data.X, data.y, max_tasks=3, chunk_bytes=1024),
            max_iterations=5000,
            keep_state=True,
            on_iteration=is_well_again,
            policies=(Straggler(factor=3.0, margin=0.5),),
        )
        outcome = cluster.run(job)
    lines = [line for record in outcome.history for line in record.events]
    assert any("Straggler sets deadline_s" in line and "n1 takes" in line for line in lines), lines
    assert not [line for line in lines if "disabled" in line]
    assert len(outcome.history) < 5000, "the deadline is lifted once n1 is well"
    epochs = outcome.history.column("epochs")
    assert epochs[-1] < outcome.history[-1].iteration - 1, "iterations lack rows of n1"
    assert sum(account.rows for account in outcome.ledger) == 800
    found = recompute(data, trainer, outcome.model, outcome.state)
    w = outcome.model.reshape(found.w_of_duals.shape)
    assert (np.abs(w - found.w_of_duals) <= 1e-10 * np.abs(w).max() + found.rounding).all()
