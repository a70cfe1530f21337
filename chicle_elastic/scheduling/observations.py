"""What policies see, built in one place from what any runtime knows.

In a cluster the task of rank 0 builds them, from the sums of an iteration; in one process the scheduler does, from its
ledger. Both keep the last iterations in `RecentIterations` and call `observe`, so a policy sees the same everywhere.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chicle_elastic.ids import NodeId
from chicle_elastic.values import HISTORY_LENGTH, Observations, TaskReport, TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHoldings:
    """What a node has, as `Observations` show it.

    Attributes:
        num_chunks: Chunks that it owns.
        samples: Samples in them.
        used_bytes: Memory that they take.
        capacity_bytes: Memory for chunks; None where it is not accounted.
    """

    num_chunks: int
    samples: int
    used_bytes: int
    capacity_bytes: int | None = None


class RecentIterations:
    """What was said of the last iterations.

    Args:
        length: Iterations that are kept.

    Attributes:
        reports: Of each task, oldest first, by node.
        training: What the runtime said, oldest first.
    """

    def __init__(self, length: int = HISTORY_LENGTH) -> None:
        self.reports: dict[NodeId, deque[TaskReport]] = {}
        self.training: deque[TrainingState] = deque(maxlen=length)
        self._length = length

    def note(self, reports: Mapping[NodeId, TaskReport], training: Iterable[TrainingState]) -> None:
        """Keep what was said of an iteration; no `training` where no policy is going to look at it."""
        for node, report in reports.items():
            if node not in self.reports:
                self.reports[node] = deque(maxlen=self._length)
            self.reports[node].append(report)
        self.training.extend(training)

    def forget(self, node: NodeId) -> None:
        """The node is gone; if one of that name comes again, it starts without a past."""
        self.reports.pop(node, None)

    def keep_only(self, nodes: Iterable[NodeId]) -> None:
        """Forget all nodes but these."""
        for node in self.reports.keys() - set(nodes):
            self.forget(node)


def observe(
    recent: RecentIterations,
    holdings: Mapping[NodeId, NodeHoldings],
    *,
    round: int,
    iteration: int,
    min_nodes: int,
    max_nodes: int | None,
    wanted: int,
    travelling: int,
) -> Observations:
    """What policies see after an iteration. Pure.

    Args:
        recent: What was said of the last iterations, this one included.
        holdings: What each member of the round has that stays.
        round: The round.
        iteration: The iteration, merged.
        min_nodes: Of the job.
        max_nodes: Of the job; None for no limit.
        wanted: Nodes that were asked for last; 0 where none were.
        travelling: Chunks on their way for earlier decisions.
    """
    last = recent.training[-1] if recent.training else TrainingState()
    return Observations(
        round=round,
        iteration=iteration,
        num_chunks={node: held.num_chunks for node, held in holdings.items()},
        samples={node: held.samples for node, held in holdings.items()},
        capacity_bytes={node: held.capacity_bytes for node, held in holdings.items()},
        used_bytes={node: held.used_bytes for node, held in holdings.items()},
        reports={node: tuple(recent.reports.get(node, ())) for node in holdings},
        figures=tuple(state.figures for state in recent.training),
        iteration_s=tuple(state.duration_s for state in recent.training),
        epochs=last.epochs,
        now_s=last.elapsed_s,
        parameters=last.parameters,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        wanted=wanted or len(holdings),
        travelling=travelling,
    )
