"""Processes that are members of groups, told what to do line by line, and what starts them.

They are forked from a process that has loaded torch, which takes a second.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import IO

import pytest

from chicle_elastic.transports.key_values import KeyValueClient, KeyValueServer
from tests.runtime.cluster_task.cluster_driver import CONTEXT, start_fork_server
from tests.timeouts import timeout_s

# argv: rank, size, port, name of the run. The body has `group` (not connected), `connect()`, `say(word)` and `hear()`.
MEMBER = """
import os, sys, threading, time, zlib
import numpy as np
from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.collectives.socket_group import GroupNetwork
from chicle_elastic.runtime.collectives.process_group import ProcessGroup

rank, size, port = map(int, sys.argv[1:4])
store = "127.0.0.1", port

def say(*words):
    print(*words, flush=True)

def hear():
    return sys.stdin.readline()

def make(round=1):
    return ProcessGroup(round=round, rank=rank, size=size)

def connect(group, *, host="127.0.0.1", first_port=0, last_port=0, key="ab" * 32, **options):
    network = GroupNetwork.of(bind=host, advertise=host, first_port=first_port, last_port=last_port, key=key)
    group.begin(store, prefix=f"{sys.argv[4]}/{group.round}", network=network, **options)
    group.connect()

def later(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread

def break_when_it_waits(group, caller):
    hear()
    # The innermost frame that is Python, of small sums, of large ones and of those on devices.
    while sys._current_frames()[caller].f_code.co_name not in ("_received", "select", "_has_added_up"):
        time.sleep(0.001)
    group.break_()

def attempt(function, *arguments, **options):
    started = time.perf_counter()
    try:
        function(*arguments, **options)
    except PeerLostError as error:
        say("lost", time.perf_counter() - started, str(error))
    else:
        say("done")

group = make()
"""

# Sums between devices, over gloo on the device "cpu": to be put before a body.
DEVICES = """
from datetime import timedelta
import torch
from torch.distributed import ProcessGroupGloo

def make_gloo(store, rank, size):
    return ProcessGroupGloo(store, rank, size, timedelta(seconds=60))

may_use_nccl = True

def connect_devices(group, *, num_values=7, make_group=make_gloo, **options):
    global may_use_nccl
    may_use_nccl = group.connect_devices(
        device=torch.device("cpu"), num_values=num_values, make_group=make_group, **options
    )

def add_up(group, value=1.0, num_values=7):
    group.device_sums.put(torch.full((num_values,), value), 1.0)
    out = np.empty(num_values)
    group.add_up_on_devices(out)
    return out
"""


class Member:
    """One process that is a member of groups."""

    def __init__(self, rank: int, size: int, port: int, run: str, body: str) -> None:
        its_input, tell = CONTEXT.Pipe(duplex=False)
        hear, its_output = CONTEXT.Pipe(duplex=False)
        arguments = ["-c", str(rank), str(size), str(port), run]
        self.process = CONTEXT.Process(target=be_member, args=(MEMBER + body, arguments, its_input, its_output))
        self.process.start()
        its_input.close()
        its_output.close()
        self._input, self._output = as_text(tell, "w"), as_text(hear, "r")

    def hear(self) -> str:
        """The next line that it says."""
        return self._output.readline().strip()

    def tell(self) -> None:
        """Let it go on."""
        print(file=self._input, flush=True)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """Wait for its end."""
        self.process.join(timeout_s(60))
        assert self.process.exitcode == 0

    def kill(self) -> None:
        """End it, if it still runs."""
        self.process.kill()
        self.process.join(timeout_s(10))
        self.process.close()
        self._input.close()
        self._output.close()


def be_member(program: str, arguments: list[str], its_input: Connection, its_output: Connection) -> None:
    """Run a program in this process, which was forked."""
    sys.argv, sys.stdin, sys.stdout = arguments, as_text(its_input, "r"), as_text(its_output, "w")
    exec(program, {"__name__": "__main__"})


def as_text(end: Connection, mode: str) -> IO[str]:
    """One end of a pipe as a file of lines."""
    with end:
        return os.fdopen(os.dup(end.fileno()), mode)


@pytest.fixture(scope="module")
def store() -> Iterator[KeyValueClient]:
    """A client of the store of all tests."""
    start_fork_server()
    listener = socket.create_server(("127.0.0.1", 0))
    server = KeyValueServer(listener)
    with KeyValueClient(*listener.getsockname()) as client:
        assert client.get("key") is None  # the server has taken the connection
        yield client
    server.close()


@pytest.fixture
def start(store: KeyValueClient, request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Member]]]:
    """Starts members, and ends them at last."""
    members: list[Member] = []

    def start(*bodies: str) -> list[Member]:
        started = [Member(rank, len(bodies), store.port, request.node.name, body) for rank, body in enumerate(bodies)]
        members.extend(started)
        return started

    yield start
    for member in members:
        member.kill()
