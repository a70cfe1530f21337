"""Recorded jobs: what their recordings say, and how well a simulation predicts them.

`runs` has two jobs of four real agents, 150 iterations each of tasks that take 40 us per row, and n1 twice that. Run A
has no policy: a join, then a notice for n0, then n2 is killed. Run B has `Rebalance`: n2 is killed, a join, a notice.
"""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime.simulate.recorded import RecordedJob, read_recording, trimmed_mean
from chicle_elastic.runtime.simulate.result import SimulationResult
from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedNetwork, SimulatedNode
from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster
from chicle_elastic.runtime.simulate.work import Cost
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.recording import Recorder, header_text, state_of
from chicle_elastic.scheduling.replaying import Replay
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from tests.harness.text_sink import TextSink
from tests.scheduling.stage import infos

RUNS = Path(__file__).with_name("runs")
A, B = RUNS / "a.recording.jsonl.gz", RUNS / "b.recording.jsonl.gz"


def simulated(job: RecordedJob, scenario: Scenario, *policies: Rebalance) -> SimulationResult:
    """The recorded chunks in this scenario."""
    return VirtualCluster(scenario, policies, make_work=lambda clock: Cost(scenario.job, job.infos)).run()


def calibrated(job: RecordedJob, by: RecordedJob) -> Scenario:
    """Nodes and events of one job, speeds and delays of another one."""
    speeds = {node.name: node.speed for node in by.scenario.nodes}
    names = "row_s", "iteration_s", "noise", "epochs_per_iteration"
    return dataclasses.replace(
        job.scenario,
        network=by.scenario.network,
        job=dataclasses.replace(job.scenario.job, **{name: getattr(by.scenario.job, name) for name in names}),
        nodes=tuple(dataclasses.replace(node, speed=speeds[node.name]) for node in job.scenario.nodes),
    )


def test_a_recording_has_nodes_speeds_and_what_happened() -> None:
    """Medians over the run; n4 came because n0 or n2 had gone."""
    job = read_recording(A)
    nodes = {node.name: node for node in job.scenario.nodes}
    assert sorted(nodes) == ["n0", "n1", "n2", "n3", "n4"]
    assert [round(nodes[name].speed, 1) for name in sorted(nodes)] == [1.0, 0.5, 1.0, 1.0, 1.0]
    assert job.scenario.job.row_s == pytest.approx(40e-6, rel=0.05)
    assert nodes["n0"].notice_s is not None
    assert nodes["n2"].dies_s is not None
    assert nodes["n3"].joins_s < nodes["n0"].notice_s < nodes["n2"].dies_s < nodes["n4"].joins_s
    result = job.result
    assert (len(result.history), result.aborted, result.has_finished) == (150, 1, True)


@pytest.mark.parametrize(("path", "policies"), [(A, ()), (B, (Rebalance(),))], ids=["A", "B"])
def test_a_recorded_job_is_predicted_from_its_own_recording(path: Path, policies: tuple[Rebalance, ...]) -> None:
    """Within 15 % of its time."""
    job = read_recording(path)
    result = simulated(job, job.scenario, *policies)
    assert len(result.history) == len(job.result.history)
    assert result.aborted == job.result.aborted
    assert result.time_s == pytest.approx(job.result.time_s, rel=0.15)


def test_a_job_is_predicted_from_another_one_under_another_policy() -> None:
    """Calibrated on run A, without policies: run B, with `Rebalance` and other events, within 15 % of its time."""
    job, known = read_recording(B), read_recording(A)
    result = simulated(job, calibrated(job, known), Rebalance())
    assert result.time_s == pytest.approx(job.result.time_s, rel=0.15)
    without = simulated(job, calibrated(job, known))
    assert without.time_s > 1.15 * job.result.time_s


def test_a_simulation_is_known_from_its_own_recording(tmp_path: Path) -> None:
    """What it was told comes back: speeds, delays, events; so does its time."""
    nodes = (
        SimulatedNode(name="n", count=2),
        SimulatedNode(name="slow", speed=0.5, joins_s=5.0),
        SimulatedNode(name="leaver", notice_s=9.0, grace_s=100.0),
        SimulatedNode(name="victim", dies_s=20.0),
    )
    network = SimulatedNetwork(bytes_per_s=1e6, latency_s=0.01, load_bytes_per_s=1e5, round_s=0.25, detect_s=0.0)
    job = SimulatedJob(chunks=60, rows_per_chunk=100, row_s=1e-3, chunk_bytes=1000, state_bytes=0, iterations=30)
    scenario = Scenario(nodes=nodes, network=network, job=dataclasses.replace(job, iteration_s=0.1))
    path = tmp_path / "n.recording.jsonl"
    with path.open("w", encoding="utf-8") as file:
        result = VirtualCluster(scenario, (), sink=TextSink(file.write)).run()
    found = read_recording(path)
    assert found.result.time_s == pytest.approx(result.time_s)
    assert found.result.chunks_moved == result.chunks_moved
    assert {node.name: node.speed for node in found.scenario.nodes} == pytest.approx(
        {"n-0": 1.0, "n-1": 1.0, "slow": 0.5, "leaver": 1.0, "victim": 1.0}
    )
    assert found.scenario.network.round_s == pytest.approx(0.25)
    assert found.scenario.job.iteration_s == pytest.approx(0.1)
    assert simulated(found, found.scenario).time_s == pytest.approx(result.time_s, rel=0.05)


def test_an_iteration_that_takes_a_part_of_the_rows_is_known(tmp_path: Path) -> None:
    """As local SGD does."""
    job = SimulatedJob(chunks=60, rows_per_chunk=100, row_s=1e-3, epochs_per_iteration=0.25, iterations=8)
    path = tmp_path / "n.recording.jsonl"
    with path.open("w", encoding="utf-8") as file:
        VirtualCluster(Scenario(nodes=(SimulatedNode(name="n"),), job=job), sink=TextSink(file.write)).run()
    found = read_recording(path)
    assert found.scenario.job.epochs_per_iteration == 0.25
    assert found.result.history[-1].epochs == 2.0


def test_a_recording_without_iterations_is_refused(tmp_path: Path) -> None:
    """There is nothing to go by."""
    path = tmp_path / "n.recording.jsonl"
    with path.open("w", encoding="utf-8") as file:
        recorder = Recorder(Scheduler(SchedulerSettings()), TextSink(file.write))
        recorder.handle(events.ChunksDeclared(chunks=infos(3)), now=0.0)
        recorder.handle(events.NodeJoined(node=NodeId("n0")), now=0.25)
    with pytest.raises(UsageError, match="the recording has no finished iteration"):
        read_recording(path)


def test_a_recording_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path) -> None:
    """A foreign file, one of another version, and one with a broken line in the middle."""
    lines = gzip.decompress(A.read_bytes()).decode().splitlines(keepends=True)
    header = json.loads(lines[0])
    for number, broken in (
        (1, "# seconds nodes\n0 4\n"),
        (1, json.dumps({**header, "version": 99}) + "\n" + lines[1]),
        (3, "".join([*lines[:2], lines[2][:50] + "\n", *lines[3:9]])),
    ):
        path = tmp_path / "broken.recording.jsonl"
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(ProtocolError) as raised:
            read_recording(path)
        assert f"{path}:{number}" in str(raised.value)


def test_a_recording_that_begins_with_a_snapshot_is_the_rest_of_its_job(tmp_path: Path) -> None:
    """As of a node that joined late: chunks, nodes and speeds are known from there on, and its time is predicted."""
    lines = gzip.decompress(A.read_bytes()).decode().splitlines(keepends=True)
    path = tmp_path / "late.recording.jsonl"
    for step in Replay(lines):
        number = int(step.where.rpartition(":")[2])
        if isinstance(step.line.event, events.IterationFinished) and step.line.event.iteration == 50:
            header = header_text(step.scheduler, length=step.index, state=state_of(step.scheduler), why="joined late")
            path.write_bytes(header + "".join(lines[number:]).encode())
            break
    whole, late = read_recording(A), read_recording(path)
    assert late.infos == whole.infos
    assert [record.iteration for record in late.result.history] == list(range(52, 151)), "one was under way"
    assert {node.name for node in late.scenario.nodes} <= {node.name for node in whole.scenario.nodes}
    speeds = {node.name: node.speed for node in whole.scenario.nodes}
    assert {node.name: node.speed for node in late.scenario.nodes} == pytest.approx(
        {node.name: speeds[node.name] for node in late.scenario.nodes}, rel=0.1
    )
    assert simulated(late, late.scenario).time_s == pytest.approx(late.result.time_s, rel=0.2)


def test_a_notice_before_a_recording_begins_is_known(tmp_path: Path) -> None:
    """The node leaves in the simulation, too."""
    lines = gzip.decompress(A.read_bytes()).decode().splitlines(keepends=True)
    path = tmp_path / "late.recording.jsonl"
    step = next(step for step in Replay(lines) if isinstance(step.line.event, events.LeaveNoticed))
    header = header_text(step.scheduler, length=step.index, state=state_of(step.scheduler), why="joined late")
    path.write_bytes(header + "".join(lines[int(step.where.rpartition(":")[2]) :]).encode())
    assert isinstance(step.line.event, events.LeaveNoticed)
    notices = {node.name: node.notice_s for node in read_recording(path).scenario.nodes}
    assert notices[str(step.line.event.node)] is not None


def test_a_trimmed_mean_leaves_the_tails_out() -> None:
    """A twentieth at each end, of twenty values or more."""
    assert trimmed_mean([1.0, 2.0, 6.0]) == 3.0
    assert trimmed_mean([-100.0, *[1.0] * 18, 500.0]) == 1.0
