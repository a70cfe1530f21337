"""A cluster of real agents on this machine: `ChicleSVM(runtime=LocalCluster(4)).fit(X, y)`.

    with LocalCluster(4) as cluster:
        model = ChicleSVM(runtime=cluster).fit(X, y)     # the first fit also starts the cluster
        model = ChicleSVM(runtime=cluster).fit(X, z)     # this one finds it there

What runs, process by process: one server (`local_server`) that has everything imported and forks the others; the
rendezvous store; and per job an agent and a task for each node. The driver stages the data once, in shared memory.
"""

import contextlib
import dataclasses
import math
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chicle_elastic.cluster.local.bootstrap import end_server, how_ended, reach_server
from chicle_elastic.cluster.local.driver import Driver
from chicle_elastic.cluster.local.job_spec import stage
from chicle_elastic.cluster.local.messages import Connection
from chicle_elastic.cluster.local.staging import StagedFiles
from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.records import Member
from chicle_elastic.policies.base import Policy, require_policies
from chicle_elastic.resources.schedule import Schedule
from chicle_elastic.runtime.in_process import held_source
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.settings import available_cores
from chicle_elastic.solvers import kernel_cache
from chicle_elastic.surroundings import absolute
from chicle_elastic.waits import Wait

MAX_NODES = 64
SHARED_IDLE_S = 300.0


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """Nodes on this machine. A value: settings and an address, no process and no connection.

    Copies, in this process or another one of this user (joblib's workers, say), mean the same cluster. The first
    process that needs it starts it; it ends with that process, after `idle_s`, or by `close`. Jobs that come at the
    same time run one after the other. As a context manager it is closed at the end.

    Args:
        nodes: How many nodes; or (least, most): it begins with the most and goes on while there are at least the least.
            With a single number it waits for all nodes at the start and then goes on with those that are left. A node
            that is killed is replaced.
        memory_bytes: Memory for chunks, per node; None for what the machine has.
        log_dir: Folder for event files and recordings of the agents and what they and their tasks print; None for none.
        grace_s: From a notice (`scale`) to leaving at once.
        idle_s: After so long without a job the processes end; the next job starts others.
        policies: Of jobs that name none, as those of estimators. None by default: the nodes share the cores of one
            machine, so their times say who got a core and not who is fast, and equal seeds would not give equal models.
        start_nodes: Nodes to begin with, all of which a job waits for; None for the most, where a job begins with the
            least. Policies can ask for more (`RequestNodes`): up to the most, or with a single number up to as many
            as there are cores.
        resources: A schedule of the nodes that there are for a job, in seconds since its nodes were started: the job
            has all of them, or as many as a policy asks for. It takes the place of `start_nodes` and `scale`.
        address: Of the cluster; by default a new one.

    Raises:
        UsageError: Numbers of nodes, times, memory, policies or a schedule that cannot be; or this is no Linux.
    """

    nodes: int | tuple[int, int] = 2
    memory_bytes: int | None = field(default=None, kw_only=True)
    log_dir: str | Path | None = field(default=None, kw_only=True)
    grace_s: float = field(default=25.0, kw_only=True)
    idle_s: float = field(default=600.0, kw_only=True)
    policies: Sequence[Policy] = field(default=(), kw_only=True, hash=False)
    start_nodes: int | None = field(default=None, kw_only=True)
    resources: Schedule | None = field(default=None, kw_only=True)
    address: str = field(default_factory=lambda: f"chicle-{secrets.token_hex(16)}", kw_only=True)

    def __post_init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise UsageError(
                f"LocalCluster: nodes run on Linux only, and this is {sys.platform}; leave out runtime= and "
                "n_workers=, and the fit runs in this process"
            )
        least, most = self.limits
        if not 1 <= least <= most <= MAX_NODES:
            raise UsageError(
                f"LocalCluster(nodes={self.nodes!r}): a local cluster has from 1 to {MAX_NODES} nodes; say 4, or "
                "(2, 4) for at least 2 and at most 4"
            )
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise UsageError(f"LocalCluster(memory_bytes={self.memory_bytes!r}): it must be positive, or None")
        for name in ("grace_s", "idle_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UsageError(f"LocalCluster({name}={value!r}): it must be finite and >= 0")
        require_policies(self.policies)
        start_nodes = self.start_nodes
        if start_nodes is not None and (
            isinstance(start_nodes, bool) or not isinstance(start_nodes, int) or not least <= start_nodes <= most
        ):
            raise UsageError(
                f"LocalCluster(start_nodes={start_nodes!r}): a job begins with {least} to {most} nodes, as nodes="
                f"{self.nodes!r} says"
            )
        if self.resources is not None:
            self._require_schedule(self.resources)

    def _require_schedule(self, schedule: object) -> None:
        least, most = self.limits
        if not isinstance(schedule, Schedule):
            raise UsageError(
                f"LocalCluster(resources={schedule!r}): it takes a Schedule, as Schedule.read(path) gives; nodes of "
                "other resource managers start agents by themselves (python -m chicle_elastic.launch)"
            )
        if self.start_nodes is not None:
            raise UsageError("LocalCluster takes start_nodes or resources, and not both: a schedule says who is there")
        if schedule.least() < least or schedule.most() > most:
            raise UsageError(
                f"LocalCluster(nodes={self.nodes!r}): the schedule has {schedule.least()} to {schedule.most()} nodes, "
                f"and the cluster from {least} to {most}; say nodes=({max(1, schedule.least())}, {schedule.most()})"
            )

    @property
    def limits(self) -> tuple[int, int]:
        """Fewest and most nodes."""
        nodes = self.nodes if isinstance(self.nodes, tuple | list) else (1, self.nodes)
        if len(nodes) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in nodes):
            raise UsageError(f"LocalCluster(nodes={self.nodes!r}): say 4, or (2, 4) for at least 2 and at most 4")
        return nodes[0], nodes[1]

    def most_tasks(self) -> int:
        """Largest number of tasks there will be; chunks are cut so that each of these has some."""
        return self.limits[1]

    def threads_per_task(self) -> int:
        """Threads for each task so that all of them together use the cores of this process once."""
        return max(1, available_cores() // self.most_tasks())

    def run(self, job: Job) -> Outcome:
        """Run a job to its end, or to the first Ctrl-C.

        `job.on_iteration` is called a moment after each iteration, and its answer ends the job at one of the next.

        Raises:
            JobFailedError: The code of a task raised; the message has its node and traceback.
            ChicleError: What a task raised, with its node.
            UsageError: The trainer or a policy cannot be pickled, or not be made again in the tasks (`user_code`).
            PeerLostError: The cluster is gone.
        """
        if job.policies is None:
            job = dataclasses.replace(job, policies=self.policies)
        least, most = self.limits
        begin = most if self.start_nodes is None else self.start_nodes
        if self.resources is not None:
            begin = self.resources.at(0.0).nodes
        settings: dict[str, Any] = {
            "nodes": begin,
            "min_nodes": least,
            "start_nodes": least if isinstance(self.nodes, tuple | list) and self.start_nodes is None else begin,
            "limit": most if isinstance(self.nodes, tuple | list) else max(most, available_cores()),
            "schedule": None
            if self.resources is None
            else [dataclasses.astuple(step) for step in self.resources.steps],
            "grace_s": self.grace_s,
            "memory_bytes": self.memory_bytes,
            "log_dir": None if self.log_dir is None else str(absolute(Path(self.log_dir))),
        }
        source = held_source(job.source, job.trainer, begin, is_staged=True)
        job = dataclasses.replace(job, source=source)
        with Wait(_words(begin)) as start, self._reach() as server, StagedFiles() as files:
            settings["job"] = stage(job, files)
            with contextlib.suppress(ConnectionError):  # its end will be seen
                server.send("run", fds=files.fds, **settings)
            files.fill()  # while the nodes start
            files.close()
            with contextlib.suppress(ConnectionError):
                server.send("staged")
            return Driver(server, job, start, partial(how_ended, self.address)).run()

    def scale(self, nodes: int) -> None:
        """Have so many nodes from now on, also in a job that runs: others join, or the newest leave.

        Raises:
            UsageError: Fewer than the least, or more than 64; or a schedule says how many there are.
            PeerLostError: The cluster is gone.
        """
        least, _ = self.limits
        if self.resources is not None:
            raise UsageError(f"scale({nodes}): the schedule of this cluster says how many nodes there are")
        if not least <= nodes <= MAX_NODES:
            raise UsageError(f"scale({nodes}): this cluster has from {least} to {MAX_NODES} nodes")
        with self._reach() as server:
            server.send("scale", nodes=nodes)
            server.receive()

    def members(self) -> dict[str, Member]:
        """Nodes of the job that runs now, by name, with the processes that they have at the moment."""
        with self._reach() as server:
            server.send("members")
            said = server.receive()
        found = [] if said is None else said.fields["members"]
        return {fields["node"]: Member(**fields) for fields in found}

    def start(self) -> "LocalCluster":
        """Start the processes that outlive a job now, so that the first job need not; returns at once."""
        self._reach().close()
        return self

    def close(self) -> None:
        """End all processes of the cluster. A job after that starts others."""
        end_server(self.address)

    def __enter__(self) -> "LocalCluster":
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _reach(self) -> Connection:
        return reach_server(self.address, idle_s=self.idle_s, threads=self.threads_per_task())


def _words(num_nodes: int) -> str:
    """Why the first fit on a cluster takes so long."""
    nodes = f"starting {num_nodes} node{'s' if num_nodes != 1 else ''} on this machine"
    if kernel_cache.is_cold():
        return f"{nodes} and compiling kernels for them (some 20 s; the next fit finds both there)"
    return f"{nodes} (a second or two; the next fit finds them there)"


_shared: dict[tuple[int, object], LocalCluster] = {}


def shared_cluster(nodes: int | tuple[int, int]) -> LocalCluster:
    """The cluster that `n_workers=nodes` means in this process: the same for every fit, gone when it was idle."""
    key = os.getpid(), nodes if isinstance(nodes, int) else tuple(nodes)  # a fork has clusters of its own
    if key not in _shared:
        _shared[key] = LocalCluster(nodes, idle_s=SHARED_IDLE_S)
    return _shared[key]
