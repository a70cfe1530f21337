"""Fits of a notebook as jobs that TorchX submits, on a real Slurm and on this host."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from chicle_elastic import TorchXRuntime, UsageError
from chicle_elastic.cluster.net.event_file import read_events
from estimators import ChicleSVM
from tests.slurm.private_slurm import PrivateSlurm, reason_to_skip
from tests.timeouts import timeout_s
from tests.torchx import notebook
from torchx_components.job_state import JobState

pytest.importorskip("torchx.specs", reason="needs torchx")
REASON = reason_to_skip()
needs_slurm = pytest.mark.skipif(REASON is not None, reason=str(REASON))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateSlurm]:
    """A Slurm without slurmdbd, which this process submits to."""
    with PrivateSlurm(tmp_path / "slurm", 3) as slurm:
        monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.chdir(tmp_path)
        yield slurm


@pytest.mark.slow
@needs_slurm
def test_the_submitter_is_killed_and_another_process_attaches(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """The job goes on; the fit has the objective of one that was not disturbed; nothing is left in the queue."""
    jobs = tmp_path / "jobs"
    with subprocess.Popen([sys.executable, "-m", "tests.torchx.notebook", str(jobs), "slurm"]) as program:
        try:
            [job] = wait_for(lambda: list(jobs.glob("*/submitted.json")), "a job", program)
            job = job.parent
            wait_for(lambda: len(iterations(job)) >= 3, "iterations", program)
        finally:
            program.send_signal(signal.SIGKILL)
    num_done = len(iterations(job))
    state = JobState.read(job)
    assert state is not None
    assert not state.is_over
    TorchXRuntime.scale(job, 1)
    model = TorchXRuntime.attach(job)
    assert len(iterations(job)) > num_done
    X, y = notebook.problem()
    undisturbed = ChicleSVM(tol=notebook.TOL, random_state=0).fit(X, y)
    assert model.duality_gap_ <= notebook.TOL
    np.testing.assert_allclose(model.objective_, undisturbed.objective_, rtol=2 * notebook.TOL)
    assert model.classes_.tolist() == ["bad", "good"]
    assert not (job / "data").exists()
    wait_for(lambda: not slurm.run("squeue", "-h").strip(), "an empty queue")
    assert TorchXRuntime.attach(job).n_iter_ == model.n_iter_  # once more, from the model alone


@pytest.mark.slow
@needs_slurm
def test_what_slurm_refuses_is_said_and_leaves_nothing(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """In words of Slurm; for the members, too."""
    bad = TorchXRuntime("slurm", 1, folder=tmp_path / "jobs", cpu=1, memory_mb=500, cfg={"partition": "gold"})
    with pytest.raises(UsageError, match="invalid partition"):
        ChicleSVM(runtime=bad).fit(*load_iris(return_X_y=True))
    bad = TorchXRuntime("slurm", 1, folder=tmp_path / "jobs", cfg={"partishun": "main"})
    with pytest.raises(UsageError, match="partishun"):
        ChicleSVM(runtime=bad).fit(*load_iris(return_X_y=True))
    assert not list((tmp_path / "jobs").iterdir())
    assert not slurm.run("squeue", "-h").strip()


@pytest.mark.slow
@needs_slurm
def test_a_job_that_is_cancelled_in_the_queue_is_missed(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """It has no anchor yet that could say so."""
    slurm.run("sbatch", "--partition=main", "--exclusive", "--nodes=3", "--output=/dev/null", "--wrap=sleep 600")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.torchx.notebook", str(tmp_path / "jobs"), "slurm"],
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        [submitted] = wait_for(lambda: list((tmp_path / "jobs").glob("*/submitted.json")), "a job", program)
        TorchXRuntime.cancel(submitted.parent)
        said = program.communicate(timeout=timeout_s(120))[1]
    assert "has left the queue before its anchor began" in said
    assert program.returncode == 1


@pytest.mark.slow
def test_a_fit_on_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes; the attributes are those of a fit here."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    X, y = load_iris(return_X_y=True)
    runtime = TorchXRuntime("local_cwd", (2, 2), folder=tmp_path, env={"OMP_NUM_THREADS": "1"})
    model = ChicleSVM(runtime=runtime, tol=1e-6, random_state=0).fit(X, y)
    here = ChicleSVM(tol=1e-6, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.objective_, here.objective_, rtol=2e-6)
    assert {record.num_tasks for record in model.history_} == {2}
    assert model.get_params()["runtime"] is runtime
    assert model.predict(X).tolist() == here.predict(X).tolist()


def iterations(job: Path) -> list[object]:
    """Those that the agents have written down."""
    nodes = job / "nodes"
    return [event for event in read_events(nodes) if event["kind"] == "iteration"] if nodes.exists() else []


def wait_for(found: Callable[[], object], what: str, program: "subprocess.Popen[str] | None" = None) -> list[Path]:
    """What is found in the end."""
    end_s = time.monotonic() + timeout_s(180)
    while not (answer := found()):
        assert time.monotonic() < end_s, f"waited for {what} in vain"
        assert program is None or program.poll() is None, f"the program ended before {what} came"
        time.sleep(0.2)
    return answer  # type: ignore[return-value]
