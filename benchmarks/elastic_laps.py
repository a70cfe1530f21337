"""When iterations ended, written down by tasks and read by the benchmark, and what a change of the membership cost.

A task appends one line to the file of its node after each iteration:

    seconds   end of the iteration, on the clock that all processes of a host share
    members   nodes that took part
    pid       of the task

The stall of a change, for one node that stays, is the longest time between two ends of iterations around it, less the
median iteration before it. That of the job is that of the node that was held up longest. Around a notice or a loss
means from the signal on; around a join from some iterations before it on: the process of a joiner takes seconds to
start, in which no other node waits for it, but on a small machine it takes processors from the others.
"""

import itertools
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NUM_AROUND = 10
"""Iterations after a change, and before a join, that are looked at."""
NUM_BEFORE = 50
"""Iterations before a change whose median is the normal one."""


@dataclass(frozen=True, slots=True)
class Lap:
    """The end of an iteration.

    Attributes:
        end_s: When.
        members: Nodes that took part.
        pid: Of the task.
    """

    end_s: float
    members: int
    pid: int


class LapWriter:
    """For a task: takes down the end of each iteration.

    Args:
        path: Appended to; the task before this one on the node may have begun it.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()

    def ended(self, members: int) -> None:
        """An iteration has ended now."""
        os.write(self._fd, f"{time.perf_counter():.6f} {members} {self._pid}\n".encode())


class LapReader:
    """For the benchmark: follows the file of a node.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._laps: list[Lap] = []

    def laps(self) -> Sequence[Lap]:
        """Everything up to now."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                whole, line_feed, _ = file.read().rpartition(b"\n")
            self._position += len(whole) + len(line_feed)
            for line in whole.splitlines():
                end_s, members, pid = line.split()
                self._laps.append(Lap(float(end_s), int(members), int(pid)))
        return self._laps


def first_after(laps: Sequence[Lap], start_s: float, members: int) -> int | None:
    """Index of the first iteration of so many members that ended after an instant; None while there is none."""
    return next((i for i, lap in enumerate(laps) if lap.end_s > start_s and lap.members == members), None)


def stall_s(laps: Sequence[Lap], start_s: float, members: int, *, is_join: bool = False) -> float:
    """What a change cost a node that stayed.

    Args:
        laps: Of that node.
        start_s: When the change was asked for: a signal, or the start of a process.
        members: Nodes after it.
        is_join: Whether only the iterations right before the change count, and not all since `start_s`.
    """
    change = first_after(laps, start_s, members)
    assert change is not None, f"no iteration of {members} members after the change"
    last = max(i for i, lap in enumerate(laps) if lap.end_s <= start_s)
    first = max(last, change - NUM_AROUND) if is_join else last
    around = [lap.end_s for lap in laps[first : change + NUM_AROUND + 1]]
    normal = [lap.end_s for lap in laps[max(0, last - NUM_BEFORE) : last + 1]]
    return max(_gaps(around)) - statistics.median(_gaps(normal))


def _gaps(ends_s: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(ends_s)]
