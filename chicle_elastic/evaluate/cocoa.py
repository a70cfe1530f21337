"""CoCoA as in the paper: one pass per iteration, and never another method."""

import math
import time
from dataclasses import dataclass, replace

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.clock import VirtualClock
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
class ThrottledCocoa(Cocoa):
    """Run the same on tasks that take so long per row, and one that takes longer for a while.

    A task that is to end its work at a deadline processes the part of its rows for which there is time.

    Attributes:
        row_s: Seconds per row.
        slow: Name of the slow task.
        factor: How much longer it takes.
        since: First iteration in which it does.
        until: First iteration after that in which it no longer does.
        slow_from_s: Instead of these: when it begins to, in seconds since the job began.
        slow_to_s: When it ends.
    """

    row_s: float
    slow: str = ""
    factor: float = 10.0
    since: int = 0
    until: int = 0
    slow_from_s: float = math.inf
    slow_to_s: float = math.inf

    def solver(self, ctx: Context) -> Solver:
        """A solver."""
        return ThrottledSolver(ctx, self)

    def verdict(self, model: Array, report: Report) -> Verdict:
        """A run whose time is over ends with a certificate."""
        verdict = Cocoa.verdict(self, model, report)
        return Verdict(action=Action.GO_ON) if verdict.action is Action.CERTIFY and self.tol == 0 else verdict


class ThrottledSolver(PlainSolver):
    """See `ThrottledCocoa`."""

    def __init__(self, ctx: Context, trainer: ThrottledCocoa) -> None:
        super().__init__(ctx, trainer)
        self._trainer = trainer
        self._began_s: float | None = None

    def solve(self, model: Array, budget: Budget) -> Update:
        """One pass, or the part of it for which there is time."""
        trainer, start_s = self._trainer, budget.clock.now()
        if self._began_s is None:
            self._began_s = start_s
        is_slow = trainer.since <= budget.iteration < trainer.until
        is_slow = is_slow or trainer.slow_from_s <= start_s - self._began_s < trainer.slow_to_s
        num_rows = sum(chunk.num_rows for chunk in self.chunks.values())
        whole_s = trainer.row_s * num_rows * (trainer.factor if is_slow and self.ctx.name == trainer.slow else 1.0)
        left_s = math.inf if budget.deadline_s is None else budget.deadline_s - start_s
        part = min(1.0, max(0.0, left_s / whole_s))
        samples = num_rows if part == 1.0 else int(part * num_rows)
        update = LinearSolver.solve(self, model, replace(budget, samples=samples, deadline_s=None))
        wait(budget, start_s + part * whole_s)
        return replace(update, is_partial=update.samples < num_rows)


def wait(budget: Budget, until_s: float) -> None:
    """Until the clock of the budget says so, or the runtime ends the iteration; a virtual clock is moved."""
    clock = budget.clock
    if isinstance(clock, VirtualClock):
        clock.advance(max(0.0, until_s - clock.now()))
    while (left_s := until_s - clock.now()) > 0 and not budget.is_spent():
        time.sleep(min(left_s, 0.002))


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
