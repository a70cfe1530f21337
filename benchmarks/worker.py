"""Processes in which fits are timed: with the environment of a user or with one thread, and beside busy ones."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from chicle_elastic.settings import THREAD_LIMITS

COLUMNS: dict[str, dict[str, str]] = {"as typed": {}, "one thread": dict.fromkeys(THREAD_LIMITS, "1")}
T = TypeVar("T")


def environment(column: str) -> dict[str, str]:
    """Return that of this process without thread variables, and with those of a column."""
    return {name: value for name, value in os.environ.items() if name not in THREAD_LIMITS} | COLUMNS[column]


class Worker:
    """A process that calls functions, and the next one after a call that took too long. A context manager.

    Args:
        column: One of `COLUMNS`.
        limit_s: The longest that a call may take.
    """

    def __init__(self, column: str, limit_s: float) -> None:
        self.column = column
        self.limit_s = limit_s
        self._pool: ProcessPoolExecutor | None = None
        self._pid = 0

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of a module there.

        Raises:
            TimeoutError: It took too long.
        """
        if self._pool is None:
            self._pool = self._start()
        try:
            return self._pool.submit(function, *arguments).result(self.limit_s)
        except TimeoutError:
            os.kill(self._pid, signal.SIGKILL)
            self.close()
            raise

    def _start(self) -> ProcessPoolExecutor:
        """No daemon, as that of a `Pool` is: searches begin processes of their own there."""
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(environment(self.column))
        try:  # frozen, so that garbage is not looked for in all that is imported
            pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=gc.freeze)
            self._pid = pool.submit(os.getpid).result()
        finally:
            os.environ.clear()
            os.environ.update(before)
        return pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Processes that only count, meanwhile."""
    found = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in found:
            process.kill()
            process.wait()
