"""Processes of a host, as this process sees them."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.harness.forked import CONTEXT, ENVIRON, ROOT, Forked
from tests.timeouts import timeout_s

NAMESPACES = ("time", "pid", "net", "uts", "ipc", "mnt")
"""Those of a host, in the order in which a process enters them: with the last one goes its /proc."""
START_S = 30.0


class HostProcess(Forked):
    """A function that runs in a process of a host, forked from one that has everything imported.

    Two processes, because a process enters a PID namespace only by its children: the outer one waits for the inner one
    and ends like it. `pid` is that of the inner one.

    Args:
        init_pid: First process of the host.
        body: A function of a module; what it returns is the exit code.
        arguments: Of the function.
        output: File for what the process prints.
    """

    def __init__(self, init_pid: int, body: Callable[..., Any], arguments: Sequence[Any], output: Path) -> None:
        receiver, sender = CONTEXT.Pipe(duplex=False)
        with receiver:
            super().__init__(_run, init_pid, sender, body, tuple(arguments), output=output)
            sender.close()
            try:
                if not receiver.poll(timeout_s(START_S)):
                    raise EOFError
                self.pid = int(receiver.recv_bytes())
            except EOFError:
                self.kill_all()
                self.close()
                raise RuntimeError(f"no process enters the host: {self.text()}") from None


class ProgramProcess:
    """A program that runs on a host.

    Args:
        command: The command line, with what enters the host before it.
        output: File for what it prints.
        environ: Further variables of its environment.
        depth: How many processes wait between this one and the program.

    Attributes:
        output: The file.
    """

    def __init__(self, command: Sequence[str], output: Path, environ: Mapping[str, str], *, depth: int) -> None:
        self.output, self._depth = output, depth
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **ENVIRON, **environ},
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        """Of the program itself; None before it runs, and after its end."""
        pid = self._process.pid
        for _ in range(self._depth):
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except OSError:
                return None
            if not children:
                return None
            pid = int(children[0])
        return pid

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the program; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if the program still runs after so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s(seconds))
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, if it runs."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def text(self) -> str:
        """What it has printed, the end of it."""
        return self.output.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """Wait for its end. Its host ends it."""
        self._process.wait()


def enter(init_pid: int, namespaces: Sequence[str] = NAMESPACES) -> None:
    """Move this thread into namespaces of a host; its children, not itself, into the PID namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptors = {name: os.open(f"/proc/{init_pid}/ns/{name}", os.O_RDONLY) for name in namespaces}
    for name, descriptor in descriptors.items():
        is_own = os.fstat(descriptor).st_ino == os.stat(f"/proc/thread-self/ns/{name}").st_ino
        if not is_own and libc.setns(descriptor, 0):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter the {name} namespace: {os.strerror(number)}")
        os.close(descriptor)


def _run(init_pid: int, sender: Connection, body: Callable[..., Any], arguments: Sequence[Any]) -> int:
    """Body of both processes."""
    enter(init_pid)
    # The outer process may not end first: no other process would collect the inner one, and a host whose processes are
    # not collected does not end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if pid := os.fork():
        sender.send_bytes(str(pid).encode())
        sender.close()
        _end_like(pid)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sender.close()
    os.environ.update(ENVIRON)
    os.chdir(ROOT)  # the way into the mount namespace led to its root
    return int(body(*arguments))


def _end_like(pid: int) -> None:
    """Wait for a child, and end like it."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        number = signal.Signals(-code)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code)
