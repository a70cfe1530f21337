"""The local part of a multinomial regression: the sums of a pass over the rows of one task.

Between passes a task remembers the probabilities at the W, b that it has evaluated last. They are found anew where rows
have come or gone.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.multinomial.class_rows import ClassRows
from chicle_elastic.solvers.linear.multinomial.objective import Softmax, probabilities
from chicle_elastic.solvers.linear.multinomial.preconditioner import (
    ClassBlocks,
    block_weights,
    joint_block,
    joint_step,
)
from chicle_elastic.solvers.linear.multinomial.state import (
    MultinomialPhase,
    MultinomialState,
)
from chicle_elastic.solvers.linear.objectives import upper_bounds
from chicle_elastic.solvers.linear.pass_solver import HEAD, PassSolver
from chicle_elastic.solvers.local_chunk import LocalChunk

GOLDEN_RATIO = 0.6180339887498949
"""Multiples of it by the number of a row, modulo 1, are spread evenly: which rows are drawn is the same on any task."""


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
        C: Factor of the losses.
        class_weights: Factor of C per class code; None for 1.
        has_intercept: Whether b is anything but 0.
    """

    state_type = MultinomialState

    def __init__(self, ctx: Context, *, C: float, class_weights: Sequence[float] | None, has_intercept: bool) -> None:
        super().__init__(ctx)
        self._C, self._class_weights = C, class_weights
        self._has_intercept = has_intercept
        self._rows: LocalRows | None = None
        self._known: tuple[Array, Array] | None = None
        self._preconditioner: tuple[int, ClassBlocks] | None = None

    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget rows and probabilities; a preconditioner is good for any rows."""
        self._rows = self._known = None

    @property
    def rows(self) -> LocalRows:
        """The present chunks, read; there is at least one."""
        if self._rows is None:
            self._rows = LocalRows(self.chunks, self._C, self._class_weights)
        return self._rows

    def run_pass(self, state: MultinomialState, model: Array, sums: Array, budget: Budget) -> None:
        """See `MultinomialState.sums_size`."""
        W = model.reshape(state.num_classes, state.D)
        passes: dict[MultinomialPhase, Callable[[], None]] = {
            MultinomialPhase.LOOK: partial(self._look, state, sums[HEAD:]),
            MultinomialPhase.EVALUATE: partial(self._evaluate, state, W, sums[HEAD:]),
            MultinomialPhase.BLOCKS: partial(self._sum_blocks, state, W, sums[HEAD:]),
            MultinomialPhase.MULTIPLY: partial(self._multiply, state, W, sums[HEAD:]),
        }
        if state.phase in passes:
            with np.errstate(over="ignore", invalid="ignore"):  # of values beyond all numbers; the gap is then infinite
                passes[state.phase]()

    def _look(self, state: MultinomialState, sums: Array) -> None:
        local, K, D = self.rows, state.num_classes, state.D
        weights = np.zeros((K, local.rows.num_rows))
        weights[local.codes, np.arange(local.rows.num_rows)] = local.upper
        sums[:K] = weights.sum(axis=1)
        found = local.rows.sums(weights)
        if not np.isfinite(found).all():
            local.rows.require_finite()
        sums[K : K * D] = found.ravel()
        if not state.is_cold or state.is_joint:
            return
        weights = local.upper
        # One block in place of K, so it may have more rows.
        share = K * state.block_rows / state.num_all_rows
        if 0.0 < share < 1.0:
            weights = np.where(local.ticks < share, weights / share, 0.0)
        self._add_blocks(state, weights[np.newaxis], sums[K * D :])

    def _evaluate(self, state: MultinomialState, W: Array, sums: Array) -> None:
        local, K, D = self.rows, state.num_classes, state.D
        direction = state.direction
        if state.is_joint and len(state.blocks):
            is_active = state.is_active(has_intercept=self._has_intercept)
            direction = joint_step(state.blocks, state.residual, is_active, has_intercept=self._has_intercept)
        there = W + state.reach * direction
        found = Softmax.of(self._scores(there), local.codes, local.upper)
        self._known = there, found.probabilities
        sums[:2] = found.loss, found.entropy
        curvatures = found.intercept_curvatures()
        sums[2 : 2 + K * K] = curvatures.ravel()
        slopes = found.slopes(local.codes, local.upper)
        gradient = sums[2 + K * K : 2 + K * K + K * D].reshape(K, D)
        gradient[:, :-1] = local.rows.sums(slopes)
        if self._has_intercept:
            gradient[:, -1] = slopes.sum(axis=1)
        if state.is_joint:
            joint = sums[2 + K * K + K * D :]
            joint[: K * D] = direction.ravel()
            dense, has_intercept = local.rows.dense(), self._has_intercept
            joint[K * D :] = joint_block(dense, found.probabilities, local.upper, has_intercept=has_intercept)

    def _sum_blocks(self, state: MultinomialState, W: Array, blocks: Array) -> None:
        weights = block_weights(self._probabilities(W), self.rows.upper)
        if state.block_rows:
            weights = self._drawn(state, weights)
        self._add_blocks(state, weights, blocks)

    def _drawn(self, state: MultinomialState, weights: Array) -> Array:
        """Of about so many rows per class as are enough: those that count most, and of the others some, counted up."""
        bounds = state.masses[:, np.newaxis] / state.block_rows
        chances = np.divide(weights, bounds, out=np.zeros_like(weights), where=bounds > 0)
        heavier = np.where(chances < 1.0, bounds, weights)
        return np.where(self.rows.ticks < chances, heavier, 0.0)

    def _add_blocks(self, state: MultinomialState, weights: Array, blocks: Array) -> None:
        rows, by_class = self.rows.rows, blocks.reshape(len(weights), -1)
        intercept = 1.0 if self._has_intercept else 0.0
        if state.is_narrow:
            rows.add_products(weights, intercept, by_class, is_rough=state.is_rough)
        else:
            by_class[:, :-1] = rows.squares(weights)
            by_class[:, -1] = intercept * weights.sum(axis=1)

    def _multiply(self, state: MultinomialState, W: Array, sums: Array) -> None:
        K, D = state.num_classes, state.D
        preconditioner = self._blocks(state)
        if preconditioner is None:
            sums[0] = 1.0
            return
        z = preconditioner.solve(state.residual)
        rz = float(np.vdot(state.residual, z))
        vector = z + (rz / state.rz) * state.conjugate if state.num_products else z
        sums[1] = rz
        parts = sums[2:].reshape(2, K, D)
        parts[0] = vector
        parts[1] = self._curved(state, W, vector)

    def _curved(self, state: MultinomialState, W: Array, vector: Array) -> Array:
        """Second derivatives of the losses times `vector`, shape (K, D)."""
        p, upper = self._probabilities(W), self.rows.upper
        intercepts = np.zeros((state.num_classes, 1))
        offsets = vector[:, -1:]

        def curve(part: slice, changes: Array) -> Array:
            chosen = p[:, part]
            curved = chosen * (changes + offsets)
            curved -= chosen * curved.sum(axis=0)
            curved *= upper[part]
            intercepts[:, 0] += curved.sum(axis=1)
            return curved

        found = self.rows.rows.curved(vector[:, :-1], curve, is_rough=state.is_rough)
        return np.hstack([found, intercepts if self._has_intercept else np.zeros_like(intercepts)])

    # What is remembered.

    def _blocks(self, state: MultinomialState) -> ClassBlocks | None:
        """The preconditioner; None where this task was not there when its blocks were summed up."""
        if not len(state.blocks):
            known = self._preconditioner
            return known[1] if known is not None and known[0] == state.block_serial else None
        blocks = ClassBlocks(
            state.blocks,
            is_narrow=state.is_narrow,
            D=state.D,
            is_active=state.is_active(has_intercept=self._has_intercept),
            has_intercept=self._has_intercept,
        )
        self._preconditioner = state.block_serial, blocks
        return blocks

    def _probabilities(self, W: Array) -> Array:
        """Those of all rows, shape (K, num_rows)."""
        if self._known is None or not np.array_equal(self._known[0], W):
            self._known = W.copy(), probabilities(self._scores(W))
        return self._known[1]

    def _scores(self, W: Array) -> Array:
        """Scores of all rows, shape (K, num_rows); rows are not read where W is 0."""
        if not W[:, :-1].any():
            return np.repeat(W[:, -1:], self.rows.rows.num_rows, axis=1)
        scores = self.rows.rows.times(W[:, :-1])
        scores += W[:, -1:]
        return scores

    def evaluate(self, model: Array, progress: Array) -> Update:
        """As delta the gradient of the losses, in float64 from the model alone; as metrics loss, entropy and rows."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local = self.rows
        W = model.reshape(-1, local.rows.num_features + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._scores(W)
            found = Softmax.of(scores, local.codes, local.upper)
            slopes = found.slopes(local.codes, local.upper)
            gradient = np.hstack([local.rows.sums(slopes), slopes.sum(axis=1, keepdims=True)])
        metrics = {"loss": found.loss, "entropy": found.entropy, "rows": float(local.rows.num_rows)}
        return Update(delta=gradient.ravel(), samples=0, weight=1.0, metrics=metrics)
