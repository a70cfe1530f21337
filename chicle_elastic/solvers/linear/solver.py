"""The local part of a linear classifier: passes of the chosen method, and what a certificate needs."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.linear.coordinates import CoordinatePasses, metrics_of
from chicle_elastic.solvers.linear.local import LocalData, LocalPart
from chicle_elastic.solvers.linear.newton.parts import NewtonParts
from chicle_elastic.solvers.linear.newton.state import NewtonState, Problem
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.pass_solver import ALONE, INTERRUPTED, ROWS
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.linear.working_set.passes import WorkingSetPasses
from chicle_elastic.solvers.linear.working_set.solution import solve, tells_if_long
from chicle_elastic.solvers.linear.working_set.state import (
    Sums,
    WorkingSetPhase,
    WorkingSetState,
    sums_size,
)
from chicle_elastic.solvers.local_chunk import LocalChunk


class LinearSolver(Solver):
    """One per uni-task.

    Args:
        ctx: Of the task.
        loss: The loss.
        bounds: Where the C_i come from.
        intercept: Value of the intercept column; 0 for none.
        tol: Relative gap to be reached.
        num_threads: Most threads to use.
        descends_only: Never go over from coordinate descent to Newton steps.
        problem: What Newton's method minimises.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        loss: Loss,
        bounds: Bounds,
        intercept: float,
        tol: float,
        num_threads: int,
        descends_only: bool = False,
        problem: Problem,
    ) -> None:
        super().__init__(ctx)
        self._tol = tol
        self._problem = problem
        self._local = LocalData(self.chunks, loss=loss, bounds=bounds, intercept=intercept, num_threads=num_threads)
        self._coordinates = CoordinatePasses(ctx, self._local, self.chunks, tol=tol, descends_only=descends_only)
        self._newton: NewtonParts | None = None
        self._rebuilt: Array | None = None
        self._working_set: WorkingSetPasses | None = None

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks; it is made again inside the next iteration, when they may be read."""
        super().attach(added, removed)
        self._local.change([chunk.id for chunk in added], removed)
        self._coordinates.change()
        self._newton = self._working_set = self._rebuilt = None

    def raise_bounds(self, C: float) -> None:
        """Go on with a larger C, inside an iteration: with the duals, and what is known of second derivatives.

        Args:
            C: Factor of the sum of losses.
        """
        ratio = C / self._local.bounds.C
        self._local.raise_bounds(replace(self._local.bounds, C=C))
        self._coordinates.raise_bounds(ratio)
        self._rebuilt = None
        if self._newton is not None:
            self._newton.raise_bounds(ratio)

    def solve(self, model: Array, budget: Budget) -> Update:
        """At least one pass over the local samples; each counts once, however many passes an iteration has.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        self._rebuilt = None
        if NewtonState.is_of(budget.progress):
            return self._newton_pass(model, budget)
        if WorkingSetState.is_of(budget.progress):
            state = WorkingSetState.look(budget.progress)
            if state.phase is not WorkingSetPhase.DESCEND:
                return self._round(state, model, budget)
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        return self._coordinates.run(model, budget)

    def _newton_pass(self, model: Array, budget: Budget) -> Update:
        state = NewtonState.look(budget.progress)
        if not self.chunks:
            return Update(delta=np.zeros(state.sums_size(self._problem)), samples=0, weight=0.0)
        sums = self._newton_parts(state).run(state, model.reshape(-1, state.D), budget)
        is_partial = bool(sums[INTERRUPTED] > 0)
        samples = 0 if is_partial else self._local.count_all()
        sums[ROWS], sums[ALONE] = samples, budget.num_ranks == 1
        return Update(delta=sums, samples=samples, weight=1.0, is_partial=is_partial)

    def _round(self, state: WorkingSetState, model: Array, budget: Budget) -> Update:
        """A pass of the working set."""
        sums = np.zeros(sums_size(state, len(model)))
        w = model.reshape(state.num_outputs, -1)
        parts = Sums(state, w.shape[1], sums)
        if state.phase is WorkingSetPhase.SOLVE:
            if budget.rank == state.turn % budget.num_ranks:
                with tells_if_long(state):
                    local = self._local
                    solve(
                        state,
                        w,
                        parts,
                        loss=local.loss,
                        intercept=local.intercept,
                        tol=self._tol,
                        ctx=self.ctx,
                        budget=budget,
                    )
            return Update(delta=sums, samples=0, weight=1.0, is_partial=True)
        if budget.is_spent():
            sums[0] = 1.0
            return Update(delta=sums, samples=0, weight=1.0, is_partial=True)
        if not self.chunks:
            return Update(delta=sums, samples=0, weight=1.0)
        self._coordinates.visit_all()
        passes = self._working_set_passes()
        if state.phase is WorkingSetPhase.SELECT:
            passes.write_duals(state)
            passes.select(state, w, parts)
        else:
            passes.gather(state, parts)
        return Update(delta=sums, samples=self._local.count_all(), weight=1.0)

    def recover(self, model: Array) -> Array:
        """w of the local duals, in float64, flattened. Rows whose duals are 0 are not looked at: all tasks wait."""
        return self._evaluate(model, has_losses=False).delta

    def evaluate(self, model: Array, progress: Array) -> Update:
        """w of the local duals, and the sums of losses (at `model`) and of dual values of the local samples.

        In a Newton run the duals are written here: those that belong to `model`.
        """
        if NewtonState.is_of(progress) and self.chunks:
            return self._evaluate_newton(NewtonState.look(progress), model)
        if WorkingSetState.is_of(progress) and self.chunks:
            self._working_set_passes().write_duals(WorkingSetState.look(progress))
        return self._evaluate(model, has_losses=True)

    def _evaluate_newton(self, state: NewtonState, model: Array) -> Update:
        """Sums over the matrix that Newton's method has anyway.

        Duals of one Newton step on belong to another model, which the trainer asks for next (`Trainer.settled`): the
        losses at this one do not matter then.
        """
        local, w = self._local, model.reshape(-1, state.D)
        self._coordinates.visit_all()
        has_losses = self._rebuilt is not None or not state.has_newton_duals
        parts = self._newton_parts(state)
        if self._rebuilt is None:
            self._rebuilt = parts.settle(state, w)
        losses = parts.losses(w) if has_losses else np.zeros(len(w))
        return Update(
            delta=self._rebuilt.ravel().copy(),
            samples=0,
            weight=1.0,
            metrics=metrics_of(loss=losses, dual=local.dual_sums),
        )

    def _evaluate(self, model: Array, *, has_losses: bool) -> Update:
        self._coordinates.visit_all()  # rows that were left out wrongly must not keep a gap open for ever
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local = self._local
        w = model.reshape(local.tables.num_outputs, -1)
        certify = functools.partial(LocalPart.certify, loss=local.loss, w=w, has_losses=has_losses)
        results = local.run_parts(certify, local.parts(local.useful_threads))
        stats: Array = np.sum([part for _, part in results], axis=0)
        rebuilt = results[0][0]
        for part, _ in results[1:]:  # in place: with a million features a fresh array costs as much as many rows
            rebuilt += part
        local.set_dual_sums(stats[:, 1].copy())
        if has_losses:
            half_norms, rebuilt_norms = (0.5 * np.einsum("kd,kd->k", v, v) for v in (w, rebuilt))
            primal = half_norms + stats[:, 0]
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                relative = (primal - stats[:, 1] + rebuilt_norms) / primal
            self._coordinates.certified(float(np.max(relative)))
        return Update(
            delta=rebuilt.ravel(), samples=0, weight=1.0, metrics=metrics_of(loss=stats[:, 0], dual=stats[:, 1])
        )

    def close(self) -> None:
        """End the kernel threads."""
        self._local.close()

    def _newton_parts(self, state: NewtonState) -> NewtonParts:
        if self._newton is None or self._newton.row_step != state.row_step:
            self._newton = NewtonParts(self._problem, state, self._local)
        return self._newton

    def _working_set_passes(self) -> WorkingSetPasses:
        if self._working_set is None:
            self._working_set = WorkingSetPasses(self._local)
        return self._working_set
