"""Tuning while a job runs: fewer nodes where the gap stalls, or more of them, and a learning rate that follows.

Scale-in (Kaufmann, Parnell and Kourtis 2018, "Elastic CoCoA: Scaling In to Improve Convergence"). What an iteration
of CoCoA brings depends on the number of tasks K and on how far the job is. Early on all K bring about the same, and
many nodes are K times as fast. Later corrections between rows of different tasks are what is left to do, and these come
once per iteration. From here on half the nodes need less than, or about, half the iterations, so giving them back costs
no time and saves their price.

    d      share of the gap that an iteration takes away, over the last `window` iterations with these nodes

Where half the nodes would be as fast, d is small: on the data sets of docs/benchmarks/policies.md it fell
below 0.3 about there with 8 and 16 nodes. So half the nodes go when d < `stall`, down to `least`. d is then measured
anew, for a whole window, and nothing is given back before. The policy never takes nodes back: the gap of a fixed K
does not fall faster again.

More parallelism instead of decay (Smith et al. 2017, "Don't decay the learning rate, increase the batch size"). Where
the loss of SGD stalls, its noise is too large; a smaller learning rate and a larger batch lower it alike, and the
batch needs fewer steps. With `on_stall="grow"` the policy asks for twice the nodes where it would give back half of
them otherwise.

Learning rate. K tasks average K times the samples in an iteration, so the rate may grow with sqrt(K), as the noise
falls, or with K (Goyal et al. 2017). Local SGD has the former built in (`lr_scaling`), for all of a job. `scaling`
sets the parameter "learning_rate" to `learning_rate` K^1/2 or K, for a trainer of your own, or one with
`lr_scaling="none"`.

What cannot be seen. Scale-in is for solvers that process all rows in an iteration. One that takes a part of them, as
local SGD, has as many samples per node whatever K is, so the iterations before a node left could not be told from
those after it; its nodes stay.
"""

import math
from dataclasses import dataclass
from typing import Literal

from chicle_elastic.errors import UsageError
from chicle_elastic.policies.base import Policy, require_count, require_number
from chicle_elastic.policies.pace import fall, iterations_left, resize, takes_all
from chicle_elastic.values import HISTORY_LENGTH, Decision, Observations, PolicyAction, SetParameter

LEARNING_RATE = "learning_rate"
POWERS = {"sqrt": 0.5, "linear": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune(Policy):
    """Gives nodes back where the gap falls slowly, and sets the learning rate by the number of tasks.

    On nowhere by default. After a `Scale` among the policies it leaves the nodes to it.

    Attributes:
        on_stall: What to do with the number of nodes where the figure stalls: "shrink", "grow" or None for nothing.
        stall: Share of the figure that an iteration takes away, below which it stalls, > 0 and < 1.
        window: Iterations over which the fall is taken, >= 1 and < 32.
        figure: Of the trainer, one that falls to zero: "duality_gap", or a "loss" with a small `stall`.
        target: Value of the figure at which the job will end, > 0; None where it is not known.
        least: Nodes that it keeps, >= 1.
        most: Nodes that it asks for at most, >= `least`; None for what the job allows.
        scaling: How the learning rate follows the number of tasks, "sqrt" or "linear"; None to leave it alone.
        learning_rate: Of one task, > 0; None where `scaling` is None.

    >>> from chicle_elastic import InProcess, Tune
    >>> from estimators import ChicleSVM
    >>> svm = ChicleSVM(runtime=InProcess(num_tasks=4), policy=Tune()).set_params(policy__stall=0.1)
    >>> svm.policy.stall
    0.1
    >>> Tune(scaling="sqrt")
    Traceback (most recent call last):
    ...
    chicle_elastic.errors.UsageError: Tune(scaling='sqrt', learning_rate=None): both or none of them must be given
    """

    on_stall: Literal["shrink", "grow"] | None = "shrink"
    stall: float = 0.3
    window: int = 3
    figure: str = "duality_gap"
    target: float | None = None
    least: int = 1
    most: int | None = None
    scaling: Literal["sqrt", "linear"] | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        if self.on_stall not in ("shrink", "grow", None):
            raise UsageError(f"Tune(on_stall={self.on_stall!r}): it must be 'shrink', 'grow' or None")
        require_number(self, "stall", lambda value: 0 < value < 1, "> 0 and < 1")
        require_count(self, "window", 1, below=HISTORY_LENGTH)
        require_count(self, "least", 1)
        require_count(self, "most", self.least, is_optional=True)
        if self.scaling not in (*POWERS, None):
            raise UsageError(f"Tune(scaling={self.scaling!r}): it must be 'sqrt', 'linear' or None")
        if (self.scaling is None) != (self.learning_rate is None):
            fields = f"scaling={self.scaling!r}, learning_rate={self.learning_rate!r}"
            raise UsageError(f"Tune({fields}): both or none of them must be given")
        for name in ("learning_rate", "target"):
            require_number(self, name, lambda value: 0 < value < math.inf, "finite and > 0", is_optional=True)

    def decide(self, observations: Observations, /) -> Decision | None:
        """Nodes to give back or to ask for, and a learning rate; None where neither changes."""
        nodes = len(observations.num_chunks)
        if not nodes:
            return None
        actions, reasons = list[PolicyAction](), list[str]()
        if self.scaling is not None and self.learning_rate is not None:
            rate = self.learning_rate * nodes ** POWERS[self.scaling]
            present = observations.parameters.get(LEARNING_RATE)
            if present is not None and not math.isclose(present, rate, rel_tol=1e-9):
                actions.append(SetParameter(LEARNING_RATE, rate))
                reasons.append(f"the learning rate of {nodes} tasks is {rate:g}")
        share = None if self.on_stall is None else fall(observations, self.figure, self.window)
        left = iterations_left(observations, self.figure, self.target, self.window)
        if share is not None and share < self.stall and (left is None or left > 2 * self.window):
            total = self._total(observations)
            if total != nodes and not (total > nodes and total == observations.wanted):
                actions += resize(observations, total)
                reasons.append(f"an iteration on {nodes} nodes takes {share:.1%} off {self.figure}: {total} do")
        return Decision(actions=tuple(actions), reason="; ".join(reasons)) if actions else None

    def _total(self, observations: Observations) -> int:
        nodes = len(observations.num_chunks)
        if self.on_stall == "grow":
            bounds = [bound for bound in (self.most, observations.max_nodes) if bound is not None]
            if observations.available is not None:
                bounds.append(nodes + observations.available)
            return max(nodes, min([2 * nodes, *bounds]))
        if not takes_all(observations):
            return nodes
        return min(nodes, max(self.least, observations.min_nodes, math.ceil(nodes / 2)))
