"""Trainers for the tests of the local cluster; tasks import them by name."""

import time
from dataclasses import dataclass

from chicle_elastic.chunks.views import Array
from chicle_elastic.policies.base import Decision, Observations, Policy
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.cocoa import CocoaTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyCocoa(CocoaTrainer):
    """CoCoA whose solver raises in an iteration, in the tasks of some nodes."""

    raise_at: int = 3
    nodes: tuple[str, ...] = ("n1",)

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA, with a fault."""
        solver = CocoaTrainer.solver(self, ctx)
        solve = solver.solve

        def faulty_solve(model: Array, budget: Budget) -> Update:
            if budget.iteration == self.raise_at and ctx.name in self.nodes:
                raise ZeroDivisionError("the fault of the test")
            return solve(model, budget)

        solver.solve = faulty_solve  # type: ignore[method-assign]
        return solver


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenCocoa(CocoaTrainer):
    """CoCoA that is slow on one node."""

    slow_node: str = "n1"
    slow_s: float = 0.01

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA, slowed down on that node."""
        solver = CocoaTrainer.solver(self, ctx)
        solve = solver.solve

        def slow_solve(model: Array, budget: Budget) -> Update:
            if ctx.name == self.slow_node:
                time.sleep(self.slow_s)
            return solve(model, budget)

        solver.solve = slow_solve  # type: ignore[method-assign]
        return solver


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


class Recipe(CocoaTrainer):
    """A trainer that says by itself how it is made."""

    def recipe(self) -> tuple[str, dict[str, object]]:
        """By the function below."""
        return "tests.cluster.local_trainers:make_recipe", {"C": self.C}


def make_recipe(C: float) -> Recipe:
    """What the recipe names."""
    return Recipe(C=C)
