"""Trainers for the tests of the local cluster; tasks import them by name."""

import time
from dataclasses import dataclass

from chicle_elastic import waits
from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Decision, Observations, Policy
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.linear.trainer import LinearTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyCocoa(LinearTrainer):
    """CoCoA whose solver raises in an iteration, in the tasks of some nodes."""

    raise_at: int = 3
    nodes: tuple[str, ...] = ("n1",)

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA, with a fault."""
        solver = LinearTrainer.solver(self, ctx)
        solve = solver.solve

        def faulty_solve(model: Array, budget: Budget) -> Update:
            if budget.iteration == self.raise_at and ctx.name in self.nodes:
                raise ZeroDivisionError("the fault of the test")
            return solve(model, budget)

        solver.solve = faulty_solve  # type: ignore[method-assign]
        return solver


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenCocoa(LinearTrainer):
    """CoCoA that is slow on one node."""

    slow_node: str = "n1"
    slow_s: float = 0.01

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA, slowed down on that node."""
        solver = LinearTrainer.solver(self, ctx)
        solve = solver.solve

        def slow_solve(model: Array, budget: Budget) -> Update:
            if ctx.name == self.slow_node:
                time.sleep(self.slow_s)
            return solve(model, budget)

        solver.solve = slow_solve  # type: ignore[method-assign]
        return solver


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCocoa(LinearTrainer):
    """CoCoA whose tasks explain a wait in their first iteration, as if they compiled something then."""

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA."""
        waits.tell("compiling for the test")
        return LinearTrainer.solver(self, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift(Policy):
    """Moves chunks from the first node to the second as long as the first one has more than `keep`."""

    keep: int = 2

    def decide(self, observations: Observations, /) -> Decision | None:
        """One at a time."""
        first, second, *_ = observations.num_chunks
        if observations.num_chunks[first] <= self.keep:
            return None
        return Decision(moves={(first, second): 1}, reason=f"{first} is to keep {self.keep}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty(Policy):
    """Raises in an iteration, or decides nonsense, or does not answer."""

    fault: str = "raises"
    iteration: int = 2

    def decide(self, observations: Observations, /) -> Decision | None:
        """Nothing, until then."""
        if observations.iteration < self.iteration:
            return None
        if self.fault == "raises":
            raise ZeroDivisionError("no reports")
        if self.fault == "sleeps":
            time.sleep(0.5)
            return None
        return Decision(moves={(NodeId("n7"), NodeId("n8")): 1}, reason="no reason")
