"""What a benchmark runs on, in words, and what processes take of it."""

import os
import platform
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """The processor by name, where Linux tells it, and how many there are."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}"


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += processes(int(child))
    return found


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def pss_mib(pid: int) -> float:
    """Proportional set size of a process: pages that processes share are divided among them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


class Watch:
    """Samples what processes take, from a thread. A context manager.

    Args:
        members: The processes, asked for before each sample.
        every_s: Between two samples.

    Attributes:
        first_mib, most_mib: Memory of all of them together in the first sample, and the most.
    """

    def __init__(self, members: Callable[[], Iterable[int]], every_s: float) -> None:
        self.first_mib = self.most_mib = 0.0
        self._members, self._every_s = members, every_s
        self._first_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def cpu_s(self) -> float:
        """Processor time of all of them since the first sample."""
        return sum(self._last_s.values()) - sum(self._first_s.values())

    def sample(self) -> None:
        """Look at all of them once."""
        total_mib = 0.0
        for pid in self._members():
            try:
                self._last_s[pid] = cpu_s(pid)
                total_mib += pss_mib(pid)
            except (OSError, StopIteration, IndexError):  # it has just ended
                continue
        self.most_mib = max(self.most_mib, total_mib)

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            self.sample()

    def __enter__(self) -> Self:
        self.sample()
        self.first_mib, self._first_s = self.most_mib, dict(self._last_s)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.sample()
