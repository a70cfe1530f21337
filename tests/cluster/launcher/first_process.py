"""A command as the first process of a PID namespace, as in a container: signals without a handler are dropped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.forked import has_loaded
from tests.timeouts import timeout_s

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
POLL_S = 0.002


def needs_namespaces() -> pytest.MarkDecorator:
    """Skips a test where this user may make no PID namespace."""
    is_there = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    return pytest.mark.skipif(not is_there, reason="unshare cannot make a PID namespace here")


class FirstProcess:
    """`python -m MODULE ...` with process id 1 in a namespace of its own. A context manager that ends it.

    Args:
        arguments: The module and its arguments.
        output: File for stdout and stderr.
        before: Command that runs Python.
    """

    def __init__(self, arguments: list[str], output: Path, *, before: tuple[str, ...] = ()) -> None:
        self._output = output
        command = [*UNSHARE, *before, sys.executable, "-m", *arguments]
        with output.open("w") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)
        self.pid = 0
        self.wait_until(self._is_python)

    def wait_until(self, is_it: Callable[[], bool]) -> None:
        """Wait until the process is so far."""
        end_s = time.monotonic() + timeout_s(60)
        while not is_it():
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < end_s, self.output()
            time.sleep(POLL_S)

    def handles(self, number: signal.Signals) -> bool:
        """Whether it has a handler for the signal."""
        return self._is_in("SigCgt", number)

    def blocks(self, number: signal.Signals) -> bool:
        """Whether the signal waits until it is unblocked."""
        return self._is_in("SigBlk", number)

    def has_loaded(self, library: str) -> bool:
        """Say whether a shared library is mapped, by it or a child of it."""
        return has_loaded(self.pid, library)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, from outside of its namespace."""
        os.kill(self.pid, number)

    def exit_code(self) -> int:
        """As soon as it has ended."""
        return self._process.wait(timeout=timeout_s(30))

    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    def _is_python(self) -> bool:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if children:
            self.pid = int(children[0])
        return bool(children) and "-m" in self._read("cmdline").split("\0") and "unshare" not in self._read("cmdline")

    def _is_in(self, mask: str, number: signal.Signals) -> bool:
        line = next(line for line in self._read("status").splitlines() if line.startswith(mask))
        return bool(int(line.split()[1], 16) >> (number - 1) & 1)

    def _read(self, name: str) -> str:
        return Path(f"/proc/{self.pid}/{name}").read_text()

    def __enter__(self) -> "FirstProcess":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()  # and by --kill-child all that runs inside
        self._process.wait()
