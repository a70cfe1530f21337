"""`ChicleSVM(runtime=TorchXRuntime("slurm", nodes=(2, 8))).fit(X, y)`: a fit as a job of a cluster, from a notebook.

    the notebook    writes the estimator and its data to a folder, submits the anchor, follows the folder
    the anchor      starts members, each of which fits the estimator as a task of the job
    a task          writes model.npz to the folder

The notebook may die, and another process attach: all that it needs is in the folder. Nothing in it is unpickled: the
estimator is JSON, data and model are arrays.
"""

import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chicle_elastic.errors import JobFailedError, MissingExtraError, UsageError
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.surroundings import FOLDER_IS_GONE, hold_descriptors, is_folder_gone
from torchx_components import job_board, submission
from torchx_components.job_state import JobState
from torchx_components.job_wait import wait_for_end

if TYPE_CHECKING:
    import torchx.specs as specs

SCHEDULERS = ("slurm", "chicle_slurm", "chicle_kubernetes", "local_cwd")
WAITING = "estimators.submitted.fit"


@dataclass(frozen=True, slots=True)
class TorchXRuntime:
    """Runs a fit as a job that TorchX submits. A value: settings only, no process and no connection.

    `fit` returns when the job is over, and sets the attributes that it would set here. It prints the folder of the job
    at its begin; with this `attach` returns the fitted estimator in another process, and `chicle status`, `scale`,
    `drain`, `logs` and `attach` look at the job and change it while it runs. Ctrl-C ends the wait and not the job.

    Args:
        scheduler: "slurm"; "chicle_slurm", which needs no slurmdbd; "chicle_kubernetes" from a pod that has the claim
            of the folder; or "local_cwd" for processes of this machine, which end with this process.
        nodes: (least, most) nodes; the job pauses with fewer than the least. A number n means (n, n).
        folder: Where each job gets a folder of its own; all nodes have to see it.
        start_nodes: Nodes to begin with; None for the most.
        cpu: Processors of a node.
        memory_mb: Memory of a node, in MB.
        gpu: GPUs of a node.
        grace_s: Seconds from a notice until a node has to be gone.
        checkpoint: Folder that all nodes see, or URL, for periodic checkpoints, in which each job gets a folder of its
            own. A job all of whose nodes were lost goes on from there. None for none.
        cfg: Options of TorchX's scheduler for the anchor, e.g. {"partition": "main"}; `torchx runopts slurm` lists
            them. "chicle_kubernetes" needs {"image": NAME}.
        member_options: Further options of the anchor, e.g. ("--sbatch=--partition=spot",); `python -m
            torchx_components.anchor --help` lists them. On Kubernetes those of `chicle submit kubernetes`, and it
            needs ("--claim", "/FOLDER=NAME").
        env: Environment of anchor and nodes, e.g. {"OMP_NUM_THREADS": "8"}.
        python: Interpreter on the nodes; None for that of this process.

    Raises:
        UsageError: An argument cannot be.
    """

    scheduler: str = "slurm"
    nodes: int | tuple[int, int] = 2
    folder: str | Path = field(default="chicle-jobs", kw_only=True)
    start_nodes: int | None = field(default=None, kw_only=True)
    cpu: int = field(default=2, kw_only=True)
    memory_mb: int = field(default=4096, kw_only=True)
    gpu: int = field(default=0, kw_only=True)
    grace_s: float = field(default=25.0, kw_only=True)
    checkpoint: str | None = field(default=None, kw_only=True)
    cfg: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)
    member_options: Sequence[str] = field(default=(), kw_only=True, hash=False)
    env: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    python: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            raise UsageError(f"TorchXRuntime({self.scheduler!r}): it submits to {' or '.join(map(repr, SCHEDULERS))}")
        least, most = self.limits
        if not 1 <= least <= most:
            raise UsageError(f"TorchXRuntime(nodes={self.nodes!r}): say 4, or (2, 8) for at least 2 and at most 8")
        begin = self.start_nodes
        if begin is not None and not least <= begin <= most:
            raise UsageError(f"TorchXRuntime(start_nodes={begin!r}): a job begins with {least} to {most} nodes")
        if not 0 <= self.grace_s < math.inf:
            raise UsageError(f"TorchXRuntime(grace_s={self.grace_s!r}): it must be finite and >= 0")
        for name in ("cpu", "memory_mb"):
            if getattr(self, name) < 1:
                raise UsageError(f"TorchXRuntime({name}={getattr(self, name)!r}): it must be at least 1")
        if isinstance(self.member_options, str):
            raise UsageError(f"TorchXRuntime(member_options={self.member_options!r}): say a tuple of options")

    @property
    def limits(self) -> tuple[int, int]:
        """Fewest and most nodes."""
        nodes = self.nodes if isinstance(self.nodes, tuple | list) else (self.nodes, self.nodes)
        if len(nodes) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in nodes):
            raise UsageError(f"TorchXRuntime(nodes={self.nodes!r}): say 4, or (2, 8) for at least 2 and at most 8")
        return nodes[0], nodes[1]

    def most_tasks(self) -> int:
        """Largest number of tasks there will be; chunks are cut so that each of these has some."""
        return self.limits[1]

    def run(self, job: Job) -> Outcome:
        """Not possible: a job holds objects of this process, and nodes of a cluster get no pickles.

        Raises:
            UsageError: Always; it says what to do instead.
        """
        raise UsageError(
            "TorchXRuntime fits estimators; for a Trainer and Solver of your own write a module that calls "
            "cluster_runtime().run(job), and submit it with the component chicle.app"
        )

    # What an estimator asks for.

    def new_folder(self) -> Path:
        """A new folder for one job. Raises UsageError when it cannot be made."""
        _require_torchx()
        hold_descriptors()
        if is_folder_gone():
            raise UsageError(f"TorchXRuntime: {FOLDER_IS_GONE}")
        path = Path(self.folder).absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
        try:
            path.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise UsageError(
                f"TorchXRuntime(folder={str(self.folder)!r}): {path} cannot be made ({error.strerror}); choose a "
                "folder that this process can write and all nodes see"
            ) from error
        return path

    def submit(self, job: Path, train: Path) -> None:
        """Submit the anchor of a job. Raises UsageError when the scheduler refuses it, or is not there.

        Args:
            job: Its folder.
            train: What the tasks get as --train.
        """
        submission.submit(self._app(job, train), self.scheduler, self.cfg, job)

    def wait(
        self,
        job: Path,
        *,
        on_iteration: Callable[[IterationRecord], object] | None = None,
        on_transition: Callable[[Transition], object] | None = None,
    ) -> JobState:
        """Follow a job to its end.

        Raises:
            JobFailedError: It failed or was cancelled; the message says where its processes have printed why.
            PeerLostError: Its anchor was killed, or the scheduler has dropped it.
        """
        return _wait(job, on_iteration=on_iteration, on_transition=on_transition)

    # What a person asks for.

    @staticmethod
    def attach(job: str | Path, *, verbose: int = 1) -> Any:
        """Follow a job that another process has submitted, and return what it fits. Raises UsageError when there is no
        such job, JobFailedError when it failed or was cancelled, PeerLostError when its anchor was killed.

        Args:
            job: Its folder, which `fit` has printed.
            verbose: As of the estimators.

        Returns:
            The fitted estimator; its runtime is the default one.
        """
        # By its name: this package does not build on estimators.
        return import_module(WAITING).attach(Path(job).absolute(), _wait, verbose=verbose)

    @staticmethod
    def scale(job: str | Path, nodes: int) -> None:
        """Have so many nodes from now on: others start, or the newest leave.

        Args:
            job: Its folder.
            nodes: >= 1; more than the most are not started.

        Raises:
            UsageError: Fewer than one, or there is no such job, or it is over.
            StoreUnreachableError: Its anchor is gone.
        """
        job_board.scale(Path(job).absolute(), nodes)

    @staticmethod
    def cancel(job: str | Path) -> None:
        """End a job; its folder stays. Raises UsageError when there is no such job, PeerLostError when the scheduler
        does not answer.

        Args:
            job: Its folder.
        """
        submission.cancel(Path(job).absolute())

    def _app(self, job: Path, train: Path) -> "specs.AppDef":
        from torchx_components.anchor_app import anchor_of

        least, most = self.limits
        given: dict[str, Any] = {
            "train": train,
            "out": job,
            "j": f"{least}:{most}",
            "checkpoint": f"{self.checkpoint.rstrip('/')}/{job.name}" if self.checkpoint else "",
            "resume": self.checkpoint is not None,
            "grace": self.grace_s,
            "begin": self.start_nodes or 0,
            "env": dict(self.env),
            "name": "chicle-fit",
            "image": os.getcwd(),
            "python": self.python or sys.executable,
            "cpu": self.cpu,
            "memMB": self.memory_mb,
            "gpu": self.gpu,
        }
        return anchor_of(given, list(self.member_options), [submission.FIT_TASK])


def _wait(job: Path, **observers: Any) -> JobState:
    state = wait_for_end(job, ask=lambda: submission.ask(job), **observers)
    submission.close(job)
    if state.phase != "succeeded":
        raise JobFailedError(
            f"the job of {job} {'was cancelled' if state.phase == 'cancelled' else 'failed'}: {state.reason or '?'}; "
            f"chicle logs {job} shows what its processes have printed"
        )
    return state


def _require_torchx() -> None:
    try:
        import torchx.specs  # noqa: F401
    except ImportError as error:
        raise MissingExtraError.for_package("torchx", extra="torchx", purpose="TorchXRuntime") from error
