"""Local SGD whose steps are real and take as long as they are told; one task is slower for a while."""

from dataclasses import dataclass

from chicle_elastic.chunks.views import Array
from chicle_elastic.evaluate.cocoa import wait
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.local_sgd import LocalSGDTrainer
from chicle_elastic.solvers.local_sgd_solver import LocalSGDSolver


@dataclass(frozen=True, kw_only=True)
class ThrottledLocalSGD(LocalSGDTrainer):
    """See the top of the module.

    Attributes:
        row_s: Seconds per sample.
        slow: Name of the slow task.
        factor: How much longer it takes.
        until: First iteration in which it is as fast as the others.
    """

    row_s: float
    slow: str
    factor: float
    until: int

    def solver(self, ctx: Context) -> Solver:
        """A solver."""
        return ThrottledSGDSolver(ctx, self)


class ThrottledSGDSolver(LocalSGDSolver):
    """See `ThrottledLocalSGD`."""

    def __init__(self, ctx: Context, trainer: ThrottledLocalSGD) -> None:
        super().__init__(ctx, trainer)
        is_slow = ctx.name == trainer.slow
        self._row_s, self._until = trainer.row_s, trainer.until
        self._factor = trainer.factor if is_slow else 1.0

    def solve(self, model: Array, budget: Budget) -> Update:
        """The steps, and then until their time is over."""
        start_s = budget.clock.now()
        update = super().solve(model, budget)
        factor = self._factor if budget.iteration < self._until else 1.0
        wait(budget, start_s + update.samples * self._row_s * factor)
        return update
