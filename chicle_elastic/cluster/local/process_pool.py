"""Processes of a local cluster that are kept from job to job: starting eight of them is half of a short fit.

    server -> process   job (what to do) + the file for what it prints, and other descriptors
    process -> server   free (done; it may be given another job); before it, whatever the job makes it say

A process that fails ends, and so does a task that has imported a module of the user's, or was given code by value: that
may be another one when the next job comes, and what it leaves behind is unknown.
"""

import contextlib
import functools
import gc
import os
import socket
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic.cluster.local.forking import ForkedProcess, Forker, name_process
from chicle_elastic.cluster.local.messages import Connection, pair

AGENT, TASK = "agent", "task"
KINDS = (AGENT, TASK)


@dataclass(slots=True, eq=False)
class PooledProcess:
    """One of them."""

    kind: str  # what it can do: be an agent, or a task
    child: ForkedProcess
    line: Connection

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid


class ProcessPool:
    """Those that are free, and how more are made."""

    def __init__(self, forker: Forker) -> None:
        self._forker = forker
        self._free: dict[str, list[PooledProcess]] = defaultdict(list)

    def begin(
        self, kind: str, name: str, job: dict[str, Any], *, fds: Iterable[int] = (), output: Path | None = None
    ) -> PooledProcess:
        """Give a process a job; it is forked when none is free. Raises OSError when no process, memory or descriptor is
        to be had.

        Args:
            job: JSON values, for the kind's body; with "is_single_use" the process ends after it.
        """
        process = self._free[kind].pop() if self._free[kind] else self._fork(kind, name)
        try:
            self._forker.print_to(process.child, name, output)
        except OSError:
            process.line.close()  # it ends
            raise
        with contextlib.suppress(ConnectionError):  # it was killed, and its end will be seen
            process.line.send("job", fds=(process.child.output, *fds), name=name, job=job)
        return process

    def give_back(self, process: PooledProcess) -> None:
        """It is free."""
        self._free[process.kind].append(process)

    def ended(self, child: ForkedProcess) -> None:
        """A child has ended; perhaps it was free."""
        for free in self._free.values():
            for process in [process for process in free if process.child is child]:
                free.remove(process)
                process.line.close()

    def trim(self, count: int) -> None:
        """Keep so many of each kind, those that had work last; the others end."""
        for free in self._free.values():
            while len(free) > count:
                free.pop(0).line.close()

    def _fork(self, kind: str, name: str) -> PooledProcess:
        line, sock = pair()
        with sock:
            child = self._forker.fork(name, functools.partial(_serve, kind, sock), keep=(sock.fileno(),))
        return PooledProcess(kind, child, line)


def _serve(kind: str, sock: socket.socket) -> int:
    """Body of the process; returns its exit code."""
    from chicle_elastic.cluster.local import agent as local_agent
    from chicle_elastic.cluster.local import task as local_task

    do = {AGENT: local_agent.run_agent, TASK: local_task.run_task}[kind]
    with Connection(sock) as line:
        while (said := line.receive()) is not None:
            if said.kind != "job":
                continue  # for an agent of the job before
            output, *fds = said.fds
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            name_process(said.fields["name"])
            known = set(sys.modules)
            code = do(line, said.fields["job"], fds)
            is_clean = all(is_ours(name, known) for name in sys.modules.keys() - known)
            if code or not is_clean or said.fields["job"].get("is_single_use"):
                return code
            sys.stdout.flush()
            sys.stderr.flush()
            line.send("free")
            gc.collect()  # what is left of a job may hold sockets; what was there before the fork is not looked at
    return 0


def is_ours(name: str, known: set[str]) -> bool:
    """Whether a module belongs to a package that was here before, or to Python; not if it only has the name of one."""
    package = name.partition(".")[0]
    if package in known:
        return True
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    if package not in sys.stdlib_module_names or origin is None:
        return False
    return origin in ("built-in", "frozen") or Path(origin).is_relative_to(sysconfig.get_path("stdlib"))
