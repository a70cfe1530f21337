"""Every private name of torch that the cluster uses, in one place, checked when this module is imported.

torch's elastic agent is made to be subclassed, but by names with an underscore, which may change without notice.
`SingleTaskAgent` gives them public names for what Chicle does with them: start one task, supervise it across rounds,
stop it. Its subclass implements `supervise`, which replaces torch's restart loop.

When a version of torch has changed one of the names or their parameters, the import fails with an error that names the
version found and the versions that the elastic tests ran with (`versions`). Another version that has all names gets a
warning.
"""

import inspect
import signal
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import RunProcsResult
from torch.distributed.elastic.multiprocessing.api import PContext

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.errors import IncompatibleVersionError
from chicle_elastic.versions import TRIED, warn_if_untried

warn_if_untried("torch", torch.__version__)

# The functions that Chicle calls or overrides, with their expected parameters. A called function may have further
# parameters with defaults; an overridden one has to match exactly, because torch calls it.
CALLED: Mapping[Callable[..., Any], tuple[str, ...]] = {
    LocalElasticAgent.__init__: ("self", "spec", "logs_specs"),
    LocalElasticAgent._start_workers: ("self", "worker_group"),
    SimpleElasticAgent._rendezvous: ("self", "worker_group"),
    PContext.pids: ("self",),
    PContext.wait: ("self", "timeout", "period"),
    PContext.close: ("self", "death_sig", "timeout"),
}
OVERRIDDEN: Mapping[Callable[..., Any], tuple[str, ...]] = {
    SimpleElasticAgent._invoke_run: ("self", "role"),
    SimpleElasticAgent._assign_worker_ranks: ("self", "store", "group_rank", "group_world_size", "spec"),
    LocalElasticAgent._set_local_rank_env: ("self", "worker_env", "local_rank", "spec"),
}
ATTRIBUTES = ("_worker_group", "_remaining_restarts", "_pcontext")


def check_signature(function: Callable[..., Any], expected: tuple[str, ...], *, exactly: bool) -> None:
    """Compare the parameters of a function of torch with those that Chicle was written for. Raises
    IncompatibleVersionError when they differ.

    Args:
        exactly: Whether further parameters are an error too; otherwise they only need defaults.
    """
    parameters = list(inspect.signature(function).parameters.values())
    found = tuple(parameter.name for parameter in parameters)
    further = parameters[len(expected) :]
    fits = found[: len(expected)] == expected and (
        not further if exactly else all(parameter.default is not parameter.empty for parameter in further)
    )
    if not fits:
        raise _incompatible(f"{function.__qualname__}({', '.join(found)}), expected ({', '.join(expected)})")


def _incompatible(what: str) -> IncompatibleVersionError:
    return IncompatibleVersionError(
        f"torch {torch.__version__} has changed a private function that the elastic cluster builds on: {what}; install "
        f"a version that was tried ({' to '.join(TRIED['torch'])})"
    )


class SingleTaskAgent(LocalElasticAgent):
    """An elastic agent of torch with exactly one task, which outlives rounds. Subclasses implement `supervise`.
    Everything torch does around it stays: log files, events, the exit code."""

    def __init__(self, spec: WorkerSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(spec, *args, **kwargs)
        if missing := [name for name in ATTRIBUTES if not hasattr(self, name)]:
            raise _incompatible(f"LocalElasticAgent has no {', '.join(missing)}")
        self._chicle_task: PContext | None = None
        self.memory_kills = MemoryKills()

    # For subclasses to override.

    def supervise(self) -> RunResult:
        """Run the node until it is finished, has left or has failed; `succeeded` and `failed` make the result."""
        raise NotImplementedError

    def task_environment(self) -> Mapping[str, str]:
        """Environment variables of the task on top of torch's; read each time that a task is started."""
        return {}

    # For subclasses to call.

    @property
    def restarts_left(self) -> int:
        """How often the agent may still restart the task after a crash (`--max-restarts`)."""
        return self._remaining_restarts

    def start_task(self, *, is_restart: bool = False) -> int:
        """Start the task, before and independently of any rendezvous; no task may be running. Returns its process id.

        Args:
            is_restart: The task crashed and is restarted: counts against `restarts_left`.
        """
        if is_restart:
            self._remaining_restarts -= 1
        group: Any = self._worker_group  # torch declares None and means "None, or an int or a str later"
        # torch insists on these; a task learns about its round over the control channel instead.
        group.store, group.master_addr, group.master_port = group.store or _NO_STORE, "", 0
        group.group_rank, group.group_world_size = -1, 0
        self.memory_kills = MemoryKills()
        pid = self.spawn_task()
        group.workers[0].id = pid
        group.state = WorkerState.HEALTHY
        return pid

    def spawn_task(self) -> int:
        """Start a process with torch's own launcher; a subclass that overrides this overrides the next two as well.
        Returns its process id."""
        pid = int(self._start_workers(self._worker_group)[0])
        self._chicle_task = self._pcontext
        return pid

    def task_exit(self, timeout_s: float = 0.0) -> RunProcsResult | None:
        """How the task ended, or None when it still runs after `timeout_s` seconds."""
        if self._chicle_task is None:
            return None
        return self._chicle_task.wait(timeout_s, 0.01)

    def stop_task(self, *, number: signal.Signals = signal.SIGTERM, grace_s: float = 5.0) -> None:
        """End the task with a signal, after the grace period by SIGKILL. Does nothing when none runs."""
        if self._chicle_task is not None:
            self._chicle_task.close(number, max(1, round(grace_s)))
            self._chicle_task = None

    def rendezvous(self) -> tuple[int, int]:
        """One rendezvous with torch's own function, which calls `next_rendezvous` of the handler. Returns rank of this
        node, and number of nodes."""
        group: Any = self._worker_group
        pid, state = group.workers[0].id, group.state
        self._rendezvous(group)  # puts new `Worker`s without a process into the group
        group.workers[0].id, group.state = pid, state
        return group.group_rank, group.group_world_size

    def succeeded(self) -> RunResult:
        """The node has finished or left: exit code 0."""
        self._worker_group.state = WorkerState.SUCCEEDED
        return RunResult(WorkerState.SUCCEEDED, return_values={self._worker_group.workers[0].global_rank: None})

    def failed(self, ended: RunProcsResult) -> RunResult:
        """The task has failed for good: torch reports its error file and exits with code 1."""
        self._worker_group.state = WorkerState.FAILED
        failure = ended.failures[0]
        if failure.exitcode == -signal.SIGKILL:
            failure.message += self.memory_kills.words or ", perhaps for memory: the kernel's log says so (dmesg)"
        return RunResult(WorkerState.FAILED, failures={self._worker_group.workers[0].global_rank: failure})

    # What torch calls.

    def _invoke_run(self, role: str = "default") -> RunResult:
        return self.supervise()

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """With one task per node the rank of the node is the rank of the task, so the store is not asked."""
        return [
            Worker(
                local_rank=0,
                global_rank=group_rank,
                role_rank=group_rank,
                world_size=group_world_size,
                role_world_size=group_world_size,
            )
        ]

    def _set_local_rank_env(self, worker_env: dict[str, str | None], local_rank: int, spec: WorkerSpec) -> None:
        super()._set_local_rank_env(worker_env, local_rank, spec)
        worker_env.update(self.task_environment())


class _NoStore:
    """Stands for the store of a round before there is a round; torch only checks that it is not None."""


_NO_STORE: Any = _NoStore()


def _check_all() -> None:
    for function, expected in CALLED.items():
        check_signature(function, expected, exactly=False)
    for function, expected in OVERRIDDEN.items():
        check_signature(function, expected, exactly=True)


_check_all()
