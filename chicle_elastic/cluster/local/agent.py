"""The agent and the rendezvous store of a local cluster, as processes forked by its server.

The agent is the one that every cluster has. Two things differ: it and its task are forked by the server (who has
everything imported), and the server can tell it to end the job.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.agent.node import Node
from chicle_elastic.cluster.agent.node_agent import EXIT_FAILED, NodeAgent, exit_code_of_error
from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.cluster.local.messages import Connection, Received
from chicle_elastic.cluster.net.event_loop import EventLoop, Timer
from chicle_elastic.cluster.options import DEFAULT_RESTARTS, NodeOptions
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.errors import ChicleError, PeerLostError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.stderr_queue import stderr_queue
from chicle_elastic.scheduling import effects, events
from chicle_elastic.values import ResourceOffer

FORK_TIMEOUT_S = 30.0


def run_store(sock: socket.socket) -> int:
    """Body of the process that serves the rendezvous store until the server hangs up."""
    with Connection(sock) as line, StoreServer("127.0.0.1:0") as host:
        line.send("store", endpoint=host.endpoint)
        while (said := line.receive()) is not None:  # a job is over: no agent looks at its keys any more
            host.forget(said.fields["run_id"])
    return 0


@stderr_queue()
def run_agent(line: Connection, job: Mapping[str, Any], fds: Sequence[int]) -> int:
    """Be an agent until its job is over; returns its exit code.

    Args:
        job: Its settings: "run_id", "endpoint" of the store, "min_nodes", "max_nodes", "start_nodes", "grace_s",
            "memory_bytes", "log_dir"; "all_nodes", "name" of the node.
    """
    secret_file = Path(f"/proc/self/fd/{fds[0]}")
    try:
        options = NodeOptions(
            node=NodeId(job["name"]),
            secret_file=secret_file,
            grace_s=job["grace_s"],
            memory_bytes=job["memory_bytes"],
            log_dir=None if job["log_dir"] is None else Path(job["log_dir"]),
            start_nodes=job["start_nodes"],
            all_nodes=job["all_nodes"],
            shows_status=False,  # the driver shows the progress of a fit
        )
        entry = JobEntry.open(
            job["endpoint"],
            run_id=job["run_id"],
            node=options.node,
            secret_file=secret_file,
            min_nodes=job["min_nodes"],
            max_nodes=job["max_nodes"],
        )
        agent = LocalAgent(line, entry=entry, options=options)
        ended = agent.run_node()
        if ended is None:
            return 0
        print(f"the task failed: {ended}{agent.memory_kills.words}", file=sys.stderr)
        return EXIT_FAILED
    except ChicleError as error:
        return exit_code_of_error(error)
    finally:
        os.close(fds[0])


class LocalResourceLink:
    """The way to the resource manager of a local cluster, which its server asks."""

    def __init__(self, line: Connection) -> None:
        self.offer: events.ResourcesOffered | None = None
        self._line = line

    def request(self, effect: effects.RequestNodes) -> None:
        """Tell the server."""
        with contextlib.suppress(ConnectionError):  # without its server nothing here goes on
            self._line.send("requested", total=effect.total, reason=effect.reason, number=effect.number)

    def finish(self, reason: str, *, has_failed: bool) -> None:
        """Tell the server that the job is over; what became of it, its client knows."""
        with contextlib.suppress(ConnectionError):
            self._line.send("finished")

    def hear(self, said: Received) -> None:
        """The server has told an offer."""
        fields = said.fields
        offer = ResourceOffer(available=fields["available"], price=fields["price"])
        self.offer = events.ResourcesOffered(offer=offer, number=fields["number"], text=fields["text"])


class LocalAgent(NodeAgent):
    """An agent whose task is forked by the server."""

    def __init__(self, line: Connection, *, entry: JobEntry, options: NodeOptions) -> None:
        super().__init__(entry=entry, options=options, command=(), restarts=DEFAULT_RESTARTS)
        self._line = line
        self.resources = LocalResourceLink(line)
        self._node: Node | None = None
        self._pid = 0
        self._code: int | None = None
        self._started: Callable[[int], object]  # these three from `start_task` on
        self._ended: Callable[[], object]
        self._patience: Timer

    def begins(self, loop: EventLoop, node: Node) -> None:
        """Listen to the server, too."""
        self._node = node
        loop.watch(self._line, self._listen)

    def start_task(
        self, *, started: Callable[[int], object], ended: Callable[[], object], is_restart: bool = False
    ) -> None:
        """Ask the server for a task. PeerLostError is raised in the loop when the server does not answer."""
        self.restarts_left -= is_restart
        self.memory_kills = MemoryKills()
        self._pid, self._code = 0, None
        self._started, self._ended = started, ended
        self._line.send("task", control=self._control, max_nodes=self._entry.max_nodes)
        self._patience = self._loop.later(FORK_TIMEOUT_S, self._give_up)

    def task_exit(self, timeout_s: float = 0.0) -> TaskEnd | None:
        """How the task ended, or None when it still runs after `timeout_s` seconds, or none was started."""
        end_s = time.monotonic() + timeout_s
        while self._pid and self._code is None:
            said = self._line.receive(max(0.0, end_s - time.monotonic()))
            if said is None:
                return None
            self._hear(said)
        return None if self._code is None else TaskEnd(self._code)

    def signal_task(self, number: signal.Signals) -> None:
        """Have the server send a signal to the task; to nobody when none runs."""
        if self._pid and self._code is None:
            with contextlib.suppress(ConnectionError):  # without its server nothing here goes on
                self._line.send("signal", number=int(number))

    def _give_up(self) -> None:
        raise PeerLostError(f"the server of the local cluster has forked no task within {FORK_TIMEOUT_S:g} s")

    def _listen(self) -> None:
        for said in self._line.read():
            self._hear(said)

    def _hear(self, said: Received) -> None:
        if said.kind == "forked":
            self._pid = said.fields["pid"]
            self._patience.cancel()
            self._started(self._pid)
        elif said.kind == "ended" and said.fields["pid"] == self._pid:
            self._code = said.fields["code"]
            self._ended()
        elif said.kind == "stop" and self._node is not None:
            self._node.stop(said.fields["reason"])
        elif said.kind == "offered" and isinstance(self.resources, LocalResourceLink):
            self.resources.hear(said)
