"""The agent of a node under torchrun's command line: an elastic agent of torch's, on its public names alone.

It calls Chicle's rendezvous at each round, and torch's launcher of processes starts its task, with torchrun's log files
and error files.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from string import Template
from typing import Any

import torch
from torch.distributed.elastic.agent.server import ElasticAgent as TorchAgent
from torch.distributed.elastic.agent.server import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import PContext, RunProcsResult, start_processes
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.launcher import LaunchConfig

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.agent.node_agent import NodeAgent
from chicle_elastic.cluster.options import NodeOptions
from chicle_elastic.cluster.rendezvous.handler import BACKEND, ChicleRendezvousHandler
from chicle_elastic.cluster.rendezvous.torchrun_plugin import create
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.versions import warn_if_untried

warn_if_untried("torch", torch.__version__)


class ElasticAgent(NodeAgent, TorchAgent):
    """Runs a node whose task is a process of torch's launcher. Raises JobClosedError when the job is over,
    StoreUnreachableError when there is no store, UsageError when the secret cannot be used or the rendezvous is not
    Chicle's.

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
        parameters = RendezvousParameters(
            BACKEND,
            config.rdzv_endpoint,
            config.run_id,
            config.min_nodes,
            config.max_nodes,
            options.address.advertise,  # so that the handler need not look for a route to the store
            node=options.node,
            secret_file=options.secret_file,
        )
        rendezvous_handler_registry.register(BACKEND, create)  # for an installation without entry points, too
        handler = get_rendezvous_handler(parameters)
        if not isinstance(handler, ChicleRendezvousHandler):
            raise UsageError(f"the rendezvous {BACKEND!r} of this environment is not Chicle's but {type(handler)}")
        NodeAgent.__init__(self, entry=handler.entry, options=options, command=arguments, restarts=config.max_restarts)
        self._handler, self._config, self._entrypoint = handler, config, entrypoint
        spec = WorkerSpec(config.role, 1, handler, entrypoint=entrypoint, args=tuple(arguments))
        self._group = WorkerGroup(spec)
        self._process: PContext | None = None

    def run(self, role: str = "default") -> RunResult:
        """Run the node until it is finished, has left, or its task has failed for good. Raises ChicleError when the
        node cannot take part in the job."""
        ended = self.run_node()
        if not isinstance(ended, RunProcsResult):
            return RunResult(WorkerState.SUCCEEDED)
        failure = ended.failures[0]
        if failure.exitcode == -signal.SIGKILL:
            failure.message += self.memory_kills.words or ", perhaps for memory: the kernel's log says so (dmesg)"
        return RunResult(WorkerState.FAILED, failures={self._group.group_rank or 0: failure})

    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """The task of this node, with the rank of the last round."""
        return self._group

    def meet(self, round: int, members: tuple[NodeId, ...]) -> None:
        """Take part in a rendezvous of the members of a round."""
        with self._meeting:  # the rendezvous before, which was abandoned, may not have ended
            self._handler.expect(round=round, members=members)
            info = self._handler.next_rendezvous()
            group: Any = self._group  # its fields are declared as None
            group.group_rank, group.group_world_size = info.rank, info.world_size
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
            prefixes = {0: Template(template).safe_substitute(role_name=config.role, local_rank=0, rank=-1)}
        self._process = start_processes(
            name=config.role,
            entrypoint=self._entrypoint,
            args={0: tuple(str(word).replace("${local_rank}", "0") for word in self._command)},
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
