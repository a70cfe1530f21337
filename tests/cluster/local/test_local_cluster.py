"""A local cluster as the runtime of a job: real agents and tasks, forked by one server."""

import copy
import dataclasses
import functools
import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import NO_STATE, Chunk, StateSpec
from chicle_elastic.cluster.local import local_cluster
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.errors import ContractError, JobFailedError, MissingExtraError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedNode
from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster
from chicle_elastic.runtime.simulate.work import Real
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.settings import THREAD_LIMITS, available_cores
from chicle_elastic.solvers import kernel_cache
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.waits import Wait
from estimators import ChicleSVM
from tests.cluster.local.local_trainers import (
    Double,
    FaultyCocoa,
    HangingCocoa,
    LetGo,
    TalkativeCocoa,
    ThreadedCocoa,
    TunedCocoa,
    UnevenCocoa,
    WaitingCocoa,
)
from tests.cluster.train_svm import PacedLinear, breast_cancer
from tests.estimators.test_folder import digits_folder
from tests.harness.forked import is_alive
from tests.timeouts import comes, timeout_s

ROOT = Path(__file__).parents[3]


def make_job(trainer: Any = None, **fields: Any) -> Job:
    """The breast cancer data, for at most four tasks."""
    X, y = breast_cancer()
    source = ArraySource(X, y.astype(np.int32), max_tasks=4)
    return Job(trainer=trainer or LinearTrainer(C=0.1), source=source, **{"max_iterations": 500, **fields})


def endless_job(**fields: Any) -> Job:
    """It goes on until somebody ends it; iterations take 10 ms."""
    return make_job(PacedLinear(C=0.1, tol=0.0, min_s=0.01), **{"max_iterations": 100_000, **fields})


class Watcher:
    """Does one thing after the other, each at the first iteration for which a condition holds, then ends the job."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.records: list[IterationRecord] = []
        self.end_s = time.monotonic() + timeout_s(40)

    def __call__(self, record: IterationRecord) -> bool:
        """Called of each iteration; `steps` are pairs (condition on the record, action)."""
        self.records.append(record)
        assert time.monotonic() < self.end_s, f"still waits for {self.steps[:1]}; the last record is {record}"
        if self.steps and self.steps[0][0](record):
            self.steps.pop(0)[1]()
        return not self.steps


def tasks_are(count: int) -> Any:
    """A condition: so many tasks took part."""
    return lambda record: record.num_tasks == count


def nothing() -> None:
    """An action."""


def test_a_job_has_the_outcome_of_one_task(cluster: LocalCluster) -> None:
    """Objective within tol, duals by row, a record per iteration, and the members with their processes."""
    told: list[IterationRecord] = []
    outcome = cluster.run(make_job(keep_state=True, on_iteration=told.append))
    one = InProcess().run(make_job())
    trainer = LinearTrainer(C=0.1)
    assert outcome.certificate is not None
    assert one.certificate is not None
    assert trainer.relative_gap(outcome.model, outcome.certificate) <= trainer.tol
    objective, _ = trainer.primal_and_dual(outcome.model, outcome.certificate)
    expected, _ = trainer.primal_and_dual(one.model, one.certificate)
    np.testing.assert_allclose(objective, expected, rtol=2 * trainer.tol)
    X, y = breast_cancer()
    Z = np.column_stack([X, np.ones(len(X))]) * np.where(y == 1, 1.0, -1.0)[:, None]
    assert outcome.state is not None
    np.testing.assert_allclose(Z.T @ outcome.state[:, 0, 0], outcome.model, atol=1e-9)
    assert told == list(outcome.history)
    assert list(outcome.history.members) == ["n0", "n1"] == sorted(outcome.history.tasks)
    pids = {pid for member in outcome.history.members.values() for pid in (member.pid, member.agent_pid)}
    assert len(pids) == 4
    assert os.getpid() not in pids


class LateSource(ArraySource):
    """It takes a while to stage."""

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk, the first one late."""
        time.sleep(0.0 if chunk_id else 0.3)
        return super().load(chunk_id, state)


class PatientSource(ArraySource):
    """Its first chunk is there when the nodes are."""

    cluster: LocalCluster

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk, the first one when two agents run."""
        are_there = chunk_id or comes(lambda: len(self.cluster.members()) == 2, 20)
        assert are_there, "no node is started before the data is staged"
        return super().load(chunk_id, state)


def test_nodes_start_while_data_is_staged(cluster: LocalCluster) -> None:
    """Their start is no part of the way of the data."""
    X, y = breast_cancer()
    source = PatientSource(X, y.astype(np.int32), max_tasks=4)
    source.cluster = cluster
    assert cluster.run(Job(trainer=LinearTrainer(C=0.1), source=source, max_iterations=500)).certificate is not None


def test_times_of_records_are_those_of_the_clock_of_the_caller(cluster: LocalCluster) -> None:
    """They count from the call, and an iteration ends with its slowest node: never more than has passed, nor less than
    was slept."""
    X, y = breast_cancer()
    passed: list[tuple[IterationRecord, float]] = []
    job = Job(
        trainer=UnevenCocoa(C=0.1, tol=0.0, slow_s=0.05),
        source=LateSource(X, y.astype(np.int32), max_tasks=4),
        max_iterations=6,
        tell=lambda record: passed.append((record, time.monotonic() - began_s)),
    )
    began_s = time.monotonic()
    cluster.run(job)
    assert len(passed) == 6
    for record, passed_s in passed:
        assert 0.3 + 0.05 * record.iteration <= record.time_s <= passed_s


def test_a_start_from_duals_goes_on_from_them(cluster: LocalCluster) -> None:
    """What one job came to another one begins with; nothing is left to do."""
    state = cluster.run(make_job(keep_state=True)).state
    outcome = cluster.run(make_job(initial_state=state))
    assert len(outcome.history) <= 2


def test_waits_of_the_tasks_are_explained_once_in_the_process_of_the_user(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them wait for the same; what they print themselves no user sees."""
    cluster.run(make_job(WaitingCocoa(C=0.1)))
    assert caplog.messages == ["compiling for the test"]


def test_the_start_of_the_nodes_is_explained_while_it_lasts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one line, before the first iteration; the next job finds the nodes there and has none."""
    waits: list[Wait] = []
    monkeypatch.setattr(kernel_cache, "is_cold", lambda: True)
    # The start takes a second or more; the next job, which finds the nodes there, a few milliseconds.
    monkeypatch.setattr(local_cluster, "Wait", lambda text: waits.append(Wait(text, after_s=0.1)) or waits[-1])
    seen: list[tuple[int, bool]] = []
    with LocalCluster(1, grace_s=5) as cluster:
        cluster.run(make_job(on_iteration=lambda _: seen.append((len(caplog.messages), waits[0]._is_over))))
        monkeypatch.setattr(local_cluster, "Wait", functools.partial(Wait, after_s=timeout_s(5)))
        cluster.run(make_job())
    assert seen[0] == (1, True)
    [line] = caplog.messages
    assert line.startswith("starting 1 node on this machine and compiling kernels")


@pytest.mark.parametrize("found", [None, ImportError("blocked"), ValueError("cloudpickle.__spec__ is None")])
def test_without_a_package_the_extra_is_named(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no server is started that could only say that it is gone."""
    find_spec = importlib.util.find_spec

    def find(name: str, *args: Any) -> Any:
        if name != "cloudpickle":
            return find_spec(name, *args)
        if found is not None:
            raise found
        return None

    job = make_job()
    monkeypatch.setattr("importlib.util.find_spec", find)
    with pytest.raises(MissingExtraError, match=r"n_workers=.*'cloudpickle'.* pip install 'chicle-elastic\[cluster\]'"):
        LocalCluster(2).run(job)


def test_a_start_with_compiled_kernels_is_a_shorter_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the line says so."""
    monkeypatch.setattr(kernel_cache, "is_cold", lambda: False)
    assert (
        local_cluster._words(4) == "starting 4 nodes on this machine (a second or two; the next fit finds them there)"
    )


def test_equal_seeds_give_equal_models_however_slow_a_node_is(cluster: LocalCluster) -> None:
    """Chunks stay where they are: nodes of one machine have no speed of their own."""
    job = make_job(UnevenCocoa(C=0.1, tol=0.0), max_iterations=30)
    first, second = cluster.run(job), cluster.run(job)
    np.testing.assert_array_equal(first.model, second.model)
    assert first.history[0].num_chunks == first.history[-1].num_chunks


@pytest.mark.parametrize("of_whom", ["cluster", "job"])
def test_policies_of_the_cluster_or_of_the_job_move_chunks(cluster: LocalCluster, of_whom: str) -> None:
    """Whoever asks for them."""
    policies = (Rebalance(min_iteration_s=0.0),)
    if of_whom == "cluster":
        cluster = dataclasses.replace(cluster, policies=policies)
    job = make_job(UnevenCocoa(C=0.1, tol=0.0), max_iterations=100, policies=policies if of_whom == "job" else None)
    history = cluster.run(job).history
    assert any("Rebalance moves" in event for record in history for event in record.events)


@pytest.mark.parametrize("of_whom", ["cluster", "in process"])
def test_a_parameter_that_a_policy_sets_reaches_the_solvers_of_all_tasks(cluster: LocalCluster, of_whom: str) -> None:
    """All in the same iteration, and with a line that says so."""
    watcher = Watcher((lambda record: record.figures["echo"] == 2.0, nothing), (tasks_are(2), nothing))
    job = make_job(TunedCocoa(C=0.1, tol=0.0), max_iterations=10**6, policies=(Double(),), on_iteration=watcher)
    history = (cluster if of_whom == "cluster" else InProcess(num_tasks=2)).run(job).history
    echoes = [record.figures["echo"] for record in history]
    assert echoes[:3] == [1.0] * 3
    first = echoes.index(2.0)
    assert echoes == [1.0] * first + [2.0] * (len(echoes) - first)
    assert any("Double sets echo to 2:" in event for event in history[first].events)


@pytest.mark.parametrize("of_whom", ["cluster", "in process"])
def test_a_policy_redraws_ownership_and_lets_a_node_go(cluster: LocalCluster, of_whom: str) -> None:
    """The chunks of the node are handed over, and it ends as after a notice; no chunk is lost on its way.

    Each chunk that is redrawn moves when its rows have arrived, so for an iteration or two a node may have one more.
    """
    watcher = Watcher((tasks_are(2), nothing), (tasks_are(1), nothing), (tasks_are(1), nothing))
    job = make_job(TunedCocoa(C=0.1, tol=0.0), max_iterations=10**6, policies=(LetGo(),), on_iteration=watcher)
    history = (cluster if of_whom == "cluster" else InProcess(num_tasks=2)).run(job).history
    told = [event for record in history for event in record.events]
    assert any("LetGo redraws the owners of" in event for event in told)
    assert any("LetGo wants 3 nodes: enough" in event for event in told)
    assert any("LetGo releases " in event for event in told)
    assert len(history[0].num_chunks) == 2
    [total] = {sum(record.num_chunks.values()) for record in history}
    assert tuple(history[-1].num_chunks.values()) == (total,)


def test_a_trainer_that_cannot_be_pickled_is_refused(cluster: LocalCluster) -> None:
    """Before anything is started."""

    class Local(LinearTrainer):
        """Holds a lock in its class."""

        lock = threading.Lock()

    with pytest.raises(UsageError, match=r"the trainer .*Local cannot be sent .*cannot pickle '_thread\.lock'"):
        cluster.run(make_job(Local()))


@pytest.mark.parametrize("is_chosen", [False, True], ids=["by default", "as the user says"])
def test_tasks_share_the_cores_of_the_machine(is_chosen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each BLAS had as many threads as there are cores, four on two cores took 3 times as long, or more."""
    for name in THREAD_LIMITS:
        monkeypatch.delenv(name, raising=False)
    cores = available_cores()
    if is_chosen:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", str(cores))
    with LocalCluster(max(2, cores)) as cluster, pytest.raises(JobFailedError) as raised:
        cluster.run(make_job(ThreadedCocoa(C=0.1)))
    assert f"threads of BLAS: [{cores if is_chosen else 1}]" in str(raised.value)


def test_what_a_task_raises_comes_back_with_its_node_and_traceback(cluster: LocalCluster) -> None:
    """And the cluster is good for the next job."""
    with pytest.raises(JobFailedError, match="the task of node n1 failed") as raised:
        cluster.run(make_job(FaultyCocoa(C=0.1)))
    assert "local_trainers.py" in str(raised.value)
    assert "ZeroDivisionError: the fault of the test" in str(raised.value)
    with pytest.raises(ContractError, match=r"metrics 'mine', .* name them in TalkativeCocoa\.metric_names"):
        cluster.run(make_job(TalkativeCocoa(C=0.1)))
    assert cluster.run(make_job()).certificate is not None


@pytest.mark.parametrize("what", ["pid", "agent_pid"])
def test_a_process_that_is_killed_is_replaced_and_the_job_goes_on(cluster: LocalCluster, what: str) -> None:
    """A task by its agent, an agent by a new node."""

    def kill() -> None:
        os.kill(getattr(cluster.members()["n1"], what), signal.SIGKILL)

    watcher = Watcher((tasks_are(2), kill), (tasks_are(1), nothing), (tasks_are(2), nothing))
    told: list[tuple[int, bool]] = []
    outcome = cluster.run(
        endless_job(on_iteration=watcher, on_transition=lambda it: told.append((it.round, it.whole_ms is not None)))
    )
    assert outcome.certificate is not None
    assert outcome.certificate.is_complete
    assert [record.iteration for record in outcome.history] == list(range(1, len(outcome.history) + 1))
    assert ("n2" in outcome.history.members) == (what == "agent_pid")
    lost = next(it for it in outcome.history.transitions if "n1 is lost" in it.reasons)
    assert lost.members == ("n0",)
    assert lost.stall_ms is not None
    assert lost.whole_ms is not None
    assert lost.stall_ms > 0
    assert lost.whole_ms > 0
    assert told == list(dict.fromkeys(told)), "each change once, and once more when all samples were back"
    assert {(lost.round, False), (lost.round, True)} <= {*told}
    ledger = outcome.ledger
    assert ledger.to_dict()["rows"] == [info.num_rows for info in make_job().source.infos(NO_STATE)]
    assert ledger.replayed, "what n1 had was started afresh"
    processed = [sum(account.iterations.values()) for account in ledger]
    assert max(processed) == len(outcome.history), "what n0 had from the beginning was never missing"
    told_of = [record.iteration for record in watcher.records]
    assert told_of == list(range(1, len(told_of) + 1)), "each iteration once and in order, also those without n1"


def test_a_cluster_is_scaled_while_a_job_runs(cluster: LocalCluster) -> None:
    """From another thread: 2 nodes, then 4, then 2; nobody is lost on the way."""

    def scale(nodes: int) -> Any:
        return lambda: threading.Thread(target=cluster.scale, args=(nodes,)).start()

    watcher = Watcher((tasks_are(2), scale(4)), (tasks_are(4), scale(2)), (tasks_are(2), nothing))
    outcome = cluster.run(endless_job(on_iteration=watcher))
    num_chunks = [sum(record.num_chunks.values()) for record in outcome.history]
    assert set(num_chunks) == {num_chunks[0]}


def test_copies_mean_the_same_cluster(cluster: LocalCluster) -> None:
    """Also in a pickle, which has nothing of a secret in it."""
    for other in (copy.copy(cluster), copy.deepcopy(cluster), pickle.loads(pickle.dumps(cluster))):
        assert other == cluster
        assert other.run(make_job()).certificate is not None
    assert hash(cluster) == hash(copy.deepcopy(cluster))


@pytest.mark.slow
def test_tasks_whose_outcome_nobody_needs_end_in_peace(tmp_path: Path) -> None:
    """The driver has one outcome and hangs up on the others, wherever they are; the next job waits for none of them."""
    with LocalCluster(4, log_dir=tmp_path) as cluster:
        for _ in range(5):
            cluster.run(make_job(max_iterations=1))
    printed = {path.name: path.read_text() for path in tmp_path.glob("*.task.out")}
    assert sorted(printed) == [f"n{number}.task.out" for number in range(4)]
    assert not any(printed.values())


def test_jobs_that_come_at_the_same_time_queue(cluster: LocalCluster) -> None:
    """Each gets its own outcome."""
    outcomes: dict[float, Any] = {}

    def run(C: float) -> None:
        outcomes[C] = cluster.run(make_job(LinearTrainer(C=C)))

    threads = [threading.Thread(target=run, args=(C,)) for C in (0.01, 0.1, 1.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s(60))
    norms = [float(np.linalg.norm(outcomes[C].model)) for C in (0.01, 0.1, 1.0)]
    assert norms == sorted(norms)
    assert len(set(norms)) == 3


@pytest.mark.usefixtures("patient_ctrl_c")
def test_ctrl_c_ends_the_job_with_a_certified_outcome(cluster: LocalCluster) -> None:
    """A real SIGINT in the driver."""
    watcher = Watcher((tasks_are(2), lambda: signal.raise_signal(signal.SIGINT)), (lambda _: False, nothing))
    outcome = cluster.run(endless_job(on_iteration=watcher))
    assert outcome.is_interrupted
    assert outcome.certificate is not None
    assert outcome.certificate.is_complete


@pytest.mark.parametrize("hangs_at", [1, 4])
def test_ctrl_c_in_a_long_iteration_gives_the_last_merged_model(cluster: LocalCluster, hangs_at: int) -> None:
    """The tasks send it while they compute, and are ended; before the first merge there is nothing to be returned."""
    job = make_job(HangingCocoa(C=0.1, tol=0.0, hangs_at=hangs_at, driver_pid=os.getpid()))
    if hangs_at == 1:
        with pytest.raises(KeyboardInterrupt):
            cluster.run(job)
        return
    outcome = cluster.run(job)
    assert outcome.is_interrupted
    assert outcome.certificate is None
    assert [record.iteration for record in outcome.history] == [1, 2, 3]
    assert np.isfinite(outcome.model).all()
    assert cluster.run(make_job()).certificate is not None


def test_a_job_that_the_caller_ends_keeps_its_last_record(cluster: LocalCluster) -> None:
    """In both runtimes: with a certificate of that very iteration."""
    for runtime in (cluster, InProcess(num_tasks=2)):
        outcome = runtime.run(endless_job(on_iteration=lambda record: record.iteration == 3))
        assert outcome.reason == "ended by a callback"
        assert [record.iteration for record in outcome.history] == list(range(1, len(outcome.history) + 1))
        assert len(outcome.history) >= 3
        assert outcome.certificate is not None
        assert outcome.certificate.iteration == outcome.history[-1].iteration


def test_an_error_of_the_caller_ends_the_job(cluster: LocalCluster) -> None:
    """It comes out of `run`, and the next job finds the cluster free."""

    def fail(record: IterationRecord) -> None:
        raise LookupError("the caller is at fault")

    with pytest.raises(LookupError, match="at fault"):
        cluster.run(endless_job(on_iteration=fail))
    assert cluster.run(make_job()).certificate is not None


@pytest.mark.parametrize("nodes", [0, (3, 2), (1, 2, 3), 65, "4", True, (1.0, 2)])
def test_numbers_of_nodes_that_cannot_be_are_refused(nodes: Any) -> None:
    """At once, with what to say instead."""
    with pytest.raises(UsageError, match="nodes="):
        LocalCluster(nodes)


@pytest.mark.parametrize("field", [{"memory_bytes": 0}, {"grace_s": -1.0}, {"idle_s": float("nan")}])
def test_settings_that_cannot_be_are_refused(field: dict[str, Any]) -> None:
    """By name."""
    with pytest.raises(UsageError, match=next(iter(field))):
        LocalCluster(2, **field)


DRIVER = """
    import json, os
    from chicle_elastic.cluster.local.local_cluster import LocalCluster
    from tests.cluster.local.test_local_cluster import endless_job

    def tell(record):
        if record.iteration == 10:
            members = cluster.members().values()
            print(json.dumps([pid for member in members for pid in (member.pid, member.agent_pid)]), flush=True)

    cluster = LocalCluster(2)
    cluster.run(endless_job(on_iteration=tell))
"""


def test_nothing_is_left_of_a_cluster_whose_driver_is_killed() -> None:
    """SIGKILL; after three seconds no process is left, its server included."""
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER)], stdout=subprocess.PIPE, cwd=ROOT, env=os.environ
    )
    with driver:
        assert driver.stdout is not None
        pids = json.loads(driver.stdout.readline())
        session = os.getsid(pids[0])  # that of the server, which leads it
        assert session != os.getsid(0)
        driver.kill()
    assert comes(lambda: not any(map(is_alive, [session, *pids])), 3)


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


def test_records_are_the_same_in_process_on_a_cluster_and_in_a_simulation(cluster: LocalCluster) -> None:
    """Iterations, epochs, samples, chunks and tasks; the same figures, those of certificates included."""
    job = make_job(LinearTrainer(C=0.1, tol=0.0, algorithm="cocoa"), max_iterations=12, policies=())
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


def test_a_file_that_is_damaged_while_the_folder_is_open_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    """The nodes try it in turn; then the job ends, and the cluster is good for the next one."""
    folder, X, y = digits_folder(tmp_path / "digits")
    model = ChicleSVM(runtime=cluster)
    damaged = Path(str(folder.file(ChunkId(0))))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)
    with pytest.raises(JobFailedError, match=rf"(?s)could not be loaded .*{damaged.name}.* is damaged"):
        model.fit(ChunkFolder(tmp_path / "digits"))
    model.fit(X, y)


@pytest.mark.parametrize("nodes", [2, (1, 2)])
def test_data_that_all_nodes_together_have_no_room_for_are_refused(nodes: int | tuple[int, int]) -> None:
    """With the figures; also where the job may begin before all nodes are there."""
    X = np.random.default_rng(0).normal(size=(20_000, 5))
    said = r"no room for \d+ chunks to be loaded: .* on the 2 nodes"
    with LocalCluster(nodes, memory_bytes=20_000) as cluster, pytest.raises(JobFailedError, match=said):
        ChicleSVM(runtime=cluster).fit(X, X[:, 0] > 0)


def test_no_process_of_a_linear_fit_has_torch() -> None:
    """Neither tasks nor agents nor the server that forks them, also where the driver has imported torch."""
    import torch  # noqa: F401

    mapped: list[str] = []

    def look(_: object) -> bool:
        for member in () if mapped else cluster.members().values():
            parent = Path(f"/proc/{member.pid}/status").read_text().partition("PPid:")[2].split()[0]
            mapped.extend(Path(f"/proc/{pid}/maps").read_text() for pid in (member.pid, member.agent_pid, parent))
        return False

    source = ArraySource(np.eye(4), np.array([0, 1, 0, 1], dtype=np.int32), max_tasks=2)
    with LocalCluster(2) as cluster:
        cluster.run(Job(trainer=LinearTrainer(), source=source, max_iterations=3, on_iteration=look))
    assert len(mapped) == 6
    assert not any("libtorch" in maps for maps in mapped)
