"""`python -m torchx_components.anchor` on Slurm as a user starts it, and what it and its members print."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.harness.training import WatchedRun, write_data
from tests.programs import run_python
from tests.slurm.private_slurm import PrivateSlurm
from tests.timeouts import timeout_s

GRACE_S = 20


class Anchor(WatchedRun):
    """One run; a context manager that leaves no process.

    Args:
        slurm: Where its members run.
        folder: For data, outputs and the model.
        options: Of the command line, in front of the module of the tasks.
        solver: Options of the estimator.
        command: Another command that is the anchor of a run in folder / "out".
    """

    def __init__(
        self,
        slurm: PrivateSlurm,
        folder: Path,
        *options: str,
        solver: tuple[str, ...] = (),
        command: Sequence[str] = (),
    ) -> None:
        self.slurm, self.out, self.log = slurm, folder / "out", folder / "anchor.log"
        super().__init__(self.out / "nodes")
        if not command:
            write_data(folder / "data.npz")
            command = [sys.executable, "-m", "torchx_components.anchor", "--members", "slurm"]
            command += ["--train", str(folder / "data.npz")]
            command += ["--out", str(self.out), "--host", "127.0.0.1", "--grace", str(GRACE_S), *options]
            command += ["estimators.fit_task", *solver]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, env=slurm.environment, stdout=output, stderr=output)

    def __enter__(self) -> "Anchor":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s(60))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return next(self.out.glob(".run-*"))

    def scale(self, nodes: int) -> None:
        """As a person does it."""
        run_python("-m", "chicle_elastic", "scale", self.out, str(nodes))

    def said(self) -> str:
        """What the anchor has printed."""
        return self.log.read_text()

    def members(self) -> dict[str, str]:
        """Slurm's node by name of the member, of those that have one now."""
        here: dict[str, str] = {}
        for name, host in re.findall(r"anchor: (\S+) (?:has (\S+)|is gone)", self.said()):
            if host:
                here[name] = host
            else:
                del here[name]
        return here

    def check(self) -> None:
        """The anchor runs."""
        assert self.process.poll() is None, self.said() + self.printed()

    def printed(self) -> str:
        """What all members have printed."""
        return "".join(path.read_text() for path in sorted((self.out / "nodes").glob("slurm-*.out")))
