"""The local part of a model with an l1 penalty: the sums of a pass over the rows of one task, or a direction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.l1 import steps
from chicle_elastic.solvers.linear.l1.objective import SlopeSums, sides_of
from chicle_elastic.solvers.linear.l1.state import SHARES, L1Phase, L1State, OutputState
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import dual_values
from chicle_elastic.solvers.linear.pass_solver import HEAD, INTERRUPTED, PassSolver
from chicle_elastic.solvers.linear.rows import add_dense
from chicle_elastic.solvers.linear.tables import Bounds

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.l1.columns import Columns


class L1Solver(PassSolver):
    """One per uni-task.

    Args:
        ctx: Of the task.
        trainer: The `ColumnsTrainer`, which says what is minimised.
    """

    state_type = L1State

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx)
        self._objective = trainer.problem
        bounds, intercept = Bounds(float(trainer.C), trainer.class_weights), float(trainer.intercept_scaling)
        self.local = LocalData(self.chunks, bounds=bounds, intercept=intercept)
        self._known: dict[int, list[tuple[Array, Array]]] = {}
        self._columns: Columns | None = None
        self._signs: Array | None = None
        self._scaled: tuple[float, Array] | None = None

    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget scores, columns, signs and weights."""
        self.local.change(added, removed)
        self._scaled = self._signs = self._columns = None
        self._known.clear()

    def run_without_rows(self, state: L1State, model: Array, sums: Array, budget: Budget) -> bool:
        """Find a direction where it is this task's turn."""
        if not self.chunks or state.reads_rows:
            return False
        self.run_pass(state, model, sums, budget)
        return True

    def run_pass(self, state: L1State, model: Array, sums: Array, budget: Budget) -> None:
        """Find what each output needs: sums over the local rows, or a direction where it is this task's turn."""
        if state.is_looking:
            self._look(state, sums[HEAD : HEAD + 2 * state.D])
        outputs = zip(state.outputs, model.reshape(-1, state.D), state.parts(sums), strict=True)
        for k, (output, w, part) in enumerate(outputs):
            if output.phase is L1Phase.SOLVE:
                if budget.rank == (state.turn + k) % budget.num_ranks:
                    if state.from_columns:
                        part[0], part[2:] = 1.0, self._from_columns(state, k, output, w, budget)
                    else:
                        part[:] = steps.solution(state, output, w, self._objective, is_spent=budget.is_spent)
            elif budget.is_spent():
                sums[INTERRUPTED] = 1.0
                return
            else:
                self._pass(state, k, output, w, part)

    def _look(self, state: L1State, sums: Array) -> None:
        local, D = self.local, state.D
        with np.errstate(over="ignore", invalid="ignore"):  # squares may be beyond all numbers
            sums[:D] = local.weighted_sum()
            if not (state.is_whole and state.is_parabola):
                sums[D:] = local.rows.squares_sum(local.upper)

    def _upper(self, state: L1State) -> Array:
        """C_i, shape (num_rows,): of real targets relative to the sum of the weights of all."""
        if state.total == 1.0:
            return self.local.upper
        if self._scaled is None or self._scaled[0] != state.total:
            self._scaled = state.total, self.local.upper / state.total
        return self._scaled[1]

    def _targets(self, state: L1State, k: int) -> Array:
        """Real targets, or +1 and -1 for the class of output `k` and the others, shape (num_rows,)."""
        if state.is_parabola:
            return self.local.targets
        if self._signs is None:
            self._signs = self.local.signs_of(len(state.outputs))
        return self._signs[k]

    def _pass(self, state: L1State, k: int, output: OutputState, w: Array, part: Array) -> None:
        objective, weights, targets = self._objective, self.local.upper, self._targets(state, k)
        if output.phase is L1Phase.LOOK:
            part[:] = (weights.sum(), weights @ targets) if state.is_parabola else sides_of(weights, targets)
        elif output.phase is L1Phase.EVALUATE:
            size = SlopeSums.size(state.num_sides, len(w))
            found = SlopeSums.of(part[:size], state.num_sides)
            curvatures = self._add_slopes(state, found, targets, self._scores(k, w + output.direction))
            if state.needs_products(output):
                self._multiply(state, output, curvatures, part[size:])
        elif output.phase is L1Phase.MULTIPLY:
            curvatures = objective.at(self._scores(k, w), targets, self._upper(state))[2]
            self._multiply(state, output, curvatures, part)
        elif output.phase is L1Phase.SEARCH:
            at_w = self._scores(k, w)
            changes = self._scores(k, w + output.direction) - at_w
            for number, share in enumerate(SHARES):
                part[number] = objective.at(at_w + share * changes, targets, self._upper(state))[0][0]

    def _add_slopes(self, state: L1State, sums: SlopeSums, targets: Array, scores: Array) -> Array:
        """Sums at these scores are added; returns the curvatures, shape (num_rows,)."""
        rows, sides = self.local.rows, state.num_sides
        sums.losses[:], slopes, curvatures = self._objective.at(scores, targets, self._upper(state), sides)
        if sides == 1:
            sums.products[:] = slopes @ (scores - state.target_mean)
            sums.v[0] = rows.weighted_sum(slopes)
            return curvatures
        sums.products[:] = sides_of(slopes * scores, targets)
        for side, v in enumerate(sums.v):
            v[:] = rows.weighted_sum(np.where((targets > 0) == (side == 0), slopes, 0.0))
        return curvatures

    def _scores(self, k: int, point: Array) -> Array:
        """Scores there, shape (num_rows,); an output needs those at w and at the end of its direction again."""
        kept = self._known.setdefault(k, [])
        for at, scores in kept:
            if np.array_equal(at, point):
                return scores
        scores = self.local.scores(point)
        kept[:] = [*kept[-1:], (point.copy(), scores)]
        return scores

    def _multiply(self, state: L1State, output: OutputState, curvatures: Array, sums: Array) -> None:
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

    def _from_columns(self, state: L1State, k: int, output: OutputState, w: Array, budget: Budget) -> Array:
        """The direction of the task that has all rows, shape (D,)."""
        from chicle_elastic.solvers.linear.l1.columns import Columns

        if self._columns is None:
            self._columns = Columns(self.local.tables, self.local.intercept, self._objective)
        _, slopes, curvatures = self._objective.at(self._scores(k, w), self._targets(state, k), self._upper(state))
        return self._columns.direction(
            slopes,
            curvatures,
            output.slopes,
            w,
            damping=steps.damping(state, output, self._objective),
            accuracy=output.accuracy,
            is_spent=budget.is_spent,
        )

    def evaluate(self, model: Array, progress: Array) -> Update:
        """Return as delta v of the duals; as metrics rows, and per output sums of losses, of dual values and `size`."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        state, local, objective = L1State.look(progress), self.local, self._objective
        upper, delta, metrics = self._upper(state), [], {"rows": float(local.tables.num_rows)}
        for k, (w, output) in enumerate(zip(model.reshape(len(state.outputs), -1), state.outputs, strict=True)):
            targets, scores = self._targets(state, k), self._scores(k, w)
            losses, duals, _ = objective.at(scores, targets, upper)
            metrics[f"loss/{k}"] = float(losses[0])
            if output.phase is L1Phase.REST and output.direction.any():
                changes = local.rows.times(output.direction)
                # Residuals have digits that scores have no room for.
                at = (changes, targets - scores) if state.is_parabola else (scores + changes, targets)
                losses, duals, _ = objective.at(*at, upper)
            if objective.loss is None:
                duals *= output.plus
                size = output.plus**2 * float(losses[0])
                metrics[f"dual/{k}"] = float(duals @ (targets - state.target_mean)) - size
            else:
                duals *= np.where(targets > 0, output.plus, output.minus)
                metrics[f"dual/{k}"] = float(dual_values(objective.loss, targets * duals, upper).sum())
                size = float(np.abs(duals).sum())
            metrics[f"size/{k}"] = size
            delta.append(local.rows.weighted_sum(duals))
        return Update(delta=np.concatenate(delta), samples=0, weight=1.0, metrics=metrics)
