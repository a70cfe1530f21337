"""The local part of a linear classifier: passes of the chosen method, and what a certificate needs."""

from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.coordinates import CoordinatePasses, metrics_of
from chicle_elastic.solvers.linear.newton.solver import NewtonSolver
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.working_set.passes import gather, select, solve, tells_if_long, write_duals
from chicle_elastic.solvers.linear.working_set.steps import Sums, WorkingSetPhase, WorkingSetState


class LinearSolver(NewtonSolver):
    """One per uni-task."""

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx, trainer, loss=Loss.named(trainer.loss), num_threads=trainer.num_threads)
        descends_only = trainer.algorithm == "cocoa"
        self._coordinates = CoordinatePasses(ctx.rng, self.local, tol=trainer.tol, descends_only=descends_only)
        self._rebuilt: Array | None = None

    def forget(self) -> None:
        """Forget what passes have found out about the chunks."""
        self._coordinates.change()
        self._rebuilt = None

    def raise_bounds(self, C: float) -> None:
        """Go on with a larger C, inside an iteration: with the duals, and what is known of second derivatives."""
        ratio = C / self.local.bounds.C
        super().raise_bounds(C)
        self._coordinates.raise_bounds(ratio)
        self._rebuilt = None

    def solve(self, model: Array, budget: Budget) -> Update:
        """Make at least one pass over the local rows, each of which counts once."""
        self._rebuilt = None
        if not self.trainer.reads_all(budget.progress):
            return self._solve_working_set(WorkingSetState.look(budget.progress), model, budget)
        if not self.trainer.may_be_cut(budget.progress):
            return super().solve(model, budget)
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        return self._coordinates.run(model, budget)

    def run_pass(self, state: NewtonState | WorkingSetState, model: Array, sums: Array, budget: Budget) -> None:
        """See `NewtonSolver` and `working_set.passes`."""
        if isinstance(state, NewtonState):
            super().run_pass(state, model, sums, budget)
            return
        self._coordinates.visit_all()
        if state.phase is WorkingSetPhase.SELECT:
            write_duals(self.local, state)
            select(self.local, state, model.reshape(-1, state.D), Sums(state, sums))
        else:
            gather(self.local, state, Sums(state, sums))

    def _solve_working_set(self, state: WorkingSetState, model: Array, budget: Budget) -> Update:
        """Solve for the rows of the working set, if it is the turn of this task."""
        sums = np.zeros(state.sums_size())
        if budget.rank == state.turn % budget.num_ranks:
            w = model.reshape(-1, state.D)
            with tells_if_long(state):
                solve(state, w, Sums(state, sums), self.local, tol=self.trainer.tol, ctx=self.ctx, budget=budget)
        return Update(delta=sums, samples=0, weight=1.0, is_partial=True)

    def recover(self, model: Array) -> Array:
        """w of the local duals, in float64, flattened. Rows whose duals are 0 are not looked at: all tasks wait."""
        return self._evaluate(model, has_losses=False).delta

    def evaluate(self, model: Array, progress: Array) -> Update:
        """Find w of the local duals, and the sums of losses (at `model`) and of dual values.

        In a Newton run the duals are written here. Those of one Newton step on belong to another model, which the
        trainer asks for next (`Trainer.settled`): the losses at this one do not matter then.
        """
        if WorkingSetState.is_of(progress) and self.chunks:
            write_duals(self.local, WorkingSetState.look(progress))
        if not NewtonState.is_of(progress) or not self.chunks:
            return self._evaluate(model, has_losses=True)
        state, known = NewtonState.look(progress), self._rebuilt
        update = self._evaluate(
            model,
            has_losses=known is not None or not state.has_newton_duals,
            known=known,
            settles=state if known is None else None,
        )
        self._rebuilt = update.delta.copy()
        return update

    def _settle(self, state: NewtonState, number: int, w: Array) -> None:
        """Write the duals of a part that are certified together with the model, w of shape (num_outputs, D)."""
        local = self._parts[number]
        with self.passes(number, len(w)) as passes:
            for k, output in enumerate(state.outputs):
                if not output.keeps_duals:
                    slopes = passes.duals(output, k, w[k], local.duals(k))[1]
                    local.write_duals(k, local.upper * local.signs[k] * slopes)

    def _evaluate(
        self, model: Array, *, has_losses: bool, known: Array | None = None, settles: NewtonState | None = None
    ) -> Update:
        """Evaluate; `known` is the w of the duals, if these are as they were. A Newton run `settles` them first."""
        self._coordinates.visit_all()  # rows that were left out wrongly must not keep a gap open for ever
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local, is_known = self.local, known is not None
        w = model.reshape(local.tables.num_outputs, -1)
        rebuilt, sums = np.zeros_like(w), np.zeros((len(w), 2))
        # Each part has a w of its own, which costs less than its rows.
        most = max(local.useful_threads, local.tables.num_values // (8 * w.size))
        parts = local.parts(most) if settles is None else self.parts(settles)

        def certify(number: int) -> tuple[Array, Array]:
            if settles is not None:
                self._settle(settles, number, w)
            return parts[number].certify(local.loss, w, has_losses=has_losses, is_known=is_known)

        def add(found: tuple[Array, Array]) -> None:  # in place: with a million features an array costs as many rows
            for total, more in zip((rebuilt, sums), found, strict=True):
                total += more

        local.pass_over(parts, certify, add)
        if known is None:
            local.dual_sums = sums[:, 1].copy()
        else:
            rebuilt = known.reshape(w.shape).copy()
        if has_losses:
            half_norms, rebuilt_norms = (0.5 * np.einsum("kd,kd->k", v, v) for v in (w, rebuilt))
            primal = half_norms + sums[:, 0]
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                relative = (primal - local.dual_sums + rebuilt_norms) / primal
            self._coordinates.certified(float(np.max(relative)))
        metrics = metrics_of(loss=sums[:, 0], dual=local.dual_sums)
        return Update(delta=rebuilt.ravel(), samples=0, weight=1.0, metrics=metrics)
