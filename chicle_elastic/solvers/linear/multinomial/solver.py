"""Sums of a pass of a multinomial regression over the rows of one task, which remembers the last probabilities."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.agreement import is_same, ticks_of
from chicle_elastic.solvers.linear.multinomial.class_rows import ClassRows
from chicle_elastic.solvers.linear.multinomial.objective import Softmax, probabilities
from chicle_elastic.solvers.linear.multinomial.preconditioner import block_weights, joint_block, mean_weights
from chicle_elastic.solvers.linear.multinomial.problem import SoftmaxProblem
from chicle_elastic.solvers.linear.newton.state import FIRST_SHARE, Block, Evaluation, NewtonPhase, NewtonState, Sum
from chicle_elastic.solvers.linear.objectives import upper_bounds
from chicle_elastic.solvers.linear.pass_solver import HEAD, PassSolver
from chicle_elastic.solvers.local_chunk import LocalChunk

LEAST_ROUGH_TOL = 100.0 * float(np.finfo(np.float32).eps)
"""Gap to reach down to which an evaluation takes products in float32: they move it by 1e-7 to 1e-6, on digits, rows
like embeddings, columns far from 0 and separable classes. With tol 1e-4 fits take as many passes as with float64, with
1e-6 up to a seventh more."""


class LocalRows:
    """Rows that are not left out, class codes, C_i and ticks of all local chunks (at least one), while these stay.

    Ticks are numbers from 0 to 1, spread evenly over the rows of the data set.
    """

    def __init__(self, chunks: dict[ChunkId, LocalChunk], C: float, trainer: Any) -> None:
        blocks = {chunk_id: chunk.peek() for chunk_id, chunk in chunks.items()}
        found, factors = list(blocks.values()), trainer.class_weights
        codes = np.concatenate([block.targets for block in found])
        upper = np.concatenate([upper_bounds(C, block.targets, block.weights, factors) for block in found])
        ticks = ticks_of(np.concatenate([np.asarray(block.row_ids) for block in found]))
        self.num_read, is_counted = len(codes), None
        if trainer.code_classes is not None:
            is_counted = upper > 0
            codes = np.array(trainer.code_classes)[codes]
            codes, upper, ticks = codes[is_counted], upper[is_counted], ticks[is_counted]
        self.rows = ClassRows(blocks, is_counted)
        self.codes: Array = codes
        self.upper: Array = upper
        self.ticks: Array = ticks


class MultinomialSolver(PassSolver):
    """One per uni-task."""

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx, trainer)
        self._C = float(trainer.C)
        self._known: tuple[Array, Array] | None = None
        self._rows: LocalRows | None = None

    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget the rows, and the probabilities."""
        self._rows = self._known = None

    @property
    def local(self) -> LocalRows:
        """The present chunks, read; there is at least one."""
        if self._rows is None:
            self._rows = LocalRows(self.chunks, self._C, self.trainer)
        return self._rows

    def raise_bounds(self, C: float) -> None:
        """Go on with a larger C."""
        if self._rows is not None:
            self._rows.upper *= C / self._C
        self._C = C

    def run_pass(self, state: NewtonState, model: Array, sums: Array, budget: Budget) -> None:
        """See `newton.state`."""
        output, part, problem = state.outputs[0], sums[HEAD:], self.trainer.problem_of(state)
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

        def weights_of(rows: slice) -> Array:
            return np.where(local.codes[rows] == np.arange(K)[:, None], local.upper[rows], 0.0)

        linear = problem.by_class(part[: state.D])
        linear[:, :-1] = local.rows.sums(K, weights_of)
        linear[:, -1] = np.bincount(local.codes, weights=local.upper, minlength=K)
        if not np.isfinite(linear).all():
            local.rows.require_finite()
        if state.outputs[0].block is Block.KEPT:
            return
        # One block in place of so many, so it may have more rows.
        share = min(max(problem.num_blocks(state), 1) / state.row_step, 1.0)
        weights = local.upper if share == 1.0 else np.where(local.ticks < share, local.upper / share, 0.0)
        self._add_blocks(problem, weights[np.newaxis], part[state.D :], is_rough=state.is_rough)

    def _evaluate(self, state: NewtonState, problem: SoftmaxProblem, W: Array, found: Evaluation) -> None:
        local, output, K = self.local, state.outputs[0], state.num_classes
        p = np.empty((K, local.rows.num_rows), np.float32 if state.is_rough else np.float64)
        there = W + problem.by_class(output.direction)
        is_smooth = not output.damping and output.reach == 1.0 and state.share == FIRST_SHARE
        is_rough = state.is_rough and problem.tol >= LEAST_ROUGH_TOL and is_smooth
        beside = found.beside.reshape(K, K)
        loss, found.scalars[Sum.DUALS], gradient = self._sums(there, p=p, beside=beside, is_rough=is_rough)
        self._known = there, p
        found.scalars[[Sum.ROUND, Sum.LOSS]] = loss
        gradient[:, -1] *= problem.has_free_intercept
        found.v[:] = -gradient.ravel()
        found.step[:] = output.step
        if output.block is Block.KEPT:
            return
        if state.is_exact:
            has_intercept = problem.has_free_intercept
            found.second[:] = joint_block(local.rows.dense(), p, local.upper, has_intercept=has_intercept)
            return
        weights_of = mean_weights if problem.num_blocks(state) == 1 else block_weights
        weights = weights_of(p, local.upper)
        weights = self._drawn(weights, state.row_step)
        blocks = found.second if len(found.second) else found.diagonal
        self._add_blocks(problem, weights, blocks, is_rough=state.is_rough)

    def _sums(
        self, W: Array, *, p: Array | None = None, beside: Array | None = None, is_rough: bool = False
    ) -> tuple[float, float, Array]:
        """Sum up loss, entropy and gradient, shape (K, D), in one pass; fill in `p`, (K, num_rows), and add to
        `beside`, (K, K). If it is rough, products are in float32; losses and slopes are in float64.
        """
        local, values, intercepts = self.local, np.zeros(2), np.zeros((len(W), 1))

        def slopes_at(rows: slice, scores: Array) -> Array:
            found = Softmax.of(scores + W[:, -1:], local.codes[rows], local.upper[rows])
            values[:] += found.loss, found.entropy
            if p is not None:
                p[:, rows] = found.probabilities
            if beside is not None:
                beside[...] += found.intercept_curvatures()
            slopes = found.slopes(local.codes[rows], local.upper[rows])
            intercepts[:, 0] += slopes.sum(axis=1)
            return slopes

        gradient = np.hstack([local.rows.curved(W[:, :-1], slopes_at, is_rough=is_rough), intercepts])
        return float(values[0]), float(values[1]), gradient

    def _drawn(self, weights: Array, row_step: int) -> Array:
        """Draw about one row in so many per block: those that count most, and of the others some, counted up."""
        if row_step == 1 or not weights.size:
            return weights
        bounds = row_step * weights.mean(axis=1, keepdims=True)
        chances = np.divide(weights, bounds, out=np.zeros_like(weights), where=bounds > 0)
        heavier = np.where(chances < 1.0, bounds, weights)
        return np.where(self.local.ticks < chances, heavier, 0.0)

    def _add_blocks(self, problem: SoftmaxProblem, weights: Array, blocks: Array, *, is_rough: bool) -> None:
        """Add up a block, or where there is no room for it a diagonal, for each row of weights."""
        rows, each = self.local.rows, blocks.reshape(len(weights), -1)
        intercept = float(problem.has_free_intercept)
        if each.shape[1] > rows.num_features + 1:
            rows.add_products(weights, intercept, each, is_rough=is_rough)
        else:
            each[:, :-1] = rows.sums(len(weights), lambda part: weights[:, part], are_squared=True)
            each[:, -1] = intercept * weights.sum(axis=1)

    def _curved(self, W: Array, vector: Array, *, is_rough: bool) -> Array:
        """Second derivatives of the losses times `vector`, shape (K, D)."""
        p, upper = self._probabilities(W, np.float32 if is_rough else np.float64), self.local.upper
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

    def _probabilities(self, W: Array, dtype: Any) -> Array:
        """Find those of all rows, shape (K, num_rows); rows are not read where W is 0."""
        known = self._known
        if known is None or known[1].dtype != dtype or not is_same(known[0], W):
            p = np.empty((len(W), self.local.rows.num_rows), dtype)
            if W[:, :-1].any():
                self._sums(W, p=p)
            else:
                p[:] = probabilities(W[:, -1:])
            self._known = W.copy(), p
            return p
        return known[1]

    def evaluate_rows(self, model: Array, progress: Array) -> Update:
        """As delta the gradient of the losses, in float64 from the model alone; as metrics loss, entropy and rows."""
        with np.errstate(over="ignore", invalid="ignore"):
            loss, entropy, gradient = self._sums(model.reshape(-1, self.local.rows.num_features + 1))
        metrics = {"loss": loss, "entropy": entropy, "rows": float(self.local.num_read)}
        return Update(delta=gradient.ravel(), samples=0, weight=1.0, metrics=metrics)
