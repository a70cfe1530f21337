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
Reports of which each resembles the one before it, with a correlation r, tell as much as (1 - r) / (1 + r) of them.
A difference counts when it is `confidence` standard errors large, and half a one more with every doubling of the tasks,
because the largest of many differences is large by chance. So many precise reports allow the last chunk to move, and
few or noisy ones only what is obvious.

Changes. A median over all of the window follows a change of speed only after half of it. So where the last reports of a
task all differ from the median of those before them by `confidence` deviations, in the same direction, they alone
count, unless that is what a burst looks like here. Say that m reports are the last ones and that b of the n before them
differ as much as the least of these, but for noise of `confidence` deviations. If speeds did not change, reports could
stand in any order, and the chance that those that differ end it is C(b + m, m) / C(n + m, m). It may be 1 / C(32, 2) at
most: two reports do after thirty quiet ones, three after thirteen, and a task that was held up as much before for b
iterations has to be slow for longer than that. b is that of the task that was held up most: what happens to one node
may happen to each. A small hiccup hides no large change.

T_k is predicted from the present n_k, so chunks that have just moved are in it, and old reports stay useful.

Short iterations. A move stops all tasks for some milliseconds, and an iteration has a part that does not depend on n_k:
with few samples that part looks like a slow task, which is given ever fewer. So nothing moves while the slowest task
needs less than `min_iteration_s`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import mul
from statistics import median
from typing import NamedTuple

from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy, require_number, require_reports
from chicle_elastic.policies.pace import settled, totals_of_iterations
from chicle_elastic.values import HISTORY_LENGTH, Decision, MoveChunks, Observations

MEDIAN_ERROR = 1.2533  # standard error of the median of a normal sample, relative to that of its mean: sqrt(pi / 2)
MAD_TO_DEVIATION = 1.4826  # a normal deviation over its median absolute deviation
NUM_IMAGINARY = 2  # reports that the assumed noise weighs
CHANCE = 1 / math.comb(HISTORY_LENGTH, 2)  # at most, of a burst that is taken for a change: what two reports can show


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
        totals = totals_of_iterations(observations, HISTORY_LENGTH)
        usual = median(totals) if totals else 0.0
        # Where an epoch of local SGD ends, few samples have to bear what an iteration takes beside them.
        counted = [back for back, total in enumerate(totals, start=1) if 2 * total >= usual > 0]
        seen = {node: known for node in observations.num_chunks if (known := self._seen(node, counted, observations))}
        if len(seen) < 2:
            return None
        # Before most nodes were lost, those that are left processed a part of what they do now.
        present = totals[: min(self.window, settled(observations))] or totals
        part = min(1.0, median(present) / sum(observations.samples.values()))
        scatter = self._scatter(sample_s[-self.window :] for sample_s in seen.values())
        since_s = self._since_change(seen, scatter)
        tasks = [self._judge(node, sample_s, part, observations) for node, sample_s in since_s.items()]
        tasks.sort(key=lambda task: task.time_s)
        fastest, slowest = tasks[0], tasks[-1]
        if slowest.time_s < self.min_iteration_s:
            return None
        num_errors = self.confidence + 0.5 * math.log2(len(tasks) / 2)
        num_errors *= self._persistence(seen, since_s, scatter)
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

    def _judge(self, node: NodeId, sample_s: list[float], part: float, observations: Observations) -> "_Task":
        """A task as it is ranked."""
        num_chunks, rows = observations.num_chunks[node], observations.samples[node]
        capacity, used = observations.capacity_bytes[node], observations.used_bytes[node]
        room = None if capacity is None else max(0, (capacity - used) * num_chunks // max(used, 1))
        return _Task(node, median(sample_s), part * rows, num_chunks, room, len(sample_s))

    def _since_change(self, seen: dict[NodeId, list[float]], scatter: float) -> dict[NodeId, list[float]]:
        """The reports of the window since the speed of each task has changed; all of them where it has not."""
        since_s = {node: sample_s[-self.window :] for node, sample_s in seen.items()}
        half, least = self.window // 2, 1.0 + self.confidence * scatter
        usual_s = {
            node: median(sample_s[: max(self.min_reports, len(sample_s) - half)][-self.window :])
            for node, sample_s in seen.items()
        }
        for sign in (1, -1):  # slower, faster
            factors = {
                node: [(seconds / usual_s[node]) ** sign for seconds in sample_s] for node, sample_s in seen.items()
            }
            if all(min(of[-2:]) <= least for of in factors.values()):
                continue  # one report is never enough
            known, last = {}, {}
            for node, of in factors.items():
                before = "".join("x" if factor > least else "." for factor in of).rstrip("x")
                own = len(before.rpartition("x" * (half + 1))[2])  # so many in a row were a speed of their own
                known[node], last[node] = of[len(before) - own : len(before)], of[len(before) :]
            for node, of in last.items():
                length, as_much = len(of), max(least, min(of, default=0.0) / least)
                most = max(sum(factor > as_much for factor in before) for before in known.values())
                chance = math.comb(most + length, length) / math.comb(len(known[node]) + length, length)
                if chance <= CHANCE:
                    since_s[node] = since_s[node][-length:]
        return since_s

    def _persistence(
        self, seen: dict[NodeId, list[float]], since_s: dict[NodeId, list[float]], scatter: float
    ) -> float:
        """How many times larger the error of a median is because successive reports resemble each other, >= 1."""
        products, squares, most = 0.0, scatter**2, 3 * scatter  # what sticks out further is no noise
        for node, sample_s in seen.items():
            has_changed = len(since_s[node]) < min(self.window, len(sample_s))
            known_s = since_s[node] if has_changed else sample_s
            middle_s = median(known_s)
            deviations = [seconds / middle_s - 1 for seconds in known_s]
            if max(deviations) > most or min(deviations) < -most:
                deviations = [min(max(deviation, -most), most) for deviation in deviations]
            products += sum(map(mul, deviations, deviations[1:]))
            squares += sum(map(mul, deviations, deviations))
        correlation = max(0.0, products / squares) if squares else 0.0
        return math.sqrt((1 + correlation) / (1 - correlation))

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
