"""Nodes on the one kernel of the machine that take each other for nodes on other hosts.

All are forks of the process of the test, which has everything imported: there that takes a minute and a half. The
agent is the one that every cluster has; its task waits as a fork of it, made before it has
threads, until the agent starts it. pytest must leave the standard streams alone (`-s`): forks have those of the system.
"""

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed.run  # noqa: F401 - its parser is in each fork then

from chicle_elastic.cluster.agent.process_agent import ProcessAgent
from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.cluster.launcher import exit_code_of, run_node
from chicle_elastic.cluster.local.forking import ForkedProcess, Forker
from chicle_elastic.cluster.net import peers
from chicle_elastic.cluster.options import AgentCommand, parse
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import BOOT_ID
from tests.harness import chaos_app
from tests.harness.forked import Event, NodeEvents
from tests.timeouts import comes, timeout_s

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
POLL_S = 0.2
"""Whoever looks more often takes the processor away from what is looked at."""


def become_another_host(device: str, boot_id: Path) -> None:
    """Make this process, an agent to be, one on another host, with this device."""
    libc = ctypes.CDLL(None, use_errno=True)
    boot_id.write_text(os.urandom(16).hex(), encoding="ascii")
    for done in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(os.fsencode(boot_id), os.fsencode(BOOT_ID), None, MS_BIND, None),
    ):
        if done:
            raise OSError(ctypes.get_errno(), "no mount of its own")
    os.environ["CHICLE_RDMA"] = f"{device},model"


class Waiting:
    """A task that waits for its agent to start it: a fork of it.

    Args:
        arguments: Of `chaos_app`.
        output: File for what it prints.
    """

    def __init__(self, arguments: list[str], output: Path) -> None:
        self._line, theirs = socket.socketpair()
        self._forker = Forker()
        body = partial(_run_task, theirs.fileno(), arguments)
        self.child: ForkedProcess = self._forker.fork("task", body, keep=(theirs.fileno(),), output=output)
        theirs.close()

    def begin(self, environment: dict[str, str]) -> int:
        """Let it run; returns its process id."""
        self._line.sendall(json.dumps(environment).encode() + b"\n")
        return self.child.pid

    def code(self, wait_s: float) -> int | None:
        """Its exit code; None if it runs for so long yet."""
        end_s = time.monotonic() + wait_s
        while True:
            self._forker.reap()
            if self.child.code is not None or time.monotonic() >= end_s:
                return self.child.code
            time.sleep(0.05)


def _run_task(line: int, arguments: list[str]) -> int:
    with open(line, encoding="utf-8") as said:
        environment = said.readline()
    if environment:  # or its agent has ended
        os.environ.update(json.loads(environment))
        sys.argv = [str(chaos_app.__file__), *arguments]
        chaos_app.main()
    return 0


class ForkingAgent(ProcessAgent):
    """An agent whose only task is one that waits.

    Args:
        task: It.
    """

    def __init__(self, *args: Any, task: Waiting, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._task = task

    def spawn_task(self) -> int:
        """Let the task run."""
        return self._task.begin(dict(self.task_environment()))

    def task_exit(self, timeout_s: float = 0.0) -> TaskEnd | None:
        """How the task ended, or None when it still runs after `timeout_s` seconds."""
        code = self._task.code(timeout_s)
        return None if code is None else TaskEnd(code)

    def signal_task(self, number: signal.Signals) -> None:
        """Send the task a signal."""
        if self._task.code(0) is None:
            self._task.child.signal(number)


def _run_agent(arguments: list[str], task: list[str], device: str, files: Path) -> int:
    become_another_host(device, files.with_suffix(".boot"))
    waiting = Waiting(task, files.with_suffix(".out"))
    logging.root.handlers[:] = [logging.StreamHandler()]  # instead of those of pytest
    logging.root.setLevel(logging.INFO)
    peers.SILENT_S = timeout_s(peers.SILENT_S)  # 2 s of a processor that is emulated are no time
    command = parse(arguments)
    assert isinstance(command, AgentCommand)
    return exit_code_of(lambda: run_node(command, make_agent=partial(ForkingAgent, task=waiting)))


def _run_store(address: str, line: int) -> int:
    with socket.socket(fileno=line) as said, StoreServer(f"{address}:0") as host:
        said.sendall(host.endpoint.encode() + b"\n")
        said.recv(1)  # the end of the test
    return 0


class HostNode(NodeEvents):
    """One node: its agent, and what it has written down."""

    def __init__(self, name: str, child: ForkedProcess, forker: Forker, folder: Path) -> None:
        super().__init__(name, folder)
        self._child, self._forker = child, forker
        self._output = folder / f"{name}.out"

    def wait_for_iteration(self, is_it: Callable[[Event], bool], limit_s: float = 60.0) -> Event:
        """The next iteration of which this is true."""
        seen, end_s = len(self.events()), time.monotonic() + timeout_s(limit_s)
        while time.monotonic() < end_s and self.code() is None:
            for event in self.events()[seen:]:
                if event["kind"] == "iteration" and is_it(event):
                    return event
            seen = len(self._events)
            time.sleep(POLL_S)
        kinds = [event["kind"] for event in self.events()][-20:]
        raise AssertionError(f"{self.name} has had no such iteration; its last events: {kinds}")

    def wait_for_end(self, limit_s: float = 60.0) -> int | None:
        """Its exit code; None when it still runs."""
        comes(lambda: self.code() is not None, limit_s, poll_s=POLL_S)
        return self.code()

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        self._forker.reap()
        return self._child.code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the agent."""
        self._child.signal(number)

    def kill(self) -> None:
        """The node is gone: SIGKILL for the agent, with which its task ends, and for the task."""
        os.kill(self.task_pid, signal.SIGKILL)
        self._child.signal(signal.SIGKILL)

    def output(self) -> str:
        """What agent and task have printed."""
        return self._output.read_text(encoding="utf-8", errors="replace") if self._output.exists() else ""


class Hosts:
    """A rendezvous store, and nodes of one job that counts. A context manager that ends them all.

    Args:
        folder: For everything.
        address: Where the store listens; nodes listen at the same address.
    """

    def __init__(self, folder: Path, *, address: str) -> None:
        self._folder = folder
        self._secret_file = folder / "job.secret"
        JobSecret.load_or_create(self._secret_file)
        self._end_file = folder / "end"
        self._forker = Forker()
        self._children: list[ForkedProcess] = []
        self._line, theirs = socket.socketpair()
        store = partial(_run_store, address, theirs.fileno())
        output = folder / "store.out"
        self._children.append(self._forker.fork("store", store, keep=(theirs.fileno(),), output=output))
        theirs.close()
        self._line.settimeout(timeout_s(10))
        self._endpoint = self._line.recv(100).decode().strip()
        assert self._endpoint, output.read_text()

    def start(self, name: str, device: str) -> HostNode:
        """Start a node that has this device."""
        arguments = [
            *("--nnodes", "1:8", "--name", name, "--rdzv-endpoint", self._endpoint, "--grace", "300"),
            *("--secret-file", str(self._secret_file), "--log-dir", str(self._folder), str(chaos_app.__file__)),
        ]
        task = ["--out", str(self._folder), "--end-file", str(self._end_file), "--work", "count", "--min-ms", "300"]
        files = self._folder / name
        body = partial(_run_agent, arguments, task, device, files)
        child = self._forker.fork(f"agent {name}", body, output=files.with_suffix(".out"))
        self._children.append(child)
        return HostNode(name, child, self._forker, self._folder)

    def end_job(self) -> None:
        """The job ends at its next iteration, and all agents with it."""
        self._end_file.touch()

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()
        self._forker.end_all()
        for child in self._children:
            self._forker.close(child)
