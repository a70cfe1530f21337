"""Projected time, as in the paper: how many units an iteration takes on so many nodes, and how many nodes there are.

A unit is what one node takes for a sixteenth of the data. Everything here is a pure function.

    micro-tasks     K tasks, fixed, are dealt to N nodes: ceil(K / N) of them take turns on the busiest one
    uni-tasks       one task per node, which has its part of all chunks

CoCoA makes one pass over all data per iteration, whatever the number of tasks. Local SGD processes K L H samples in an
iteration (L a batch, H local steps). There a unit is what a node takes for L H samples: an iteration takes a task one
unit, and fewer tasks process less in it. The last iteration of an epoch, which has what is left, takes that part of it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

NODES = 16
"""Nodes that process all data in one unit."""


def micro_units(tasks: int, nodes: int) -> float:
    """Units of an iteration of CoCoA by micro-tasks: 16 / K x ceil(K / N)."""
    return NODES / tasks * math.ceil(tasks / nodes)


def uni_units(nodes: int) -> float:
    """Units of an iteration of CoCoA by uni-tasks: 16 / N."""
    return NODES / nodes


def micro_units_of_local_sgd(tasks: int, nodes: int) -> float:
    """Units of an iteration of local SGD by micro-tasks: ceil(K / N)."""
    return float(math.ceil(tasks / nodes))


def uni_iterations_of_local_sgd(nodes: int) -> float:
    """Iterations of local SGD by uni-tasks, of one unit each, for the samples of one with 16 nodes: 16 / N."""
    return NODES / nodes


def micro_units_of_mixed_nodes(tasks: int, slowdown: float) -> float:
    """The same on 8 slow and 8 fast nodes: the best i, j with 8 i + 8 j = K of 16 / K x max(slowdown x i, j)."""
    per_pair = tasks // (NODES // 2)
    if per_pair * NODES // 2 != tasks:
        raise ValueError(f"{tasks} tasks cannot be dealt evenly to 8 slow and 8 fast nodes; take a multiple of 8")
    return NODES / tasks * min(max(slowdown * slow, per_pair - slow) for slow in range(per_pair + 1))


def uni_units_of_mixed_nodes(slowdown: float) -> float:
    """Units of an iteration of uni-tasks on 8 slow and 8 fast nodes, each with chunks by its speed."""
    return NODES / (NODES / 2 * (1.0 + 1.0 / slowdown))


@dataclass(frozen=True, slots=True)
class Ramp:
    """So many nodes at first, which become more or fewer by some at a time.

    Attributes:
        first: Nodes at the beginning.
        last: Nodes in the end.
        every: Units from one change to the next.
        step: Nodes that come or go at a change.
    """

    first: int
    last: int
    every: float
    step: int = 2

    def nodes(self, time: float) -> int:
        """Nodes at a time, in units."""
        num_changes = int(time / self.every + 1e-9)
        if self.first > self.last:
            return max(self.last, self.first - self.step * num_changes)
        return min(self.last, self.first + self.step * num_changes)


def iterations(ramp: Ramp, units: Callable[[int], float]) -> Iterator[tuple[int, float]]:
    """(nodes, time at its end) of each iteration; nodes come and go between iterations.

    Args:
        ramp: How many nodes there are.
        units: Of an iteration with so many nodes.
    """
    time = 0.0
    while True:
        nodes = ramp.nodes(time)
        time += units(nodes)
        yield nodes, time


def ends(ramp: Ramp, units: Callable[[int], float], count: int) -> npt.NDArray[np.float64]:
    """Time at the end of each of so many iterations, shape (count,)."""
    steps = iterations(ramp, units)
    return np.array([next(steps)[1] for _ in range(count)])


def changes(ramp: Ramp, units: Callable[[int], float], count: int) -> tuple[tuple[int, int], ...]:
    """Pairs (iteration, nodes) for `InProcess(changes=...)`: after that iteration there are so many nodes."""
    steps = iterations(ramp, units)
    counts = [next(steps)[0] for _ in range(count)]
    pairs = zip(range(1, count), counts, counts[1:], strict=False)
    return tuple((iteration, after) for iteration, before, after in pairs if after != before)


def time_to(target: float, gaps: Iterable[float], times: Iterable[float]) -> float:
    """When the gap is at most the target for the first time; infinite if it never is."""
    return next((time for gap, time in zip(gaps, times, strict=False) if gap <= target), math.inf)


def changes_of_local_sgd(ramp: Ramp, num_rows: int, per_task: int) -> tuple[tuple[int, int], ...]:
    """Pairs (iteration, nodes) for `InProcess(changes=...)`, for local SGD by uni-tasks.

    Args:
        ramp: How many nodes there are.
        num_rows: Samples of an epoch.
        per_task: Samples of a task in an iteration, L H.
    """
    pairs: list[tuple[int, int]] = []
    time, iteration, left, nodes = 0.0, 0, num_rows, ramp.nodes(0.0)
    while nodes != ramp.last:
        taken = min(nodes * per_task, left)
        left = left - taken or num_rows
        time += taken / (nodes * per_task)
        iteration += 1
        if (after := ramp.nodes(time)) != nodes:
            pairs.append((iteration, after))
            nodes = after
    return tuple(pairs)


def ends_of_uni_local_sgd(samples: Sequence[int], counts: Sequence[int], per_task: int) -> list[float]:
    """Time at the end of each iteration of uni-tasks.

    Args:
        samples: Of each iteration, by all tasks.
        counts: Tasks in each iteration, one per node.
        per_task: L H.
    """
    return list(accumulate(taken / (count * per_task) for taken, count in zip(samples, counts, strict=True)))


def ends_of_micro_local_sgd(ramp: Ramp, samples: Sequence[int], tasks: int, per_task: int) -> list[float]:
    """The same of K micro-tasks, on the nodes that are there when an iteration begins.

    Args:
        ramp: How many nodes there are.
        samples: Of each iteration, by all tasks.
        tasks: K.
        per_task: L H.
    """
    time, ends = 0.0, []
    for taken in samples:
        time += micro_units_of_local_sgd(tasks, ramp.nodes(time)) * taken / (tasks * per_task)
        ends.append(time)
    return ends
