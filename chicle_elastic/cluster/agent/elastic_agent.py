"""The agent of a node that torch's launcher of processes gives its task: with torchrun's log files and error files."""

import signal
from collections.abc import Callable, Mapping, Sequence
from string import Template

import torch
from torch.distributed.elastic.multiprocessing import PContext, RunProcsResult, start_processes
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import LaunchConfig

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.agent.node_agent import NodeAgent
from chicle_elastic.cluster.options import NodeOptions
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.ids import NodeId
from chicle_elastic.versions import warn_if_untried

warn_if_untried("torch", torch.__version__)


class ElasticAgent(NodeAgent):
    """Runs a node whose task is a process of torch's launcher. Raises JobClosedError when the job is over,
    StoreUnreachableError when there is no store, UsageError when the secret cannot be used.

    Args:
        config: What torchrun's options say.
        entrypoint: What the task runs: a program, or a function.
        arguments: Of the entrypoint.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: str | Callable[..., object],
        arguments: Sequence[str],
        *,
        options: NodeOptions,
    ) -> None:
        entry = JobEntry.open(
            config.rdzv_endpoint,
            run_id=config.run_id,
            node=options.node,
            secret_file=options.secret_file,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
        )
        super().__init__(entry=entry, options=options, command=arguments, restarts=config.max_restarts)
        self._config, self._entrypoint = config, entrypoint
        self._rank = 0
        self._process: PContext | None = None

    def run(self) -> None:
        """Run the node until it is finished or has left. Raises ChildFailedError when the task has failed for good,
        ChicleError when the node cannot take part in the job."""
        ended = self.run_node()
        if isinstance(ended, RunProcsResult):
            failure = ended.failures[0]
            if failure.exitcode == -signal.SIGKILL:
                failure.message += self.memory_kills.words or ", perhaps for memory: the kernel's log says so (dmesg)"
            name = next((word for word in self._command if not word.startswith("-")), str(self._entrypoint))
            raise ChildFailedError(name, {self._rank: failure})

    def meet(self, round: int, members: tuple[NodeId, ...]) -> None:
        """Take part in a rendezvous, and know the rank of this node for reports."""
        self._rank = members.index(self._options.node)
        super().meet(round, members)

    def start_task(self, *, is_restart: bool = False) -> int:
        """Start the task, before and independently of any round; no task may be running. Returns its process id."""
        self.restarts_left -= is_restart
        self.memory_kills = MemoryKills()
        return self.spawn_task()

    def spawn_task(self) -> int:
        """Start a process; a subclass that overrides this overrides the next two as well. Returns its process id."""
        config = self._config
        assert config.logs_specs is not None
        prefixes = None
        if (template := config.log_line_prefix_template) is not None:
            prefixes = {0: Template(template).safe_substitute(role_name=config.role, local_rank=0)}
        self._process = start_processes(
            name=config.role,
            entrypoint=self._entrypoint,
            args={0: tuple(self._command)},
            envs={0: dict(self.task_environment())},
            logs_specs=config.logs_specs,
            log_line_prefixes=prefixes,
            start_method=config.start_method,
            numa_options=config.numa_options,
            duplicate_stdout_filters=config.duplicate_stdout_filters,
            duplicate_stderr_filters=config.duplicate_stderr_filters,
        )
        return int(self._process.pids()[0])

    def task_environment(self) -> Mapping[str, str]:
        """Environment variables of the task on top of those of this process: torchrun's for a node with one task, the
        address of the agent, and the maximum number of nodes; no secret of the job."""
        config, entry = self._config, self._entry
        environment = {
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "ROLE_NAME": config.role,
            "TORCHELASTIC_RESTART_COUNT": str(config.max_restarts - self.restarts_left),
            "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
            "TORCHELASTIC_RUN_ID": entry.run_id,
            "CHICLE_CONTROL": self._control,
            "CHICLE_MAX_NODES": str(entry.max_nodes),
        }
        return environment | {"CHICLE_SECRET": ""} if self._options.secret_file is None else environment

    def task_exit(self, timeout_s: float = 0.0) -> RunProcsResult | None:
        """How the task ended, or None when it still runs after `timeout_s` seconds."""
        return None if self._process is None else self._process.wait(timeout_s, 0.01)

    def stop_task(self, *, number: signal.Signals = signal.SIGTERM, grace_s: float = 5.0) -> None:
        """End the task with a signal, after the grace period by SIGKILL. Does nothing when none runs."""
        if self._process is not None:
            self._process.close(number, max(1, round(grace_s)))
            self._process = None
