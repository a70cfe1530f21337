"""The memory file that the driver of a local cluster writes: what its tasks find there, and what is refused."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import random_array

from chicle_elastic.cgroups import Headroom
from chicle_elastic.chunks.headers import Header
from chicle_elastic.chunks.sources import ArraySource, ChunkSource
from chicle_elastic.chunks.views import NO_STATE, Chunk, StateSpec
from chicle_elastic.cluster.local import staging
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.cluster.local.messages import connect
from chicle_elastic.cluster.net.event_file import read_events
from chicle_elastic.errors import CapacityError, DataError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime import in_process
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear import methods
from chicle_elastic.solvers.linear.newton import passes
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.chunks.samples import assert_same_chunk
from tests.estimators.problems import write
from tests.timeouts import comes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1000, 7))
STATE = StateSpec(outputs=1, width=1)


def staged(source: ChunkSource) -> Any:
    """The source as a task has it."""
    with staging.StagedFiles() as files:
        described = staging.describe_source(source, files)
        files.seal(0)
        files.fill()
        found = staging.open_source(described, staging.MappedFiles(files.fds, lambda: None))
        for info in found.infos(NO_STATE):
            found.load(info.id, NO_STATE)
        return found


@pytest.mark.parametrize("data", [X, X.astype(np.float32), random_array((1000, 40), density=0.1, rng=RNG)])
@pytest.mark.parametrize("weights", [None, np.arange(1000.0)])
def test_tasks_find_every_chunk_of_the_driver(
    data: object, weights: np.ndarray | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shuffled, dense or sparse, with weights or without, in the first file or a later one, of the sizes that were
    said."""
    monkeypatch.setattr(staging, "WARMUP_BYTES", 5000)
    y = RNG.integers(0, 3, 1000)
    source = ArraySource(data, y, weights=weights, max_tasks=3, chunk_bytes=4096)
    found = staged(source)
    assert found.schema == source.schema
    assert found.infos(STATE) == source.infos(STATE)
    for info in source.infos(STATE):
        chunk = source.load(info.id, STATE)
        assert_same_chunk(found.load(info.id, STATE), chunk)
        assert found.header_outside(info.id) == Header.of(chunk).outside()


class OddSource:
    """A source of the user's, which stands one thread and fails at the end."""

    copies_rows = True

    def __init__(self) -> None:
        self._arrays = ArraySource(X, X[:, 0], max_tasks=2, chunk_bytes=4096)
        self.schema = self._arrays.schema
        self.infos = self._arrays.infos

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """All chunks but the last."""
        if chunk_id == self._arrays.num_chunks - 1:
            raise DataError("the last file is damaged")
        return self._arrays.load(chunk_id, state)


def test_an_error_of_the_source_is_the_caller_s() -> None:
    """As it was raised."""
    with pytest.raises(DataError, match="the last file is damaged"):
        staged(OddSource())


def test_a_source_that_says_too_little_does_not_write_over_its_next_chunk() -> None:
    """It is refused by the chunk."""
    source = ArraySource(X, X[:, 0], max_tasks=2, chunk_bytes=4096)
    infos = source.infos
    source.infos = lambda state: tuple(replace(info, size_bytes=info.size_bytes - 128) for info in infos(state))  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"chunk \d+ of "):
        staged(source)


def test_too_little_memory_is_refused_before_a_byte_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the figure that is needed, and what leaves less."""
    monkeypatch.setattr(staging, "memory_headroom", lambda: Headroom(num_bytes=10_000, source="memory.max"))
    source = ArraySource(X, X[:, 0], max_tasks=2)
    needed = sum(info.size_bytes for info in source.infos(NO_STATE))
    with staging.StagedFiles() as files:
        with pytest.raises(CapacityError, match=r"memory\.max") as refusal:
            staging.describe_source(source, files)
        assert staging.format_size(needed) in str(refusal.value)
        assert not any(os.fstat(fd).st_blocks for fd in files.fds)


def test_a_cluster_counts_what_methods_keep_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that fit alone are refused before a process is started, and those of a folder stay in their files."""
    monkeypatch.setattr(passes, "COMPILER_BYTES", 0)
    monkeypatch.setattr(methods, "MOST_BLOCK_VALUES", 1 << 10)
    rows, classes = RNG.normal(size=(20_000, 4)).astype(np.float32), np.arange(20_000) % 2
    source, trainer = ArraySource(rows, classes, shuffle=False, max_tasks=2), LinearTrainer(loss="logistic")
    state_bytes = trainer.state(source.schema).size_bytes(20_000)
    kept_bytes = trainer.kept_bytes(source.schema, 2)
    leaves = Headroom(num_bytes=rows.nbytes + state_bytes + kept_bytes // 2, source="memory.max")
    monkeypatch.setattr(in_process, "memory_headroom", lambda proc: leaves)
    cluster = LocalCluster(2)
    with pytest.raises(CapacityError, match=r"keeps of their rows need .* but memory\.max leaves"):
        cluster.run(Job(trainer=trainer, source=source, max_iterations=3))
    assert connect(cluster.address) is None
    folder = write(tmp_path / "data", rows, classes, classes=(0, 1))
    monkeypatch.setattr(in_process, "memory_headroom", lambda proc: replace(leaves, num_bytes=folder.size_bytes + 1))
    held = in_process.held_source(folder, trainer, 2, is_staged=True)
    with staging.StagedFiles() as files:
        assert staging.describe_source(held, files)["is_mapped"]


def large_data() -> ArraySource:
    """Source of more than the nodes warm up with."""
    data = RNG.normal(size=(60_000, 40)).astype(np.float32)
    return ArraySource(data, (data[:, 0] > 0).astype(np.int32), max_tasks=2)


@pytest.mark.parametrize("who_dies", ["nobody", "task", "agent"])
def test_nodes_meet_while_data_is_staged(who_dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one of them is killed meanwhile, and another process takes its place."""
    fill = staging.StagedFiles.fill

    def hot() -> int:
        return sum(event["kind"] == "hot" for event in read_events(tmp_path))

    def fill_when_they_have_met(files: staging.StagedFiles) -> None:
        assert comes(
            lambda: {event["node"] for event in read_events(tmp_path) if event["kind"] == "group"} == {"n0", "n1"}, 20
        )
        if who_dies != "nobody":
            member = cluster.members()["n1"]
            os.kill(member.pid if who_dies == "task" else member.agent_pid, signal.SIGKILL)
            assert comes(lambda: hot() == 3, 20)
        fill(files)

    monkeypatch.setattr(staging.StagedFiles, "fill", fill_when_they_have_met)
    with LocalCluster(2, log_dir=tmp_path) as cluster:
        outcome = cluster.run(Job(trainer=LinearTrainer(C=0.1), source=large_data(), max_iterations=500))
    assert outcome.certificate is not None
    assert outcome.certificate.is_complete


def test_what_is_here_is_read_while_another_thread_waits() -> None:
    """A task loads what nodes began with while its main thread waits for the rest."""
    waits, is_whole = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        assert is_whole.wait(60)

    with staging.StagedFiles() as files:
        files.add(np.ones(3))
        files.seal(0)
        files.fill()
        memory = staging.MappedFiles(files.fds, wait)
        with ThreadPoolExecutor(2) as threads:
            later = threads.submit(lambda: memory[1])
            assert waits.wait(60)
            try:
                assert threads.submit(lambda: memory[0].view(float).sum()).result(60) == 3
            finally:
                is_whole.set()
            assert len(later.result(60)) == 1


def test_what_fails_while_nodes_wait_for_data_is_told_and_they_go() -> None:
    """The next job has nodes that wait for nothing."""
    source = large_data()
    infos = source.infos(NO_STATE)
    last = replace(infos[-1], size_bytes=infos[-1].size_bytes - 128)
    source.infos = lambda state: (*infos[:-1], last)  # type: ignore[method-assign]
    with LocalCluster(2) as cluster:
        with pytest.raises(UsageError, match=r"chunk \d+ of "):
            cluster.run(Job(trainer=LinearTrainer(C=0.1), source=source, max_iterations=500))
        outcome = cluster.run(Job(trainer=LinearTrainer(C=0.1), source=large_data(), max_iterations=500))
    assert outcome.certificate is not None


def test_tasks_keep_the_rows_where_they_are() -> None:
    """A task needs no memory for them, and a chunk with other state has the same rows."""
    found = staged(ArraySource(X, X[:, 0], max_tasks=2))
    first, second = (found.load(ChunkId(0), state) for state in (STATE, NO_STATE))
    assert not found.copies_rows
    assert np.shares_memory(first.rows, second.rows)


def arena_bytes(pid: int) -> int:
    """Memory of the arenas that a process maps, some of them in several places."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    spans = {line.split()[4]: line.split()[0].split("-") for line in lines if "/memfd:chicle-arena" in line}
    return sum(int(end, 16) - int(start, 16) for start, end in spans.values())


def test_four_nodes_take_no_memory_for_the_state_of_all_rows() -> None:
    """A node takes that of a third of the rows, so that no node has to take more when one leaves."""
    data, num_rows, found = RNG.normal(size=(100_000, 4)).astype(np.float32), 100_000, dict[str, int]()

    def look(_: IterationRecord) -> bool:
        found.update({node: arena_bytes(member.agent_pid) for node, member in cluster.members().items()})
        return True

    with LocalCluster(4) as cluster:
        source = ArraySource(data, (data[:, 0] > 0).astype(np.int32), max_tasks=4)
        cluster.run(Job(trainer=LinearTrainer(), source=source, max_iterations=50, on_iteration=look))
    assert len(found) == 4
    assert 8 * num_rows <= sum(found.values()) < 2 * 8 * num_rows
