"""`python -m torchx_components.anchor` on Slurm as a user starts it, and what it and its members print."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.slurm.private_slurm import PrivateSlurm
from tests.timeouts import timeout_s

GRACE_S = 20


class Anchor:
    """One run; a context manager that leaves no process.

    Args:
        slurm: Where its members run.
        folder: For data, outputs and the model.
        options: Of the command line, in front of the module of the tasks.
        solver: Options of the estimator.
    """

    def __init__(self, slurm: PrivateSlurm, folder: Path, *options: str, solver: tuple[str, ...] = ()) -> None:
        self.slurm, self.out, self.log = slurm, folder / "out", folder / "anchor.log"
        self._write_data(folder / "data.npz")
        command = [
            sys.executable,
            "-m",
            "torchx_components.anchor",
            "--members",
            "slurm",
            "--train",
            str(folder / "data.npz"),
        ]
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
        subprocess.run(
            [sys.executable, "-m", "chicle_elastic", "scale", str(self.out), str(nodes)],
            check=True,
            timeout=timeout_s(60),
        )

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

    def iterations(self, member: str) -> int:
        """Iterations that a member has been in."""
        path = self.out / "nodes" / f"{member}.events.jsonl"
        return path.read_text().count('"iteration"') if path.exists() else 0

    def printed(self) -> str:
        """What all members have printed."""
        return "".join(path.read_text() for path in sorted((self.out / "nodes").glob("slurm-*.out")))

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for a condition.

        Raises:
            TimeoutError: In vain; the message has all that was printed.
        """
        end_s = time.monotonic() + timeout_s(120)
        while not is_so():
            if time.monotonic() > end_s or self.process.poll() is not None:
                raise TimeoutError(f"waited for {what} in vain:\n{self.said()}\n{self.printed()}")
            time.sleep(0.2)

    def wait_for_training(self, count: int) -> list[str]:
        """Wait until so many members train together; their names."""

        def is_so() -> bool:
            members = self.members()
            if len(members) != count or not all(self.iterations(member) for member in members):
                return False
            before = {member: self.iterations(member) for member in members}
            time.sleep(0.5)
            return all(self.iterations(member) > before[member] for member in members)

        self.wait(is_so, f"{count} members to train")
        return list(self.members())

    def _write_data(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        X = rng.normal(size=(20_000, 20))
        np.savez(path, X=X, y=np.where(X[:, 0] + 0.3 * rng.normal(size=len(X)) > 0, 1.0, -1.0))
