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

How. A decision is a `RedrawOwnership`: the scheduler draws a sum of random cyclic permutations of the nodes, in each of
which every node gives a chunk and gets one (`scheduling.plan.plan_redraw`), anew for each decision. Counts stay as they
are, and `Rebalance` alone decides on those. On a cluster rows are pre-copied, so that a boundary waits for states only,
and each chunk moves when its rows have arrived. At most `share` of the chunks is on its way at a time: there are as
many redraws as the network allows, and `every` is how often they are wished for.

When. A redraw costs a boundary and the network, and is worth it where tasks correct each other once per iteration only:
where the gap falls slowly. With `patience` nothing is redrawn while the trainer's figure falls by that share of itself
or more in an iteration, on average over the last few.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy, require_count, require_number
from chicle_elastic.values import Decision, Observations, RedrawOwnership

FIGURES = ("duality_gap", "duality_gap_estimate", "gap", "loss", "objective")
"""What `patience` looks at: the first of these that the trainer has given for two of the last iterations."""
WINDOW = 5  # iterations over which `patience` looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle(Policy):
    """Redraws which node owns what: a share of the chunks every so many iterations, while all counts stay.

    For solvers whose tasks depend on which rows they have, such as CoCoA.

    Attributes:
        share: Share of its chunks that each node gives away at a time, > 0 and <= 1.
        every: Iterations between two redraws, >= 1.
        until: Last iteration after which chunks move, >= 1; None for no end.
        patience: Redraw only where the trainer's figure, its duality gap for example, falls by less than this share of
            itself per iteration, > 0 and < 1; also where it is not known. None: whatever it does.

    The seed of the job and the iteration decide what moves, so equal jobs in one process remain equal:

    >>> from chicle_elastic import InProcess, Shuffle
    >>> from estimators import ChicleSVM
    >>> svm = ChicleSVM(runtime=InProcess(num_tasks=4), policy=Shuffle()).set_params(policy__share=0.5)
    >>> svm.policy
    Shuffle(share=0.5, every=1, until=None, patience=None)
    >>> Shuffle(share=0.0)
    Traceback (most recent call last):
    ...
    chicle_elastic.errors.UsageError: Shuffle(share=0.0): it must be > 0 and <= 1
    """

    share: float = 0.25
    every: int = 1
    until: int | None = None
    patience: float | None = None

    def __post_init__(self) -> None:
        require_number(self, "share", lambda value: 0 < value <= 1, "> 0 and <= 1")
        require_count(self, "every", 1)
        require_count(self, "until", 1, is_optional=True)
        require_number(self, "patience", lambda value: 0 < value < 1, "> 0 and < 1", is_optional=True)

    def decide(self, observations: Observations, /) -> Decision | None:
        """A redraw, or None: not now, too much on its way already, or the figure falls fast enough."""
        iteration = observations.iteration
        if iteration % self.every or (self.until is not None and iteration > self.until):
            return None
        if sum(_can_exchange(observations, node) for node in observations.num_chunks) < 2:
            return None
        share = self.share - observations.travelling / sum(observations.num_chunks.values())
        if share < self.share / 2:  # in few large parts: each one costs a boundary
            return None
        reason = f"{share:.2g} of all chunks after {iteration}"
        if self.patience is not None and (fall := fall_of(observations.figures)) is not None:
            name, per_iteration = fall
            if per_iteration >= self.patience:
                return None
            reason += f", as {name} falls by {per_iteration:.2g} of itself per iteration"
        return Decision(actions=(RedrawOwnership(share),), reason=reason)


def fall_of(figures: Sequence[Mapping[str, float]]) -> tuple[str, float] | None:
    """Return the figure of the trainer and the share of itself by which it falls per iteration, over the last `WINDOW`.

    The share is negative where the figure rises; None where no figure is known and > 0 in two iterations."""
    for name in FIGURES:
        known = [(number, values[name]) for number, values in enumerate(figures[-WINDOW:]) if values.get(name, 0.0) > 0]
        if len(known) > 1:
            (first, before), (last, now) = known[0], known[-1]
            return name, 1 - (now / before) ** (1 / (last - first))
    return None


def _can_exchange(observations: Observations, node: NodeId) -> bool:
    """Tell whether a node has a chunk, and room for another one of that size, which it keeps until it has arrived."""
    count, capacity = observations.num_chunks[node], observations.capacity_bytes[node]
    used = observations.used_bytes[node]
    return count > 0 and (capacity is None or used + used / count <= capacity)
