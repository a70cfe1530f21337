"""Virtual nodes with speeds: a scheduler, its policies and a clock that only they move.

An iteration takes each node the seconds that its samples cost there, with noise of a seed. So what a policy comes to is
exact, and 100 iterations take milliseconds. A decision has its effect at the boundary before which the policy saw the
reports; of real agents it comes while the next iteration runs, and has it a boundary later.
"""

from collections.abc import Callable, Mapping

import numpy as np

from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy
from chicle_elastic.scheduling import effects, events
from chicle_elastic.values import TaskReport
from tests.scheduling.stage import Stage

ROWS = 10
"""Samples of a chunk of the stage."""


class Speeds:
    """Nodes that compute at different speeds.

    Args:
        costs_s: Seconds per sample, by node; may be changed between iterations.
        chunks_per_node: Chunks at the start.
        policies: Of the job.
        noise: Relative standard deviation of an iteration's time.
        seed: Of the noise.
        travel: Iterations that the rows of a chunk are on their way; None where chunks move at once.
        part: Share of its samples that a node processes in an iteration, by which costs go.
    """

    def __init__(
        self,
        costs_s: Mapping[str, float],
        *,
        policies: tuple[Policy, ...],
        chunks_per_node: int = 32,
        noise: float = 0.0,
        seed: int = 0,
        capacity_bytes: int | None = None,
        travel: int | None = None,
        part: float = 1.0,
    ) -> None:
        self.costs_s = dict(costs_s)
        self.iteration_s: list[float] = []
        self._part = part
        self._rng = np.random.default_rng(seed)
        # By node and iteration, what a time is multiplied by; may be set to something else.
        self.noise_of: Callable[[str, int], float] = lambda *_: max(0.1, 1 + noise * self._rng.normal())
        self._travel = travel
        self._num_iterations = 0
        self._sent: list[tuple[int, effects.PrecopyChunks]] = []
        self.stage = Stage(
            chunks_per_node * len(costs_s),
            list(costs_s),
            policies=policies,
            capacity_bytes=capacity_bytes,
            precopy=travel is not None,
        )
        self.stage.answer()

    @property
    def counts(self) -> dict[str, int]:
        """Chunks of each node."""
        return self.stage.counts()

    @property
    def logs(self) -> list[str]:
        """Lines for a person."""
        return self.stage.logs

    @property
    def num_decisions(self) -> int:
        """How often chunks were moved."""
        return sum(" moves " in line for line in self.logs)

    def perfect_s(self) -> float:
        """Seconds of an iteration with a split that need not be of whole chunks."""
        rows = sum(self.counts.values()) * ROWS
        return rows / sum(1 / cost for cost in self.costs_s.values())

    def throughput(self) -> float:
        """Of the present split, without noise, relative to the perfect one."""
        slowest_s = max(count * ROWS * self.costs_s[node] for node, count in self.counts.items())
        return self.perfect_s() / slowest_s

    def run(self, num_iterations: int) -> "Speeds":
        """Run iterations, and the boundary after each of them."""
        for _ in range(num_iterations):
            [order] = self.stage.take(effects.StartIteration)
            reports = {}
            for node, count in self.counts.items():
                if count:
                    samples = max(1, round(self._part * count * ROWS))
                    seconds = samples * self.costs_s[node] * self.noise_of(node, order.iteration)
                    reports[NodeId(node)] = TaskReport(samples=samples, duration_s=seconds)
            self.iteration_s.append(max(report.duration_s for report in reports.values()))
            self.stage.tell(events.IterationFinished(round=order.round, iteration=order.iteration, reports=reports))
            self.stage.answer()
            self._deliver_rows()
        return self

    def _deliver_rows(self) -> None:
        """Rows that were sent so many iterations ago arrive."""
        self._num_iterations += 1
        self._sent += [(self._num_iterations, order) for order in self.stage.take(effects.PrecopyChunks)]
        while self._sent and self._sent[0][0] <= self._num_iterations - (self._travel or 0):
            _, order = self._sent.pop(0)
            self.stage.tell(events.PrecopiesEnded(node=order.target, whole=order.numbers))
