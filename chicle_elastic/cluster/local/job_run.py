"""One job on a local cluster, as its server sees it: which agents and tasks there are, and who is told what.

    client -> server   run (settings, job) + data      scale (nodes)      stop (reason)      over (it has the outcome)
                       members
    server -> client   queued   agent (node, pid)   task (node, pid) + the line to it   ended (who, code, printed)
                       over (reason: no outcome is to be expected)
    agent -> server    task (control, max_nodes)    signal (number)   free (`local_kept`)
    server -> agent    forked (pid)   ended (pid, code)   stop (reason)   job
    task -> server     free
    server -> task     job

An agent that is killed from outside is replaced, as a resource manager would do it; one that ends by itself is not.
"""

import functools
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic.cluster.local.forking import ForkedProcess
from chicle_elastic.cluster.local.messages import Connection, Received, fields_of
from chicle_elastic.cluster.local.process_pool import AGENT, TASK, PooledProcess, ProcessPool
from chicle_elastic.cluster.options import parse
from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.transports.secret import SECRET_BYTES

MAX_NODES = 64
REPLACEMENTS_PER_NODE = 2


@dataclass(slots=True, eq=False)
class NodeProcesses:
    """The processes of one node.

    Attributes:
        name: Of the node.
        agent: Its agent.
        task: Its task, if one runs.
        is_dismissed: It was told to leave.
    """

    name: str
    agent: PooledProcess
    task: PooledProcess | None = None
    is_dismissed: bool = False


class JobRun:
    """See the top of the module.

    Args:
        client: Who wants it.
        said: Its message "run", with the descriptor of the data.
        processes: Agents and tasks.
        endpoint: Of the rendezvous store.
        num_nodes: Nodes to begin with.
        watch: Called with the line of each process that begins, and what to do when it can be read.
        forget: Called with the line of one that is free or gone.

    Attributes:
        client: Who wants it.
        num_nodes: Nodes that it is to have.
        run_id: Of the rendezvous.
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
        fields_of(said, job=dict, nodes=int, min_nodes=int, start_nodes=int, grace_s=(int, float))
        if len(said.fds) != 1:
            raise ProtocolError(f"a job came with {len(said.fds)} descriptors, and needs the one of its data")
        self.client = client
        self.run_id = f"local-{secrets.token_hex(8)}"
        self._settings = said.fields
        self._data = said.fds[0]
        self._processes, self._endpoint = processes, endpoint
        self._watch, self._forget = watch, forget
        self._nodes: list[NodeProcesses] = []
        self.num_nodes = num_nodes
        self._num_started = 0
        self._replacements_left = REPLACEMENTS_PER_NODE * num_nodes
        self._is_ending = False
        self._secret = _secret_file()
        self._arguments = self._command_line()

    @property
    def is_over(self) -> bool:
        """Whether none of its processes runs any more."""
        return not self._nodes and (self._num_started > 0 or self._is_ending)

    def members(self) -> list[dict[str, Any]]:
        """The nodes that there are, as fields of `monitoring.records.Member`."""
        return [
            {"node": node.name, "agent_pid": node.agent.pid, "pid": 0 if node.task is None else node.task.pid}
            for node in self._nodes
        ]

    def start(self) -> None:
        """Start the nodes."""
        while len(self._nodes) < self.num_nodes:
            self._start_node()

    def scale(self, num_nodes: int) -> None:
        """Start nodes, or tell the newest to leave, until there are as many as this."""
        self.num_nodes = num_nodes
        staying = [node for node in self._nodes if not node.is_dismissed]
        for node in staying[num_nodes:]:
            node.is_dismissed = True
            node.agent.child.signal(signal.SIGTERM)
        for _ in range(num_nodes - len(staying) if not self._is_ending else 0):
            self._start_node()

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
        os.close(self._data)
        os.close(self._secret)

    # How.

    def _command_line(self) -> list[str]:
        """What every agent of the job is started with, but for its name and the secret."""
        start_nodes, nodes = self._settings["start_nodes"], self._settings["nodes"]
        if start_nodes == nodes or start_nodes > self.num_nodes:  # the cluster may have been scaled meanwhile
            start_nodes = self.num_nodes
        arguments = [
            *("--nnodes", f"{self._settings['min_nodes']}:{MAX_NODES}", "--rdzv-id", self.run_id),
            *("--start-nodes", str(start_nodes), "--grace", str(self._settings["grace_s"])),
            *("--rdzv-endpoint", self._endpoint),
        ]
        if self._settings.get("memory_bytes") is not None:
            arguments += ["--memory", str(self._settings["memory_bytes"])]
        if self._settings.get("log_dir") is not None:
            arguments += ["--log-dir", self._settings["log_dir"]]
        try:
            parse([*arguments, "--secret-file", f"/proc/self/fd/{self._secret}", "-"])
        except (UsageError, SystemExit) as error:
            raise ProtocolError(f"settings that no agent can be started with: {error}") from error
        return arguments

    def _start_node(self) -> None:
        name = f"n{self._num_started}"
        self._num_started += 1
        job = {"arguments": [*self._arguments, "--name", name]}
        output = self._output(f"{name}.agent")
        agent = self._processes.begin(AGENT, f"agent {name}", job, fds=(self._secret,), output=output)
        node = NodeProcesses(name, agent)
        self._nodes.append(node)
        self._watch(agent.line, functools.partial(self._hear, node, agent))
        _tell(self.client, "agent", node=name, pid=agent.pid)

    def _hear(self, node: NodeProcesses, process: PooledProcess) -> None:
        try:
            for said in process.line.read():
                if said.kind == "task" and process is node.agent:
                    self._start_task(node, said)
                elif said.kind == "signal" and process is node.agent and node.task is not None:
                    node.task.child.signal(fields_of(said, number=int)["number"])
                elif said.kind == "free":
                    self._let_go(process, is_free=True)
                    self._has_ended(node, process, 0)
                    return
        except (ProtocolError, OSError) as error:  # nonsense, or no process to be had: this node is of no use
            print(f"node {node.name} is ended: {error}", file=sys.stderr)
            node.agent.child.signal(signal.SIGKILL)
        if process.line.is_at_end:
            self._forget(process.line)

    def _start_task(self, node: NodeProcesses, said: Received) -> None:
        fields = fields_of(said, control=str, max_nodes=int)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with ours, theirs:
            described = self._settings["job"]
            job = {"described": described, "control": fields["control"], "max_nodes": fields["max_nodes"]}
            job["is_single_use"] = bool(described.get("has_code"))
            fds, output = (theirs.fileno(), self._data), self._output(f"{node.name}.task")
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
        printed = process.child.printed() if code else ""
        _tell(self.client, "ended", node=node.name, what=process.kind, pid=process.pid, code=code, printed=printed)
        was_killed = process is node.agent and code < 0
        if was_killed and not node.is_dismissed and not self._is_ending and self._replacements_left:
            self._replacements_left -= 1
            self._start_node()

    def _output(self, name: str) -> Path | None:
        log_dir = self._settings.get("log_dir")
        return None if log_dir is None else Path(log_dir) / f"{name}.out"


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
