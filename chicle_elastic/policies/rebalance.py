"""Rebalancing (the paper's section on load balancing): chunks go from slower to faster tasks until all end together.

    t_k   seconds per sample of task k: the median over its last `window` iterations, or those since its speed changed
    q     share of the rows that an iteration processes: 1 for coordinate descent, K L H / n for local SGD
    T_k   = t_k q n_k, seconds that an iteration of its n_k rows takes
    T*    = q n / sum(1 / t_k), what an iteration would take if all tasks ended together

Tasks are ranked by T_k. Where the slowest and the fastest differ by more than the time of one chunk, and by more than
noise explains, every task above T* gives away the part `gain` of its surplus n_k - T* / (q t_k), to those furthest
below. Nothing moves when the slowest task has but one chunk left: all wait for it, however the others share theirs.

Noise. The median of m reports with relative deviation s has a standard error of about 1.25 s / sqrt(m). s is the median
absolute deviation, taken over the windows of all tasks, so that a task whose speed has just changed does not hide it
behind its own scatter; a few imaginary reports with the deviation `noise` keep a lucky start from counting as silence.
A difference counts when it is `confidence` standard errors large, and half a one more with every doubling of the tasks,
because the largest of many differences is large by chance. So many precise reports allow the last chunk to move, and
few or noisy ones only what is obvious.

Changes. A median over all of the window follows a change of speed only after half of it. So where the last two reports
of a task or more all differ from the median of those before them by `confidence` deviations, in the same direction,
they alone count. One report does not do: a process that was held up once is as slow as before in the next iteration.

T_k is predicted from the present n_k, so chunks that have just moved are in it, and old reports stay useful.

Short iterations. A move stops all tasks for some milliseconds, and an iteration has a part that does not depend on n_k:
with few samples that part looks like a slow task, which is given ever fewer. So nothing moves while the slowest task
needs less than `min_iteration_s`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Decision, MoveChunks, Observations, Policy, require_number, require_reports
from chicle_elastic.policies.pace import settled, totals_of_iterations

MEDIAN_ERROR = 1.2533  # standard error of the median of a normal sample, relative to that of its mean: sqrt(pi / 2)
MAD_TO_DEVIATION = 1.4826  # a normal deviation over its median absolute deviation
NUM_IMAGINARY = 2  # reports that the assumed noise weighs


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance(Policy):
    """Moves chunks from slower to faster tasks until all end their iterations together.

    On by default in a cluster.

    Attributes:
        window: Iterations whose median counts, >= `min_reports` and <= 32: a change of speed by less than `confidence`
            deviations is seen after half of them.
        min_reports: Iterations that a task must have done before it is judged, >= 2.
        gain: Part of a surplus that one decision moves, > 0 and <= 1.
        noise: Relative scatter of iteration times that is assumed as long as little is known, >= 0.
        confidence: Standard errors that the difference of two tasks must have, and deviations that a change of
            speed must have to be seen at once, >= 0.
        min_iteration_s: Seconds that an iteration of the slowest task must take for a move to be worth it, >= 0.

    A runtime or an estimator takes it, and a grid search varies its fields:

    >>> from chicle_elastic import LocalCluster, Rebalance
    >>> from estimators import ChicleSVM
    >>> cluster = LocalCluster(4, policies=(Rebalance(window=20),))  # a value: nothing is started yet
    >>> ChicleSVM(n_workers=4, policy=Rebalance()).set_params(policy__window=20).policy
    Rebalance(window=20, min_reports=3, gain=0.75, noise=0.05, confidence=4.5, min_iteration_s=0.02)
    >>> Rebalance(window=64)
    Traceback (most recent call last):
    ...
    chicle_elastic.errors.UsageError: Rebalance(window=64): policies see the last 32 iterations only
    """

    window: int = 10
    min_reports: int = 3
    gain: float = 0.75
    noise: float = 0.05
    confidence: float = 4.5
    min_iteration_s: float = 0.02

    def __post_init__(self) -> None:
        require_reports(self, self.window, self.min_reports)
        require_number(self, "gain", lambda value: 0 < value <= 1, "> 0 and <= 1")
        for name in ("noise", "confidence", "min_iteration_s"):
            require_number(self, name, lambda value: 0 <= value < math.inf, "finite and >= 0")

    def decide(self, observations: Observations, /) -> Decision | None:
        """Moves from the slowest tasks to the fastest, or None while they differ by less than counts."""
        totals = totals_of_iterations(observations, self.window)
        usual = median(totals) if totals else 0.0
        # Where an epoch of local SGD ends, few samples have to bear what an iteration takes beside them.
        counted = [back for back, total in enumerate(totals, start=1) if 2 * total >= usual > 0]
        seen = {node: known for node in observations.num_chunks if (known := self._seen(node, counted, observations))}
        if len(seen) < 2:
            return None
        # Before most nodes were lost, those that are left processed a part of what they do now.
        present = totals[: settled(observations)] or totals
        scatter, part = self._scatter(seen.values()), min(1.0, median(present) / sum(observations.samples.values()))
        tasks = [self._judge(node, sample_s, scatter, part, observations) for node, sample_s in seen.items()]
        tasks.sort(key=lambda task: task.time_s)
        fastest, slowest = tasks[0], tasks[-1]
        if slowest.time_s < self.min_iteration_s:
            return None
        num_errors = self.confidence + 0.5 * math.log2(len(tasks) / 2)
        noise_s = num_errors * math.hypot(slowest.error(scatter), fastest.error(scatter))
        if slowest.time_s - fastest.time_s <= max(fastest.chunk_s, noise_s):
            return None
        together_s = sum(task.samples for task in tasks) / sum(1 / task.sample_s for task in tasks)
        moves = self._moves(tasks, together_s)
        if all(source != slowest.node for source, _ in moves):
            return None  # all wait for it, and it has nothing to give away
        return Decision(actions=MoveChunks.of(moves), reason=_reason(tasks, moves, observations))

    def _seen(self, node: NodeId, counted: list[int], observations: Observations) -> list[float]:
        """Seconds per sample of a task in these iterations, counted from the last one; the oldest first, and none while
        too little is known of it."""
        reports = observations.reports.get(node, ())
        known = [reports[-back] for back in reversed(counted) if back <= len(reports)]
        sample_s = [report.duration_s / report.samples for report in known if report.samples and report.duration_s > 0]
        has_rows = observations.num_chunks[node] and observations.samples[node]
        return sample_s if has_rows and len(sample_s) >= self.min_reports else []

    def _judge(
        self, node: NodeId, sample_s: list[float], scatter: float, part: float, observations: Observations
    ) -> "_Task":
        """A task as it is ranked."""
        num_chunks, rows = observations.num_chunks[node], observations.samples[node]
        capacity, used = observations.capacity_bytes[node], observations.used_bytes[node]
        room = None if capacity is None else max(0, (capacity - used) * num_chunks // max(used, 1))
        now_s = self._since_change(sample_s, scatter)
        return _Task(node, median(now_s), part * rows, num_chunks, room, len(now_s))

    def _since_change(self, sample_s: list[float], scatter: float) -> list[float]:
        """The reports since the speed of the task has changed; all of them where it has not."""
        least = 1.0 + self.confidence * scatter
        for begin in range(self.min_reports, len(sample_s) - 1):
            before_s, now_s = median(sample_s[:begin]), sample_s[begin:]
            if min(now_s) > least * before_s or max(now_s) * least < before_s:
                return now_s
        return sample_s

    def _scatter(self, seen: Iterable[list[float]]) -> float:
        """Relative deviation of a report."""
        deviations = []
        for sample_s in seen:
            middle_s = median(sample_s)
            # One of them is (nearly) the median itself, and would make few reports look quieter than they are.
            deviations += sorted(abs(seconds / middle_s - 1) for seconds in sample_s)[1:]
        seen_scatter = MAD_TO_DEVIATION * median(deviations)
        weight = len(deviations)
        return math.sqrt((NUM_IMAGINARY * self.noise**2 + weight * seen_scatter**2) / (NUM_IMAGINARY + weight))

    def _moves(self, tasks: "list[_Task]", together_s: float) -> dict[tuple[NodeId, NodeId], int]:
        """Surplus chunks of slow tasks, dealt to fast ones; at least one chunk from the slowest to the fastest."""
        need = {task.node: task.most((together_s - task.time_s) / task.chunk_s) for task in tasks}
        takers = [task for task in tasks if need[task.node] > 0]
        if not takers:
            return {}
        moves: dict[tuple[NodeId, NodeId], int] = {}
        for source in reversed(tasks):
            surplus = round(-self.gain * need[source.node])
            count = min(max(surplus, 1 if source is tasks[-1] else 0), source.num_chunks - 1)
            for _ in range(count):
                target = max(takers, key=lambda task: need[task.node] * task.chunk_s)
                is_forced = not moves  # the two differ by more than a chunk: one may go, however it is rounded
                if target is source or (need[target.node] < 0.5 and not is_forced):
                    break
                need[target.node] -= 1
                pair = (source.node, target.node)
                moves[pair] = moves.get(pair, 0) + 1
        return moves


class _Task(NamedTuple):
    node: NodeId
    sample_s: float
    samples: float  # of an iteration
    num_chunks: int
    room_chunks: int | None
    num_reports: int

    @property
    def time_s(self) -> float:
        """Seconds of an iteration."""
        return self.sample_s * self.samples

    @property
    def chunk_s(self) -> float:
        """Seconds of one of its chunks."""
        return self.time_s / self.num_chunks

    def error(self, scatter: float) -> float:
        """Standard error of `time_s`, in seconds."""
        return MEDIAN_ERROR * scatter / math.sqrt(self.num_reports) * self.time_s

    def most(self, count: float) -> float:
        """Cap a number of chunks by the free capacity of the task's node."""
        return count if self.room_chunks is None else min(count, self.room_chunks)


def _reason(tasks: "list[_Task]", moves: dict[tuple[NodeId, NodeId], int], observations: Observations) -> str:
    slowest = max(tasks, key=lambda task: task.time_s)
    ratio = slowest.sample_s / median(task.sample_s for task in tasks)
    shed = sum(count for (source, _), count in moves.items() if source == slowest.node)
    others = sum(moves.values()) - shed
    return (
        f"{slowest.node} takes {ratio:.2g}x the median time per sample and {1e3 * slowest.time_s:.3g} ms for an "
        f"iteration, the fastest task {1e3 * min(task.time_s for task in tasks):.3g} ms; shed {shed} of its "
        f"{observations.num_chunks[slowest.node]} chunks" + (f", and {others} of others" if others else "")
    )
