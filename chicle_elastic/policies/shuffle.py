"""Shuffling ownership: a share of the chunks changes nodes every so many iterations, and all nodes keep their counts.

Why. In CoCoA each task minimises over the duals of its own rows against a model that stands still for the others, and
the sum of the K changes is safe only because each task damps its steps by sigma' = K (Ma et al. 2015, section 4). Where
the rows of two tasks pull at the same weights, the tasks correct each other once per iteration and never within one.
With fixed ownership these are the same rows in each iteration. Rows of one task do correct each other in each pass, so
with another partition in each iteration all pairs do in turn (Ioannou, Mendler-Duenner and Parnell 2019, "SySCD: a
system-aware parallel coordinate descent algorithm", who redraw the rows of threads). The state of a row moves with it,
so w = w(alpha) holds throughout.

What does not gain. Newton's method on chunks and working sets: their sums do not depend on which task owns a row.
Estimators choose these for most linear models on several tasks (docs/linear.md), so the policy is not on by default.

How. A decision is a sum of random cyclic permutations of the nodes (`redraw`): in each of them every node gives as many
chunks as it takes, so counts stay as they are, and `Rebalance` alone decides on those. The scheduler draws which chunks
go (`scheduling.plan.plan_moves`), anew for each decision, and pre-copies rows on a cluster, so that a boundary waits
for states only. It ignores a decision that arrives while chunks are on their way for an earlier one: on a cluster there
are as many redraws as the network allows, and `every` is how often they are wished for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Decision, MoveChunks, Observations, Policy

MOST_PARTS = 16
"""Permutations that a decision is made of, and one more for each node that has fewer chunks than others: with so many
every node gets chunks of about as many others, and the decision is still small where there are many nodes."""
KEPT = 8
"""One chunk in so many stays, at least one: in the same boundary `Rebalance` can move only what no other policy has
moved, and what one policy moves is no longer there for the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle(Policy):
    """See the top of the module. For solvers whose tasks depend on which rows they have, such as CoCoA.

    Attributes:
        share: Share of its chunks that each node gives away at a time, > 0 and <= 1; one chunk in eight stays in any
            case.
        every: Iterations between two redraws, >= 1.
        until: Last iteration after which chunks move, >= 1; None for no end.

    The seed of the job and the iteration decide what moves, so equal jobs in one process remain equal:

    >>> from chicle_elastic import InProcess, Shuffle
    >>> from estimators import ChicleSVM
    >>> svm = ChicleSVM(runtime=InProcess(num_tasks=4), policy=Shuffle()).set_params(policy__share=0.5)
    >>> svm.policy
    Shuffle(share=0.5, every=1, until=None)
    >>> Shuffle(share=0.0)
    Traceback (most recent call last):
    ...
    chicle_elastic.errors.UsageError: Shuffle(share=0.0): it must be > 0 and <= 1
    """

    share: float = 0.25
    every: int = 1
    until: int | None = None

    def __post_init__(self) -> None:
        is_number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not is_number or not 0 < self.share <= 1:
            raise UsageError(f"Shuffle(share={self.share!r}): it must be > 0 and <= 1")
        for name, value in (("every", self.every), ("until", self.until)):
            is_open = name == "until" and value is None
            if not is_open and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"Shuffle({name}={value!r}): it must be an integer >= 1")

    def decide(self, observations: Observations, /) -> Decision | None:
        """As many chunks from each node to others as it gets from others, or None in an iteration without a redraw."""
        iteration = observations.iteration
        if iteration % self.every or (self.until is not None and iteration > self.until):
            return None
        rng = np.random.default_rng([observations.round, iteration])
        moves = redraw(observations.num_chunks, self.share, rng, room=_room(observations))
        if not moves:
            return None
        moved, total = sum(moves.values()), sum(observations.num_chunks.values())
        reason = f"redraw the owners of {moved} of {total} chunks after {iteration}"
        return Decision(actions=MoveChunks.of(moves), reason=reason)


def redraw(
    num_chunks: Mapping[NodeId, int],
    share: float,
    rng: np.random.Generator,
    *,
    room: Mapping[NodeId, int] | None = None,
) -> dict[tuple[NodeId, NodeId], int]:
    """Moves that leave each node with as many chunks as it has: a sum of random cyclic permutations.

    Args:
        num_chunks: Chunks of each node.
        share: Share of its chunks that a node gives away, > 0 and <= 1: on average, so that little is not rounded to
            nothing, and at most what leaves it one in `KEPT`. A node with more chunks than all others together gives
            away less, as these take no more.
        rng: Decides who gives to whom.
        room: Chunks that a node can hold beside its own, which it keeps until they have arrived elsewhere; nodes that
            are not in it have room for all.

    Returns:
        Number of chunks, >= 1, by (source, target).
    """
    room = {} if room is None else room
    left: dict[NodeId, int] = {}
    for node in sorted(num_chunks):
        quota = math.floor(share * num_chunks[node] + rng.random())
        left[node] = min(quota, num_chunks[node] - math.ceil(num_chunks[node] / KEPT), room.get(node, quota))
    part = math.ceil(max(left.values(), default=0) / MOST_PARTS)
    moves: dict[tuple[NodeId, NodeId], int] = {}
    while len(nodes := [node for node, count in left.items() if count]) > 1:
        cycle = [nodes[index] for index in rng.permutation(len(nodes)).tolist()]
        count = min(part, min(left[node] for node in nodes))
        for source, target in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            moves[source, target] = moves.get((source, target), 0) + count
            left[source] -= count
    return moves


def _room(observations: Observations) -> dict[NodeId, int]:
    """Chunks of the size of its own that each node has room for, where its memory is accounted."""
    return {
        node: max(0, (capacity - observations.used_bytes[node]) * count // max(observations.used_bytes[node], 1))
        for node, count in observations.num_chunks.items()
        if (capacity := observations.capacity_bytes[node]) is not None
    }
