"""The agent and the rendezvous store of a local cluster, as processes forked by its server.

The agent is the one that every cluster has. Two things differ: its task is forked by the server (who has everything
imported) instead of started afresh, and the server can tell it to end the job.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from chicle_elastic.cluster.agent.agent import ElasticAgent
from chicle_elastic.cluster.agent.node import Node
from chicle_elastic.cluster.launcher import exit_code_of, run_node
from chicle_elastic.cluster.local.messages import Connection, Received
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.options import AgentCommand, parse
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.errors import PeerLostError
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


def run_agent(line: Connection, job: Mapping[str, Any], fds: Sequence[int]) -> int:
    """Be an agent until its job is over; returns its exit code.

    Args:
        line: To the server.
        job: The words of the launcher's command line.
        fds: Of the job secret.
    """
    secret = fds[0]
    try:
        command = parse([*job["arguments"], "--secret-file", f"/proc/self/fd/{secret}", "-"])
        assert isinstance(command, AgentCommand)
        # The driver shows the progress of a fit.
        command = dataclasses.replace(command, options=dataclasses.replace(command.options, shows_status=False))
        make_agent = functools.partial(LocalAgent, line=line)
        return exit_code_of(lambda: run_node(command, make_agent=make_agent))
    finally:
        os.close(secret)


class LocalResourceLink:
    """The way to the resource manager of a local cluster, which its server asks.

    Args:
        line: To the server.

    Attributes:
        offer: The last offer that came.
    """

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


class LocalAgent(ElasticAgent):
    """An agent whose task is forked by the server.

    Args:
        spec: Of torch.
        line: To the server.
    """

    def __init__(self, spec: WorkerSpec, *args: Any, line: Connection, **kwargs: Any) -> None:
        super().__init__(spec, *args, **kwargs)
        self._line = line
        self.resources = LocalResourceLink(line)
        self._node: Node | None = None
        self._pid = 0
        self._code: int | None = None

    def begins(self, loop: EventLoop, node: Node) -> None:
        """Listen to the server, too."""
        self._node = node
        loop.watch(self._line, self._listen)

    def spawn_task(self) -> int:
        """Ask the server for a task.

        Raises:
            PeerLostError: The server does not answer.
        """
        environment = self.task_environment()
        self._pid, self._code = 0, None
        self._line.send("task", control=environment["CHICLE_CONTROL"], max_nodes=int(environment["CHICLE_MAX_NODES"]))
        while not self._pid:
            said = self._line.receive(FORK_TIMEOUT_S)
            if said is None:
                raise PeerLostError(f"the server of the local cluster has forked no task within {FORK_TIMEOUT_S:g} s")
            self._hear(said)
        return self._pid

    def task_exit(self, timeout_s: float = 0.0) -> RunProcsResult | None:
        """How the task ended, or None when it still runs after `timeout_s` seconds, or none was started."""
        end_s = time.monotonic() + timeout_s
        while self._pid and self._code is None:
            said = self._line.receive(max(0.0, end_s - time.monotonic()))
            if said is None:
                return None
            self._hear(said)
        if self._code is None:
            return None
        failures = {}
        if self._code != 0:
            failures[0] = ProcessFailure(local_rank=0, pid=self._pid, exitcode=self._code, error_file="")
        return RunProcsResult(return_values={}, failures=failures)

    def stop_task(self, *, number: signal.Signals = signal.SIGTERM, grace_s: float = 5.0) -> None:
        """End the task with a signal, after the grace period by SIGKILL. Does nothing when none runs."""
        for number_now, wait_s in ((number, grace_s), (signal.SIGKILL, grace_s)):
            if self._pid and self._code is None:
                with contextlib.suppress(ConnectionError):  # without its server nothing here goes on
                    self._line.send("signal", number=int(number_now))
                self.task_exit(wait_s)
        self._pid = 0

    def _listen(self) -> None:
        for said in self._line.read():
            self._hear(said)

    def _hear(self, said: Received) -> None:
        if said.kind == "forked":
            self._pid = said.fields["pid"]
        elif said.kind == "ended" and said.fields["pid"] == self._pid:
            self._code = said.fields["code"]
        elif said.kind == "stop" and self._node is not None:
            self._node.stop(said.fields["reason"])
        elif said.kind == "offered" and isinstance(self.resources, LocalResourceLink):
            self.resources.hear(said)
