"""The local part of a linear classifier: passes of the chosen method, and what a certificate needs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chicle_elastic.chunks import blocks
from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.kernels import scd
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.plan import NewtonPlan
from chicle_elastic.solvers.linear.newton.state import NewtonState, is_newton
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.scd import CoordinatePasses, metrics_of
from chicle_elastic.solvers.linear.tables import SMALL_VALUES, Bounds, objective_sums
from chicle_elastic.solvers.linear.working_set.passes import WorkingSetPasses, solve
from chicle_elastic.solvers.linear.working_set.state import (
    Sums,
    WorkingSetPhase,
    WorkingSetState,
    is_working_set,
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
        has_rough_products: Whether second derivatives of float32 rows are summed up in float32, which is in half the
            time, also where they are all of them.
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
        has_rough_products: bool = False,
    ) -> None:
        super().__init__(ctx)
        self._has_rough_products = has_rough_products
        self._tol = tol
        self._local = LocalData(self.chunks, loss=loss, bounds=bounds, intercept=intercept, num_threads=num_threads)
        self._coordinates = CoordinatePasses(ctx, self._local, self.chunks, tol=tol)
        self._newton: NewtonPasses | None = None
        self._working_set: WorkingSetPasses | None = None

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks; it is made again inside the next iteration, when they may be read."""
        super().attach(added, removed)
        self._local.change([chunk.id for chunk in added], removed)
        self._coordinates.change()
        self._newton = self._working_set = None

    def raise_bounds(self, C: float) -> None:
        """Go on with a larger C, inside an iteration: with the duals, and what is known of second derivatives.

        Args:
            C: Factor of the sum of losses.
        """
        ratio = C / self._local.bounds.C
        self._local.raise_bounds(replace(self._local.bounds, C=C))
        self._coordinates.raise_bounds(ratio)
        if self._newton is not None:
            self._newton.raise_bounds(self._local.upper, ratio)

    def solve(self, model: Array, budget: Budget) -> Update:
        """At least one pass over the local samples; each counts once, however many passes an iteration has.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        if is_newton(budget.progress):
            return self._newton_pass(model, budget)
        if is_working_set(budget.progress):
            state = WorkingSetState.decode(budget.progress)
            if state.phase is not WorkingSetPhase.DESCEND:
                return self._round(state, model, budget)
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        return self._coordinates.run(model, budget)

    def _newton_pass(self, model: Array, budget: Budget) -> Update:
        state = NewtonState.decode(budget.progress, len(model))
        plan = self._plan(state, model)
        sums = np.zeros(plan.sums_size(state))
        if not self.chunks:
            return Update(delta=sums, samples=0, weight=0.0)
        self._local.check_all_rows()
        passes = self._newton_passes(plan)
        w = model.reshape(plan.num_outputs, plan.D)
        for k, (output, part) in enumerate(zip(state.outputs, plan.sums(state, sums), strict=True)):
            if budget.is_spent():
                sums[0] = 1.0
                return Update(delta=sums, samples=0, weight=1.0, is_partial=True)
            if part is None:
                continue
            alpha = self._local.duals(k) if passes.needs_duals(output) else np.zeros(0)
            passes.run(k, output, w[k], self._local.signs(k), alpha, part)
            if output.old_tau:
                self._local.write_duals(k, alpha)
        passes.end()
        return Update(delta=sums, samples=self._local.count_all(), weight=1.0)

    def _round(self, state: WorkingSetState, model: Array, budget: Budget) -> Update:
        """A pass of the working set."""
        sums = np.zeros(sums_size(state, len(model)))
        w = model.reshape(state.num_outputs, -1)
        parts = Sums(state, w.shape[1], sums)
        if state.phase is WorkingSetPhase.SOLVE:
            if budget.rank == state.turn % budget.num_ranks:
                solve(state, w, parts, intercept=self._local.intercept, tol=self._tol, is_spent=budget.is_spent)
            return Update(delta=sums, samples=0, weight=1.0, is_partial=True)
        if budget.is_spent():
            sums[0] = 1.0
            return Update(delta=sums, samples=0, weight=1.0, is_partial=True)
        if not self.chunks:
            return Update(delta=sums, samples=0, weight=1.0)
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
        if is_newton(progress) and self.chunks:
            state = NewtonState.decode(progress, len(model))
            passes = self._newton_passes(self._plan(state, model))
            w = model.reshape(len(state.outputs), -1)
            for k, output in enumerate(state.outputs):
                alpha = self._local.duals(k)
                if passes.settle(k, output, w[k], self._local.signs(k), alpha):
                    self._local.write_duals(k, alpha)
        elif is_working_set(progress) and self.chunks:
            self._working_set_passes().write_duals(WorkingSetState.decode(progress))
        return self._evaluate(model, has_losses=True)

    def _evaluate(self, model: Array, *, has_losses: bool) -> Update:
        self._coordinates.visit_all()  # rows that screening left out wrongly must not keep a gap open for ever
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local, tables = self._local, self._local.tables
        w = model.reshape(tables.num_outputs, -1)

        def run(part: Array) -> tuple[Array, Array]:
            rebuilt, stats = blocks.zeros(w.shape, w.dtype.name), np.zeros((tables.num_outputs, 2))
            scd.objective_sums(
                int(local.loss),
                tables.rows,
                tables.samples,
                int(part[0]),
                int(part[-1]) + 1,
                scd.positives(tables.num_outputs),
                local.intercept,
                has_losses,
                w,
                rebuilt,
                stats,
            )
            return rebuilt, stats

        chunks = np.arange(len(tables.ids))
        if tables.num_values <= SMALL_VALUES:
            results = [objective_sums(tables, local.notes, local.loss, local.bounds.C, local.intercept, w)]
        else:
            results = local.run_parts(run, np.array_split(chunks, min(local.useful_threads, len(chunks))))
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

    def _plan(self, state: NewtonState, model: Array) -> NewtonPlan:
        return NewtonPlan.of(state, len(model), loss=self._local.loss, tol=self._tol)

    def _newton_passes(self, plan: NewtonPlan) -> NewtonPasses:
        if self._newton is None or self._newton.plan != plan:
            is_rough = self._has_rough_products or not plan.is_exact
            self._newton = NewtonPasses(plan, self._local.rows, self._local.upper, is_rough=is_rough)
        return self._newton

    def _working_set_passes(self) -> WorkingSetPasses:
        if self._working_set is None:
            self._working_set = WorkingSetPasses(self._local)
        return self._working_set
