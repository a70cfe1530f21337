"""Bounding an iteration: a task that is much slower than the others no longer makes them wait for all of its rows.

Why. An iteration ends when its slowest task does. `Rebalance` takes chunks from a slow task, which needs a few
iterations and a boundary each time, and gives them back when the task is well again. Until then a node that is
throttled for some seconds, by another job or by its heat, costs all nodes that time. But sums of coordinate descent and
steps of local SGD are good for any part of a pass: the theory of CoCoA asks for a local solution of some quality
theta < 1 and not for a whole pass (Ma et al. 2015, assumption 1), and a mean of steps weighs each task by its samples.
So the tasks can merge what they have at a deadline, as others do with gradients (Ferdinand et al. 2019, "Anytime
minibatch"). A slow task is busy all the time in both cases and processes as many rows per second; the others process
more.

    t_k   seconds per sample of task k: the median over its last `window` iterations
    q     part of its rows that a task takes in an iteration; 1 for coordinate descent
    T_k   = t_k q n_k, seconds that an iteration of all its n_k rows takes, cut or not
    M, D  median and deviation (1.4826 median absolute deviations) of T over the other tasks

A task is a straggler where T_k > `factor` M. One report is enough where it is twice as much: each further one would be
as slow, and a deadline costs a task that is well again nothing. The deadline is the larger of M + `spread` D and
(1 + `margin`) M, so noise does not cut the tasks that are well. It follows M where that changes by more than `margin`.
It is lifted when every task would have finished all of its rows within it in each of the last `window` iterations;
between `factor` and the deadline lies the hysteresis.

What is cut is drawn anew: coordinate descent visits rows in an order of its own in each iteration, so all rows of a
slow task have their turn, more seldom. Where that lasts, `Rebalance` gives them to others; both policies see T_k whole.

What it cannot do. Newton's method and working sets need every row: the runtime offers no deadline there
(`Trainer.may_be_cut`) and the policy is silent. A frozen task obeys no deadline: after two seconds of silence the
agents declare its node lost, and it joins again.
"""

import math
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy, require_number, require_reports
from chicle_elastic.values import DEADLINE, Decision, Observations, SetParameter

MAD_TO_DEVIATION = 1.4826  # a normal deviation over its median absolute deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler(Policy):
    """Ends iterations at a deadline while one task is much slower than the others.

    For coordinate descent and local SGD.

    Attributes:
        factor: Times the median of the others that a task must take to be a straggler, > 1 + `margin`.
        margin: Part of the median by which the deadline is later than it at least, > 0.
        spread: Deviations of the others by which the deadline is later than their median at least, >= 0.
        window: Iterations whose median counts, >= `min_reports` and <= 32.
        min_reports: Iterations that a task must have done before it is judged, >= 2.
        min_iteration_s: Seconds that an iteration must take for a deadline to be worth it, > 0; none is shorter.

    >>> from chicle_elastic import LocalCluster, Rebalance, Straggler
    >>> cluster = LocalCluster(4, policies=(Straggler(), Rebalance()))  # a value: nothing is started yet
    >>> Straggler(factor=1.1)
    Traceback (most recent call last):
    ...
    chicle_elastic.errors.UsageError: Straggler(factor=1.1): it must be > 1 + margin, which is 1.25
    """

    factor: float = 1.75
    margin: float = 0.25
    spread: float = 5.0
    window: int = 5
    min_reports: int = 3
    min_iteration_s: float = 0.005

    def __post_init__(self) -> None:
        require_reports(self, self.window, self.min_reports)
        require_number(self, "spread", lambda value: 0 <= value < math.inf, "finite and >= 0")
        for name in ("factor", "margin", "min_iteration_s"):
            require_number(self, name, lambda value: 0 < value < math.inf, "finite and > 0")
        if self.factor <= 1 + self.margin:
            raise UsageError(
                f"Straggler(factor={self.factor!r}): it must be > 1 + margin, which is {1 + self.margin:g}"
            )

    def decide(self, observations: Observations, /) -> Decision | None:
        """A deadline, another one, or none any more; None where the present one is right."""
        present_s = observations.parameters.get(DEADLINE)
        if present_s is None:
            return None
        tasks = self._tasks(observations)
        if len(tasks) < 2:
            return None
        times_s = {node: max(task.time_s, task.last_s / 2) for node, task in tasks.items()}
        slowest = max(times_s, key=lambda node: times_s[node])
        others = [task.time_s for node, task in tasks.items() if node != slowest]
        middle_s = median(others)
        deviation_s = MAD_TO_DEVIATION * median(abs(seconds - middle_s) for seconds in others)
        limit_s = max(middle_s + self.spread * deviation_s, (1 + self.margin) * middle_s, self.min_iteration_s)
        ratio = max(tasks[slowest].time_s, tasks[slowest].last_s) / middle_s
        is_bound = present_s > 0
        if is_bound and max(task.longest_s for task in tasks.values()) <= limit_s:
            reason = (
                f"{slowest}, the slowest task, takes {ratio:.2g}x the median time of the others: no deadline any more"
            )
            return _decision(0.0, reason)
        if times_s[slowest] <= max(self.factor * middle_s, limit_s):
            return None  # slow, but not so slow that it is cut, or that a deadline which is there should change
        if is_bound and abs(limit_s / present_s - 1) <= self.margin:
            return None
        reason = (
            f"{slowest} takes {ratio:.2g}x the median time of the others for its rows; iterations end after "
            f"{1e3 * limit_s:.3g} ms with what is done"
        )
        return _decision(limit_s, reason)

    def _tasks(self, observations: Observations) -> "dict[NodeId, _Task]":
        """Collect what is known of each task that has rows and was seen often enough."""
        last = {node: observations.reports.get(node, ())[-self.window :] for node in observations.num_chunks}
        rows = {
            node: count
            for node, reports in last.items()
            if len(reports) >= self.min_reports and (count := observations.samples[node])
        }
        parts = [median(report.samples for report in last[node]) / count for node, count in rows.items()]
        part = min(1.0, max(parts, default=1.0))
        tasks = {}
        for node, count in rows.items():
            times_s = [part * count * report.duration_s / max(report.samples, 1) for report in last[node]]
            if (middle_s := median(times_s)) > 0:
                tasks[node] = _Task(middle_s, times_s[-1], max(times_s))
        return tasks


class _Task(NamedTuple):
    """Seconds that a task takes for all rows of an iteration, cut or not: in the median, in the last one, at most."""

    time_s: float
    last_s: float
    longest_s: float


def _decision(seconds: float, reason: str) -> Decision:
    return Decision(actions=(SetParameter(DEADLINE, seconds),), reason=reason)
