"""The local part of a model with an l1 penalty: the sums of a pass over the rows of one task, or a direction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.agreement import is_same
from chicle_elastic.solvers.linear.l1 import steps
from chicle_elastic.solvers.linear.l1.state import L1Output, L1State
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.newton.state import NewtonPhase
from chicle_elastic.solvers.linear.pass_solver import HEAD, Head, PassSolver
from chicle_elastic.solvers.linear.rows import add_dense
from chicle_elastic.solvers.linear.tables import Bounds

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.l1.columns import Columns


class L1Solver(PassSolver):
    """One per uni-task."""

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx, trainer)
        self._objective = trainer.problem
        self._loss = self._objective.of_scores
        bounds, intercept = Bounds(float(trainer.C), trainer.class_weights), float(trainer.intercept_scaling)
        self.local = LocalData(self.chunks, bounds=bounds, intercept=intercept)
        self._known: dict[int, list[tuple[Array, Array]]] = {}
        self._columns: Columns | None = None
        self._targets: Array | None = None

    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget scores, columns and targets."""
        self.local.change(added, removed)
        self._targets = self._columns = None
        self._known.clear()

    def run_pass(self, state: L1State, model: Array, sums: Array, budget: Budget) -> None:
        """Find what each output needs: sums over the local rows, or a direction from their columns."""
        local, D = self.local, state.D
        if state.is_looking:
            with np.errstate(over="ignore", invalid="ignore"):  # squares may be beyond all numbers
                sums[HEAD : HEAD + D] = local.weighted_sum()
                if not (state.is_whole and state.is_parabola):
                    sums[HEAD + D : HEAD + 2 * D] = local.rows.squares_sum(local.upper)
        outputs = zip(state.outputs, model.reshape(-1, D), state.parts(sums), self._targets_of(state), strict=True)
        for k, (output, w, part, targets) in enumerate(outputs):
            if budget.is_spent() and output.phase is not NewtonPhase.COLUMNS:
                sums[Head.INTERRUPTED] = 1.0
                return
            self._pass(state, k, w, part, targets, budget)

    def _targets_of(self, state: L1State) -> Array:
        """Real targets, or +1 and -1 for the class of each output and the others, shape (outputs, num_rows)."""
        if self._targets is None:
            is_real = state.is_parabola
            self._targets = self.local.targets[None] if is_real else self.local.signs_of(len(state.outputs))
        return self._targets

    def _upper(self, state: L1State) -> Array:
        """C_i, shape (num_rows,); of real targets they add up to 1/2 over all tasks."""
        return self.local.upper * (0.5 / state.total) if state.is_parabola else self.local.upper

    def _pass(self, state: L1State, k: int, w: Array, part: Array, targets: Array, budget: Budget) -> None:
        output, weights, D, rows = state.outputs[k], self.local.upper, state.D, self.local.rows
        if output.phase is NewtonPhase.LOOK:
            part[:D] = output.direction
            part[D:] = (
                (weights.sum(), weights @ targets)
                if state.is_parabola
                else (weights @ (targets > 0), weights @ (targets < 0))
            )
            return
        if output.phase is NewtonPhase.REST:
            return
        there = w + output.direction if output.phase is NewtonPhase.EVALUATE else w
        scores, upper = self._scores(k, there), self._upper(state)
        losses, slopes, curvatures = self._loss.at(scores, targets, 0.0)
        slopes, curvatures = upper * slopes, upper * curvatures
        if output.phase is NewtonPhase.COLUMNS:
            part[:] = self._from_columns(state, output, w, slopes, curvatures, budget)
        elif output.phase is NewtonPhase.MULTIPLY:
            self._multiply(state, output, curvatures, part)
        else:
            end = D + state.evaluation_size
            part[:D], found = output.direction, part[D:end].reshape(state.num_sides, -1)
            values = np.stack([upper * losses, slopes * (scores - state.target_mean)])
            if state.num_sides == 1:
                found[0, :2], found[0, 2:] = values.sum(axis=1), rows.weighted_sum(slopes)
            else:
                for sums, side in zip(found, (targets > 0, targets < 0), strict=True):
                    sums[:2], sums[2:] = values @ side, rows.weighted_sum(slopes * side)
            if state.needs_products(output):
                self._multiply(state, output, curvatures, part[end:])

    def _scores(self, k: int, point: Array) -> Array:
        """Scores there, shape (num_rows,); an output needs those at w and at the end of its direction again."""
        kept = self._known.setdefault(k, [])
        for at, scores in kept:
            if is_same(at, point):
                return scores
        scores = self.local.scores(point)
        kept[:] = [*kept[-1:], (point.copy(), scores)]
        return scores

    def _multiply(self, state: L1State, output: L1Output, curvatures: Array, sums: Array) -> None:
        local, columns, is_rough = self.local, output.columns, output.is_rough
        if state.is_parabola and not local.rows.is_sparse:
            # Products of the intercept, last, are known. Centring the products of rows would cost digits.
            means = state.means[:-1]
            if len(columns):
                columns = columns[columns < len(means)]
                means = means[columns]
            sums = sums[: len(means) * (len(means) + 1) // 2]
            blocks = [np.asarray(block.rows) for block in local.tables.keep_alive]
            add_dense(blocks, curvatures, columns, None, sums, rough=blocks if is_rough else None, shift=means)
        else:
            local.rows.add_products(curvatures, columns, sums, is_rough=is_rough)

    def _from_columns(
        self, state: L1State, output: L1Output, w: Array, slopes: Array, curvatures: Array, budget: Budget
    ) -> Array:
        """Find the direction of the task that has all rows, shape (D,)."""
        from chicle_elastic.solvers.linear.l1.columns import Columns

        if self._columns is None:
            self._columns = Columns(self.local.tables, self.local.intercept, self._objective)
        chosen = steps.chosen(state, w, output, self._objective)
        num_weights, num_held = int(np.count_nonzero(w)), int(np.count_nonzero(w[chosen]))
        direction, is_given_up = self._columns.direction(
            slopes,
            curvatures,
            output.slopes,
            w,
            damping=steps.damping(state, output, self._objective),
            accuracy=steps.accuracy(output),
            limit=self._columns.work_of_products(chosen, num_weights) if num_held == num_weights else np.inf,
            budget=budget,
        )
        if is_given_up:
            products = np.zeros(len(chosen) * (len(chosen) + 1) // 2)
            output = replace(output, columns=chosen, products=products)
            self._multiply(state, output, curvatures, products)
            direction[:] = 0.0
            direction[chosen], _ = steps.solution(state, output, chosen, w[chosen], self._objective)
        return direction

    def evaluate_rows(self, model: Array, progress: Array) -> Update:
        """Return as delta v of the duals; as metrics rows, and per output sums of losses, of dual values and `size`."""
        state, local, loss = L1State.look(progress), self.local, self._loss
        upper, delta, metrics = self._upper(state), [], {"rows": float(local.tables.num_rows)}
        outputs = zip(model.reshape(-1, state.D), state.outputs, self._targets_of(state), strict=True)
        for k, (w, output, targets) in enumerate(outputs):
            scores = self._scores(k, w)
            losses, duals, _ = loss.at(scores, targets, 0.0)
            metrics[f"loss/{k}"] = float(upper @ losses)
            if output.phase is NewtonPhase.REST and output.direction.any():
                # Residuals have digits that scores have no room for.
                duals = loss.slopes(local.rows.times(output.direction), targets - scores, 0.0)
            duals = duals * np.where(duals > 0, output.plus, output.minus)
            sizes = 0.25 * duals * duals if state.is_parabola else np.abs(duals)
            values = loss.dual_values(duals, np.full(len(duals), state.target_mean), targets)
            metrics[f"dual/{k}"], metrics[f"size/{k}"] = float(upper @ values), float(upper @ sizes)
            delta.append(local.rows.weighted_sum(upper * duals))
        return Update(delta=np.concatenate(delta), samples=0, weight=1.0, metrics=metrics)
