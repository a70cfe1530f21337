"""CoCoA on 16 virtual tasks of two speeds: time passes by samples, every second task is slower."""

from dataclasses import dataclass

from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import VirtualClock
from chicle_elastic.evaluate.cocoa import CertifiedCocoa, PlainSolver
from chicle_elastic.solvers.base import Budget, Context, Solver, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCocoa(CertifiedCocoa):
    """See the top of the module.

    Attributes:
        slowdown: How many times longer a slow task takes per row.
        row_units: Units per row of a fast task.
    """

    slowdown: float
    row_units: float

    def solver(self, ctx: Context) -> Solver:
        """A solver."""
        return MixedSolver(ctx, self)


class MixedSolver(PlainSolver):
    """Moves the clock by what its rows cost on this task."""

    def __init__(self, ctx: Context, trainer: MixedCocoa) -> None:
        super().__init__(ctx, trainer)
        is_slow = int(ctx.name.removeprefix("task-")) % 2
        self._row_units = trainer.row_units * (trainer.slowdown if is_slow else 1.0)

    def solve(self, model: Array, budget: Budget) -> Update:
        """One pass."""
        update = super().solve(model, budget)
        assert isinstance(budget.clock, VirtualClock)
        budget.clock.advance(update.samples * self._row_units)
        return update
