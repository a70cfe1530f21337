"""Agents and tasks of a local cluster that are kept from job to job: which, and what they are like afterwards."""

import contextlib
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.cluster.local.process_pool import is_ours
from chicle_elastic.errors import JobFailedError
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.cluster.local.local_trainers import FaultyCocoa, WaitingCocoa
from tests.cluster.train_svm import breast_cancer
from tests.timeouts import comes, timeout_s


def run(cluster: LocalCluster, trainer: Any = None) -> dict[str, set[int]]:
    """Run a job; the process ids of its agents and of its tasks."""
    X, y = breast_cancer()
    source = ArraySource(X, y.astype(np.int32), max_tasks=4)
    outcome = cluster.run(Job(trainer=trainer or LinearTrainer(C=0.1), source=source, max_iterations=500))
    assert outcome.certificate is not None
    members = outcome.history.members.values()
    return {"agents": {member.agent_pid for member in members}, "tasks": {member.pid for member in members}}


def num_descriptors(pids: set[int]) -> dict[int, int]:
    """How many files and sockets processes have open, once they have stopped closing some."""
    end_s = time.monotonic() + timeout_s(5)
    before: dict[int, int] = {}
    while time.monotonic() < end_s:
        now = {pid: len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids}
        if now == before:
            break
        before = now
        time.sleep(0.1)
    return before


def names(pids: set[int]) -> list[str]:
    """What `ps` says of processes."""
    return sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids)


def is_gone(pid: int) -> bool:
    """Whether a process ends soon."""
    return comes(lambda: not Path(f"/proc/{pid}").exists(), 5)


def test_the_next_jobs_have_the_same_processes_and_nothing_piles_up(cluster: LocalCluster) -> None:
    """Descriptors, threads, processes; the first job opens some that stay."""
    first = run(cluster)
    pids = first["agents"] | first["tasks"]
    before = num_descriptors(pids)
    for _ in range(4):
        assert run(cluster) == first
    after = num_descriptors(pids)
    # Connections to round stores that a thread held to the last are there until the next job: the one of the round, the
    # own one, and one that was made ahead. One per job would be four.
    assert all(after[pid] - before[pid] <= 3 for pid in pids), (before, after)
    # The thread that watches uses of a disk ends a moment after the last one.
    assert comes(lambda: [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids] == [1] * 4)
    assert names(pids) == ["chicle agent n0", "chicle agent n1", "chicle task n0", "chicle task n1"]


def test_a_task_with_code_of_somebody_else_is_not_kept(cluster: LocalCluster) -> None:
    """When the next job comes that code may be another; agents have none of it."""
    first, second = run(cluster), run(cluster, WaitingCocoa(C=0.1))
    third = run(cluster)
    assert first == second
    assert first["agents"] == third["agents"]
    assert not first["tasks"] & third["tasks"]
    assert all(map(is_gone, first["tasks"]))


def test_processes_of_a_job_that_failed_are_not_kept(cluster: LocalCluster) -> None:
    """None of them: they were in the middle of something."""
    first = run(cluster)
    with pytest.raises((JobFailedError, ZeroDivisionError)):
        run(cluster, FaultyCocoa(C=0.1))
    last = run(cluster)
    assert not (first["agents"] | first["tasks"]) & (last["agents"] | last["tasks"])


def test_one_that_was_killed_while_it_was_free_is_replaced(cluster: LocalCluster) -> None:
    """An agent and a task."""
    first = run(cluster)
    assert comes(lambda: not cluster.members()), "they are free when the job is quite over"
    killed = {min(first["agents"]), min(first["tasks"])}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert all(map(is_gone, killed))
    last = run(cluster)
    assert last["agents"] >= first["agents"] - killed
    assert not killed & (last["agents"] | last["tasks"])


def test_a_task_that_ends_when_its_job_is_over_costs_no_agent(cluster: LocalCluster) -> None:
    """It has told the outcome, and no script goes on after it: its end is no failure. Each kill meets another moment of
    the job's last ones."""
    first = run(cluster)
    for _ in range(8):
        last = run(cluster)
        assert last["agents"] == first["agents"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(max(last["tasks"]), signal.SIGKILL)


def test_those_that_a_smaller_job_does_not_need_end(cluster: LocalCluster) -> None:
    """As many are kept as the last job had."""
    first = run(cluster)
    cluster.scale(1)
    last = run(cluster)
    assert len(last["agents"]) == 1
    unneeded = (first["agents"] | first["tasks"]) - last["agents"] - last["tasks"]
    assert len(unneeded) == 2
    assert all(map(is_gone, unneeded))
    cluster.scale(2)  # not before: whoever asks for two while the job of one is not quite over has two kept


def test_each_job_prints_into_its_own_files(tmp_path: Path) -> None:
    """Also when the processes are those of the job before; looked at while it runs, as they may end with it."""
    X, y = breast_cancer()
    source, seen = ArraySource(X, y.astype(np.int32), max_tasks=4), []

    def look(_: object) -> None:
        found = set()
        for output in Path("/proc").glob("[0-9]*/fd/1"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(output))
        seen.append({name for name in found if name.startswith(str(tmp_path))})

    job = Job(trainer=LinearTrainer(C=0.1), source=source, max_iterations=500, on_iteration=look)
    with LocalCluster(1, log_dir=tmp_path) as cluster:
        for _ in range(2):
            seen.clear()
            cluster.run(job)
            assert {str(tmp_path / "n0.agent.out"), str(tmp_path / "n0.task.out")} in seen


def test_a_module_with_the_name_of_one_of_pythons_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another one when the next job comes."""
    (tmp_path / "chunk.py").write_text("ours = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "chunk", raising=False)
    assert importlib.import_module("chunk").ours
    known = set(sys.modules) - {"chunk", "this", "this.that"}
    assert not is_ours("chunk", known)
    assert is_ours("xml.dom.minidom", known | {"xml"})
    assert is_ours("pathlib", known - {"pathlib"})
