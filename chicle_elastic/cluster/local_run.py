"""One job on a local cluster, as its server sees it: which agents and tasks there are, and who is told what.

    client -> server   run (settings, job) + data      scale (nodes)      stop (reason)      over (it has the outcome)
                       members
    server -> client   queued   agent (node, pid)   task (node, pid) + the line to it   ended (who, code, printed)
                       over (reason: no outcome is to be expected)
    agent -> server    task (control, max_nodes)    signal (number)
    server -> agent    forked (pid)   ended (pid, code)   stop (reason)

An agent that is killed from outside is replaced, as a resource manager would do it; one that ends by itself is not.
"""

import dataclasses
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

from chicle_elastic.cluster.launch_args import AgentCommand, parse
from chicle_elastic.cluster.local_nursery import Child, Nursery
from chicle_elastic.cluster.local_wire import Line, Said, fields_of, pair
from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.secret import SECRET_BYTES

MAX_NODES = 64
REPLACEMENTS_PER_NODE = 2


@dataclass(slots=True, eq=False)
class NodeProcesses:
    """The processes of one node.

    Attributes:
        name: Of the node.
        agent: Its agent.
        line: To the agent.
        task: Its task, if one runs.
        is_dismissed: It was told to leave.
    """

    name: str
    agent: Child
    line: Line
    task: Child | None = None
    is_dismissed: bool = False


class LocalRun:
    """See the top of the module.

    Args:
        client: Who wants it.
        said: Its message "run", with the descriptor of the data.
        nursery: Forks.
        endpoint: Of the rendezvous store.
        num_nodes: Nodes to begin with.
        watch: Called with the line of each new agent, and what to do when it can be read.
        forget: Called with the line of an agent that is gone.
    """

    def __init__(
        self,
        client: Line,
        said: Said,
        nursery: Nursery,
        *,
        endpoint: str,
        num_nodes: int,
        watch: Callable[[Line, Callable[[], None]], None],
        forget: Callable[[Line], None],
    ) -> None:
        fields_of(said, job=dict, min_nodes=int, start_nodes=int, grace_s=(int, float))
        if len(said.fds) != 1:
            raise ProtocolError(f"a job came with {len(said.fds)} descriptors, and needs the one of its data")
        self.client = client
        self.run_id = f"local-{secrets.token_hex(8)}"
        self._settings = said.fields
        self._data = said.fds[0]
        self._nursery, self._endpoint = nursery, endpoint
        self._watch, self._forget = watch, forget
        self._nodes: list[NodeProcesses] = []
        self._num_nodes = num_nodes
        self._num_started = 0
        self._replacements_left = REPLACEMENTS_PER_NODE * num_nodes
        self._is_ending = False
        self._secret = _secret_file()
        self._command = self._parse()

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
        while len(self._nodes) < self._num_nodes:
            self._start_node()

    def scale(self, num_nodes: int) -> None:
        """Start nodes, or tell the newest to leave, until there are as many as this."""
        self._num_nodes = num_nodes
        staying = [node for node in self._nodes if not node.is_dismissed]
        for node in staying[num_nodes:]:
            node.is_dismissed = True
            node.agent.signal(signal.SIGTERM)
        for _ in range(num_nodes - len(staying) if not self._is_ending else 0):
            self._start_node()

    def stop(self, reason: str) -> None:
        """The job is to end at its next boundary."""
        for node in self._nodes:
            _tell(node.line, "stop", reason=reason)

    def ends(self) -> None:
        """The client has what it wanted: processes may end, and none is started any more."""
        self._is_ending = True

    def kill(self) -> None:
        """End all processes at once."""
        self._is_ending = True
        for node in self._nodes:
            for child in (node.agent, node.task):
                if child is not None:
                    child.signal(signal.SIGKILL)

    def child_ended(self, child: Child) -> None:
        """One of the children has ended; perhaps it is one of this job."""
        for node in self._nodes:
            if child is node.task:
                node.task = None
                _tell(node.line, "ended", pid=child.pid, code=child.code)
                self._tell_end(node, "task", child)
                return
            if child is node.agent:
                self._agent_ended(node, child)
                return

    def close(self) -> None:
        """Give back what the job held."""
        for node in self._nodes:
            node.line.close()
        os.close(self._data)
        os.close(self._secret)

    # How.

    def _parse(self) -> AgentCommand:
        """What every agent of the job is started with, but for its name: parsed once, because that takes a while."""
        arguments = [
            *("--nnodes", f"{self._settings['min_nodes']}:{MAX_NODES}", "--rdzv-id", self.run_id),
            *("--start-nodes", str(self._settings["start_nodes"]), "--grace", str(self._settings["grace_s"])),
            *("--rdzv-endpoint", self._endpoint, "--secret-file", f"/proc/self/fd/{self._secret}"),
        ]
        if self._settings.get("memory_bytes") is not None:
            arguments += ["--memory", str(self._settings["memory_bytes"])]
        if self._settings.get("log_dir") is not None:
            arguments += ["--log-dir", self._settings["log_dir"]]
        try:
            command = parse([*arguments, "-"])
        except (UsageError, SystemExit) as error:
            raise ProtocolError(f"settings that no agent can be started with: {error}") from error
        assert isinstance(command, AgentCommand)
        return command

    def _start_node(self) -> None:
        name = f"n{self._num_started}"
        self._num_started += 1
        line, sock = pair()
        command = dataclasses.replace(
            self._command, options=dataclasses.replace(self._command.options, node=NodeId(name))
        )
        body = functools.partial(_agent_body, sock, command)
        agent = self._nursery.fork(
            f"agent {name}", body, keep=(sock.fileno(), self._secret), output=self._output(f"{name}.agent")
        )
        sock.close()
        node = NodeProcesses(name, agent, line)
        self._nodes.append(node)
        self._watch(line, functools.partial(self._hear, node))
        _tell(self.client, "agent", node=name, pid=agent.pid)

    def _hear(self, node: NodeProcesses) -> None:
        try:
            for said in node.line.read():
                if said.kind == "task":
                    self._start_task(node, said)
                elif said.kind == "signal" and node.task is not None:
                    node.task.signal(fields_of(said, number=int)["number"])
        except (ProtocolError, OSError) as error:  # nonsense, or no process to be had: this node is of no use
            print(f"node {node.name} is ended: {error}", file=sys.stderr)
            node.agent.signal(signal.SIGKILL)
        if node.line.is_at_end:
            self._forget(node.line)

    def _start_task(self, node: NodeProcesses, said: Said) -> None:
        fields = fields_of(said, control=str, max_nodes=int)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        body = functools.partial(
            _task_body, theirs, self._settings["job"], self._data, fields["control"], fields["max_nodes"]
        )
        keep = (theirs.fileno(), self._data)
        node.task = self._nursery.fork(f"task {node.name}", body, keep=keep, output=self._output(f"{node.name}.task"))
        _tell(node.line, "forked", pid=node.task.pid)
        _tell(self.client, "task", fds=(ours.fileno(),), node=node.name, pid=node.task.pid)
        ours.close()
        theirs.close()

    def _agent_ended(self, node: NodeProcesses, child: Child) -> None:
        self._nodes.remove(node)
        self._forget(node.line)
        node.line.close()
        if node.task is not None:
            node.task.signal(signal.SIGKILL)  # without its agent it has nothing to do
        self._tell_end(node, "agent", child)
        was_killed = child.code is not None and child.code < 0
        if was_killed and not node.is_dismissed and not self._is_ending and self._replacements_left:
            self._replacements_left -= 1
            self._start_node()

    def _tell_end(self, node: NodeProcesses, what: str, child: Child) -> None:
        printed = child.printed() if child.code else ""
        _tell(self.client, "ended", node=node.name, what=what, pid=child.pid, code=child.code, printed=printed)

    def _output(self, name: str) -> Path | None:
        log_dir = self._settings.get("log_dir")
        return None if log_dir is None else Path(log_dir) / f"{name}.out"


def _agent_body(sock: socket.socket, command: AgentCommand) -> int:
    from chicle_elastic.cluster.local_agent import run_agent

    return run_agent(sock, command)


def _task_body(sock: socket.socket, job: dict[str, Any], data: int, control: str, max_nodes: int) -> int:
    from chicle_elastic.cluster.local_task import run_task

    return run_task(sock, job, data, control=control, max_nodes=max_nodes)


def _secret_file() -> int:
    """A job secret in a memory file that only this user's processes can open, and only through this descriptor."""
    fd = os.memfd_create("chicle-secret", os.MFD_CLOEXEC)
    os.fchmod(fd, 0o600)
    os.write(fd, secrets.token_bytes(SECRET_BYTES).hex().encode())
    return fd


def _tell(line: Line, kind: str, **fields: Any) -> None:
    """Say something to somebody who may be gone; that is seen elsewhere."""
    try:
        line.send(kind, **fields)
    except (ConnectionError, OSError):
        return
