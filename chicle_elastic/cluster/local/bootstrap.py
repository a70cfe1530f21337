"""Starts the server of a local cluster, or finds the one that is there.

The address is an abstract Unix socket with a random name: the first process binds it and starts the server behind it,
all others connect. The server ends with the process that started it (`local_server`).
"""

import atexit
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from typing import IO

from chicle_elastic.cluster.local.messages import Connection, connect, listen
from chicle_elastic.errors import MissingExtraError, PeerLostError
from chicle_elastic.settings import limited_environment
from chicle_elastic.transports.unix_frames import require_unix_sockets

START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 5.0
RETRY_S = 0.02
PACKAGES = ("torch", "cloudpickle")

PROGRAM = """
import json, sys
path, *arguments = json.loads(sys.argv[1])
sys.path[:] = path
from chicle_elastic.settings import hide_stack_traces_of_torch
hide_stack_traces_of_torch()
from chicle_elastic.cluster.local.fork_server import serve
serve(*arguments)
"""

_lock = threading.Lock()
_servers: dict[tuple[int, str], subprocess.Popen[bytes]] = {}
"""Servers that this process has started, by process id (a fork is not their owner) and address."""


def reach_server(address: str, *, idle_s: float, threads: int) -> Connection:
    """A line to the server of a cluster, which is started when there is none.

    Args:
        address: Of the cluster.
        idle_s: After so long without anything to do a server that is started here ends.
        threads: Of BLAS and OpenMP in each task of a server that is started here.

    Raises:
        MissingExtraError: torch or cloudpickle is not installed.
        PeerLostError: The server cannot be started.
        UsageError: This is not Linux.
    """
    require_unix_sockets()
    deadline_s = time.monotonic() + START_TIMEOUT_S
    with _lock:
        while True:
            line = connect(address)
            if line is not None:
                return line
            _require_packages()
            _start(address, idle_s, threads)
            if time.monotonic() > deadline_s:
                raise PeerLostError(
                    f"the server of the local cluster {address} could not be reached within {START_TIMEOUT_S:g} s"
                )
            time.sleep(RETRY_S)


def end_server(address: str) -> None:
    """End the server of a cluster and all that it started, and wait for it. Does nothing when there is none."""
    line = connect(address)
    if line is not None:
        with line, contextlib.suppress(ConnectionError):
            line.send("close")
            line.receive(END_TIMEOUT_S)  # nothing but the end comes
    server = _servers.pop((os.getpid(), address), None)
    if server is not None:
        _wait(server)


def _start(address: str, idle_s: float, threads: int) -> None:
    """Start a server, unless another process or thread is just about to."""
    ended = _servers.pop((os.getpid(), address), None)
    if ended is not None:
        _wait(ended)
    listener = listen(address)
    if listener is None:
        return
    with listener:
        arguments = [sys.path, listener.fileno(), os.getpid(), idle_s]
        server = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=_stderr(),
            stderr=_stderr(),
            pass_fds=(listener.fileno(),),
            env=limited_environment(threads),
            start_new_session=True,  # Ctrl-C in a terminal is for the driver
        )
    if not _servers:
        atexit.register(_end_all)
    _servers[os.getpid(), address] = server


def _require_packages() -> None:
    """Say what is missing here: the server would end with a traceback, and its end says nothing."""
    for package in PACKAGES:
        try:
            is_here = importlib.util.find_spec(package) is not None
        except (ImportError, ValueError):  # its import is blocked
            is_here = False
        if not is_here:
            raise MissingExtraError.for_package(package, extra="cluster", purpose="a local cluster (n_workers=)")


def _stderr() -> IO[bytes] | int:
    """Where the server may complain; a notebook's stderr has no descriptor."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL


def _wait(server: subprocess.Popen[bytes]) -> None:
    try:
        server.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _end_all() -> None:
    for pid, address in list(_servers):
        if pid == os.getpid():
            end_server(address)
