"""Real solvers on virtual nodes: the model is that of a job, whatever happens to nodes; only time is charged."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from chicle_elastic import ArraySource, InProcess, Job, LinearTrainer
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedLoss, SimulatedNode
from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster
from chicle_elastic.runtime.simulate.work import Real

TOL = 1e-5


def job() -> Job:
    """569 samples in 36 chunks."""
    X, y = load_breast_cancer(return_X_y=True)
    source = ArraySource(scale(X), y, max_tasks=8, chunk_bytes=4096)
    return Job(trainer=LinearTrainer(C=0.1, tol=TOL), source=source, max_iterations=500)


@pytest.fixture(scope="module")
def optimum() -> float:
    """The objective of a fit in process."""
    return InProcess(num_tasks=1).run(job()).history[-1].figures["objective"]


@pytest.mark.parametrize(
    ("nodes", "losses"),
    [
        ((SimulatedNode(name="n", count=4),), ()),
        (
            (
                SimulatedNode(name="n", count=2),
                SimulatedNode(name="late", speed=0.5, joins_s=3.0),
                SimulatedNode(name="leaver", notice_s=10.0, grace_s=5.0),
            ),
            (),
        ),
        ((SimulatedNode(name="n", count=3), SimulatedNode(name="victim", dies_s=8.0)), ()),
        ((SimulatedNode(name="n", count=6),), (SimulatedLoss(at_s=5.0, share=0.5),)),
    ],
    ids=["steady", "join and notice", "death", "bulk loss"],
)
def test_a_job_comes_to_its_gap_whatever_happens_to_nodes(
    nodes: tuple[SimulatedNode, ...], losses: tuple[SimulatedLoss, ...], optimum: float
) -> None:
    """Chunks move with their state; what a loss takes is recovered, and the gap is certified on all samples."""
    simulated = SimulatedJob(row_s=1e-2, iteration_s=0.01, chunk_bytes=8192)
    scenario = Scenario(nodes=nodes, losses=losses, job=simulated)
    real_job = job()
    cluster = VirtualCluster(scenario, (Rebalance(), Shuffle(share=0.2)), make_work=lambda clock: Real(real_job, clock))
    result = cluster.run()
    figures = result.history[-1].figures
    assert result.has_finished, result.reason
    assert result.is_real
    assert figures["duality_gap"] <= TOL
    assert figures["objective"] == pytest.approx(optimum, rel=2 * TOL)
    assert isinstance(cluster.work, Real)
    assert np.isfinite(cluster.work.model).all()


def test_an_iteration_of_real_work_is_charged_by_its_samples() -> None:
    """A node of half the speed takes twice as long for as many samples."""
    nodes = SimulatedNode(name="fast"), SimulatedNode(name="slow", speed=0.5)
    real_job = job()
    scenario = Scenario(nodes=nodes, job=SimulatedJob(row_s=1e-2))
    result = VirtualCluster(scenario, make_work=lambda clock: Real(real_job, clock)).run()
    seconds = result.history[0].seconds
    assert seconds["fast"] + 0.5 * seconds["slow"] == pytest.approx(569 * 1e-2)
