"""Nodes in processes that are forked from one that has everything imported: seconds per node otherwise.

The tasks of these nodes are started by their agents, like anywhere.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from chicle_elastic.cluster.net.event_file import EventTail
from tests.timeouts import timeout_s

ROOT = Path(__file__).parents[2]
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = (
    *("tests.harness.faults", "chicle_elastic.cluster.launcher", "torch.distributed.run"),
    *("chicle_elastic.runtime.cluster_task.task", "chicle_elastic.solvers.linear.solver"),
    "tests.runtime.cluster_task.cluster_apps",
)
ENVIRON = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Event = dict[str, Any]


def start_fork_server() -> None:
    """Start the process that nodes are forked from, unless this process has one; it stays until the end."""
    CONTEXT.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()


class Forked:
    """A function in a process of its own; what it returns is the exit code.

    Args:
        body: A function of a module.
        arguments: Of the function.
        output: File that takes what it prints, and what its task prints.

    Attributes:
        pid: Its process id.
        output: The file.
    """

    def __init__(self, body: Callable[..., Any], *arguments: Any, output: Path) -> None:
        self.output = output
        self._process = CONTEXT.Process(target=_run, args=(body, arguments, str(output)), daemon=False)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while it runs."""
        if self._exit_code is None:
            self._exit_code = self._process.exitcode
        return self._exit_code

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if the process still runs after so long."""
        if self.poll() is None:
            self._process.join(timeout_s(seconds))
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_all(self) -> None:
        """SIGKILL for it and its task, which may be stopped: a stopped task does not see that its agent is gone."""
        if self.poll() is None:
            self.send_signal(signal.SIGSTOP)  # it starts no other task meanwhile
            for pid in (*children_of(self.pid), self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def close(self) -> None:
        """Wait for its end, and give its descriptors back."""
        if self.poll() is None:
            self._process.join()
            self.poll()
        with contextlib.suppress(ValueError):  # it is closed already
            self._process.close()


def _run(body: Callable[..., Any], arguments: Sequence[Any], output: str) -> None:
    """Body of the process."""
    with open(output, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(body(*arguments))


def launch(arguments: Sequence[str], environ: Mapping[str, str], before: Callable[[], object] | None = None) -> int:
    """Be `python -m chicle_elastic.launch` in a forked process; return the exit code.

    Args:
        arguments: Of the command line.
        environ: Further variables of agent and task.
        before: Called before everything else.
    """
    os.environ.update(ENVIRON | dict(environ))
    tempfile.tempdir = None  # the process that this one was forked from may have looked
    os.chdir(ROOT)
    from chicle_elastic.cluster import launcher

    if before is not None:
        before()
    return launcher.main(arguments)


def children_of(pid: int) -> frozenset[int]:
    """Processes that this one has started and that are its children still."""
    lists = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            lists.append(path.read_text())
    return frozenset(map(int, " ".join(lists).split()))


def has_loaded(pid: int, library: str) -> bool:
    """Say whether a process, or one that it has started, has mapped a shared library."""
    for each in (pid, *children_of(pid)):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if library in Path(f"/proc/{each}/maps").read_text():
                return True
    return False


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class NodeEvents:
    """What a node has written down, whichever process it is.

    Args:
        name: Of the node.
        folder: With its event file.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._tail = EventTail(folder, name)
        self._events: list[Event] = []
        self._last: dict[str, Event] = {}

    def events(self, kind: str | None = None) -> list[Event]:
        """Everything that it has written so far, or that of one kind."""
        new = self._tail.read()
        self._events += new
        self._last |= {event["kind"]: event for event in new}
        return [event for event in self._events if kind in (None, event["kind"])]

    def last(self, kind: str) -> Event | None:
        """The last event of a kind that it has written."""
        self.events()
        return self._last.get(kind)

    @property
    def iteration(self) -> int:
        """The last iteration that it has merged; 0 before the first."""
        last = self.last("iteration")
        return 0 if last is None else int(last["iteration"])

    @property
    def task_pid(self) -> int:
        """Of the task that became hot last; 0 before the first."""
        hot = self.last("hot")
        return 0 if hot is None else int(hot["pid"])

    def __repr__(self) -> str:
        return self.name
