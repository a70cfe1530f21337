"""CoCoA as in the paper: one pass per iteration, and never another method."""

from dataclasses import dataclass, replace

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.solvers.base import NO_PROGRESS, Action, Budget, Context, Report, Solver, Update, Verdict
from chicle_elastic.solvers.linear.solver import LinearSolver
from chicle_elastic.solvers.linear.trainer import LinearTrainer

ALL_ROWS = 1 << 62


class PlainSolver(LinearSolver):
    """One pass of coordinate descent per iteration, and never a Newton step."""

    def solve(self, model: Array, budget: Budget) -> Update:
        """A solver that is told how many samples to process makes one pass, whatever their number."""
        return super().solve(model, replace(budget, samples=ALL_ROWS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cocoa(LinearTrainer):
    """CoCoA as in the paper: one pass per iteration, and never another method."""

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """No other method."""
        return NO_PROGRESS

    def solver(self, ctx: Context) -> Solver:
        """See `PlainSolver`."""
        return PlainSolver(ctx, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedCocoa(Cocoa):
    """The same, certified after each iteration, so that the first one below a gap is known."""

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Certify, then stop at `tol`."""
        if not report.is_certificate:
            return Verdict(action=Action.CERTIFY, reason="each iteration")
        gap = self.relative_gap(model, report)
        if gap <= self.tol or report.iteration >= report.max_iterations:
            return Verdict(action=Action.STOP, reason=f"relative duality gap {gap:.2e}")
        return Verdict(action=Action.GO_ON)
