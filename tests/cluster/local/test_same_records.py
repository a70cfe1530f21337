"""One job in every runtime: the records of its iterations have the same fields with the same meaning."""

from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedNode
from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster
from chicle_elastic.runtime.simulate.work import Real
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.cluster.local.test_local_cluster import make_job


def shape(record: IterationRecord) -> dict[str, object]:
    """Of a record what does not depend on names of tasks, clocks, and which of them has one chunk more."""
    assert set(record.seconds) == {task for task, count in record.num_chunks.items() if count}
    assert min(record.seconds.values()) > 0
    return {
        "iteration": record.iteration,
        "epochs": record.epochs,
        "num_tasks": record.num_tasks,
        "samples": record.samples,
        "chunks": sum(record.num_chunks.values()),
        "tasks": len(record.num_chunks),
        "figures": sorted(record.figures),
    }


def test_records_are_the_same_in_process_on_a_cluster_and_in_a_simulation() -> None:
    """Iterations, epochs, samples, chunks and tasks; the same figures, those of certificates included."""
    job = make_job(LinearTrainer(C=0.1, tol=0.0, algorithm="cocoa"), max_iterations=12, policies=())
    with LocalCluster(2) as cluster:
        on_cluster = cluster.run(job).history
    in_process = InProcess(num_tasks=2).run(job).history
    scenario = Scenario(nodes=(SimulatedNode(name="n", count=2),), job=SimulatedJob(iterations=12))
    simulated = VirtualCluster(scenario, make_work=lambda clock: Real(job, clock)).run().history
    expected = [shape(record) for record in in_process]
    assert len(expected) == 12
    assert [shape(record) for record in on_cluster] == expected
    assert [shape(record) for record in simulated] == expected
    times = [[record.time_s for record in history] for history in (on_cluster, in_process, simulated)]
    assert all(of == sorted(of) for of in times)
