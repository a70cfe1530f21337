"""Nodes that faults can strike, forked from a process that has everything imported: seconds per node otherwise.

The tasks of these nodes are started by their agents, like anywhere.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ("tests.harness.faults", "chicle_elastic.cluster.agent.elastic_agent", "torch.distributed")


def start_fork_server() -> None:
    """Start the process that nodes are forked from, unless this process has one; it stays until the end."""
    CONTEXT.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()


class ForkedNode:
    """`python -m tests.harness.faults` in a process; the methods are those of `subprocess.Popen`.

    Args:
        arguments: Of the command line.
        output: File that takes what it prints, and what its task prints.
    """

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self._process = CONTEXT.Process(target=_run, args=(list(arguments), str(output)), daemon=False)
        self._process.start()
        assert self._process.pid is not None
        self._pid: int = self._process.pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self._exit_code is None:
            self._exit_code = self._process.exitcode
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self._pid, number)

    def close(self) -> None:
        """Wait for its end, and give its descriptors back."""
        if self.poll() is None:
            self._process.join()
            self.poll()
        self._process.close()


def _run(arguments: list[str], output: str) -> None:
    """Body of the process."""
    with open(output, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from tests.harness import faults

    sys.exit(faults.main(arguments))
