"""Members of a job array come and go by themselves, on a real Slurm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimators import ChicleSVM
from tests.slurm.anchor import Anchor
from tests.slurm.private_slurm import PrivateSlurm
from tests.timeouts import timeout_s

ENDLESS = ("--tol", "0", "--max_iter", "100000000")


def test_members_come_go_and_are_killed(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """One becomes three; one is cancelled, one's machine dies, two are given up: the others train on."""
    with Anchor(slurm, tmp_path, "-j", "1:3", "--begin", "1", solver=ENDLESS) as anchor:
        [first] = anchor.wait_for_training(1)
        anchor.scale(3)
        three = anchor.wait_for_training(3)
        assert first in three

        cancelled = next(name for name in three if name != first)
        slurm.run("scancel", anchor_task(slurm, cancelled))
        anchor.wait(lambda: cancelled not in anchor.members(), f"{cancelled} to leave")
        assert f"node {cancelled} leaves: its chunks are handed over" in anchor.printed()
        three = anchor.wait_for_training(3)  # another task of the array has taken its place

        killed = next(name for name in three if name != first)
        machine = anchor.members()[killed]
        if anchor.members()[first] != machine:  # two members may share a machine
            slurm.kill_node(machine)
            slurm.run("scontrol", "update", f"NodeName={machine}", "State=DOWN", "Reason=test")
            anchor.wait(lambda: killed not in anchor.members(), f"{killed} to be gone")
            slurm.start_node(machine)
            slurm.run("scontrol", "update", f"NodeName={machine}", "State=RESUME")
            three = anchor.wait_for_training(3)

        anchor.scale(1)
        anchor.wait(lambda: len(anchor.members()) == 1, "two members to leave")
        [last] = anchor.wait_for_training(1)
        assert last in three
        assert "restart" not in anchor.printed()
        anchor.process.terminate()
        assert anchor.process.wait(timeout_s(60)) == 143
        assert not list(anchor.out.glob(".run-*"))


def test_a_job_ends_and_leaves_nothing(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """The model is there, the queue is empty, and the anchor says so with 0."""
    with Anchor(slurm, tmp_path, "-j", "2", solver=("--tol", "1e-4")) as anchor:
        assert anchor.process.wait(timeout_s(240)) == 0, anchor.said() + anchor.printed()
        assert ChicleSVM.load(anchor.out / "model.npz").duality_gap_ <= 1e-4
        assert not slurm.run("squeue", "-h").strip()
        assert not list(anchor.out.glob(".run-*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-j", "1:2", "--sbatch=--partition=gold"), "invalid partition specified: gold"),
        (("-j", "1:2", "--sbatch=--time=forever"), "Invalid --time specification"),
        (("-j", "3:2"), "write MIN:MAX or N"),
    ],
)
def test_what_slurm_refuses_is_said(slurm: PrivateSlurm, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """In one line, and nothing is left."""
    with Anchor(slurm, tmp_path, *options) as anchor:
        assert anchor.process.wait(timeout_s(120)) == 1
        assert said in anchor.said()
        assert "Traceback" not in anchor.said()
        assert not slurm.run("squeue", "-h").strip()
        assert not list(anchor.out.glob(".run-*"))


def test_members_that_fail_at_once_end_the_run(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """Not for ever one after the other; the outputs of the members have the reason."""
    with Anchor(slurm, tmp_path, "-j", "1", solver=("--C", "-1")) as anchor:
        assert anchor.process.wait(timeout_s(240)) == 1, anchor.said() + anchor.printed()
        assert "members one after the other have ended within" in anchor.said()
        assert "C" in anchor.printed()
        assert not slurm.run("squeue", "-h").strip()


def test_without_slurm_that_is_said(tmp_path: Path) -> None:
    """Where there is no sbatch."""
    nowhere = PrivateSlurm(tmp_path / "slurm", 0)  # not started
    nowhere.environment = {**os.environ, "PATH": str(tmp_path)}
    with Anchor(nowhere, tmp_path, "-j", "1") as anchor:
        assert anchor.process.wait(timeout_s(120)) == 1
        assert "there is no sbatch on this host" in anchor.said()


def test_to_scale_needs_a_run(tmp_path: Path) -> None:
    """One line, and exit code 1."""
    command = [sys.executable, "-m", "torchx_components.scale", str(tmp_path), "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s(60))
    assert done.returncode == 1
    assert "is no folder of a run that goes on" in done.stderr


def anchor_task(slurm: PrivateSlurm, member: str) -> str:
    """ "ARRAY_INDEX" of a member "jobID-RESTARTS"."""
    job = member.removeprefix("job").partition("-")[0]
    lines = slurm.run("squeue", "-h", "-r", "-O", "ArrayJobID:20,JobID:20,ArrayTaskID:20").splitlines()
    return next(f"{line.split()[0]}_{line.split()[2]}" for line in lines if line.split()[1] == job)
