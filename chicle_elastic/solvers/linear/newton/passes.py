"""What one thread of a task adds up over its rows in a pass of Newton's method, and the duals that it writes.

Between passes it remembers, per output, the scores at w and at the end of the direction, so that a step costs one
product of its rows with a vector and one or two sums over them; with corners also the duals there.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.solvers.linear import methods
from chicle_elastic.solvers.linear.agreement import is_same
from chicle_elastic.solvers.linear.losses import RegressionLoss
from chicle_elastic.solvers.linear.newton.blocks import Blocks
from chicle_elastic.solvers.linear.newton.state import (
    SHARES,
    Block,
    Evaluation,
    NewtonPhase,
    NewtonState,
    OutputState,
    Problem,
    Sum,
)
from chicle_elastic.solvers.linear.objectives import ROWS_IN_CACHE, dual_slopes
from chicle_elastic.solvers.linear.progress import no_numbers
from chicle_elastic.solvers.linear.rows import NewtonRows, add_dense

VALUE_BYTES = 8  # of a float64
COMPILER_BYTES = 118 << 20  # that numba, LLVM and the kernels take, without pages of files; Linux, Python 3.11
WORK_VECTORS = 10  # of values per row that `NewtonPasses.run` has at once beside what is kept; a test counts


@dataclass(slots=True)
class _Point:
    """Keep what is known of all rows at a w."""

    w: Array  # the point
    scores: Array  # as the loss has them
    curvatures: Array | None = None  # of the loss, weighted, where products are asked for
    # slopes, beside: with corners, of the round loss, and its curvatures beside the duals
    slopes: Array | None = None
    beside: Array | None = None
    duals: Array | None = None  # with corners, those that the step to w has foretold


def forgets(problem: Problem, *, are_in_files: bool) -> bool:
    """Say whether passes find anew what they know of rows: scores follow from w, and duals are in the chunks."""
    return are_in_files and (problem.has_duals or not problem.loss.has_theta)


def kept_bytes(trainer: Any, schema: DataSchema) -> int:
    """Return what passes of a trainer over all rows take at most: what `NewtonPasses` keep, vectors of the rows at
    work, and the compiler of kernels where it is not loaded yet.
    """
    problem, num_outputs = trainer.problem_of(None), trainer.num_outputs(schema)
    loss, n, compiler = problem.loss, schema.num_rows, COMPILER_BYTES * ("numba" not in sys.modules)
    of_points = 2 * (len(fields(_Point)) - 1 if loss.has_theta else 2)  # scores and curvatures at two points
    of_rows = 1 + (loss.full_curvature is not None) + num_outputs * (1 + of_points + loss.has_theta)
    does_forget = forgets(problem, are_in_files=schema.are_rows_in_files)
    at_work = n
    if does_forget or problem.has_duals:  # there are parts
        values = methods.values_of_row(schema.num_features, are_in_files=schema.are_rows_in_files)
        at_work = min(n, getattr(trainer, "num_threads", 1) * math.ceil(methods.MOST_BLOCK_VALUES / values))
    if does_forget:
        return compiler + VALUE_BYTES * (n * num_outputs * loss.has_theta + at_work * (of_rows + WORK_VECTORS))
    return compiler + VALUE_BYTES * (n * of_rows + at_work * WORK_VECTORS)


class NewtonPasses:
    """Over some local rows of one task, as long as they stay."""

    def __init__(
        self,
        problem: Problem,  # the same in every task
        rows: NewtonRows,  # These rows, the intercept column included
        upper: Array,  # c_i, shape (num_rows,), float64
        targets: Array,  # of each output, shape (outputs, num_rows), float64
        intercept: float,  # Value of the intercept column
        row_ids: Callable[[], Array] = no_numbers,  # finds numbers in the data set, shape (num_rows,), int64
        row_step: int = 1,  # see `NewtonState`
        dense: Sequence[Array] = (),  # the rows of each chunk, where columns are centred before they are multiplied
    ) -> None:
        self._problem, self._loss = problem, problem.loss
        self._rows, self._row_ids, self._dense = rows, row_ids, dense
        self._upper = upper
        self.targets = np.zeros_like(targets) if self._loss.is_of_residuals else targets
        self._offsets = targets if self._loss.is_of_residuals else None
        self._intercept = intercept
        self._points: dict[int, list[_Point]] = {}
        self.best: dict[int, Array | None] = {}  # duals with the largest D so far, where those of the points are not
        full = self._loss.full_curvature
        self._blocks = Blocks(rows, row_ids, row_step, None if full is None else full * upper)

    def raise_bounds(self, upper: Array, ratio: float) -> None:
        """All c_i have become `ratio` times as large, and the next pass is a first one."""
        self._upper = upper
        self._points.clear()
        self.best.clear()
        self._blocks.scale(ratio)

    def run(
        self,
        state: NewtonState,  # of all outputs
        k: int,  # the output, which is not in phase LOOK
        w: Array,  # its w, shape (D,)
        part: Array,  # OUT: its sums, zeros
        alpha: Array | None = None,  # its duals in the chunks, if they matter
        *,
        is_first: bool = True,  # whether to add what is added once per task
    ) -> None:
        """Add up what an output needs."""
        output = state.outputs[k]
        if output.phase is NewtonPhase.MULTIPLY:
            curvatures = self.curvatures(output, k, w)
            part[: state.D] = self._rows.curved_product(curvatures, output.conjugate)
            part[state.D :] = output.conjugate * is_first
        elif output.phase is NewtonPhase.PRODUCTS:
            kind = Block.ROUGH if state.is_rough else Block.EXACT
            self.add_block(k, output, kind, self.curvatures(output, k, w), part)
        elif output.phase is NewtonPhase.GATHER:
            self._gather(k, state.lengths, part)
        elif output.phase is NewtonPhase.EVALUATE:
            found = Evaluation.of(state, output, self._problem, part)
            self._evaluate(state, k, w, found, alpha)
            if alpha is not None and self._loss.has_corners:
                alpha[:] = self._upper * self.targets[k] * self._points[k][-1].duals
            found.step[:] = output.step * is_first

    def curvatures(self, output: OutputState, k: int, w: Array) -> Array:
        """Return c f'' of all rows at w."""
        point = self._point(k, w)
        if point.curvatures is None:
            curvatures = self._loss.curvatures(point.scores, self.targets[k], output.theta)
            point.curvatures = self._upper * (curvatures if point.beside is None else point.beside)
        return point.curvatures

    def add_block(self, k: int, output: OutputState, kind: Block, curvatures: Array, out: Array) -> None:
        """Add the second derivatives in the columns of the block to `out`."""
        if not self._dense:
            self._blocks.add(k, kind, curvatures, output.columns, out)
            return
        # Products of the intercept, last, are known. Centring the products of rows would cost digits.
        means, columns = output.beside[:-1] / (output.beside[-1] or 1.0), output.columns
        if len(columns):
            columns = columns[columns < len(means)]
            means = means[columns]
        rough = None if kind is Block.EXACT else list(self._dense)
        size = len(means) * (len(means) + 1) // 2
        add_dense(list(self._dense), curvatures, columns, None, out[:size], rough=rough, shift=means)

    def lengths(self, num_rows: int) -> Array:
        """Return the numbers of values of the rows of the data set, 0 of those elsewhere."""
        return np.bincount(self._row_ids(), weights=self._rows.lengths(), minlength=num_rows)

    def _gather(
        self,
        k: int,
        lengths: Array,  # of all rows of the data set
        part: Array,  # OUT: c_i and targets of these, their columns, and values
    ) -> None:
        matrix, begins, ids = self._rows.csr(), np.cumsum(lengths) - lengths, self._row_ids()
        if not np.array_equal(np.diff(matrix.indptr), lengths[ids]):
            return  # rows came back that the look before has not seen; the trainer looks again
        of_rows, of_values = np.split(part, [2 * len(lengths)])
        upper, targets = np.split(of_rows, 2)
        upper[ids], targets[ids] = self._upper, self.targets[k] if self._offsets is None else self._offsets[k]
        places = np.repeat(begins[ids] - matrix.indptr[:-1], np.diff(matrix.indptr)) + np.arange(matrix.nnz)
        columns, values = np.split(of_values, 2)
        columns[places], values[places] = matrix.indices, matrix.data

    def _scores(self, k: int, w: Array) -> Array:
        """Find the scores of the loss: less the targets, for one of residuals."""
        scores = self._rows.times(w) if w[:-1].any() else np.full(self._rows.num_rows, self._intercept * w[-1])
        return scores if self._offsets is None else scores - self._offsets[k]

    def _known(self, k: int, w: Array) -> _Point | None:
        """Recall what is known of w; the mean of the steps of all tasks may be another one in its last digits."""
        for point in self._points.get(k, ()):
            if is_same(point.w, w):
                return point
        return None

    def _point(self, k: int, w: Array) -> _Point:
        """Recall what is known at w, now or from now on."""
        point = self._known(k, w)
        if point is None:
            point = _Point(w.copy(), self._scores(k, w))
            self._points[k] = [*self._points.get(k, ())[-1:], point]
        return point

    def _foretold(self, k: int, output: OutputState, point: _Point, scores: Array) -> Array:
        """Foretell the duals after a step from a point to these scores."""
        loss, y = self._loss, self.targets[k]
        assert point.slopes is not None
        duals = point.slopes + point.beside * (point.scores - scores)
        if output.foreseen:
            duals -= output.foreseen * loss.by_scale(point.scores, y, output.theta)[2]
        return loss.clipped(duals, y)

    def _best_duals(self, k: int, output: OutputState, known: Array | None) -> Array | None:
        """Recall the duals with the largest D so far: of the last pass (or `known`), or older; None where unknown."""
        if not output.is_best:
            return self.best.get(k)
        points = self._points.get(k)
        return points[-1].duals if points else known

    def _evaluate(self, state: NewtonState, k: int, w: Array, found: Evaluation, alpha: Array | None) -> None:
        rows, loss, upper, y, output = self._rows, self._loss, self._upper, self.targets[k], state.outputs[k]
        there, theta, scalars = w + output.direction, output.theta + output.change, found.scalars
        known = None if alpha is None or not alpha.any() else y * dual_slopes(alpha, upper)
        if loss.has_theta:
            self.best[k] = self._best_duals(k, output, known)
        before = self._point(k, w) if loss.has_theta or len(found.line) else self._known(k, w)
        point = self._known(k, there) or _Point(there, self._scores(k, there))
        self._points[k] = [point] if before is None or before is point else [before, point]
        scores = point.scores
        values, slopes, curvatures = loss.at(scores, y, theta)
        duals = slopes
        scalars[[Sum.ROUND, Sum.LOSS]] = upper @ values
        if output.is_first and known is not None:
            duals = known
            scalars[Sum.DUALS] = upper @ loss.dual_values(duals, np.zeros(len(y)), y)
            scalars[Sum.SIGNED] = alpha @ y
        if loss.has_theta:
            assert before is not None
            is_new = output.dual == -np.inf  # then a step has to come down from far above
            if before.slopes is None and known is not None and not is_new:
                before.slopes = loss.slopes(before.scores, y, output.theta)
                before.beside = loss.curvatures_beside(known, before.scores, y, output.theta)
            if before.slopes is not None:
                duals = self._foretold(k, output, before, scores)
            beside = loss.curvatures_beside(np.zeros(len(y)) if is_new else duals, scores, y, theta)
            point.slopes, point.beside, point.duals, point.curvatures = slopes, beside, duals, None
            curvatures, sharp = beside, float(upper @ loss.values(scores, y, loss.sharp(theta)))
            scalars[Sum.LOSS], scalars[Sum.LACK] = sharp, sharp - upper @ loss.dual_values(duals, scores, y)
            scalars[Sum.ROUND_BEFORE] = scalars[Sum.ROUND]
            if output.change:
                scalars[Sum.ROUND_BEFORE] = upper @ loss.values(scores, y, output.theta)
            scalars[Sum.LACK_OF_SLOPES] = sharp - upper @ loss.dual_values(slopes, scores, y)
            scalars[Sum.SQUARES] = upper @ (duals * duals)
            found.of_duals[:] = rows.weighted_sum(upper * duals)
        curvatures = upper * curvatures
        if self._problem.has_free_intercept and not self._problem.takes_steps:
            scalars[Sum.PLUS], scalars[Sum.MINUS] = upper @ np.maximum(duals, 0.0), upper @ np.maximum(-duals, 0.0)
        weights = upper * slopes
        if self._problem.has_sides:
            is_positive = slopes > 0
            scalars[Sum.OF_POSITIVE] = upper @ (values * is_positive)
            found.of_duals[:] = rows.weighted_sum(weights * is_positive)
            weights, found.v[:] = weights * ~is_positive, found.of_duals
        found.v[:] += rows.weighted_sum(weights)
        if output.block is not Block.KEPT:
            if len(found.second):
                self.add_block(k, output, output.block, curvatures, found.second)
            if len(found.diagonal):
                found.diagonal[:] = rows.squares_sum(curvatures)
            if len(found.beside):
                found.beside[:] = rows.weighted_sum(curvatures)
        if not (state.is_exact or loss.has_theta):
            point.curvatures = curvatures
        if loss.has_scale:
            first, second, mixed = loss.by_scale(scores, y, theta)
            scalars[Sum.BY_SCALE], scalars[Sum.TWICE_BY_SCALE] = upper @ first, upper @ second
            found.mixed[:] = rows.weighted_sum(upper * mixed)
        if len(found.line) and before is not None:
            shares = np.array(SHARES)[:, None]
            widths: Any = output.theta + (0.0 if loss.has_corners or not output.change else shares * output.change)
            for begin in range(0, len(y), ROWS_IN_CACHE // 2):
                i = slice(begin, begin + ROWS_IN_CACHE // 2)
                along = before.scores[i] + shares * (scores[i] - before.scores[i])
                found.line[:] += loss.values(along, y[i], widths) @ upper[i]

    def duals(self, output: OutputState, k: int, w: Array, alpha: Array | None = None) -> tuple[Array, Array]:
        """Return scores at w, and the duals that are certified together with it, per unit of c_i.

        They are the slopes at w + shift; where w is made of them, those that an exact step foretells; with corners
        those that the last step has foretold.
        """
        loss, y = self._loss, self.targets[k]
        point = self._point(k, w)
        scores = there = point.scores
        if len(output.duals):
            return scores, output.duals[self._row_ids()]
        if output.shift.any():
            there = scores + self._rows.times(output.shift)
        if loss.has_theta:
            is_known = point.slopes is not None and output.shift.any()
            # Those in the chunks are of a task that had the rows before, or of a pass over rows in files.
            known = None if alpha is None or not alpha.any() else y * dual_slopes(alpha, self._upper)
            best = self._foretold(k, output, point, there) if is_known else self._best_duals(k, output, known)
            best = known if best is None else best
            duals = loss.slopes(there, y, output.dual_theta) if best is None else best
        elif self._problem.has_duals and output.shift.any():
            _, slopes, curvatures = loss.at(scores, y, output.theta)
            duals = loss.clipped(slopes + curvatures * (scores - there), y)
        else:
            duals = loss.slopes(there, y, output.dual_theta)
        return scores, duals * np.where(duals > 0, output.plus, output.minus)


def certificate_sums(
    loss: RegressionLoss, k: int, scores: Array, duals: Array, targets: Array, upper: Array, theta: float = 0.0
) -> dict[str, float]:
    """Sum up what a certificate needs of output `k` and its duals per unit of c: losses, these less dual values and
    products of duals and scores, squares of duals, and scores.
    """
    losses = loss.values(scores, targets, loss.sharp(theta))
    found = {"loss": losses, "lack": losses - loss.dual_values(duals, scores, targets)}
    found |= {"squares": duals * duals, "scores": scores}
    return {f"{name}/{k}": float(upper @ values) for name, values in found.items()}
