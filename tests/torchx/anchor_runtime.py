"""A runtime that starts the anchor of a job on this host as a process of its own: what TorchX does, without TorchX."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chicle_elastic import JobFailedError
from tests.timeouts import timeout_s
from torchx_components.job_wait import wait_for_end

ROOT = Path(__file__).parents[2]


@dataclass
class AnchorRuntime:
    """Jobs in folders of this folder; a context manager that leaves no anchor.

    Args:
        folder: Where jobs get a folder.
        nodes: As of the anchor's -j.
    """

    folder: Path
    nodes: str = "1"
    anchors: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def __enter__(self) -> "AnchorRuntime":
        return self

    def __exit__(self, *_: object) -> None:
        for anchor in self.anchors:
            if anchor.poll() is None:
                anchor.terminate()
            anchor.wait(timeout_s(60))

    def __deepcopy__(self, _: object) -> "AnchorRuntime":
        return self

    def most_tasks(self) -> int:
        """See `Runtime`."""
        return int(self.nodes.rpartition(":")[2])

    def run(self, job: object) -> None:
        """Estimators ask for it in vain."""
        raise NotImplementedError

    def new_folder(self) -> Path:
        """See `SubmittingRuntime`."""
        job = self.folder / f"job{len(self.anchors)}"
        job.mkdir()
        return job

    def submit(self, job: Path, train: Path) -> None:
        """Start the anchor."""
        command = [sys.executable, "-m", "torchx_components.anchor", "--members", "local", "-j", self.nodes]
        command += ["--train", str(train), "--out", str(job), "--grace", "20", "estimators.submitted.task"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (job / "anchor.out").open("wb") as output:
            self.anchors.append(subprocess.Popen(command, env=environment, cwd=job, stdout=output, stderr=output))

    def wait(self, job: Path, **observers: Any) -> None:
        """Follow the job; what its processes have printed is in the error."""
        state = wait_for_end(job, **observers)
        if state.phase != "succeeded":
            raise JobFailedError(f"{state.phase}: {state.reason}\n{(job / 'anchor.out').read_text()}")
