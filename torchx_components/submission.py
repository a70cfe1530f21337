"""Submits the anchor of a job through TorchX, and asks its scheduler how it stands: `submitted.json` in its folder.

{"version": 1, "scheduler": "slurm", "handle": "slurm://torchx/12"}
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chicle_elastic.errors import ChicleError, DataError, PeerLostError, UsageError
from chicle_elastic.settings import environment_of_jobs
from torchx_components.job_state import replace_json
from torchx_components.slurm import run_program

if TYPE_CHECKING:
    import torchx.specs as specs

FILE_NAME = "submitted.json"
FIT_TASK = "estimators.submitted.task"
"""Module of the tasks that fit what an estimator has written; their --train is a folder of its own, no chunk folder."""
OF_SLURM = ("slurm", "chicle_slurm")
VERSION = 1
COMMAND_S = 30.0

_runners: dict[str, Any] = {}  # TorchX's runners of its local scheduler by handle: they are the parents of their jobs


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as its scheduler knows it."""

    scheduler: str  # TorchX's name of the scheduler
    handle: str  # TorchX's name of the job

    @property
    def number(self) -> str:
        """The scheduler's own name of the job."""
        return self.handle.rpartition("/")[2]


def submit(app: "specs.AppDef", scheduler: str, cfg: Mapping[str, Any], job: Path) -> None:
    """Submit a job, and write down what it is called. Raises UsageError when the scheduler refuses it, is not there, or
    has no such options."""
    from torchx.runner import get_runner

    runner = get_runner()
    cfg = {"log_dir": str(job / "anchor"), **cfg} if scheduler == "local_cwd" else cfg
    known = [name for name, _ in runner.scheduler_run_opts(scheduler)]
    unknown = sorted(cfg.keys() - {*known})  # TorchX says nothing of them
    if unknown:
        raise UsageError(
            f"TorchX's scheduler {scheduler} has no option {', '.join(unknown)}; it has {', '.join(known)}, and "
            "options of sbatch for the members go to member_options"
        )
    try:
        plan = runner.dryrun(app, scheduler, cfg=dict(cfg))
        handle = runner.schedule(plan)
    except ChicleError:  # of Chicle's own schedulers
        raise
    except subprocess.CalledProcessError as error:
        raise UsageError(f"{scheduler} refuses the job: {_refusal(plan) or error}") from error
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no {error.filename} on this host; submit where the programs of {scheduler} are"
        ) from error
    except Exception as error:  # of TorchX: an option that it does not know, a value of another type
        raise UsageError(f"TorchX cannot submit to {scheduler} with cfg={dict(cfg)!r}: {error}") from error
    if scheduler == "local_cwd":
        _runners[handle] = runner
    else:
        runner.close()
    replace_json(job / FILE_NAME, {"version": VERSION, "scheduler": scheduler, "handle": handle})


def submission_of(job: Path) -> Submission:
    """What the scheduler calls a job. Raises UsageError when the folder is not that of a job that was submitted like
    this, DataError when the file is damaged."""
    path = job / FILE_NAME
    try:
        found = json.loads(path.read_text())
        if found["version"] != VERSION:
            raise DataError(f"{path} is of version {found['version']}, and this Chicle reads {VERSION}; upgrade it")
        return Submission(found["scheduler"], found["handle"])
    except FileNotFoundError:
        raise UsageError(
            f"{job} is no folder of a job that TorchXRuntime has submitted: it has no {FILE_NAME}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r})") from error


def ask(job: Path) -> str:
    """How a job stands with its scheduler, in words. Raises PeerLostError when the scheduler has no such job any more,
    UsageError and DataError as `submission_of` does."""
    found = submission_of(job)
    if found.scheduler in OF_SLURM:
        printed = run_program("squeue", "-h", "-j", found.number, "-o", "%T %r", is_checked=False)
        if not printed.strip():
            raise PeerLostError(
                f"Slurm's job {found.number} has left the queue before its anchor began: it was cancelled, or failed "
                f"at once; slurm-{found.number}-*.out where it was submitted says why"
            )
        state, _, reason = printed.strip().partition(" ")
        return f"Slurm's job {found.number} is {state.lower()}" + (f" ({reason})" if reason != "None" else "")
    runner = _runner_of(found)
    status = None if runner is None else runner.status(found.handle)
    if runner is None:
        return f"{found.handle} is a job of another process"
    if status is None:
        raise PeerLostError(f"there is no {found.handle} any more: it was cancelled before its anchor began")
    if status.is_terminal():
        raise PeerLostError(f"{found.handle} ended as {status.state.name} before its anchor began; it has printed why")
    return f"{found.handle} is {status.state.name.lower()}"


def cancel(job: Path) -> None:
    """End a job. Raises PeerLostError when the scheduler does not answer, or only the process that submitted the job
    can end it, UsageError and DataError as `submission_of` does."""
    found = submission_of(job)
    if found.scheduler in OF_SLURM:
        run_program("scancel", found.number, is_checked=False)
        return
    runner = _runner_of(found)
    if runner is None:
        raise PeerLostError(f"{found.handle} is a job of another process, with which it ends")
    runner.cancel(found.handle)


def close(job: Path) -> None:
    """Wait for the processes of a job that is over, where this process is their parent."""
    found = submission_of(job)
    runner = _runners.pop(found.handle, None)
    if runner is not None:
        runner.wait(found.handle, wait_interval=0.1)
        runner.close()


def _runner_of(found: Submission) -> Any:
    """Return TorchX's runner of a job; None for a local one of another process."""
    if found.scheduler == "local_cwd":
        return _runners.get(found.handle)
    from torchx.runner import get_runner

    return get_runner()


def _refusal(plan: Any) -> str:
    """Why sbatch refuses a job: TorchX leaves that to the terminal, which a notebook has not."""
    try:
        script = plan.request.materialize()
    except AttributeError:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.sh"
        path.write_text(script)
        done = subprocess.run(
            ["sbatch", "--test-only", str(path)],
            env=environment_of_jobs(),
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
    lines = [line for line in done.stderr.splitlines() if re.search(r"error|fail|invalid", line, re.IGNORECASE)]
    return "; ".join(lines)
