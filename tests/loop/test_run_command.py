"""`chicle run` runs a script on nodes of this host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chicle_elastic.cli.main import main
from tests.timeouts import timeout_s
from torchx_components.job_state import LOCK_NAME, kept_folder

SCRIPT = """
import os, sys, torch
import chicle_elastic.torch as elastic

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with elastic.loop(model, optimizer, torch.ones(80, 3), batch_size=8) as loop:
    for batch in loop.epochs(5):
        loop.step(model(batch.x).mean())
with open(os.path.join(sys.argv[1], f"{loop.rank}-{len(loop.members)}"), "w") as file:
    file.write(str(loop.position.step))
"""


def run_on_nodes(number: int, script: Path, argument: Path) -> "subprocess.CompletedProcess[str]":
    """Run a file by the command."""
    command = [sys.executable, "-m", "chicle_elastic", "run", "-j", str(number), "--out", str(script.parent / "out")]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, str(script), str(argument)], timeout=timeout_s(120), env=environ, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow  # five processes import torch
def test_a_script_runs_on_two_nodes(tmp_path: Path) -> None:
    """Each node runs the file with its arguments; they train together, and the command ends with them."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert run_on_nodes(2, script, tmp_path).returncode == 0
    assert [(tmp_path / name).read_text() for name in ("0-2", "1-2")] == ["50", "50"]


@pytest.mark.slow  # imports torch
@pytest.mark.parametrize(
    "end", ["", "import signal, time; time.sleep(2); os.kill(os.getppid(), signal.SIGTERM); time.sleep(99)"]
)
def test_a_script_that_cannot_save_its_model_has_failed(end: str, tmp_path: Path) -> None:
    """The job is over by then, and the command says it: there is no such folder, or the agent of the node is ended."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("with open", f"{end}\nwith open"))
    run = run_on_nodes(1, script, tmp_path / "no such folder")
    assert run.returncode == 1
    assert "anchor: the job is done, and the script of node-0 failed after it" in run.stdout


def test_a_second_run_in_a_folder_is_refused_until_the_first_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would overwrite each other's state and logs. A run that is killed keeps nobody out."""
    script = tmp_path / "train.py"
    script.touch()
    code = "import pathlib, sys, time, torchx_components.job_state as s\nwith s.kept_folder(pathlib.Path(sys.argv[1])):"
    command = [sys.executable, "-c", f"{code} print('kept', flush=True); time.sleep(1000)", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        first.stdout.readline()
        assert main(["run", "--out", str(tmp_path / "out"), str(script)]) == 2
        assert f"that of another run, which goes on (process {first.pid} of " in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK_NAME]
        first.kill()
    with kept_folder(tmp_path / "out"):
        pass
    assert not [*(tmp_path / "out").iterdir()]


def test_a_module_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The command is for files."""
    assert main(["run", "own.module"]) == 2
    assert "'own.module' is no Python file" in capsys.readouterr().err
