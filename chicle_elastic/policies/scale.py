"""Scaling: as many nodes as what another one brings is worth its price.

    K          nodes; p the price of a node second; v what a second of waiting is worth, in the same unit
    W, o       node seconds of an iteration; its seconds beside these, which more nodes do not shorten
    t(K)       W / K + o, seconds of an iteration
    n(K)       iterations to the target, proportional to 1 + b K
    c(K)       (p K + v) n(K) t(K), what the rest of the job costs

The policy wants the K for which c(K) is least. Seen at the margin: another node saves n(K) t(K) - n(K+1) t(K+1)
seconds on the way to the target, each of which is worth p K + v, and costs p in each second that remains.

What parallelism costs, b. K tasks that correct each other once per iteration get further in it the fewer they are.
Let r be the rate at which the figure falls now, the logarithm of its ratio per iteration, and r1 that of one task. If
r = r1 / (1 + b K), then b = (r1 / r - 1) / K. CoCoA is so to a good approximation, and r1 hardly changes while the
gap falls by orders of magnitude (`alone`, 0.75 on the data sets of docs/benchmarks/policies.md): a job
that is slow for many tasks is not slow for one. So r alone says how much parallelism is worth at this point of the
job. Early, r is large, and time is W / K. Later b grows: where b K is large, n(K) t(K) is least at K = sqrt(W / (b
o)), whatever it costs. With `alone=None` b is 0, as for Newton's method on chunks, whose iterations do not depend on
K. Then c(K) is least at K = sqrt(v W / (p o)).

When it pays. r gives the iterations that are left, too: log(present / target) / r. A change has to save more in these
than what `change_s` seconds of all nodes and of waiting cost, so nothing moves shortly before the end.

Quiet. c(K) is flat around its minimum. The policy acts where it saves more than the share `margin` of what is ahead,
so times with noise, and prices that wobble, change nothing. After each change r is measured anew, over `window`
iterations with the new nodes, and it asks once for nodes that do not come.

Prices and revocations. The present price is taken to last: nothing is known of later ones. Without a resource manager
that has prices it is 1. A node that is revoked is gone, and `available` says how many would come: the policy asks for
no more than these. When they come back, so does the wish.
"""

import math
from dataclasses import dataclass

from chicle_elastic.policies.base import Policy, require_count, require_number
from chicle_elastic.policies.pace import Work, fall, iterations_left, resize, work
from chicle_elastic.values import HISTORY_LENGTH, Decision, Observations


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Policy):
    """Asks for as many nodes as what another one brings is worth its price.

    Owns the number of nodes, and is on nowhere by default.

    Attributes:
        least: Nodes that it keeps, >= 1; more where the job needs more.
        most: Nodes that it asks for at most, >= `least`; None for what the job allows.
        time_value: What a second of waiting is worth, in the price of a node second, >= 0.
        alone: Share of the figure that one task takes away in an iteration, > 0 and < 1; None if the number of
            iterations does not depend on the number of tasks.
        target: Value of the figure at which the job will end, > 0; None where it is not known.
        figure: Of the trainer, one that falls to zero.
        window: Iterations that times and the fall are taken from, >= 1 and < 32.
        margin: Share of the cost ahead that a change has to save, >= 0 and < 1.
        change_s: Seconds that a change of membership takes, >= 0.

    >>> from chicle_elastic import LocalCluster, Scale
    >>> cluster = LocalCluster(4, policies=(Scale(least=2, most=8, time_value=20.0),))
    >>> Scale(least=3, most=2)
    Traceback (most recent call last):
    ...
    chicle_elastic.errors.UsageError: Scale(most=2): it must be an integer >= 3, or None
    """

    least: int = 1
    most: int | None = None
    time_value: float = 8.0
    alone: float | None = 0.75
    target: float | None = None
    figure: str = "duality_gap"
    window: int = 3
    margin: float = 0.1
    change_s: float = 0.5

    def __post_init__(self) -> None:
        require_count(self, "least", 1)
        require_count(self, "most", self.least, is_optional=True)
        require_count(self, "window", 1, below=HISTORY_LENGTH)
        for name in ("time_value", "change_s"):
            require_number(self, name, lambda value: 0 <= value < math.inf, ">= 0 and finite")
        require_number(self, "margin", lambda value: 0 <= value < 1, ">= 0 and < 1")
        require_number(self, "alone", lambda value: 0 < value < 1, "> 0 and < 1", is_optional=True)
        require_number(self, "target", lambda value: 0 < value < math.inf, "> 0 and finite", is_optional=True)

    def decide(self, observations: Observations, /) -> Decision | None:
        """Nodes to ask for or to give back, or None while the present number is about as good as any."""
        nodes = len(observations.num_chunks)
        took = work(observations, self.window)
        drag = self._drag(observations, nodes)
        if not nodes or took is None or drag is None:
            return None
        price = 1.0 if observations.price is None else max(observations.price, 0.0)
        least, most = self._range(observations)
        costs = {count: self._cost(count, took, price, drag) for count in {nodes, *range(least, most + 1)}}
        wanted = min(range(least, most + 1), key=lambda count: (costs[count], count))
        if wanted == nodes or (wanted > nodes and wanted == observations.wanted):
            return None
        is_allowed = least <= nodes <= most
        if is_allowed and costs[wanted] > (1.0 - self.margin) * costs[nodes]:
            return None
        left = iterations_left(observations, self.figure, self.target, self.window)
        change = self.change_s * (price * max(nodes, wanted) + self.time_value)
        if is_allowed and left is not None and left * (costs[nodes] - costs[wanted]) / (1.0 + drag * nodes) < change:
            return None
        seconds = [took.node_s / count + took.waiting_s for count in (nodes, wanted)]
        reason = (
            f"at a price of {price:g} the job is cheapest with {wanted}: an iteration takes {seconds[1]:.3g} s then, "
            f"{seconds[0]:.3g} s now, and {(1.0 + drag * wanted) / (1.0 + drag * nodes):.2f}x as many are needed"
        )
        return Decision(actions=resize(observations, wanted), reason=reason)

    def _range(self, observations: Observations) -> tuple[int, int]:
        nodes = len(observations.num_chunks)
        least = max(self.least, observations.min_nodes)
        bounds = [bound for bound in (self.most, observations.max_nodes) if bound is not None]
        most = min(bounds, default=2 * nodes)
        if observations.available is not None:
            most = min(most, nodes + observations.available)
        return least, max(least, most)

    def _drag(self, observations: Observations, nodes: int) -> float | None:
        """b, >= 0; None while the rate is not known, or where nothing falls."""
        if self.alone is None:
            return 0.0
        share = fall(observations, self.figure, self.window)
        if not share:
            return None
        rate = -math.log1p(-min(share, self.alone))
        return max(0.0, (-math.log1p(-self.alone) / rate - 1.0) / nodes)

    def _cost(self, nodes: int, took: Work, price: float, drag: float) -> float:
        """In one iteration of tasks that do not hold each other up."""
        return (price * nodes + self.time_value) * (1.0 + drag * nodes) * (took.node_s / nodes + took.waiting_s)
