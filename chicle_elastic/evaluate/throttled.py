"""CoCoA and local SGD whose passes and steps are real and take as long as they are told; some tasks are slower."""

import math
import time
from dataclasses import dataclass, replace

from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import VirtualClock
from chicle_elastic.evaluate.cocoa import CertifiedCocoa, Cocoa, PlainSolver
from chicle_elastic.solvers.base import Action, Budget, Context, Report, Solver, Update, Verdict
from chicle_elastic.solvers.linear.solver import LinearSolver
from chicle_elastic.solvers.local_sgd import LocalSGDTrainer
from chicle_elastic.solvers.local_sgd_solver import LocalSGDSolver

ODD = tuple(f"task-{number}" for number in range(1, 16, 2))
"""Of 16 tasks of one process, every second one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long tasks take.

    Attributes:
        row_s: Seconds per row.
        slow: Names of the slow tasks.
        factor: How much longer they take.
        since: First iteration in which they do.
        until: First iteration after that in which they no longer do.
        slow_from_s: Instead of these: when they begin to, in seconds since the job began.
        slow_to_s: When they end.
    """

    row_s: float
    slow: tuple[str, ...] = ()
    factor: float = 10.0
    since: int = 0
    until: float = 0
    slow_from_s: float = math.inf
    slow_to_s: float = math.inf

    def seconds(self, num_rows: int, name: str, iteration: int, elapsed_s: float) -> float:
        """Seconds that a task takes for so many rows now."""
        is_slow = self.since <= iteration < self.until or self.slow_from_s <= elapsed_s < self.slow_to_s
        return self.row_s * num_rows * (self.factor if is_slow and name in self.slow else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottledCocoa(CertifiedCocoa):
    """CoCoA at a pace, certified after each iteration; with a tolerance of 0 at the end alone.

    A task that is to end its work at a deadline processes the part of its rows for which there is time.
    """

    pace: Pace

    def solver(self, ctx: Context) -> Solver:
        """A solver."""
        return ThrottledSolver(ctx, self)

    def verdict(self, model: Array, report: Report) -> Verdict:
        """A run whose time is over ends with a certificate."""
        if self.tol > 0:
            return CertifiedCocoa.verdict(self, model, report)
        verdict = Cocoa.verdict(self, model, report)
        return Verdict(action=Action.GO_ON) if verdict.action is Action.CERTIFY else verdict


class ThrottledSolver(PlainSolver):
    """See `ThrottledCocoa`."""

    def __init__(self, ctx: Context, trainer: ThrottledCocoa) -> None:
        super().__init__(ctx, trainer)
        self._pace = trainer.pace
        self._began_s: float | None = None

    def solve(self, model: Array, budget: Budget) -> Update:
        """One pass, or the part of it for which there is time."""
        start_s = budget.clock.now()
        if self._began_s is None:
            self._began_s = start_s
        num_rows = sum(chunk.num_rows for chunk in self.chunks.values())
        whole_s = self._pace.seconds(num_rows, self.ctx.name, budget.iteration, start_s - self._began_s)
        left_s = math.inf if budget.deadline_s is None else budget.deadline_s - start_s
        part = min(1.0, max(0.0, left_s / whole_s))
        samples = num_rows if part == 1.0 else int(part * num_rows)
        update = LinearSolver.solve(self, model, replace(budget, samples=samples, deadline_s=None))
        wait(budget, start_s + part * whole_s)
        return replace(update, is_partial=update.samples < num_rows)


@dataclass(frozen=True, kw_only=True)
class ThrottledLocalSGD(LocalSGDTrainer):
    """Local SGD at a pace."""

    pace: Pace

    def solver(self, ctx: Context) -> Solver:
        """A solver."""
        return ThrottledSGDSolver(ctx, self)


class ThrottledSGDSolver(LocalSGDSolver):
    """See `ThrottledLocalSGD`."""

    def __init__(self, ctx: Context, trainer: ThrottledLocalSGD) -> None:
        super().__init__(ctx, trainer)
        self._pace = trainer.pace

    def solve(self, model: Array, budget: Budget) -> Update:
        """The steps, and then until their time is over."""
        start_s = budget.clock.now()
        update = super().solve(model, budget)
        wait(budget, start_s + self._pace.seconds(update.samples, self.ctx.name, budget.iteration, 0.0))
        return update


def wait(budget: Budget, until_s: float) -> None:
    """Until the clock of the budget says so, or the runtime ends the iteration; a virtual clock is moved."""
    clock = budget.clock
    if isinstance(clock, VirtualClock):
        clock.advance(max(0.0, until_s - clock.now()))
    while (left_s := until_s - clock.now()) > 0 and not budget.is_spent():
        time.sleep(min(left_s, 0.002))
