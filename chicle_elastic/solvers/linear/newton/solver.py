"""A solver whose iteration is one pass over the rows of its chunks, and of little data on one task several.

Threads have a run of chunks each, as a task has a part of all rows. Their sums are added up in the order of the chunks,
so that the result does not depend on which thread ends first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Solver, StopFlag, Update
from chicle_elastic.solvers.linear.l1.problem import L1Problem, accuracy
from chicle_elastic.solvers.linear.local import LocalData, LocalPart
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from chicle_elastic.solvers.linear.newton.few_rows import solved
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses, certificate_sums, forgets
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, NewtonState
from chicle_elastic.solvers.linear.progress import Head
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.local_chunk import LocalChunk, count_all

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.l1.columns import Columns


class NewtonSolver(Solver):
    """One per uni-task; the state says what a pass adds up."""

    def __init__(self, ctx: Context, trainer: Any, **local: Any) -> None:
        super().__init__(ctx)
        self.trainer = trainer
        bounds = Bounds(float(trainer.C), trainer.class_weights, trainer.code_classes)
        own = {"bounds": bounds, "intercept": float(trainer.intercept_scaling), **local}
        self.local = LocalData(self.chunks, **own)
        self._parts: Sequence[LocalPart] = []
        self._passes: dict[int, NewtonPasses] = {}  # by the number of the part
        self._best: dict[int, dict[int, Array | None]] = {}  # what alone is kept of passes over rows in files
        self._row_step = 0  # that the passes have
        self._columns: Columns | None = None

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks; it is made again inside the next iteration, when they may be read."""
        super().attach(added, removed)
        self.local.change([chunk.id for chunk in added], removed)
        self._parts, self._columns = [], None
        self._passes, self._best = {}, {}
        self.forget()

    def forget(self) -> None:
        """Forget what else passes have found out about the chunks."""

    def raise_bounds(self, C: float) -> None:
        """Go on with a larger C, inside an iteration: with what is known of second derivatives."""
        ratio = C / self.local.bounds.C
        self.local.raise_bounds(replace(self.local.bounds, C=C))
        self._best.clear()
        for number, passes in self._passes.items():
            passes.raise_bounds(self._parts[number].upper, ratio)

    def parts(self, state: NewtonState) -> Sequence[LocalPart]:
        """Return the parts of the present chunks that passes are made over.

        There is one part where chunks have no duals. Else there are no more than leave all of their blocks of second
        derivatives as small as the rows, or small at all: with many outputs or columns, each part would need the memory
        of another task. Of rows in files nothing is kept but duals, so parts are small.
        """
        if not self._parts or self._row_step != state.row_step:
            local, K, h = self.local, len(state.outputs), min(state.block_columns, state.D)
            room = max(local.tables.num_values, MOST_BLOCK_VALUES)
            most = max(1, 2 * room // max(K * h * (h + 1), 1)) if self.trainer.problem.has_duals else 1
            self._parts = local.parts(len(local.chunks) if self._forgets and state.block_columns else most)
            self._passes, self._best = {}, {}
            self._row_step, self._columns = state.row_step, None
        return self._parts

    @property
    def _forgets(self) -> bool:
        return forgets(self.trainer.problem, are_in_files=self.local.tables.are_in_files)

    @contextmanager
    def passes(self, number: int, num_outputs: int) -> Iterator[NewtonPasses]:
        """Lend what makes passes over a part: what it was, or made of rows in files as long as these are looked at."""
        passes, problem, part = self._passes.get(number), self.trainer.problem, self._parts[number]
        if passes is None:
            is_centred = problem.takes_steps and problem.loss.is_parabola and not part.rows.is_sparse
            dense = [np.asarray(block.rows) for block in part.tables.keep_alive] if is_centred else []
            rows = part.rows, part.upper, self._targets(part, num_outputs), part.intercept
            passes = NewtonPasses(problem, *rows, lambda: part.row_ids, self._row_step, dense)
            passes.best = self._best.get(number, {})
        yield passes
        if self._forgets:
            self._best[number] = passes.best
        else:
            self._passes[number] = passes

    def add_parts(
        self, run: Callable[[int, Array], None], sums: Array, stop: StopFlag | None = None, *, must_check: bool = False
    ) -> None:
        """Add up to `sums` (OUT) what each part adds to zeros."""

        def run_part(number: int) -> Array:
            into = np.zeros_like(sums) if number else sums
            run(number, into)
            return into

        def add(more: Array) -> None:
            if more is not sums:
                np.add(sums, more, out=sums)

        self.local.pass_over(self._parts, run_part, add, stop, must_check=must_check)

    def _targets(self, part: LocalPart, num_outputs: int) -> Array:
        """Return real targets, or +1 and -1 for the class of each output and the others, (outputs, num_rows)."""
        problem = self.trainer.problem
        if self.trainer.is_of_classes:
            return part.signs if problem.has_duals else part.signs_of(num_outputs)
        counts, targets = part.upper > 0, part.targets.astype(np.float64)
        problem.loss.require(targets[counts])
        return np.where(counts, targets, 0.0)[np.newaxis]

    def solve(self, model: Array, budget: Budget) -> Update:
        """Make a pass over the local rows, or several of little data on one task."""
        state = self.trainer.look(budget.progress)
        update = self._solve_once(state, model, budget)
        if state.passes == 1:
            return update
        room = np.zeros(len(model) + state.room)
        if budget.num_ranks == 1 and not update.is_partial:
            reached = self._go_on(type(state).take(budget.progress), model, update.delta, budget)
            if len(reached) <= len(room):
                room[: len(reached)] = reached
        return replace(update, delta=np.concatenate([update.delta, room]))

    def _go_on(self, state: Any, model: Array, sums: Array, budget: Budget) -> Array:
        """Go on from a pass of the only task; returns w and the state, as the trainer would have them."""
        num_rows, problem = sums[Head.ROWS], self.trainer.problem_of(state)
        advance = self.trainer.machines[type(state)].advance
        with np.errstate(over="ignore", invalid="ignore"):  # as in the trainer
            model = advance(state, problem, model, sums, 1.0)
            for _ in range(state.passes - 1):
                if state.is_at_rest or state.is_looking or budget.is_spent():
                    break
                sums = np.zeros(state.sums_size(problem))
                sums[Head.ROWS], sums[Head.ALONE] = num_rows, 1.0
                self.run_pass(state, model, sums, budget)
                model = advance(state, problem, model, sums, 1.0)
        return np.concatenate([model, state.encode()])

    def _solve_once(self, state: Any, model: Array, budget: Budget) -> Update:
        sums = np.zeros(state.sums_size(self.trainer.problem_of(state)))
        sums[Head.ALONE] = budget.num_ranks == 1
        if not self.chunks:
            return Update(delta=sums, samples=0, weight=0.0)
        if budget.is_spent():
            sums[Head.INTERRUPTED] = 1.0
        else:
            self.run_pass(state, model, sums, budget)
        is_partial = bool(sums[Head.INTERRUPTED] > 0)
        sums[Head.ROWS] = samples = 0 if is_partial else count_all(self.chunks)
        return Update(delta=sums, samples=samples, weight=1.0, is_partial=is_partial)

    @np.errstate(over="ignore", invalid="ignore")  # of steps that lead far beyond; they are not taken
    def run_pass(self, state: Any, model: Array, sums: Array, budget: Budget) -> None:
        """Add up what the state asks for to `sums` (OUT, zero but for its head), which says if it ended early."""
        w, has_duals = model.reshape(-1, state.D), self.trainer.problem.has_duals
        self.parts(state)
        if has_duals:  # else there was a look
            self.local.forget("dual_sums")  # those of a loss with corners are written

        def run(number: int, into: Array) -> None:
            if state.is_looking:
                self._look(state, number, into)
                return
            with self.passes(number, len(w)) as passes:
                self._run_part(state, w, budget, number, passes, into)

        self.add_parts(run, sums, budget.stop, must_check=has_duals)

    def _run_part(
        self, state: NewtonState, w: Array, budget: Budget, number: int, passes: NewtonPasses, sums: Array
    ) -> None:
        """Add up the sums (OUT) of one thread, output by output; the first adds what is added once per task."""
        local, problem = self._parts[number], self.trainer.problem
        for k, (output, own) in enumerate(zip(state.outputs, state.parts(sums, problem), strict=True)):
            if not len(own):
                continue
            if budget.is_spent():
                sums[Head.INTERRUPTED] = 1.0
                break
            if output.phase is NewtonPhase.COLUMNS:
                own[:] = self._from_columns(state, k, w[k], budget, local, passes)
                continue
            if output.phase is NewtonPhase.SOLVE:
                own[:] = solved(state, output, problem, w[k], local.intercept, budget)
                continue
            # Those of the beginning, and those that are foretold for a row.
            foretells = problem.loss.has_corners and output.phase is NewtonPhase.EVALUATE
            alpha = local.duals(k) if problem.has_duals and (output.is_first or foretells) else None
            passes.run(state, k, w[k], own, alpha, is_first=not number)
            if alpha is not None and problem.loss.has_corners:
                local.write_duals(k, alpha)

    def _look(self, state: NewtonState, number: int, sums: Array) -> None:
        """Add up how large targets of a part are, and what else the problem asks for first."""
        local, problem, K = self._parts[number], self.trainer.problem, len(state.outputs)
        upper, of_columns, squares = local.upper, local.rows.weighted_sum(local.upper), np.zeros(state.D)
        # Values near the largest number may add up to infinity; rows of weight 0 may not have been read.
        if not np.isfinite(of_columns).all() or not upper.all():
            local.require_finite()
        if problem.takes_steps and not (state.is_exact and problem.loss.is_parabola):
            squares = local.rows.squares_sum(upper)
        for output, part, y in zip(state.outputs, state.parts(sums, problem), self._targets(local, K), strict=True):
            part[:4] = [upper @ values for values in (np.ones_like(y), np.abs(y), y, y * y)]
            if problem.takes_steps:
                sides = [upper @ (y > 0), upper @ (y < 0)]
                is_first = float(not number)
                part[4:] = np.concatenate([sides, of_columns, squares, is_first * output.shift, [is_first]])
            elif state.few_rows:
                with self.passes(number, K) as passes:
                    part[4:] = passes.lengths(state.few_rows)

    def _from_columns(
        self, state: NewtonState, k: int, w: Array, budget: Budget, local: LocalPart, passes: NewtonPasses
    ) -> Array:
        """Find the direction of the task that has all rows, shape (D,)."""
        from chicle_elastic.solvers.linear.l1.columns import Columns

        output, problem = state.outputs[k], self.trainer.problem
        assert isinstance(problem, L1Problem)
        if self._columns is None:
            penalty, is_free = problem.penalty_of(state), problem.has_free_intercept
            self._columns = Columns(local.tables, local.intercept, penalty, has_free_intercept=is_free)
        chosen, curvatures = problem.chosen(state, output, w, output.residual), passes.curvatures(output, k, w)
        num_weights, num_held = int(np.count_nonzero(w)), int(np.count_nonzero(w[chosen]))
        duals = local.upper * passes.duals(replace(output, plus=1.0, minus=1.0), k, w)[1]
        limit = self._columns.work_of_products(chosen, num_weights) if num_held == num_weights else np.inf
        point, how = (duals, curvatures, output.residual, w), (accuracy(output), limit, budget)
        direction, is_given_up = self._columns.direction(*point, problem.damped(output), *how)
        if is_given_up:
            output = replace(output, columns=chosen, factor=np.zeros(len(chosen) * (len(chosen) + 1) // 2))
            passes.add_block(k, output, Block.EXACT, curvatures, output.factor)
            direction[:] = 0.0
            direction[chosen], _ = problem.solution(state, output, chosen, w[chosen])
        return direction

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, model: Array, progress: Array) -> Update:
        """Find what a certificate needs."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        return self.evaluate_rows(model, progress)

    def evaluate_rows(self, model: Array, progress: Array) -> Update:
        """Return sum_i c_i a_i x_i of the duals; as metrics rows, sum c and, per output, `certificate_sums`.

        The duals are the slopes at w + shift; with corners those that the last step has foretold.
        """
        state, loss = NewtonState.look(progress), self.trainer.problem.loss
        w, delta, found = model.reshape(-1, state.D), np.zeros_like(model), dict[int, dict[str, float]]()

        def run(number: int, into: Array) -> None:
            local, of_rows = self._parts[number], into.reshape(w.shape)
            upper = local.upper
            found[number] = metrics = {"rows": float(len(upper)), "total": float(upper.sum())}
            with self.passes(number, len(w)) as passes:
                for k, output in enumerate(state.outputs):
                    scores, duals = passes.duals(output, k, w[k])
                    metrics |= certificate_sums(loss, k, scores, duals, passes.targets[k], upper, output.theta)
                    of_rows[k] = local.rows.weighted_sum(upper * duals)

        self.parts(state)
        self.add_parts(run, delta)
        sums = {name: sum(found[number][name] for number in range(len(found))) for name in found[0]}
        return Update(delta=delta, samples=0, weight=1.0, metrics=sums)

    def close(self) -> None:
        """End the kernel threads."""
        self.local.close()
