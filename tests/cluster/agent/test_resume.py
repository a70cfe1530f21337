"""A job that nobody survived goes on from its last checkpoint, with as many nodes as there are then."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.runtime.checkpoint.format import Checkpoint, JobIdentity
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.cluster.cluster_harness import AgentProcess, LocalAgents, svm_script
from tests.cluster.train_svm import PacedLinear, breast_cancer
from tests.timeouts import comes

pytestmark = pytest.mark.chaos  # too long for `make test`

EVERY = 10
TOL = 1e-3
COCOA, NEWTON = ("--cocoa",), ("--newton",)
"""Methods: CoCoA, where w = w(alpha) at every checkpoint, and what several tasks take by default, which is Newton's."""


@contextmanager
def agents(
    folder: Path,
    checkpoints: Path,
    *options: str,
    count: int,
    tol: float = 0.0,
    min_ms: int = 20,
    method: tuple[str, ...] = COCOA,
) -> Iterator[LocalAgents]:
    """Agents that save a job every ten iterations; it begins when `count` of them are there."""
    folder.mkdir()
    script = svm_script(folder, "--min-ms", str(min_ms), "--tol", str(tol), *method)
    where = ("--checkpoint", str(checkpoints), "--checkpoint-every", str(EVERY))
    with LocalAgents(folder, nodes=f"{count}:8", script=script, options=(*where, *options)) as cluster:
        yield cluster


def start(cluster: LocalAgents, count: int) -> list[AgentProcess]:
    """Start nodes, and wait until all of them iterate."""
    nodes = [cluster.start(f"n{number}") for number in range(count)]
    nodes[0].wait_for("iteration", lambda event: len(event["seconds"]) == count)
    return nodes


def last_complete(checkpoints: Path) -> int:
    """Iteration of the newest checkpoint that has its manifest; 0 for none."""
    whole = [path for path in checkpoint.attempts(checkpoints) if checkpoint.is_complete(path)]
    return checkpoint.iteration_of(whole[-1]) if whole else 0


def kill(nodes: list[AgentProcess]) -> None:
    """SIGKILL for every process of the job."""
    for node in nodes:
        node.kill_all()
    for node in nodes:
        node.wait_for_end()


def newest(checkpoints: Path) -> Checkpoint:
    """The newest checkpoint of the job of these tests."""
    X, y = breast_cancer()
    schema = ArraySource(X, y.astype(np.int32), max_tasks=1).schema
    identity = JobIdentity.of(PacedLinear(C=1.0), schema, num_parameters=X.shape[1] + 1)
    found = checkpoint.newest(checkpoints, identity)
    assert found is not None
    return found


def gap_of(found: Checkpoint, method: tuple[str, ...] = COCOA) -> float:
    """The relative duality gap of a checkpoint, from the original data, w and the duals.

    The duals must be in their box, and with CoCoA w the one that they make: then the parts are of one boundary.
    """
    X, y = breast_cancer()
    alpha = found.state[:, 0, 0]
    assert alpha.min() >= 0
    assert alpha.max() <= 1
    signs, rows = np.where(y > 0, 1.0, -1.0), np.column_stack([X, np.ones(len(X))])
    rebuilt = (alpha * signs) @ rows
    if method == COCOA:
        np.testing.assert_allclose(found.model, rebuilt, atol=1e-9)
    primal = 0.5 * found.model @ found.model + np.maximum(0.0, 1.0 - signs * (rows @ found.model)).sum()
    return float((primal - alpha.sum() + 0.5 * rebuilt @ rebuilt) / primal)


def resume(
    folder: Path, checkpoints: Path, count: int, *, tol: float = TOL, method: tuple[str, ...] = COCOA
) -> dict[str, Any]:
    """Go on with so many nodes until the gap is small; what the job came to."""
    began = newest(checkpoints).iteration
    with agents(folder, checkpoints, "--resume", count=count, tol=tol, min_ms=1, method=method) as cluster:
        nodes = [cluster.start(f"m{number}") for number in range(count)]
        assert [node.wait_for_end() for node in nodes] == [0] * count, nodes[0].output()
        for node in nodes:
            assert min(event["iteration"] for event in node.events("iteration")) > began
        first = min(event["iteration"] for node in nodes for event in node.events("iteration"))
        assert first == began + 1
        # What tasks found in their chunks: nothing is older than the checkpoint, nothing was processed twice.
        pages = [page for node in nodes for page in node.events("ledger")]
        assert {page["before"][1] for page in pages if page["after"][1] == first} == {began}
        assert all(page["before"][1] >= began for page in pages)
        results = list(cluster.results())
    assert len(results) == count
    assert all(result == results[0] for result in results)
    return results[0]


def test_after_the_death_of_all_nodes_others_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    """3 nodes are killed, 2 go on and 1 after them; the history is one, and so is the optimum."""
    checkpoints = tmp_path / "checkpoints"
    with agents(tmp_path / "first", checkpoints, count=3) as cluster:
        nodes = start(cluster, 3)
        after = nodes[0].events("iteration")[-1]["iteration"]
        assert comes(lambda: last_complete(checkpoints) > after)
        # The manifest comes first, and only then do agents hear of it and write that down.
        assert comes(lambda: any(node.events("checkpoint") for node in nodes))
        kill(nodes)
    found = newest(checkpoints)
    assert found.iteration % EVERY == 0
    assert len(list(found.path.glob("part-*.json"))) == 3
    assert gap_of(found) > TOL
    result = resume(tmp_path / "second", checkpoints, 2)
    assert result["gap"] <= TOL
    assert result["iterations"] > found.iteration
    saved = [event for node in nodes for event in node.events("checkpoint")]
    assert saved
    assert {event["iteration"] % EVERY for event in saved} == {0}
    last = newest(checkpoints)  # the end of a job is saved, too
    assert last.iteration == result["iterations"]
    assert gap_of(last) == pytest.approx(result["gap"], abs=1e-9)
    X, y = breast_cancer()
    reference = InProcess().run(
        Job(
            trainer=LinearTrainer(C=1.0, tol=TOL),
            source=ArraySource(X, y.astype(np.int32), max_tasks=1),
            max_iterations=10_000,
        )
    )
    np.testing.assert_allclose(result["norm"], np.linalg.norm(reference.model), rtol=0.05)
    assert resume(tmp_path / "third", checkpoints, 1)["gap"] <= TOL


def test_newtons_method_goes_on_from_a_checkpoint_amid_its_steps(tmp_path: Path) -> None:
    """3 nodes are killed at a gap that 2 make smaller; in between the duals were those of a step that had not ended."""
    checkpoints, tol = tmp_path / "checkpoints", 1e-7
    with agents(tmp_path / "first", checkpoints, count=3, min_ms=250, method=NEWTON) as cluster:
        nodes = start(cluster, 3)
        assert comes(lambda: last_complete(checkpoints) > 0)
        kill(nodes)
    found = newest(checkpoints)
    assert len(found.progress), "a checkpoint keeps how far Newton's method has come"
    assert gap_of(found, NEWTON) > tol
    result = resume(tmp_path / "second", checkpoints, 2, tol=tol, method=NEWTON)
    assert result["gap"] <= tol
    assert result["iterations"] <= found.iteration + 40
    assert gap_of(newest(checkpoints), NEWTON) == pytest.approx(result["gap"], rel=1e-6, abs=1e-12)


def test_a_checkpoint_that_was_being_written_when_all_died_is_not_used(tmp_path: Path) -> None:
    """Its manifest is what was to be written last: without it the one before counts."""
    checkpoints = tmp_path / "checkpoints"
    with agents(tmp_path / "first", checkpoints, count=2) as cluster:
        nodes = start(cluster, 2)
        assert comes(lambda: last_complete(checkpoints) > 0)
        before = checkpoint.attempts(checkpoints)[-1]
        assert comes(lambda: checkpoint.attempts(checkpoints)[-1] != before)
        kill(nodes)
    unfinished = checkpoint.attempts(checkpoints)[-1]
    # The signal may have come a moment after the end: then what was written last is taken away.
    (unfinished / checkpoint.MANIFEST).unlink(missing_ok=True)
    found = newest(checkpoints)
    assert found.iteration < checkpoint.iteration_of(unfinished)
    assert gap_of(found) > TOL
    assert resume(tmp_path / "second", checkpoints, 3)["gap"] <= TOL


def test_a_node_that_joins_a_resumed_job_and_one_whose_task_dies_catch_up(tmp_path: Path) -> None:
    """They find newer checkpoints than the one that the job has begun with, and are told of the job instead."""
    checkpoints = tmp_path / "checkpoints"
    with agents(tmp_path / "first", checkpoints, count=1) as cluster:
        nodes = start(cluster, 1)
        assert comes(lambda: last_complete(checkpoints) > 0)
        kill(nodes)
    began = newest(checkpoints).iteration
    with agents(tmp_path / "second", checkpoints, "--resume", count=2) as cluster:
        first, second = start(cluster, 2)
        assert comes(lambda: last_complete(checkpoints) >= began + 2 * EVERY)
        third = cluster.start("n2")
        first.wait_for_members(3)
        os.kill(second.task_pid, signal.SIGKILL)
        first.wait_for_members(2)
        first.wait_for_members(3)
        cluster.end()
        assert [node.wait_for_end() for node in (first, second, third)] == [0, 0, 0]
        results = list(cluster.results())
        assert len(results) == 3
        assert all(result == results[0] for result in results)
        assert results[0]["gap"] is not None
    assert gap_of(newest(checkpoints)) == pytest.approx(results[0]["gap"], abs=1e-9)


def test_a_job_that_begins_does_not_touch_checkpoints_of_another_run(tmp_path: Path) -> None:
    """Without --resume it says what to do, everywhere, and nothing is overwritten."""
    checkpoints = tmp_path / "checkpoints"
    with agents(tmp_path / "first", checkpoints, count=1) as cluster:
        nodes = start(cluster, 1)
        assert comes(lambda: last_complete(checkpoints) > 0)
        kill(nodes)
    before = newest(checkpoints)
    with agents(tmp_path / "second", checkpoints, count=1) as cluster:
        node = cluster.start("n0")
        assert node.wait_for_end() == 1
        assert "--resume" in node.output()
    assert newest(checkpoints).path == before.path


def test_a_job_whose_checkpoints_are_all_damaged_does_not_begin_afresh_by_itself(tmp_path: Path) -> None:
    """Somebody may still have the files; the error names them."""
    checkpoints = tmp_path / "checkpoints"
    damaged = checkpoints / "000000010-00000000"
    damaged.mkdir(parents=True)
    (damaged / checkpoint.MANIFEST).write_text("{}")
    with agents(tmp_path / "first", checkpoints, "--resume", count=1) as cluster:
        node = cluster.start("n0")
        assert node.wait_for_end() == 1
        assert str(damaged) in node.output()
        assert "start anew in an empty folder" in node.output()


def test_resume_without_a_folder_says_what_is_missing(tmp_path: Path) -> None:
    """There is nowhere to look."""
    with LocalAgents(tmp_path, script=svm_script(tmp_path), options=("--resume",)) as cluster:
        node = cluster.start("n0")
        assert node.wait_for_end() == 1
        assert "give --checkpoint FOLDER" in node.output()
