"""The local part of a classifier with an l1 penalty: the sums of a pass over the rows of one task, or a direction."""

from typing import TYPE_CHECKING

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.l1 import steps
from chicle_elastic.solvers.linear.l1.objective import Objective, SlopeSums
from chicle_elastic.solvers.linear.l1.state import SHARES, L1Phase, L1State, OutputState
from chicle_elastic.solvers.linear.objectives import dual_values
from chicle_elastic.solvers.linear.pass_solver import HEAD, INTERRUPTED, PassSolver
from chicle_elastic.solvers.linear.rows import NewtonRows, newton_rows
from chicle_elastic.solvers.linear.slopes import each_loss_and_slope, losses_and_slopes, slopes_of, sum_of_losses
from chicle_elastic.solvers.linear.tables import (
    Bounds,
    LocalTables,
    Notes,
    build_tables,
    require_finite_values,
    upper_of_rows,
)
from chicle_elastic.solvers.local_chunk import LocalChunk

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.l1.columns import Columns


class LabelledRows:
    """Rows, signs and C_i of all local chunks (at least one), for as long as these stay.

    Attributes:
        tables: For the kernels.
        rows: The rows, with the intercept column.
        upper: C_i, shape (num_rows,), float64.
    """

    def __init__(self, chunks: dict[ChunkId, LocalChunk], *, bounds: Bounds, intercept: float) -> None:
        notes: dict[ChunkId, Notes] = {}
        self.tables: LocalTables = build_tables(chunks, notes, bounds)
        self.rows: NewtonRows = newton_rows(self.tables, intercept)
        self.upper: Array = upper_of_rows(self.tables, notes, bounds.C)
        self._codes = np.concatenate([block.targets for block in self.tables.keep_alive])

    def signs(self, k: int, num_outputs: int) -> Array:
        """+1 where the class is that of output `k`, else -1, shape (num_rows,), float64."""
        return np.where(self._codes == (1 if num_outputs == 1 else k), 1.0, -1.0)


def sides_of(values: Array, signs: Array, sides: int) -> Array:
    """Sums over the class of the output and over the others, or over all; shape (sides,)."""
    return np.array([values.sum()] if sides == 1 else [values[signs > 0].sum(), values[signs < 0].sum()])


class L1Solver(PassSolver[L1State, LabelledRows]):
    """One per uni-task.

    Args:
        ctx: Of the task.
        objective: Of each output.
        bounds: Where the C_i come from.
        intercept: Value of the intercept column; 0 for none.
    """

    state_type = L1State

    def __init__(self, ctx: Context, *, objective: Objective, bounds: Bounds, intercept: float) -> None:
        super().__init__(ctx)
        self._objective = objective
        self._bounds = bounds
        self._intercept = intercept
        self._known: dict[int, list[tuple[Array, Array]]] = {}
        self._columns: Columns | None = None

    def forget(self) -> None:
        """Forget margins and columns."""
        self._known.clear()
        self._columns = None

    def read_chunks(self) -> LabelledRows:
        """Make tables of them."""
        return LabelledRows(self.chunks, bounds=self._bounds, intercept=self._intercept)

    def run_without_rows(self, state: L1State, model: Array, sums: Array, budget: Budget) -> bool:
        """Find a direction where it is this task's turn."""
        if not self.chunks or state.reads_rows:
            return False
        self.run_pass(state, model, sums, budget)
        return True

    def run_pass(self, state: L1State, model: Array, sums: Array, budget: Budget) -> None:
        """Find what each output needs: sums over the local rows, or a direction where it is this task's turn."""
        if state.is_looking:
            self._look(state, sums[HEAD : HEAD + state.D])
        outputs = zip(state.outputs, model.reshape(-1, state.D), state.parts(sums), strict=True)
        for k, (output, w, part) in enumerate(outputs):
            if output.phase is L1Phase.SOLVE:
                if budget.rank == (state.turn + k) % budget.num_ranks:
                    part[0] = 1.0
                    if state.from_columns:
                        part[1:] = self._from_columns(state, k, output, w, budget)
                    else:
                        part[1:] = steps.direction(state, output, w, self._objective, is_spent=budget.is_spent)
            elif budget.is_spent():
                sums[INTERRUPTED] = 1.0
                return
            else:
                self._pass(state, k, output, w, part)

    def _look(self, state: L1State, norms: Array) -> None:
        local = self.local
        with np.errstate(over="ignore", invalid="ignore"):
            # 0 times a value is 0 but for NaN and infinity; squares may be beyond all numbers.
            require_finite_values(local.tables, local.rows.times(np.zeros(local.rows.num_columns)))
            norms += local.rows.squares_sum(local.upper)

    def _pass(self, state: L1State, k: int, output: OutputState, w: Array, part: Array) -> None:
        local, loss = self.local, self._objective.loss
        signs = local.signs(k, len(state.outputs))
        if output.phase is L1Phase.LOOK:
            part[:] = sides_of(local.upper, signs, 2)
        elif output.phase is L1Phase.EVALUATE:
            size = SlopeSums.size(state.num_sides, len(w))
            found = SlopeSums.of(part[:size], state.num_sides)
            curvatures = self._add_slopes(found, signs, self._margins(k, signs, w + output.direction))
            if state.is_whole:
                self._multiply(output, curvatures, part[size:])
        elif output.phase is L1Phase.MULTIPLY:
            self._multiply(output, slopes_of(loss, self._margins(k, signs, w), local.upper)[1], part)
        elif output.phase is L1Phase.SEARCH:
            at_w = self._margins(k, signs, w)
            changes = self._margins(k, signs, w + output.direction) - at_w
            for number, share in enumerate(SHARES):
                part[number] = sum_of_losses(loss, at_w + share * changes, local.upper)

    def _add_slopes(self, sums: SlopeSums, signs: Array, margins: Array) -> Array:
        """Sums at these margins are added; returns the curvatures, shape (num_rows,)."""
        local, sides = self.local, len(sums.losses)
        losses, slopes, curvatures = each_loss_and_slope(self._objective.loss, margins, local.upper)
        sums.losses[:] = sides_of(losses, signs, sides)
        sums.products[:] = sides_of(slopes * margins, signs, sides)
        sums.masses[:] = sides_of(slopes, signs, sides)
        slopes *= signs
        for side, v in enumerate(sums.v):
            v += local.rows.weighted_sum(slopes if sides == 1 else np.where((signs > 0) == (side == 0), slopes, 0.0))
        return curvatures

    def _margins(self, k: int, signs: Array, point: Array) -> Array:
        """Margins there, shape (num_rows,); an output needs those at w and at the end of its direction again."""
        kept = self._known.setdefault(k, [])
        for at, margins in kept:
            if np.array_equal(at, point):
                return margins
        margins = signs * self.local.rows.times(point)
        kept[:] = [*kept[-1:], (point.copy(), margins)]
        return margins

    def _multiply(self, output: OutputState, curvatures: Array, sums: Array) -> None:
        self.local.rows.add_products(curvatures, output.columns, sums, is_rough=output.is_rough)

    def _from_columns(self, state: L1State, k: int, output: OutputState, w: Array, budget: Budget) -> Array:
        """The direction of the task that has all rows, shape (D,)."""
        from chicle_elastic.solvers.linear.l1.columns import Columns

        local = self.local
        if self._columns is None:
            self._columns = Columns(local.tables, self._intercept, self._objective)
        signs = local.signs(k, len(state.outputs))
        slopes, curvatures = slopes_of(self._objective.loss, self._margins(k, signs, w), local.upper)
        return self._columns.direction(
            signs * slopes,
            curvatures,
            output.slopes,
            w,
            damping=steps.damping(state, output, self._objective),
            accuracy=output.accuracy,
            is_spent=budget.is_spent,
        )

    def evaluate(self, model: Array, progress: Array) -> Update:
        """As delta v of the duals, and as metrics the sums of losses, of dual values and of duals, per output."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        state, local, loss = L1State.look(progress), self.local, self._objective.loss
        delta, metrics = [], {}
        for k, (w, output) in enumerate(zip(model.reshape(len(state.outputs), -1), state.outputs, strict=True)):
            signs = local.signs(k, len(state.outputs))
            losses, duals, _ = losses_and_slopes(loss, signs * local.rows.times(w), local.upper)
            duals *= np.where(signs > 0, output.plus, output.minus)
            delta.append(local.rows.weighted_sum(signs * duals))
            metrics[f"loss/{k}"], metrics[f"mass/{k}"] = losses, float(duals.sum())
            metrics[f"dual/{k}"] = float(dual_values(loss, duals, local.upper).sum())
        return Update(delta=np.concatenate(delta), samples=0, weight=1.0, metrics=metrics)
