"""The threads of a solver, and how many of them help."""

import itertools
import math
import os
from concurrent.futures import ThreadPoolExecutor

PHASE = 5  # passes with all threads, then with one, before the two are compared; the first of each is not counted


def kernel_threads(num_threads: int) -> ThreadPoolExecutor:
    """Threads that live as long as the solver, each on a processor of its own where they take all there are.

    A thread that was moved finds its w in the cache of another processor. With processors to spare the system places
    them: several fits side by side would all choose the first ones.
    """
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    numbers = itertools.count()

    def begin() -> None:
        if num_threads == len(processors):
            os.sched_setaffinity(0, {processors[next(numbers)]})

    return ThreadPoolExecutor(num_threads, thread_name_prefix="chicle-kernel", initializer=begin)


class ThreadChoice:
    """All threads, or one where that reaches the optimum with fewer visits one after the other (pure).

    Threads add up their steps, and each takes smaller ones for it (sigma'). On weakly regularised problems that costs
    twice the passes, and two threads need longer than one.
    """

    def __init__(self, most: int) -> None:
        self.num_threads = most
        self._most = most
        self._gaps: list[float] = []
        self._visits: list[float] = []
        self._speed = 0.0

    def add(self, relative_gap: float, num_visits: float) -> None:
        """Learn the gap that a pass with `num_threads` came to, and the visits that each of them has made."""
        if not self.is_open:
            return
        self._gaps.append(max(relative_gap, 1e-300))
        self._visits.append(num_visits)
        if len(self._gaps) < PHASE:
            return
        speed = math.log(self._gaps[0] / self._gaps[-1]) / max(sum(self._visits[1:]), 1.0)
        self._gaps, self._visits = [], []
        if self._speed == 0.0:
            self._speed, self.num_threads = max(speed, 1e-300), 1
            return
        self.num_threads = 1 if speed > self._speed else self._most
        self._speed = math.inf

    @property
    def is_open(self) -> bool:
        """Whether it still has to learn."""
        return self._most > 1 and self._speed != math.inf
