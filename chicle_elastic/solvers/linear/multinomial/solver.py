"""Sums of a pass of a multinomial regression over the rows of one task, which remembers the last probabilities."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.agreement import is_same
from chicle_elastic.solvers.linear.local import LocalPart
from chicle_elastic.solvers.linear.multinomial.objective import Softmax, softmax
from chicle_elastic.solvers.linear.multinomial.problem import SoftmaxProblem, block_weights, joint_block, mean_weights
from chicle_elastic.solvers.linear.newton.solver import NewtonSolver
from chicle_elastic.solvers.linear.newton.state import Block, Evaluation, NewtonPhase, NewtonState, Sum
from chicle_elastic.solvers.linear.products import ALL
from chicle_elastic.solvers.linear.progress import HEAD

LEAST_ROUGH_TOL = 100.0 * float(np.finfo(np.float32).eps)
"""Gap to reach down to which an evaluation takes products in float32: they move it by 1e-7 to 1e-6, on digits, rows
like embeddings, columns far from 0 and separable classes. With tol 1e-4 fits take as many passes as with float64, with
1e-6 up to a seventh more."""


class MultinomialSolver(NewtonSolver):
    """One per uni-task. Threads have a part of the rows each; what they sum up is added in the order of the parts."""

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx, trainer, intercept=float(trainer.has_intercept), num_threads=trainer.num_threads)
        self._known: tuple[Array, list[Array]] | None = None

    def forget(self) -> None:
        """Forget the probabilities."""
        self._known = None

    def run_pass(self, state: NewtonState, model: Array, sums: Array, budget: Budget) -> None:
        """See `newton.state`."""
        output, part, problem = state.outputs[0], sums[HEAD:], self.trainer.problem_of(state)
        with np.errstate(over="ignore", invalid="ignore"):  # of values beyond all numbers; the gap is then infinite
            if output.phase is NewtonPhase.LOOK:
                self._add_linear(state, problem, part)
            elif output.phase is NewtonPhase.EVALUATE:
                self._evaluate(state, problem, problem.by_class(model), Evaluation.of(state, output, problem, part))
            elif output.phase is NewtonPhase.MULTIPLY:
                W, vector = problem.by_class(model), problem.by_class(output.conjugate)
                part[: state.D] = self._curved(W, vector, is_rough=state.is_rough).ravel()
                part[state.D :] = output.conjugate

    def _add_linear(self, state: NewtonState, problem: SoftmaxProblem, part: Array) -> None:
        local, linear = self.local, problem.by_class(part[: state.D])

        def of_classes(rows: Any, weights: Array) -> Array:
            weights[local.targets[rows], np.arange(weights.shape[1])] = local.upper[rows]
            return weights

        linear[:] = local.rows.curved(np.zeros_like(linear), of_classes, local.counted)
        linear[:, -1] = np.bincount(local.targets, weights=local.upper, minlength=len(linear))
        if not (np.isfinite(linear).all() and local.upper.all()):  # rows of weight 0 may not have been read
            local.require_finite()
        if state.outputs[0].block is not Block.KEPT:
            # One block in place of so many, so it may have more rows.
            share = min(max(problem.num_blocks(state), 1) / state.row_step, 1.0)
            weights = local.upper if share == 1.0 else np.where(local.ticks < share, local.upper / share, 0.0)
            self._add_blocks(weights[np.newaxis], part[state.D :], is_rough=state.is_rough)

    def _evaluate(self, state: NewtonState, problem: SoftmaxProblem, W: Array, found: Evaluation) -> None:
        local, output = self.local, state.outputs[0]
        self._known = None  # whose memory the new ones take
        there, p = W + problem.by_class(output.direction), self._room(len(W), is_rough=state.is_rough)
        is_smooth = not output.damping and output.reach == 1.0 and not state.num_refused
        is_rough = state.is_rough and problem.tol >= LEAST_ROUGH_TOL and is_smooth
        (loss, found.scalars[Sum.DUALS]), gradient, beside = self._sums(there, p, is_rough=is_rough)
        self._known = there, p
        found.beside[:] = beside.ravel()
        found.scalars[[Sum.ROUND, Sum.LOSS]] = loss
        found.v[:] = -gradient.ravel()
        found.step[:] = output.step
        if output.block is Block.KEPT:
            return
        if state.is_exact:
            rows = local.rows.dense(np.arange(local.rows.num_rows))
            found.second[:] = joint_block(rows, np.concatenate(p, axis=1), local.upper)
            return
        weights_of = mean_weights if problem.num_blocks(state, output) == 1 else block_weights
        each = [weights_of(known, part.upper) for known, part in zip(p, self._threads, strict=True)]
        weights = self._drawn(np.concatenate(each, axis=1), state.row_step)
        self._add_blocks(weights, found.second if len(found.second) else found.diagonal, is_rough=state.is_rough)

    def _add_blocks(self, weights: Array, blocks: Array, *, is_rough: bool) -> None:
        """Add up a block, or where there is no room for it a diagonal, for each row of weights, shape (k, num_rows)."""
        rows, outs = self.local.rows, blocks.reshape(len(weights), -1)
        if outs.shape[1] == rows.num_columns:
            outs += rows.squares_sum(weights)
            return
        for each, out in zip(weights, outs, strict=True):
            rows.add_products(each, ALL, out, is_rough=is_rough)

    def _drawn(self, weights: Array, row_step: int) -> Array:
        """Draw about one row in so many per block: those that count most, and of the others some, counted up."""
        if row_step == 1 or not weights.size:
            return weights
        local = self.local
        num_rows = local.tables.num_rows if local.counted is None else len(local.counted)
        bounds = row_step * weights.sum(axis=1, keepdims=True) / max(num_rows, 1)
        chances = np.divide(weights, bounds, out=np.zeros_like(weights), where=bounds > 0)
        return np.where(local.ticks < chances, np.where(chances < 1.0, bounds, weights), 0.0)

    @property
    def _threads(self) -> Sequence[LocalPart]:
        """The part of the rows of each thread."""
        return self.local.parts(self.local.useful_threads)

    def _room(self, K: int, *, is_rough: bool) -> list[Array]:
        """Return room for probabilities of the rows of each part, shape (K, n)."""
        return [np.zeros((K, part.rows.num_rows), np.float32 if is_rough else np.float64) for part in self._threads]

    def _sums(self, W: Array, known: Sequence[Array] = (), *, is_rough: bool = False) -> tuple[Array, Array, Array]:
        """Sum up loss and entropy, the gradient, (K, D), and second derivatives by the intercepts, (K, K), in one pass.

        Probabilities are filled in, if there is room. Rough products are in float32, losses and slopes in float64.
        """

        def sum_up(part: LocalPart, p: Array | None) -> tuple[Array, Array, Array]:
            values, beside = np.zeros(2), np.zeros((len(W), len(W)))

            def slopes_at(rows: Any, scores: Array) -> Array:
                found = Softmax.of(scores, part.targets[rows], part.upper[rows])
                values[:] += found.loss, found.entropy
                if p is not None:
                    p[:, rows] = found.probabilities
                    beside[...] += found.intercept_curvatures()
                return found.slopes(part.targets[rows], part.upper[rows])

            return values, part.rows.curved(W, slopes_at, part.counted, is_rough=is_rough), beside

        return self._added(sum_up, known)

    def _curved(self, W: Array, vector: Array, *, is_rough: bool) -> Array:
        """Second derivatives of the losses times `vector`, shape (K, D)."""

        def curve_part(part: LocalPart, p: Array | None) -> tuple[Array]:
            def curve(rows: Any, changes: Array) -> Array:
                assert p is not None
                chosen = p[:, rows]
                curved = chosen * changes
                curved -= chosen * curved.sum(axis=0)
                curved *= part.upper[rows]
                return curved

            return (part.rows.curved(vector, curve, part.counted, is_rough=is_rough),)

        return self._added(curve_part, self._probabilities(W, is_rough=is_rough))[0]

    def _added(self, run: Callable[[LocalPart, Array | None], Any], known: Sequence[Array]) -> Any:
        """Run over all parts, each with its probabilities, and add up what is returned."""

        @np.errstate(over="ignore", invalid="ignore")  # which a thread has of its own
        def run_part(pair: tuple[LocalPart, Array | None]) -> Any:
            return run(*pair)

        rooms: Sequence[Array | None] = known or [None] * len(self._threads)
        found = self.local.run_parts(run_part, list(zip(self._threads, rooms, strict=True)))
        return [reduce(np.add, each) for each in zip(*found, strict=True)]

    def _probabilities(self, W: Array, *, is_rough: bool) -> list[Array]:
        """Find those of the rows of each part, shape (K, n); rows are not read where W is 0."""
        known = self._known
        if known is None or (known[1][0].dtype == np.float32) != is_rough or not is_same(known[0], W):
            room = self._room(len(W), is_rough=is_rough)
            if W[:, :-1].any():
                self._sums(W, room)
            else:
                for p in room:
                    p[:] = softmax(W[:, -1:])[1]
            known = self._known = W.copy(), room
        return known[1]

    def evaluate_rows(self, model: Array, progress: Array) -> Update:
        """As delta the gradient of the losses, in float64 from the model alone; as metrics loss, entropy and rows."""
        (loss, entropy), gradient, _ = self._sums(model.reshape(-1, self.local.rows.num_columns))
        metrics = {"loss": float(loss), "entropy": float(entropy), "rows": float(self.local.tables.num_rows)}
        return Update(delta=gradient.ravel(), samples=0, weight=1.0, metrics=metrics)
