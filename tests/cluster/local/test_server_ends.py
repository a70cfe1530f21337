"""A server of a local cluster that ends says how it has ended: its last words, and its exit code or signal."""

import contextlib
import dataclasses
import importlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.cluster.local.staging import StagedFiles
from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.cluster.train_svm import PacedLinear
from tests.control_group import run_with_memory
from tests.programs import run_python

__all__ = ["run_with_memory"]
IN_SERVER = "import sys\nif sys.orig_argv[1:2] == ['-c']:\n    "


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """It is not started yet."""
    cluster = LocalCluster(2)
    yield cluster
    cluster.close()


def make_job(trainer: LinearTrainer | None = None) -> Job:
    """A few rows."""
    source = ArraySource(np.eye(4), np.array([0, 1, 0, 1], dtype=np.int32), max_tasks=2)
    return Job(trainer=trainer or LinearTrainer(), source=source, max_iterations=100_000)


@pytest.mark.parametrize(
    ("module", "text", "how"),
    [
        ("sitecustomize", IN_SERVER + "__import__('os')._exit(7)", "exit code 7"),
        ("sitecustomize", IN_SERVER + "__import__('os')._exit(0)", "exit code 0"),
        ("sitecustomize", IN_SERVER + "sys.exit('broken set-up')", "broken set-up"),
        ("sitecustomize", IN_SERVER + "import os; os.kill(os.getpid(), 9)", r"signal 9 \(SIGKILL\)"),
        ("cloudpickle", "raise ImportError('no such symbol')", r"(?s)exit code 1\n.*no such symbol"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str, how: str
) -> None:
    """And the next fit starts another one. The driver has its own cloudpickle before."""
    importlib.import_module("cloudpickle")
    (tmp_path / f"{module}.py").write_text(text)
    with monkeypatch.context() as broken:
        broken.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        broken.syspath_prepend(tmp_path)
        for _ in range(2):
            with pytest.raises(PeerLostError, match=how):
                cluster.run(make_job())


def test_a_server_keeps_no_data_of_a_job_that_it_refuses(cluster: LocalCluster) -> None:
    """It lives on, and the memory would stay as long."""
    [agent, *_] = cluster.run(make_job()).history.members.values()
    status = Path(f"/proc/{agent.agent_pid}/status").read_text()
    server = Path(f"/proc/{int(status.partition('PPid:')[2].split()[0])}/fd")
    wrong = {"nodes": 2, "min_nodes": 3, "start_nodes": 2, "limit": 2, "grace_s": 1.0}
    with cluster._reach() as line, StagedFiles() as files:
        line.send("run", fds=files.fds, job={}, **wrong)
        while (answer := line.receive()) is not None and answer.kind != "over":
            pass
    assert answer is not None
    held = list[str]()
    for fd in server.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as that of our line is
            held.append(os.readlink(fd))
    assert not [name for name in held if "chicle-" in name]


@pytest.mark.slow
def test_a_server_that_is_killed_says_so_and_the_next_fit_starts_another(cluster: LocalCluster) -> None:
    """As the kernel does where memory is short."""

    killed: list[int] = []

    def kill(*_: object) -> bool:
        if not killed:
            [agent, *_] = cluster.members().values()
            status = Path(f"/proc/{agent.agent_pid}/status").read_text()
            killed.append(int(status.partition("PPid:")[2].split()[0]))
            os.kill(killed[0], signal.SIGKILL)
        return False

    endless = dataclasses.replace(make_job(PacedLinear(tol=0.0, min_s=0.01)), on_iteration=kill)
    with pytest.raises(PeerLostError, match=r"server ended with signal 9 \(SIGKILL\)"):
        cluster.run(endless)
    assert cluster.run(make_job()).certificate is not None


@pytest.mark.slow
@pytest.mark.parametrize("num_descriptors", [9, 12, 20])
def test_processes_without_descriptors_say_so(num_descriptors: int) -> None:
    """A low `ulimit -n` strikes the server, the rendezvous store or an agent."""
    program = (
        f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({num_descriptors}, {num_descriptors}))\n"
        "from estimators import ChicleSVM\nChicleSVM(n_workers=2).fit([[1.0], [2.0], [3.0], [4.0]], [0, 0, 1, 1])"
    )
    run = run_python("-c", program, code=None)
    last_error = run.stderr.rpartition("PeerLostError:")[2]
    assert "Too many open files" in last_error


@pytest.mark.slow
def test_a_task_that_the_kernel_kills_for_memory_is_told_so(
    run_with_memory: Callable[[int, str], subprocess.CompletedProcess[str]],
) -> None:
    """By the error of the fit, and by the words of its agent."""
    program = (
        "from chicle_elastic import LocalCluster\n"
        "from tests.cluster.local.local_trainers import GreedyCocoa\n"
        "from tests.cluster.local.test_server_ends import make_job\n"
        "with LocalCluster(1) as cluster:\n    cluster.run(make_job(GreedyCocoa()))\n"
    )
    run = run_with_memory(1024, program)
    last = run.stderr[run.stderr.rindex("PeerLostError") :]
    assert re.search(r"the task of node n0 ended with signal 9 \(SIGKILL\): .*memory.*oom_kill in /sys", last), last
    assert re.search(r"the task of n0 died: .*memory.*oom_kill in /sys", last), last
