"""Members of a job array come and go by themselves, on a real Slurm."""

import os
import sys
from pathlib import Path

import pytest

from estimators import ChicleSVM
from tests.programs import run
from tests.slurm.anchor import Anchor
from tests.slurm.private_slurm import PrivateSlurm
from tests.timeouts import comes, timeout_s

ENDLESS = ("--tol", "0", "--max_iter", "100000000")


def test_members_come_go_and_are_killed(accounted_slurm: PrivateSlurm, tmp_path: Path) -> None:
    """One becomes three; one is cancelled, one preempted, one's machine dies, two are given up: the others train on."""
    slurm = accounted_slurm
    options = ("-j", "1:3", "--begin", "1", "--sbatch=--exclusive")
    with Anchor(slurm, tmp_path, *options, solver=ENDLESS) as anchor:
        [first] = anchor.wait_for_training(1)
        anchor.scale(3)
        three = anchor.wait_for_training(3)
        assert first in three

        cancelled = next(name for name in three if name != first)
        task = anchor_task(slurm, cancelled)
        slurm.run("scancel", task)
        anchor.wait(lambda: cancelled not in anchor.members(), f"{cancelled} to leave")
        assert f"node {cancelled} leaves: its chunks are handed over" in anchor.printed()
        three = anchor.wait_for_training(3)  # another task of the array has taken its place
        anchor.wait(lambda: exit_code(slurm, task) == "0:0", f"{task} to have ended with 0")

        preempted = next(name for name in three if name != first)
        machine, task = anchor.members()[preempted], anchor_task(slurm, preempted)
        urgent = ["--partition=main", f"--nodelist={machine}", "--exclusive", "--output=/dev/null", "--wrap=sleep 2"]
        slurm.run("sbatch", *urgent)
        anchor.wait(lambda: preempted not in anchor.members(), f"{preempted} to leave")
        assert f"node {preempted} leaves: its chunks are handed over" in anchor.printed()
        three = anchor.wait_for_training(3)
        anchor.wait(lambda: exit_code(slurm, task) == "0:0", f"{task} to have ended with 0")

        killed = next(name for name in three if name != first)
        machine = anchor.members()[killed]
        slurm.kill_node(machine)
        slurm.run("scontrol", "update", f"NodeName={machine}", "State=DOWN", "Reason=test")
        anchor.wait(lambda: killed not in anchor.members(), f"{killed} to be gone")
        slurm.start_node(machine)
        slurm.run("scontrol", "update", f"NodeName={machine}", "State=RESUME")
        three = anchor.wait_for_training(3)

        anchor.scale(1)
        anchor.wait(lambda: len(anchor.members()) == 1, "two members to leave")
        assert anchor.wait_for_training(1) == [first]
        assert "restart" not in anchor.printed()
        anchor.process.terminate()
        assert anchor.process.wait(timeout_s(60)) == 143
        assert not list(anchor.out.glob(".run-*"))


def test_a_job_ends_and_one_beside_it_fails(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """The model of the one is there; the members of the other fail at once, but not for ever; the queue is empty."""
    failing = Anchor(slurm, tmp_path / "failing", "-j", "1", solver=("--C", "-1"))
    with Anchor(slurm, tmp_path, "-j", "2", solver=("--tol", "1e-4")) as anchor, failing:
        assert anchor.process.wait(timeout_s(240)) == 0, anchor.said() + anchor.printed()
        assert ChicleSVM.load(anchor.out / "model.npz").duality_gap_ <= 1e-4
        assert not list(anchor.out.glob(".run-*"))
        assert failing.process.wait(timeout_s(240)) == 1, failing.said() + failing.printed()
        assert "members one after the other have failed within" in failing.said()
        assert "C" in failing.printed()
        wait_for_empty_queue(slurm)


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
        wait_for_empty_queue(slurm)
        assert not list(anchor.out.glob(".run-*"))


def test_what_a_queue_waits_for_is_said(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """In the word of Slurm: a limit that its queue has, and sbatch does not refuse."""
    slurm.run("scontrol", "update", "PartitionName=spot", "MaxTime=1")
    with Anchor(slurm, tmp_path, "-j", "1:2", "--sbatch=--time=60") as anchor:
        assert comes(lambda: "PartitionTimeLimit" in anchor.said())
        anchor.check()


def test_without_slurm_that_is_said(tmp_path: Path) -> None:
    """Where there is no sbatch."""
    nowhere = PrivateSlurm(tmp_path / "slurm", 0)  # not started
    nowhere.environment = {**os.environ, "PATH": str(tmp_path)}
    with Anchor(nowhere, tmp_path, "-j", "1") as anchor:
        assert anchor.process.wait(timeout_s(120)) == 1
        assert "there is no sbatch on this host" in anchor.said()


def test_to_scale_needs_a_run(tmp_path: Path) -> None:
    """One line, and the exit code of wrong usage."""
    command = [sys.executable, "-m", "chicle_elastic", "scale", str(tmp_path), "2"]
    done = run(*command, code=2)
    assert "is no folder of a job" in done.stderr


def wait_for_empty_queue(slurm: PrivateSlurm) -> None:
    """Nothing is left in the queue, as soon as Slurm has ended what was cancelled."""
    assert comes(lambda: not slurm.run("squeue", "-h").strip(), poll_s=0.2), slurm.run("squeue")


def anchor_task(slurm: PrivateSlurm, member: str) -> str:
    """ "ARRAY_INDEX" of a member "jobID-RESTARTS"."""
    job = member.removeprefix("job").partition("-")[0]
    lines = slurm.run("squeue", "-h", "-r", "-O", "ArrayJobID:20,JobID:20,ArrayTaskID:20").splitlines()
    return next(f"{line.split()[0]}_{line.split()[2]}" for line in lines if line.split()[1] == job)


def exit_code(slurm: PrivateSlurm, task: str) -> str:
    """ "CODE:SIGNAL" of a task of an array that has ended, as slurmdbd has it; "" before."""
    lines = slurm.run("sacct", "-n", "-P", "-X", "-j", task, "-o", "State,ExitCode").split()
    is_there = bool(lines) and not lines[-1].startswith(("RUNNING", "PENDING"))
    return lines[-1].rpartition("|")[2] if is_there else ""
