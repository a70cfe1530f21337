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
from typing import NamedTuple

from chicle_elastic.cluster.agent.task_end import exit_words
from chicle_elastic.cluster.local.messages import Connection, connect, listen
from chicle_elastic.cluster.local.outputs import last_words, open_output
from chicle_elastic.errors import MissingExtraError, PeerLostError
from chicle_elastic.settings import limited_environment
from chicle_elastic.surroundings import hold_descriptors, is_folder_gone
from chicle_elastic.transports.unix_frames import require_unix_sockets

START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 5.0
RETRY_S = 0.02
PACKAGE = "cloudpickle"

PROGRAM = """
import gc, json, sys
path, *arguments = json.loads(sys.argv[1])
sys.path[:] = path
from chicle_elastic.settings import hide_stack_traces_of_torch
hide_stack_traces_of_torch()
gc.disable()  # it would look through all that is imported, again and again
from chicle_elastic.cluster.local.fork_server import serve
serve(*arguments)
"""

_lock = threading.Lock()
_servers: dict[tuple[int, str], "_Server"] = {}
"""Servers that this process has started, by process id (a fork is not their owner) and address."""


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    output: int  # descriptor of the file in memory that has what it printed


def reach_server(address: str, *, idle_s: float, threads: int) -> Connection:
    """A line to the server of a cluster, which is started when there is none. Raises MissingExtraError when cloudpickle
    is not installed, PeerLostError when the server cannot be started, or has ended at its start, UsageError when this
    is not Linux.

    Args:
        idle_s: After so long without anything to do a server that is started here ends.
    """
    require_unix_sockets()
    hold_descriptors()
    deadline_s = time.monotonic() + START_TIMEOUT_S
    is_started = False
    with _lock:
        while True:
            line = connect(address)
            if line is not None:
                return line
            if is_started and (end := how_ended(address)):
                raise PeerLostError(f"the server of the local cluster {end}")
            _require_package()
            is_started = _start(address, idle_s, threads) or is_started
            if time.monotonic() > deadline_s:
                raise PeerLostError(
                    f"the server of the local cluster {address} could not be reached within {START_TIMEOUT_S:g} s"
                )
            time.sleep(RETRY_S)


def how_ended(address: str) -> str:
    """How a server that does not answer any more has ended, and what it printed last, as a part of a sentence. Empty
    where this process has not started it."""
    server = _servers.get((os.getpid(), address))
    if server is None:
        return ""
    try:
        end = f"ended with {exit_words(server.process.wait(END_TIMEOUT_S))}"
    except subprocess.TimeoutExpired:
        end = "has hung up"
    return f"{end}\n{last_words(server.output)}".rstrip()


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


def _start(address: str, idle_s: float, threads: int) -> bool:
    """Start a server, unless another process or thread is just about to; returns whether this one has."""
    ended = _servers.pop((os.getpid(), address), None)
    if ended is not None:
        _wait(ended)
    listener = listen(address)
    if listener is None:
        return False
    with listener:
        arguments = [sys.path, listener.fileno(), os.getpid(), idle_s]
        output = open_output("server", None)
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, json.dumps(arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(listener.fileno(),),
                env=limited_environment(threads),
                cwd="/" if is_folder_gone() else None,
                start_new_session=True,  # Ctrl-C in a terminal is for the driver
            )
        except BaseException:
            os.close(output)
            raise
    if not _servers:
        atexit.register(_end_all)
    _servers[os.getpid(), address] = _Server(process, output)
    return True


def _require_package() -> None:
    """Say that it is missing here: the server would end with a traceback, and its end says nothing."""
    try:
        is_here = importlib.util.find_spec(PACKAGE) is not None
    except (ImportError, ValueError):  # its import is blocked
        is_here = False
    if not is_here:
        raise MissingExtraError.for_package(PACKAGE, extra="cluster", purpose="a local cluster (n_workers=)")


def _wait(server: _Server) -> None:
    try:
        server.process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
    os.close(server.output)


def _end_all() -> None:
    for pid, address in list(_servers):
        if pid == os.getpid():
            end_server(address)
