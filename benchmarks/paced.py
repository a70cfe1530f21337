"""CoCoA whose iterations take a while, because all nodes of a benchmark share the processors of one host."""

import time
from dataclasses import dataclass

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Action, Budget, Context, Report, Solver, Update, Verdict
from chicle_elastic.solvers.linear.trainer import LinearTrainer

POLL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedCocoa(LinearTrainer):
    """A trainer that goes on to the last iteration.

    Attributes:
        iteration_s: Shortest time of an iteration; the solver sleeps.
    """

    iteration_s: float = 0.0

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA, slowed down."""
        solver = LinearTrainer.solver(self, ctx)
        solve = solver.solve

        def slow_solve(model: Array, budget: Budget) -> Update:
            end_s = time.perf_counter() + self.iteration_s
            update = solve(model, budget)
            while time.perf_counter() < end_s and not budget.is_spent():
                time.sleep(POLL_S)
            return update

        solver.solve = slow_solve  # type: ignore[method-assign]
        return solver

    def verdict(self, model: Array, report: Report) -> Verdict:
        """CoCoA's, but a small gap is no reason to stop."""
        verdict = LinearTrainer.verdict(self, model, report)
        return Verdict(action=Action.GO_ON) if verdict.action is Action.STOP else verdict
