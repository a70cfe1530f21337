"""Real nodes whose chunks are redrawn all the time, also while one is killed."""

import os
import signal

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.runtime.training.job import Job
from tests.cluster.train_svm import PacedCocoa, breast_cancer
from tests.solvers.linear_jobs import Problem, assert_optimal


def test_a_node_is_killed_while_chunks_are_redrawn() -> None:
    """The ledger has every chunk, what was lost is loaded again, and the certificate is NumPy's."""
    X, y = breast_cancer()
    data = Problem(X=X, y=y.astype(np.int32))
    trainer = PacedCocoa(C=0.1, tol=1e-4, min_s=0.01)

    with LocalCluster(3, grace_s=5) as cluster:

        def kill(record: IterationRecord) -> None:
            if record.iteration == 6:
                os.kill(cluster.members()["n1"].pid, signal.SIGKILL)

        job = Job(
            trainer=trainer,
            source=ArraySource(data.X, data.y, max_tasks=4),
            max_iterations=2000,
            keep_state=True,
            on_iteration=kill,
            policies=(Rebalance(), Shuffle(share=0.5)),
        )
        outcome = cluster.run(job)
    assert_optimal(data, trainer, outcome)
    assert {record.num_tasks for record in outcome.history} >= {2, 3}
    assert outcome.ledger.replayed, "what n1 had was loaded again"
    assert sum(account.rows for account in outcome.ledger) == len(y)
    assert None not in {account.owner for account in outcome.ledger}
    num_iterations = len(outcome.history)
    totals = [sum(account.iterations.values()) for account in outcome.ledger]
    assert max(totals) == num_iterations
    assert sum("Shuffle redraws" in event for record in outcome.history for event in record.events) >= 1
    disabled = [event for record in outcome.history for event in record.events if "disabled" in event]
    assert disabled == []
