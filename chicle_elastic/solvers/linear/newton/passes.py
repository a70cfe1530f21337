"""What one task adds up over its rows in a pass of Newton's method.

Between passes a task remembers, per output, the margins at w and by how much they change along the direction, so that a
step costs one product of its rows with a vector and one or two sums over them. Both are found anew where rows have come
or gone, and now and then because their rounding errors add up.
"""

import math
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton.blocks import Blocks
from chicle_elastic.solvers.linear.newton.plan import GRID, NewtonPlan, OutputSums
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, OutputState
from chicle_elastic.solvers.linear.objectives import Loss, dual_values
from chicle_elastic.solvers.linear.rows import NewtonRows
from chicle_elastic.solvers.linear.slopes import ROWS_IN_CACHE, losses_and_slopes, slopes_of

STEPS_PER_REFRESH = 16
"""Steps after which margins are found from w again."""


@dataclass(slots=True)
class _Known:
    """Of one output: margins at w after step `serial`, their changes along the direction, and second derivatives.

    The centers of the hinge move once per step at most, also where a pass is made again because a task was interrupted.
    """

    serial: int
    margins: Array
    changes: Array | None = None
    curvatures: Array | None = None
    is_settled: bool = False
    has_moved_centers: bool = False


class NewtonPasses:
    """Over the local rows of one task, as long as they stay.

    Args:
        plan: The same in every task.
        rows: All local rows, the intercept column included.
        upper: C_i, shape (num_rows,), float64.
        is_rough: Whether second derivatives may be summed up in float32; by default where they are a preconditioner.
    """

    def __init__(self, plan: NewtonPlan, rows: NewtonRows, upper: Array, *, is_rough: bool | None = None) -> None:
        self.plan = plan
        self._rows = rows
        self._upper = upper
        self._known: dict[int, _Known] = {}
        self._step_rows = np.arange(0, len(upper), plan.row_step) if plan.row_step > 1 else None
        full = plan.row_step * 2.0 * upper if plan.loss is Loss.SQUARED_HINGE else None
        self._found: Array = np.empty((0, 4, 0))
        self._blocks = Blocks(rows, full, is_rough=not plan.is_exact if is_rough is None else is_rough)

    def raise_bounds(self, upper: Array, ratio: float) -> None:
        """All C_i have become `ratio` times as large, and the next pass is a first one.

        Args:
            upper: C_i, shape (num_rows,), float64.
            ratio: See above.
        """
        self._upper = upper
        self._known.clear()
        self._blocks.scale(ratio)

    def needs_duals(self, output: OutputState) -> bool:
        """Whether a pass looks at the duals in the chunks: the centers of the hinge, and those of the beginning."""
        return not self.plan.is_smooth or output.serial == 0

    def run(
        self,
        k: int,
        output: OutputState,
        w: Array,
        signs: Array,
        alpha: Array,  # OUT
        sums: OutputSums,  # OUT
    ) -> None:
        """Add up what output `k` needs.

        Args:
            k: The output.
            output: Its state.
            w: Its w, shape (D,).
            signs: +1 or -1, shape (num_rows,).
            alpha: Its duals, shape (num_rows,), float64; those of the hinge are the centers, which may move.
            sums: Views of zeros.
        """
        known = self._margins(k, output, w, signs)
        if output.old_tau and not known.has_moved_centers:
            alpha[:] = self._hinge_duals(known.margins, alpha, output.old_tau)
            known.has_moved_centers = True
        if output.phase is NewtonPhase.MULTIPLY:
            self._multiply(known, output, sums)
            return
        sums.direction += output.direction
        has_direction = bool(output.direction.any())
        known.changes = signs * self._rows.times(output.direction) if has_direction else None
        if not has_direction and output.serial == 0 and alpha.any():  # else all values are 0
            sums.start[0] += float(dual_values(self.plan.loss, alpha, self._upper).sum())
        if self.plan.is_smooth:
            self._evaluate_smooth(k, known, output, signs, sums)
        else:
            self._evaluate_hinge(known, output, signs, alpha, sums)

    def end(self) -> None:
        """All outputs of a pass have been looked at."""
        self._blocks.end_pass()

    def settle(self, k: int, output: OutputState, w: Array, signs: Array, alpha: Array) -> bool:
        """Write the duals that are certified together with the model; arguments as in `run`.

        Returns:
            Whether there was anything to write.
        """
        is_at_rest = output.phase is NewtonPhase.REST
        known = self._margins(k, output, output.point if is_at_rest else w, signs)
        if output.keeps_duals or known.is_settled:
            return False
        known.is_settled = is_at_rest
        if not self.plan.is_smooth:
            alpha[:] = self._hinge_duals(known.margins, alpha, output.old_tau or output.tau)
            return True
        slopes, curvatures = self._slopes(known.margins)
        alpha[:] = slopes
        if output.has_newton_duals:
            alpha -= curvatures * (signs * self._rows.times(output.direction))
            np.clip(alpha, 0.0, self._upper, out=alpha)
        return True

    def _margins(self, k: int, output: OutputState, w: Array, signs: Array) -> _Known:
        known = self._known.get(k)
        if known is not None and known.serial == output.serial:
            return known
        is_near = known is not None and known.serial == output.serial - 1 and not math.isnan(output.t)
        if known is not None and is_near and known.changes is not None and output.serial % STEPS_PER_REFRESH:
            margins = known.margins
            margins += output.t * known.changes
        else:
            margins = signs * self._rows.times(w) if w.any() else np.zeros(len(signs))
        known = self._known[k] = _Known(output.serial, margins)
        return known

    # Smooth losses.

    def _slopes(self, margins: Array) -> tuple[Array, Array]:
        """-C_i loss'(m_i), which are duals, and C_i loss''(m_i); each of shape (num_rows,)."""
        return slopes_of(self.plan.loss, margins, self._upper)

    def _evaluate_smooth(self, k: int, known: _Known, output: OutputState, signs: Array, sums: OutputSums) -> None:
        there = known.margins if known.changes is None else known.margins + known.changes
        losses, slopes, curvatures = losses_and_slopes(self.plan.loss, there, self._upper)
        sums.values[0, 0] += losses
        if len(sums.slopes) and known.changes is not None:
            for number, t in enumerate(GRID.tolist()):
                slopes_there = self._slopes(known.margins + t * known.changes)[0]
                sums.slopes[number] -= float(slopes_there @ known.changes)
        sums.gradients[0][0] += self._rows.weighted_sum(signs * slopes)
        diagonal, block = sums.diagonals[0][0], sums.blocks[0][0]
        if len(diagonal):
            diagonal += self._rows.squares_sum(curvatures)
        if len(block):
            self._blocks.add(k, self._of_step_rows(curvatures), output.columns, block)
        known.curvatures = None

    def _multiply(self, known: _Known, output: OutputState, sums: OutputSums) -> None:
        if known.curvatures is None:
            known.curvatures = self._slopes(known.margins)[1]
        sums.direction += output.p
        sums.product += self._rows.curved_product(known.curvatures, output.p)

    # Hinge.

    def _hinge_duals(self, margins: Array, centers: Array, tau: float) -> Array:
        """a(w) of rows with these margins, shape (num_rows,)."""
        return _hinge_duals(margins, centers, tau * self._upper, self._upper)

    def _evaluate_hinge(
        self, known: _Known, output: OutputState, signs: Array, centers: Array, sums: OutputSums
    ) -> None:
        candidates = self.plan.candidates if known.changes is not None else self.plan.candidates[:1]
        found = self._hinge_buffer(len(candidates))
        for begin in range(0, len(signs), ROWS_IN_CACHE):
            part = slice(begin, begin + ROWS_IN_CACHE)
            changes = None if known.changes is None else known.changes[part]
            rows = _HingeRows(known.margins[part], changes, signs[part], self._upper[part], centers[part])
            rows.add(output, candidates, sums, found[:, :, part])
        for candidate in range(len(candidates)):
            gradients = sums.gradients[candidate]
            stays = self._rows.weighted_sum(found[candidate, 0])
            gradients[0] += stays
            gradients[1] += stays + self._rows.weighted_sum(found[candidate, 1])
            self._add_curvature(found[candidate, 2], output.columns, sums, candidate, 0)
            self._add_curvature(found[candidate, 3], output.columns, sums, candidate, 1)

    def _hinge_buffer(self, num_candidates: int) -> Array:
        """What is found of each row at each candidate, shape (num_candidates, 4, num_rows); kept, as it is large."""
        if len(self._found) < num_candidates:
            self._found = np.empty((num_candidates, 4, len(self._upper)))
        return self._found[:num_candidates]

    def _add_curvature(self, curvatures: Array, columns: Array, sums: OutputSums, candidate: int, variant: int) -> None:
        """Add the block, and the diagonal where it is wanted."""
        diagonal, block = sums.diagonals[candidate][variant], sums.blocks[candidate][variant]
        if len(diagonal):
            diagonal += self._rows.squares_sum(curvatures)
        if not len(block):
            return
        self._rows.add_products(self._of_step_rows(curvatures), columns, block)

    def _of_step_rows(self, curvatures: Array) -> Array:
        """The curvatures that count for the block, shape (num_rows,)."""
        if self._step_rows is None:
            return curvatures
        chosen = np.zeros(len(curvatures))
        chosen[self._step_rows] = self.plan.row_step * curvatures[self._step_rows]
        return chosen


class _HingeRows:
    """Some rows of one output, few enough for what is found on the way to stay in the cache.

    Args:
        margins: At w, shape (n,).
        changes: Of the margins along the direction, shape (n,); None without one.
        signs, upper, centers: Shape (n,).
    """

    def __init__(self, margins: Array, changes: Array | None, signs: Array, upper: Array, centers: Array) -> None:
        self._margins = margins
        self._changes = changes
        self._signs = signs
        self._upper = upper
        self._centers = centers

    def add(self, output: OutputState, candidates: tuple[float, ...], sums: OutputSums, found: Array) -> None:
        """Add up what they contribute.

        Args:
            output: The state of the output.
            candidates: Shares of the direction.
            sums: Values and slopes are added here.
            found: Per candidate signed duals, signed changes of the duals if the centers move, and the second
                derivatives in both cases, shape (candidates, 4, n).
        """
        upper, centers, changes = self._upper, self._centers, self._changes
        scale, next_scale = output.tau * upper, output.next_tau * upper
        if changes is not None:
            duals = _hinge_duals(self._margins, centers, scale, upper)
            sums.start += self._smoothed(self._margins, duals, scale), -float(duals @ changes)
            if len(sums.slopes):
                for number, t in enumerate(GRID.tolist()):
                    there = _hinge_duals(self._margins + t * changes, centers, scale, upper)
                    sums.slopes[number] -= float(there @ changes)
        for candidate, t in enumerate(candidates):
            there = self._margins if changes is None else self._margins + t * changes
            duals = _hinge_duals(there, centers, scale, upper)
            moved = _hinge_duals(there, duals, next_scale, upper)
            losses = np.maximum(1.0 - there, 0.0)
            sums.values[candidate] += (
                float(losses @ upper),
                float(duals.sum()),
                self._smoothed(there, duals, scale),
            )
            np.multiply(self._signs, duals, out=found[candidate, 0])
            np.multiply(self._signs, moved - duals, out=found[candidate, 1])
            np.multiply((duals > 0) & (duals < upper), scale, out=found[candidate, 2])
            np.multiply((moved > 0) & (moved < upper), next_scale, out=found[candidate, 3])

    def _smoothed(self, margins: Array, duals: Array, scale: Array) -> float:
        """Sum of the losses that phi has."""
        moves = duals - self._centers
        moves *= moves
        return float(duals @ (1.0 - margins) - (moves / np.where(scale > 0, 2.0 * scale, 1.0)).sum())


def _hinge_duals(margins: Array, centers: Array, scale: Array, upper: Array) -> Array:
    """a(w) of rows with these margins, shape (n,); scale is tau C_i."""
    free = 1.0 - margins
    free *= scale
    free += centers
    return np.minimum(np.maximum(free, 0.0, out=free), upper, out=free)
