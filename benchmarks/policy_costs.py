"""Jobs of the benchmark of policies that cost something: CoCoA on nodes that are paid for while they are there.

A clock is charged for what tasks compute: `PASS_S` seconds for all rows on one node, and `BOUNDARY_S` for each
iteration beside it, whatever the number of nodes. Tasks of one process take turns, so the clock is set back to where
the slowest task is when all have computed: times are those of nodes that compute side by side. Certificates and moves
of chunks are free of charge. A node costs the price of the moment in each second, as long as it takes part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.evaluate.cocoa import CertifiedCocoa, PlainSolver
from chicle_elastic.monitoring.history import History
from chicle_elastic.policies.base import Policy
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.values import Decision, Observations

PASS_S, BOUNDARY_S = 16.0, 0.15
"""Seconds of a pass over all rows on one node, so 1 on each of 16, and of an iteration beside what tasks compute."""


class SharedClock(VirtualClock):
    """Time of tasks that compute side by side, although they are called in turn."""

    def __init__(self) -> None:
        super().__init__()
        self._began_s = 0.0
        self._longest_s = 0.0

    def charge(self, duration_s: float) -> None:
        """A task has computed for so long, since the iteration began."""
        self._longest_s = max(self._longest_s, duration_s)
        self.advance(duration_s)

    def meet(self) -> None:
        """All tasks have computed; they wait for the slowest one, and for the boundary."""
        self._began_s = self._now_s = self._began_s + self._longest_s + BOUNDARY_S
        self._longest_s = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidCocoa(CertifiedCocoa):
    """CoCoA, certified after each iteration, on a clock that only its work moves.

    Attributes:
        clock: That of the runtime.
        row_s: Seconds per row.
    """

    clock: SharedClock
    row_s: float

    def solver(self, ctx: Context) -> Solver:
        """See `PaidSolver`."""
        return PaidSolver(ctx, self)

    def converse(self, ctx: Context) -> None:
        """Called when all tasks have computed."""
        self.clock.meet()


class PaidSolver(PlainSolver):
    """One pass, for which the clock is charged."""

    def __init__(self, ctx: Context, trainer: PaidCocoa) -> None:
        super().__init__(ctx, trainer)
        self._clock, self._row_s = trainer.clock, trainer.row_s

    def solve(self, model: Array, budget: Budget) -> Update:
        """See the class."""
        update = super().solve(model, budget)
        self._clock.charge(update.samples * self._row_s)
        return update


@dataclass(frozen=True, slots=True)
class Prices:
    """Price of a node second over time.

    Attributes:
        steps: Pairs (second from which on, price), the first one from 0 on.
    """

    steps: tuple[tuple[float, float], ...] = ((0.0, 1.0),)

    def at(self, now_s: float) -> float:
        """The price at this second."""
        return next(price for begins_s, price in reversed(self.steps) if begins_s <= now_s)

    def total(self, begin_s: float, end_s: float) -> float:
        """What one node costs from one second to another one."""
        ends = [*(begins_s for begins_s, _ in self.steps[1:]), float("inf")]
        return sum(
            price * max(0.0, min(end_s, until_s) - max(begin_s, since_s))
            for (since_s, price), until_s in zip(self.steps, ends, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPrices(Policy):
    """A policy that is told the price, as a resource manager would tell it.

    Attributes:
        policy: Who decides.
        prices: What a node costs.
    """

    policy: Policy
    prices: Prices

    @property
    def name(self) -> str:
        """That of the policy, for the log."""
        return self.policy.name

    def decide(self, observations: Observations, /) -> Decision | None:
        """As the policy does."""
        return self.policy.decide(replace(observations, price=self.prices.at(observations.now_s)))


@dataclass(frozen=True, slots=True)
class Bill:
    """What a job took and cost.

    Attributes:
        time_s: Seconds to the gap.
        cost: Price of all node seconds.
        node_s: Node seconds.
        iterations: To the gap.
        has_converged: Whether it came to the gap.
        nodes: Number of nodes in each iteration.
    """

    time_s: float
    cost: float
    node_s: float
    iterations: int
    has_converged: bool
    nodes: tuple[int, ...]


def paid(
    X: Array,
    y: Array,
    *,
    C: float,
    num_tasks: int,
    tol: float,
    most: int,
    seed: int,
    policies: Sequence[Policy],
    prices: Prices | None = None,
    most_tasks: int = 16,
) -> tuple[Bill, History]:
    """Run a job that begins with so many nodes to a certified gap of `tol`, or for `most` iterations."""
    clock, prices = SharedClock(), prices or Prices()
    told = tuple(policy if policy.name == "Shuffle" else AtPrices(policy=policy, prices=prices) for policy in policies)
    job = Job(
        trainer=PaidCocoa(C=C, tol=tol, clock=clock, row_s=PASS_S / len(y)),
        source=ArraySource(X, y.astype(np.int32), max_tasks=most_tasks, seed=seed),
        max_iterations=most,
        seed=seed,
        policies=told,
    )
    history = InProcess(num_tasks=num_tasks).run(job, clock=clock).history
    return bill_of(history, prices, tol), history


def bill_of(history: History, prices: Prices, tol: float) -> Bill:
    """What the job of this history took and cost."""
    ends_s = [record.time_s for record in history]
    spans = list(zip([0.0, *ends_s[:-1]], ends_s, [len(record.seconds) for record in history], strict=True))
    return Bill(
        time_s=ends_s[-1],
        cost=sum(count * prices.total(begin_s, end_s) for begin_s, end_s, count in spans),
        node_s=sum(count * (end_s - begin_s) for begin_s, end_s, count in spans),
        iterations=len(history),
        has_converged=history[-1].figures["duality_gap"] <= tol,
        nodes=tuple(count for _, _, count in spans),
    )
