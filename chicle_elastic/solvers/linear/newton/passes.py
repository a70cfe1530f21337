"""What one thread of a task adds up over its rows in a pass of Newton's method.

Between passes it remembers, per output, the margins at w and by how much they change along the direction, so that a
step costs one product of its rows with a vector and one or two sums over them. Both are found anew where rows have come
or gone, and now and then because their rounding errors add up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton.blocks import Blocks
from chicle_elastic.solvers.linear.newton.plan import GRID, Group, NewtonPlan
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, OutputState
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, most_duals
from chicle_elastic.solvers.linear.rows import NewtonRows
from chicle_elastic.solvers.linear.slopes import ROWS_IN_CACHE, kinked_slopes, logistic_slopes, slopes_of

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
    duals: Array | None = None
    is_settled: bool = False
    has_moved_centers: bool = False


class NewtonPasses:
    """Over some local rows of one task, as long as they stay.

    Args:
        plan: The same in every task.
        rows: These rows, the intercept column included.
        upper: C_i, shape (num_rows,), float64.
        signs: +1 or -1, shape (num_outputs, num_rows).
        row_ids: Finds the numbers of the rows in the data set, shape (num_rows,), int64.
    """

    def __init__(
        self, plan: NewtonPlan, rows: NewtonRows, upper: Array, signs: Array, row_ids: Callable[[], Array]
    ) -> None:
        self.plan = plan
        self._rows = rows
        self._upper = upper
        self._signs = signs
        self._known: dict[int, _Known] = {}
        full = plan.loss.most_curvature * upper if plan.loss.has_kinks else None
        self._found: Array = np.empty((0, 4, 0))
        self._values: Array = np.empty((3, 0, 0))
        self._blocks = Blocks(rows, row_ids, plan.row_step, full)

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
        group: Group,  # OUT
        outputs: Sequence[OutputState],
        w: Array,
        duals: Mapping[int, Array],  # OUT
    ) -> None:
        """Add up what some outputs need.

        Args:
            group: Views of zeros, but for the directions, which are not looked at.
            outputs: Of all outputs.
            w: Shape (num_outputs, D).
            duals: Of those outputs that need them (`needs_duals`), by number, shape (num_rows,), float64. Those of the
                hinge are the centers, which may move.
        """
        for j, k in enumerate(group.numbers):
            known, output = self._margins(k, outputs[k], outputs[k].point if group.is_balance else w[k]), outputs[k]
            if group.is_balance:
                known.duals = self._smooth_duals(k, output, known)
                group.masses[j] += _by_class(self._signs[k], known.duals)
            elif output.old_tau and not known.has_moved_centers:
                duals[k][:] = _hinge_duals(known.margins, duals[k], output.old_tau * self._upper, self._upper)
                known.has_moved_centers = True
        if group.is_product:
            self._multiply(group, outputs)
        if group.is_product or group.is_balance:
            return
        self._find_changes(group.numbers, np.array([outputs[k].direction for k in group.numbers]))
        for j, k in enumerate(group.numbers):
            output = outputs[k]
            if self._known[k].changes is None and output.serial == 0 and duals[k].any():  # else all values are 0
                group.start[j, 0] += float(dual_values(self.plan.loss, duals[k], self._upper).sum())
                if self.plan.has_free_intercept:
                    group.start[j, 1] += float(self._signs[k] @ duals[k])
        if self.plan.is_smooth:
            self._evaluate_smooth(group, outputs)
            return
        for j, k in enumerate(group.numbers):
            self._evaluate_hinge(self._known[k], outputs[k], self._signs[k], duals[k], group, j)

    def settle(self, k: int, output: OutputState, w: Array, alpha: Array) -> bool:
        """Write the duals that are certified together with the model.

        Args:
            k: The output.
            output: Its state.
            w: Its w, shape (D,).
            alpha: OUT. Its duals, shape (num_rows,), float64.

        Returns:
            Whether there was anything to write.
        """
        is_at_rest = output.phase in (NewtonPhase.REST, NewtonPhase.BALANCE)
        known = self._margins(k, output, output.point if is_at_rest else w)
        if output.keeps_duals or known.is_settled:
            return False
        known.is_settled = is_at_rest
        if not self.plan.is_smooth:
            alpha[:] = _hinge_duals(known.margins, alpha, (output.old_tau or output.tau) * self._upper, self._upper)
            return True
        alpha[:] = self._smooth_duals(k, output, known) if known.duals is None else known.duals
        if self.plan.has_free_intercept:
            alpha *= np.where(self._signs[k] > 0, output.plus, output.minus)
        return True

    def _smooth_duals(self, k: int, output: OutputState, known: _Known) -> Array:
        """Return the duals at w, or of one Newton step on, shape (num_rows,)."""
        slopes, curvatures = self._slopes(known.margins)
        if not output.has_newton_duals:
            return slopes
        slopes -= curvatures * (self._signs[k] * self._rows.times(output.direction))
        return np.clip(slopes, 0.0, most_duals(self.plan.loss, self._upper), out=slopes)

    def sum_of(self, values_of: Callable[[Loss, Array, Array], Array], given: Array) -> float:
        """Sum over all rows of what `values_of` the loss, something of each row and C_i is."""
        total = 0.0
        for begin in range(0, len(given), ROWS_IN_CACHE):
            part = slice(begin, begin + ROWS_IN_CACHE)
            total += float(values_of(self.plan.loss, given[part], self._upper[part]).sum())
        return total

    def _margins(self, k: int, output: OutputState, w: Array) -> _Known:
        known = self._known.get(k)
        if known is not None and known.serial == output.serial:
            return known
        is_near = known is not None and known.serial == output.serial - 1 and not math.isnan(output.t)
        if known is not None and is_near and known.changes is not None and output.serial % STEPS_PER_REFRESH:
            margins = known.margins
            margins += known.changes if output.t == 1.0 else output.t * known.changes
        else:
            margins = self._signs[k] * self._rows.times(w) if w.any() else np.zeros(len(self._upper))
        known = self._known[k] = _Known(output.serial, margins)
        return known

    def _find_changes(self, numbers: list[int], directions: Array) -> None:
        """By how much the margins of these outputs change along directions of shape (n, D); None along none."""
        is_moving = np.any(directions, axis=1)
        moving = [k for k, is_one in zip(numbers, is_moving, strict=True) if is_one]
        for k in numbers:
            self._known[k].changes = None
        if not moving:
            return
        changes = self._rows.times_many(directions if len(moving) == len(numbers) else directions[is_moving])
        changes *= self._signs_of(moving)
        for k, of_output in zip(moving, changes, strict=True):
            self._known[k].changes = of_output

    def _signs_of(self, numbers: list[int]) -> Array:
        """Shape (n, num_rows)."""
        return self._signs if len(numbers) == len(self._signs) else self._signs[numbers]

    # Smooth losses.

    def _slopes(self, margins: Array) -> tuple[Array, Array]:
        """Slopes, which are duals, and second derivatives; each of the shape of the margins."""
        return slopes_of(self.plan.loss, margins, self._upper)

    def _evaluate_smooth(self, group: Group, outputs: Sequence[OutputState]) -> None:
        numbers, num_rows = group.numbers, len(self._upper)
        there, slopes, curvatures = self._buffers(len(numbers))
        for j, k in enumerate(numbers):
            known = self._known[k]
            if known.changes is None:
                there[j] = known.margins
            else:
                np.add(known.margins, known.changes, out=there[j])
        size = max(ROWS_IN_CACHE // len(numbers), 1)
        for begin in range(0, num_rows, size):
            part = slice(begin, begin + size)
            losses = self._losses_and_slopes(there[:, part], self._upper[part], slopes[:, part], curvatures[:, part])
            group.values[:, 0, 0] += losses
        for j, k in enumerate(numbers):
            if group.slopes.shape[1]:
                self._add_grid(self._known[k], group.slopes[j])
            if self.plan.has_free_intercept:
                group.values[j, 0, 1:] += _by_class(self._signs[k], slopes[j])
        slopes *= self._signs_of(numbers)
        group.gradients[0][0] += self._rows.weighted_sums(slopes)
        for j, k in enumerate(numbers):
            output = outputs[k]
            if group.diagonals[0][0].shape[1]:
                group.diagonals[0][0][j] += self._rows.squares_sum(curvatures[j])
            if group.beside.shape[1]:
                group.beside[j] += self._rows.weighted_sum(curvatures[j])
            if group.blocks[0][0].shape[1]:
                self._blocks.add(k, output.block, curvatures[j], output.columns, group.blocks[0][0][j])
            self._known[k].curvatures = None

    def _buffers(self, num_outputs: int) -> Array:
        """Three matrices with a value per row of each output; kept, as they are large."""
        if self._values.shape[1] < num_outputs:
            self._values = np.empty((3, num_outputs, len(self._upper)))
        return self._values[:, :num_outputs]

    def _losses_and_slopes(
        self,
        margins: Array,
        upper: Array,
        slopes: Array,  # OUT
        curvatures: Array,  # OUT
    ) -> Array:
        """Sum of C_i loss(m_i) per output, shape (n,), and `_slopes`: they have most of the work in common."""
        if self.plan.loss.has_kinks:
            slack = np.maximum(1.0 - margins, 0.0)
            slopes[...], curvatures[...] = kinked_slopes(self.plan.loss, slack, upper)
            slack -= 0.5 * np.minimum(slack, 0.5 * self.plan.loss.most_slope)
            return np.einsum("ki,ki->k", slopes, slack)
        small = np.exp(-np.abs(margins))
        slopes[...], curvatures[...] = logistic_slopes(margins, small, upper)
        losses = np.log1p(small, out=small)  # a tenth of what logaddexp takes
        losses -= np.minimum(margins, 0.0)
        return np.asarray(losses @ upper)

    def _add_grid(self, known: _Known, slopes: Array) -> None:
        """Add slopes at all shares of GRID."""
        if known.changes is None:
            return
        for number, t in enumerate(GRID.tolist()):
            slopes[number] -= float(self._slopes(known.margins + t * known.changes)[0] @ known.changes)

    def _multiply(self, group: Group, outputs: Sequence[OutputState]) -> None:
        for j, k in enumerate(group.numbers):
            known = self._known[k]
            curvatures = self._slopes(known.margins)[1] if known.curvatures is None else known.curvatures
            known.curvatures = curvatures
            group.product[j] += self._rows.curved_product(curvatures, outputs[k].p)

    # Hinge.

    def _evaluate_hinge(
        self, known: _Known, output: OutputState, signs: Array, centers: Array, group: Group, j: int
    ) -> None:
        """Of row `j` of the group."""
        candidates = self.plan.candidates if known.changes is not None else self.plan.candidates[:1]
        found, sums = self._hinge_buffer(len(candidates)), _HingeSums(group.start[j], group.values[j], group.slopes[j])
        for begin in range(0, len(signs), ROWS_IN_CACHE):
            part = slice(begin, begin + ROWS_IN_CACHE)
            changes = None if known.changes is None else known.changes[part]
            rows = _HingeRows(known.margins[part], changes, signs[part], self._upper[part], centers[part])
            rows.add(output, candidates, sums, found[:, :, part])
        for candidate in range(len(candidates)):
            gradients, blocks = group.gradients[candidate], group.blocks[candidate]
            stays = self._rows.weighted_sum(found[candidate, 0])
            gradients[0][j] += stays
            gradients[1][j] += stays + self._rows.weighted_sum(found[candidate, 1])
            for variant in (0, 1):
                self._rows.add_products(found[candidate, 2 + variant], output.columns, blocks[variant][j])

    def _hinge_buffer(self, num_candidates: int) -> Array:
        """What is found of each row at each candidate, shape (num_candidates, 4, num_rows); kept, as it is large."""
        if len(self._found) < num_candidates:
            self._found = np.empty((num_candidates, 4, len(self._upper)))
        return self._found[:num_candidates]


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

    def add(self, output: OutputState, candidates: tuple[float, ...], sums: "_HingeSums", found: Array) -> None:
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
            start = sums.start
            start += self._smoothed(self._margins, duals, scale), -float(duals @ changes)
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


@dataclass(frozen=True, slots=True)
class _HingeSums:
    """Those parts of the sums of one output that are not made of all rows at once, see `Group`."""

    start: Array
    values: Array
    slopes: Array


def _by_class(signs: Array, values: Array) -> tuple[float, float]:
    """Return the sums over the rows of a class, and over others.

    Both products add up in the same order, so the sum of a class whose values are all 0 is exactly 0.
    """
    both, difference = float(values @ np.ones(len(values))), float(values @ signs)
    return 0.5 * (both + difference), 0.5 * (both - difference)


def _hinge_duals(margins: Array, centers: Array, scale: Array, upper: Array) -> Array:
    """a(w) of rows with these margins, shape (n,); scale is tau C_i."""
    free = 1.0 - margins
    free *= scale
    free += centers
    return np.minimum(np.maximum(free, 0.0, out=free), upper, out=free)
