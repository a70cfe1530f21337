"""The local part of a multinomial regression: the sums of a pass over the rows of one task.

Between passes a task remembers the probabilities at the W, b that it has evaluated last. They are found anew where rows
have come or gone.
"""

from collections.abc import Callable, Sequence

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.multinomial.class_rows import ClassRows
from chicle_elastic.solvers.linear.multinomial.objective import Softmax, probabilities
from chicle_elastic.solvers.linear.multinomial.preconditioner import block_weights, joint_block
from chicle_elastic.solvers.linear.multinomial.problem import ENTROPY, SoftmaxProblem
from chicle_elastic.solvers.linear.newton.state import (
    Block,
    Evaluation,
    NewtonPhase,
    NewtonState,
)
from chicle_elastic.solvers.linear.objectives import upper_bounds
from chicle_elastic.solvers.linear.pass_solver import HEAD, PassSolver
from chicle_elastic.solvers.local_chunk import LocalChunk

GOLDEN_RATIO = 0.6180339887498949
"""Multiples of it by the number of a row, modulo 1, are spread evenly: which rows are drawn is the same on any task."""
SAME = 1e-14
"""Relative difference of a weight that is rounding, as the mean of the steps of all tasks has."""


class LocalRows:
    """Rows, class codes and weights of all local chunks (at least one), for as long as these stay.

    Attributes:
        rows: The rows.
        codes: Class codes, shape (num_rows,), int32.
        upper: C_i, shape (num_rows,), float64.
        ticks: Numbers from 0 to 1, spread evenly over the rows of the data set, shape (num_rows,), float64.
    """

    def __init__(self, chunks: dict[ChunkId, LocalChunk], C: float, class_weights: Sequence[float] | None) -> None:
        blocks = {chunk_id: chunk.peek() for chunk_id, chunk in chunks.items()}
        found = list(blocks.values())
        self.rows = ClassRows(blocks)
        self.codes: Array = np.concatenate([block.targets for block in found])
        self.upper: Array = np.concatenate(
            [upper_bounds(C, block.targets, block.weights, class_weights) for block in found]
        )
        numbers = np.concatenate([np.asarray(block.row_ids) for block in found])
        self.ticks: Array = numbers * GOLDEN_RATIO % 1.0


class MultinomialSolver(PassSolver):
    """One per uni-task.

    Args:
        ctx: Of the task.
        problem_of: Says what is minimised.
        C: Factor of the losses.
        class_weights: Factor of C per class code; None for 1.
    """

    state_type = NewtonState

    def __init__(
        self,
        ctx: Context,
        *,
        problem_of: Callable[[NewtonState], SoftmaxProblem],
        C: float,
        class_weights: Sequence[float] | None,
    ) -> None:
        super().__init__(ctx)
        self._problem_of = problem_of
        self._C = C
        self._class_weights = class_weights
        self._known: tuple[Array, Array] | None = None
        self._rows: LocalRows | None = None

    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget the rows, and the probabilities."""
        self._rows = self._known = None

    @property
    def local(self) -> LocalRows:
        """The present chunks, read; there is at least one."""
        if self._rows is None:
            self._rows = LocalRows(self.chunks, self._C, self._class_weights)
        return self._rows

    def sums_size(self, state: NewtonState) -> int:
        """See `newton.state`."""
        return state.sums_size(self._problem_of(state))

    def run_pass(self, state: NewtonState, model: Array, sums: Array, budget: Budget) -> None:
        """See `newton.state`."""
        output, part, problem = state.outputs[0], sums[HEAD:], self._problem_of(state)
        with np.errstate(over="ignore", invalid="ignore"):  # of values beyond all numbers; the gap is then infinite
            if output.phase is NewtonPhase.LOOK:
                self._look(state, problem, part)
            elif output.phase is NewtonPhase.EVALUATE:
                self._evaluate(state, problem, problem.by_class(model), Evaluation.of(state, output, problem, part))
            elif output.phase is NewtonPhase.MULTIPLY:
                W, vector = problem.by_class(model), problem.by_class(output.conjugate)
                found = self._curved(W, vector, is_rough=state.is_rough)
                found[:, -1] *= problem.has_free_intercept
                part[:] = np.concatenate([found.ravel(), output.conjugate])

    def _look(self, state: NewtonState, problem: SoftmaxProblem, part: Array) -> None:
        local, K = self.local, state.num_classes
        weights = np.zeros((K, local.rows.num_rows))
        weights[local.codes, np.arange(local.rows.num_rows)] = local.upper
        linear = problem.by_class(part[: state.D])
        linear[:, :-1], linear[:, -1] = local.rows.sums(weights), weights.sum(axis=1)
        if not np.isfinite(linear).all():
            local.rows.require_finite()
        if state.outputs[0].block is Block.KEPT:
            return
        # One block in place of K, so it may have more rows.
        share = min(K / state.row_step, 1.0)
        weights = local.upper if share == 1.0 else np.where(local.ticks < share, local.upper / share, 0.0)
        self._add_blocks(state, problem, weights[np.newaxis], part[state.D :])

    def _evaluate(self, state: NewtonState, problem: SoftmaxProblem, W: Array, found: Evaluation) -> None:
        local, output = self.local, state.outputs[0]
        there = W + problem.by_class(output.direction)
        softmax = Softmax.of(self._scores(there), local.codes, local.upper)
        self._known = there, softmax.probabilities
        found.scalars[0] = found.scalars[1] = softmax.loss
        found.scalars[ENTROPY] = softmax.entropy
        gradient = self._gradient(softmax)
        gradient[:, -1] *= problem.has_free_intercept
        found.v[:] = -gradient.ravel()
        found.beside[:] = softmax.intercept_curvatures().ravel()
        found.step[:] = output.step
        if output.block is Block.KEPT:
            return
        if state.is_exact:
            dense, has_intercept = local.rows.dense(), problem.has_free_intercept
            found.second[:] = joint_block(dense, softmax.probabilities, local.upper, has_intercept=has_intercept)
            return
        weights = block_weights(softmax.probabilities, local.upper)
        if state.row_step > 1:
            weights = self._drawn(weights, state.row_step)
        self._add_blocks(state, problem, weights, found.second if len(found.second) else found.diagonal)

    def _gradient(self, softmax: Softmax) -> Array:
        """That of the losses, shape (K, D)."""
        slopes = softmax.slopes(self.local.codes, self.local.upper)
        return np.hstack([self.local.rows.sums(slopes), slopes.sum(axis=1, keepdims=True)])

    def _drawn(self, weights: Array, row_step: int) -> Array:
        """Of about one row in so many per class: those that count most, and of the others some, counted up."""
        bounds = row_step * weights.mean(axis=1, keepdims=True)
        chances = np.divide(weights, bounds, out=np.zeros_like(weights), where=bounds > 0)
        heavier = np.where(chances < 1.0, bounds, weights)
        return np.where(self.local.ticks < chances, heavier, 0.0)

    def _add_blocks(self, state: NewtonState, problem: SoftmaxProblem, weights: Array, blocks: Array) -> None:
        rows, by_class = self.local.rows, blocks.reshape(len(weights), -1)
        intercept = float(problem.has_free_intercept)
        if state.is_exact or problem.is_narrow(state):
            rows.add_products(weights, intercept, by_class, is_rough=state.is_rough)
        else:
            by_class[:, :-1] = rows.squares(weights)
            by_class[:, -1] = intercept * weights.sum(axis=1)

    def _curved(self, W: Array, vector: Array, *, is_rough: bool) -> Array:
        """Second derivatives of the losses times `vector`, shape (K, D)."""
        p, upper = self._probabilities(W), self.local.upper
        intercepts = np.zeros((len(W), 1))
        offsets = vector[:, -1:]

        def curve(part: slice, changes: Array) -> Array:
            chosen = p[:, part]
            curved = chosen * (changes + offsets)
            curved -= chosen * curved.sum(axis=0)
            curved *= upper[part]
            intercepts[:, 0] += curved.sum(axis=1)
            return curved

        return np.hstack([self.local.rows.curved(vector[:, :-1], curve, is_rough=is_rough), intercepts])

    def _probabilities(self, W: Array) -> Array:
        """Those of all rows, shape (K, num_rows)."""
        if self._known is None or not (np.abs(self._known[0] - W) <= SAME * np.abs(W)).all():
            self._known = W.copy(), probabilities(self._scores(W))
        return self._known[1]

    def _scores(self, W: Array) -> Array:
        """Scores of all rows, shape (K, num_rows); rows are not read where W is 0."""
        if not W[:, :-1].any():
            return np.repeat(W[:, -1:], self.local.rows.num_rows, axis=1)
        scores = self.local.rows.times(W[:, :-1])
        scores += W[:, -1:]
        return scores

    def evaluate(self, model: Array, progress: Array) -> Update:
        """As delta the gradient of the losses, in float64 from the model alone; as metrics loss, entropy and rows."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local = self.local
        W = model.reshape(-1, local.rows.num_features + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            found = Softmax.of(self._scores(W), local.codes, local.upper)
            gradient = self._gradient(found)
        metrics = {"loss": found.loss, "entropy": found.entropy, "rows": float(local.rows.num_rows)}
        return Update(delta=gradient.ravel(), samples=0, weight=1.0, metrics=metrics)
