"""One job on a local cluster, as its server sees it: which agents and tasks there are, and who is told what.

    client -> server   run (settings, job) + data      scale (nodes)      stop (reason)      over (it has the outcome)
                       members
    server -> client   queued   agent (node, pid)   task (node, pid) + the line to it   ended (who, code, why,
                       printed)
                       not_kept (error: of the kernel cache)      over (reason: no outcome is to be expected)
    agent -> server    task (control, max_nodes)    signal (number)   free (`local_kept`)
                       requested (total, reason, number)      finished (the job needs no more nodes)
    server -> agent    forked (pid)   ended (pid, code)   stop (reason)   job
                       offered (number, available, price, text)
    task -> server     free
    server -> task     job

Nodes come from a resource manager (`chicle_elastic.resources`): a schedule of the user's, or as many as the cluster may
have. An agent that is killed from outside is replaced; one that ends by itself is not.
"""

import functools
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.local.forking import ForkedProcess
from chicle_elastic.cluster.local.messages import Connection, Received, fields_of
from chicle_elastic.cluster.local.process_pool import AGENT, TASK, PooledProcess, ProcessPool
from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managed_nodes import ManagedNodes
from chicle_elastic.resources.schedule import Schedule, ScheduledNodes, ScheduleStep
from chicle_elastic.transports.secret import SECRET_BYTES
from chicle_elastic.values import ResourceOffer

MAX_NODES = 64
REPLACEMENTS_PER_NODE = 2
SCHEDULE_TURN_S = 0.05  # how late a step of a schedule may be


@dataclass(slots=True, eq=False)
class NodeProcesses:
    """The processes of one node."""

    name: str
    agent: PooledProcess
    task: PooledProcess | None = None  # its task, if one runs
    is_dismissed: bool = False  # it was told to leave
    fault: str = ""  # why the server has killed its agent; empty where it has not
    memory_kills: MemoryKills = field(default_factory=MemoryKills)


class JobRun:
    """See the top of the module.

    Args:
        num_nodes: Nodes to begin with; with a schedule that says.
        watch: Called with the line of each process that begins, and what to do when it can be read.
    """

    def __init__(
        self,
        client: Connection,
        said: Received,
        processes: ProcessPool,
        *,
        endpoint: str,
        num_nodes: int,
        watch: Callable[[Connection, Callable[[], None]], None],
        forget: Callable[[Connection], None],
    ) -> None:
        fields_of(said, job=dict, nodes=int, min_nodes=int, start_nodes=int, limit=int, grace_s=(int, float))
        if not said.fds:
            raise ProtocolError("a job came without the descriptors of its data")
        self.client = client
        self.run_id = f"local-{secrets.token_hex(8)}"
        self._settings = said.fields
        self._data = said.fds
        self._processes, self._endpoint = processes, endpoint
        self._watch, self._forget = watch, forget
        self._nodes: list[NodeProcesses] = []
        schedule = _schedule(said.fields.get("schedule"))
        if schedule is None:
            self._manager = ScheduledNodes(_always(max(said.fields["limit"], num_nodes)), prefix="n", target=num_nodes)
        else:
            self._manager = ScheduledNodes(schedule, prefix="n")
            num_nodes = schedule.at(0.0).nodes
        self._managed = ManagedNodes(self._manager)
        self.num_nodes = num_nodes
        self.turn_s = math.inf if schedule is None else SCHEDULE_TURN_S
        self._staged_s: float | None = None  # when its data was there: then the clock of the schedule starts
        self._request = self._num_offers = 0
        self._offer = ResourceOffer()
        self._has_begun = False
        self._replacements_left = REPLACEMENTS_PER_NODE * num_nodes
        self._is_ending = self._is_finished = False
        self._agent_settings = self._checked_settings()
        self._secret = _secret_file()

    @property
    def is_over(self) -> bool:
        """Whether none of its processes runs any more."""
        return not self._nodes and (self._has_begun or self._is_ending)

    def members(self) -> list[dict[str, Any]]:
        """The nodes that there are, as fields of `monitoring.records.Member`."""
        return [
            {"node": node.name, "agent_pid": node.agent.pid, "pid": 0 if node.task is None else node.task.pid}
            for node in self._nodes
        ]

    def start(self) -> None:
        """Start the nodes."""
        self.ask_manager()
        self._has_begun = True

    def staged(self) -> None:
        """The data is there, and nodes can take part: the schedule, which stood at second 0, begins."""
        self._staged_s = time.monotonic()

    def scale(self, num_nodes: int) -> None:
        """Start nodes, or tell the newest to leave, until there are as many as this; whatever the job has requested."""
        if num_nodes > self._manager.schedule.most():
            self._manager.schedule = _always(num_nodes)
        self._managed.wanted = None
        self._manager.resize(num_nodes)
        self.ask_manager()

    def ask_manager(self) -> None:
        """Carry out what the resource manager says, and tell the agents what it offers."""
        if self._is_ending or self._is_finished:
            return
        staying = [NodeId(node.name) for node in self._nodes if not node.is_dismissed]
        elapsed_s = 0.0 if self._staged_s is None else time.monotonic() - self._staged_s
        news = self._managed.poll(elapsed_s, staying)
        for revoked in news.revoked:
            for node in self._nodes:
                if node.name == revoked.node:
                    node.is_dismissed = True
                    node.agent.child.signal(signal.SIGTERM)
        for name in news.assigned:
            self._start_node(name)
        self.num_nodes = max(self.num_nodes, len(self._nodes))
        if news.offer is not None or news.lines:
            self._offer = news.offer or self._offer
            self._num_offers += 1
            for node in self._nodes:
                self._tell_offer(node, "; ".join(news.lines))

    def _tell_offer(self, node: NodeProcesses, text: str = "") -> None:
        offer = self._offer
        fields = {"number": self._num_offers, "available": offer.available, "price": offer.price, "text": text}
        _tell(node.agent.line, "offered", **fields)

    def stop(self, reason: str) -> None:
        """The job is to end at its next boundary."""
        for node in self._nodes:
            _tell(node.agent.line, "stop", reason=reason)

    def ends(self) -> None:
        """The client has what it wanted: processes may end, and none is started any more."""
        self._is_ending = True

    def kill(self) -> None:
        """End all processes at once."""
        self._is_ending = True
        for node in self._nodes:
            for process in (node.agent, node.task):
                if process is not None:
                    process.child.signal(signal.SIGKILL)

    def child_ended(self, child: ForkedProcess) -> None:
        """One of the children has ended; perhaps it is one of this job."""
        for node in self._nodes:
            for process in (node.agent, node.task):
                if process is not None and process.child is child:
                    self._let_go(process, is_free=False)
                    self._has_ended(node, process, child.code or 0)
                    return

    def close(self) -> None:
        """Give back what the job held."""
        for fd in (*self._data, self._secret):
            os.close(fd)

    # How.

    def _checked_settings(self) -> dict[str, Any]:
        """What every agent of the job is started with, but for its name and the secret."""
        settings = self._settings
        start_nodes, nodes = settings["start_nodes"], settings["nodes"]  # nodes: to begin with
        if start_nodes == nodes or start_nodes > self.num_nodes:  # the cluster may have been scaled meanwhile
            start_nodes = self.num_nodes
        if not 1 <= settings["min_nodes"] <= start_nodes <= MAX_NODES or not 0 <= settings["grace_s"] < math.inf:
            raise ProtocolError(f"settings that no agent can be started with: {settings}")
        return {
            "run_id": self.run_id,
            "endpoint": self._endpoint,
            "min_nodes": settings["min_nodes"],
            "max_nodes": MAX_NODES,
            "start_nodes": start_nodes,
            "all_nodes": self.num_nodes if settings.get("schedule") is None else None,
            "grace_s": settings["grace_s"],
            "memory_bytes": settings.get("memory_bytes"),
            "log_dir": settings.get("log_dir"),
        }

    def _start_node(self, name: NodeId) -> None:
        job = self._agent_settings | {"name": name}
        output = self._output(f"{name}.agent")
        agent = self._processes.begin(AGENT, f"agent {name}", job, fds=(self._secret,), output=output)
        node = NodeProcesses(name, agent)
        self._nodes.append(node)
        self._watch(agent.line, functools.partial(self._hear, node, agent))
        _tell(self.client, "agent", node=name, pid=agent.pid)
        if self._num_offers:
            self._tell_offer(node)

    def _hear(self, node: NodeProcesses, process: PooledProcess) -> None:
        try:
            for said in process.line.read():
                if said.kind == "task" and process is node.agent:
                    self._start_task(node, said)
                elif said.kind == "signal" and process is node.agent and node.task is not None:
                    node.task.child.signal(fields_of(said, number=int)["number"])
                elif said.kind == "finished" and process is node.agent:
                    self._is_finished = True
                elif said.kind == "requested" and process is node.agent:
                    self._hear_request(said)
                elif said.kind == "free":
                    self._let_go(process, is_free=True)
                    self._has_ended(node, process, 0)
                    return
        except (ProtocolError, OSError) as error:  # nonsense, or no process to be had: this node is of no use
            node.fault = f"its server has killed it: {error}\n"
            node.agent.child.signal(signal.SIGKILL)
        if process.line.is_at_end:
            self._forget(process.line)

    def _hear_request(self, said: Received) -> None:
        """A request of the job: every agent tells it, and perhaps an older one later."""
        fields = fields_of(said, total=int, reason=str, number=int)
        if fields["number"] > self._request:
            self._request = fields["number"]
            self._managed.request(fields["total"], fields["reason"])
            self.ask_manager()

    def _start_task(self, node: NodeProcesses, said: Received) -> None:
        fields = fields_of(said, control=str, max_nodes=int)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with ours, theirs:
            described = self._settings["job"]
            job = {"described": described, "control": fields["control"], "max_nodes": fields["max_nodes"]}
            job["is_single_use"] = bool(described.get("has_code"))
            fds, output = (theirs.fileno(), *self._data), self._output(f"{node.name}.task")
            node.memory_kills = MemoryKills()
            task = self._processes.begin(TASK, f"task {node.name}", job, fds=fds, output=output)
            node.task = task
            self._watch(task.line, functools.partial(self._hear, node, task))
            _tell(node.agent.line, "forked", pid=task.pid)
            _tell(self.client, "task", fds=(ours.fileno(),), node=node.name, pid=task.pid)

    def _let_go(self, process: PooledProcess, *, is_free: bool) -> None:
        self._forget(process.line)
        if is_free:
            self._processes.give_back(process)
        else:
            process.line.close()

    def _has_ended(self, node: NodeProcesses, process: PooledProcess, code: int) -> None:
        """A process of a node has done its job, or has failed."""
        if process is node.task:
            node.task = None
            _tell(node.agent.line, "ended", pid=process.pid, code=code)
        elif process is node.agent:
            self._nodes.remove(node)
            if node.task is not None:
                node.task.child.signal(signal.SIGKILL)  # without its agent it has nothing to do
                self._let_go(node.task, is_free=False)
        printed = node.fault + process.child.printed() if code else ""
        why = node.memory_kills.words if code == -signal.SIGKILL else ""
        ended = {"node": node.name, "what": process.kind, "pid": process.pid, "code": code}
        _tell(self.client, "ended", **ended, why=why, printed=printed)
        if process is node.agent:
            self._node_is_gone(node, code)

    def _node_is_gone(self, node: NodeProcesses, code: int) -> None:
        name = NodeId(node.name)
        if code < 0 and not node.is_dismissed and self._replacements_left:  # it was killed: another one takes its place
            self._replacements_left -= 1
            self._manager.lost(name)
        else:
            self._managed.released(name)
            if code and not node.is_dismissed:  # it has failed, and so would the next one
                self._manager.target = len(self._manager.nodes)
        self.ask_manager()

    def _output(self, name: str) -> Path | None:
        log_dir = self._settings.get("log_dir")
        return None if log_dir is None else Path(log_dir) / f"{name}.out"


def _always(num_nodes: int) -> Schedule:
    return Schedule((ScheduleStep(0.0, num_nodes),))


def _schedule(steps: Any) -> Schedule | None:
    """The schedule of a job, as its client said it."""
    try:
        return None if steps is None else Schedule(tuple(ScheduleStep(*step) for step in steps))
    except (UsageError, TypeError) as error:
        raise ProtocolError(f"a schedule that cannot be: {error}") from error


def _secret_file() -> int:
    """A job secret in a memory file that only this user's processes can open, and only through this descriptor."""
    fd = os.memfd_create("chicle-secret", os.MFD_CLOEXEC)
    os.fchmod(fd, 0o600)
    os.write(fd, secrets.token_bytes(SECRET_BYTES).hex().encode())
    return fd


def _tell(line: Connection, kind: str, **fields: Any) -> None:
    """Say something to an agent or a client that may be gone; the server sees that elsewhere."""
    try:
        line.send(kind, **fields)
    except (ConnectionError, OSError):
        return
