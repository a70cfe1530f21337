"""Forks the processes of a local cluster from one that has imported everything, and looks after them.

The parent has one thread and holds no lock, so a child may go on as if it had been started afresh. It begins with
nothing of its parent's but memory: descriptors are closed, signals are as the system has them, and what it prints goes
to a file of its own, the end of which is told when it fails. When the parent ends, the kernel ends all children.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from chicle_elastic.cluster.local.outputs import last_words, open_output
from chicle_elastic.start_signals import die_with

PR_SET_NAME = 15
EXIT_FAILED = 1

_libc = ctypes.CDLL(None)


@dataclass(slots=True, eq=False)
class ForkedProcess:
    """A process."""

    name: str
    pid: int
    output: int  # descriptor of the file that has what it printed
    code: int | None = field(default=None)  # its exit code, negative for a signal; None while it runs

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs: a process id is not used again before its end is seen here."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def printed(self) -> str:
        """The end of what it printed."""
        return last_words(self.output)


class Forker:
    """Forks and reaps; see the top of the module."""

    def __init__(self) -> None:
        self._children: dict[int, ForkedProcess] = {}
        gc.freeze()  # a collection in a child would touch, and so copy, every page that has a Python object

    @property
    def num_running(self) -> int:
        """Children that run."""
        return len(self._children)

    def fork(
        self, name: str, body: Callable[[], int], *, keep: Iterable[int] = (), output: Path | None = None
    ) -> ForkedProcess:
        """Start a process. `body`: what it does; returns its exit code."""
        fd = open_output(name, output)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_child(name, parent, body, {*keep, 0, 1, 2}, fd)
        child = ForkedProcess(name, pid, fd)
        self._children[pid] = child
        return child

    def print_to(self, child: ForkedProcess, name: str, output: Path | None) -> None:
        """From now on a child has another name, and prints into another file: `child.output`, which it is to be
        sent."""
        fd = open_output(name, output)
        os.close(child.output)
        child.name, child.output = name, fd

    def reap(self) -> list[ForkedProcess]:
        """Children that have ended since the last time; `close` each of them when it has been told of."""
        ended = []
        while self._children:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                child = self._children.pop(pid, None)
                if child is not None:
                    child.code = os.waitstatus_to_exitcode(status)
                    ended.append(child)
        return ended

    def close(self, child: ForkedProcess) -> None:
        """Give up what it printed."""
        if child.output >= 0:
            os.close(child.output)
            child.output = -1

    def end(self, child: ForkedProcess) -> int:
        """SIGKILL for a child that has not ended by itself; waits for its end and returns its exit code."""
        child.signal(signal.SIGKILL)
        self._children.pop(child.pid, None)
        child.code = -signal.SIGKILL
        with contextlib.suppress(ChildProcessError):
            child.code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        return child.code

    def end_all(self) -> None:
        """SIGKILL for all children; waits for their ends."""
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        for child in list(self._children.values()):
            self.end(child)
            self.close(child)

    def _be_child(self, name: str, parent: int, body: Callable[[], int], keep: set[int], output: int) -> None:
        """Never returns: objects of the parent must not be finalised here, their descriptors may belong to others."""
        code = EXIT_FAILED
        try:
            die_with(parent)
            name_process(name)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGPIPE):
                signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(output, 2)
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd not in keep:
                    with contextlib.suppress(OSError):  # the descriptor of the listing itself
                        os.close(fd)
            code = body()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else EXIT_FAILED if error.code else 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 0xFF)


def name_process(name: str) -> None:
    """Have this process show as "chicle NAME" in `ps`, or as much of it as 15 characters hold."""
    _libc.prctl(PR_SET_NAME, f"chicle {name}".encode()[:15], 0, 0, 0)
