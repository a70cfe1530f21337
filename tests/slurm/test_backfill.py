"""`chicle slurm --backfill` trains a script on idle nodes of a real Slurm, which others take back."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.programs import run
from tests.slurm.anchor import Anchor
from tests.slurm.private_slurm import PrivateSlurm, reason_to_skip
from tests.slurm.test_members import anchor_task, wait_for_empty_queue
from tests.timeouts import timeout_s

SCRIPT = Path(__file__).parents[1] / "loop" / "train_loop.py"
SAMPLES, EPOCHS = 1000, 400
COMMAND = (sys.executable, "-m", "chicle_elastic", "slurm", "--host", "127.0.0.1")
URGENT = ("--exclusive", "--output=/dev/null", "--wrap=exec sleep 600")


def test_idle_nodes_are_taken_given_back_and_taken_again(accounted_slurm: PrivateSlurm, tmp_path: Path) -> None:
    """One of three is wanted, then all at once: they are requeued and join again, and every sample counts once."""
    slurm, results, end = accounted_slurm, tmp_path / "results", tmp_path / "end"
    command = backfill(tmp_path, "--max", "3", "--partition", "idle")
    with Anchor(slurm, tmp_path, command=command) as anchor:
        anchor.wait_for_training(3)
        [array] = {*slurm.run("squeue", "-h", "-o", "%F").split()}
        slurm.run("scancel", "--state=PENDING", array)  # only a task that is requeued can come
        for wanted in ("--nodelist=n2", "--nodes=3"):
            before = anchor.members()
            urgent = slurm.run("sbatch", "--parsable", "--partition=main", wanted, *URGENT).strip()
            anchor.wait(
                lambda job=urgent: slurm.run("squeue", "-h", "-t", "R", "-j", job), "the nodes to be given back"
            )
            slurm.run("scancel", urgent)
            anchor.wait_for_training(3)
            given_back = {name for name, host in before.items() if wanted == "--nodes=3" or host == "n2"}
            again = {f"{job}-{int(stay) + 1}" for job, _, stay in (name.partition("-") for name in given_back)}
            assert set(anchor.members()) == before.keys() - given_back | again, anchor.said()
            assert ("no node stays, and the job is saved" in anchor.printed()) == (wanted == "--nodes=3")
        assert anchor.printed().count("at its end Python looks through none of its objects") == 4
        end.touch()
        assert anchor.process.wait(timeout_s(120)) == 0, anchor.said() + anchor.printed()
    wait_for_empty_queue(slurm)
    stays = states(slurm, "-r", "idle")
    assert {state.replace(f" by {os.getuid()}", "") for state in stays} <= {
        "PREEMPTED|0:0",
        "COMPLETED|0:0",
        "CANCELLED|0:0",
    }, stays
    assert (stays.count("PREEMPTED|0:0"), stays.count("COMPLETED|0:0")) == (4, 3)
    counted = [json.loads(path.read_text()) for path in sorted(results.glob("*.result.json"))]
    assert len(counted) == 3
    [model] = {json.dumps(result["model"]) for result in counted}
    steps = counted[0]["steps"]
    assert sorted(json.loads(model)[0], reverse=True) == [0.0] * (SAMPLES * EPOCHS - 10 * steps) + [-1.0] * 10 * steps
    assert not list((tmp_path / "out").glob(".*")), "neither the run's folder nor its state stays"


def test_a_grace_time_of_which_slurm_tells_nothing_is_not_used(tmp_path: Path) -> None:
    """The node is given back while it runs: its task has completed, and was not requeued at its end."""
    reason = reason_to_skip(has_accounting=True)
    if reason is not None:
        pytest.skip(reason)
    with (
        PrivateSlurm(tmp_path / "slurm", 2, has_accounting=True, has_early_notice=False) as slurm,
        Anchor(slurm, tmp_path, command=backfill(tmp_path, "--max", "2")) as anchor,
    ):
        anchor.wait_for_training(2)
        name = next(name for name, host in anchor.members().items() if host == "n2")
        task = anchor_task(slurm, name)
        slurm.run("sbatch", "--partition=main", "--nodelist=n2", *URGENT)
        anchor.wait(lambda: name not in anchor.members(), "the node to be given back")
        anchor.wait(lambda: states(slurm, "-j", task) != ["RUNNING|0:0"], "its task to be over")
        assert states(slurm, "-j", task) == ["COMPLETED|0:0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--partition", "gold"), "Slurm has no partition gold; it has main, spot, idle"),
        (("--partition", "main"), "no partition preempts jobs of main on this Slurm"),
        (("--sbatch=--time=forever",), "Invalid --time specification"),
        (("--sbatch=--partition=idle",), "write --partition NAME"),
        (("--checkpoint", "kept"), "needs --resume"),
    ],
)
def test_what_cannot_be_is_said(slurm: PrivateSlurm, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """In one line behind what is chosen, with the exit code of wrong usage."""
    command = [*COMMAND, "--backfill", "--max", "3", "--out", str(tmp_path / "out"), *options, str(SCRIPT)]
    done = run(*command, code=2, environ=slurm.environment)
    [line] = done.stderr.splitlines()
    assert line.startswith("chicle: ")
    assert said in line


def backfill(folder: Path, *options: str) -> list[str]:
    """Return the command that trains until there is a file "end"; results are in the folder "results"."""
    (folder / "results").mkdir()
    command = [*COMMAND, "--backfill", *options, "--out", str(folder / "out"), str(SCRIPT)]
    command += ["--out", str(folder / "results"), "--work", "count", "--samples", str(SAMPLES)]
    command += ["--epochs", str(EPOCHS), "--batch", "10", "--min-ms", "20", "--end-file", str(folder / "end")]
    return command


def states(slurm: PrivateSlurm, *options: str) -> list[str]:
    """Return "STATE|EXITCODE" of each stay of the jobs, as slurmdbd has it."""
    return slurm.run("sacct", "-n", "-P", "-X", "-D", *options, "-o", "State,ExitCode").splitlines()
