"""A solver whose iteration is one pass over the rows of its chunks, and of little data on one task several."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.newton.parts import NewtonParts
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.progress import Head
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.local_chunk import LocalChunk, count_all


class NewtonSolver(Solver):
    """One per uni-task; the state says what a pass adds up."""

    def __init__(self, ctx: Context, trainer: Any, **local: Any) -> None:
        super().__init__(ctx)
        self.trainer = trainer
        bounds = Bounds(float(trainer.C), trainer.class_weights, trainer.code_classes)
        own = {"bounds": bounds, "intercept": float(trainer.intercept_scaling), **local}
        self.local = LocalData(self.chunks, **own)
        self._newton: NewtonParts | None = None

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks; it is made again inside the next iteration, when they may be read."""
        super().attach(added, removed)
        self.local.change([chunk.id for chunk in added], removed)
        self._newton = None
        self.forget()

    def forget(self) -> None:
        """Forget what else passes have found out about the chunks."""

    def raise_bounds(self, C: float) -> None:
        """Go on with a larger C, inside an iteration: with what is known of second derivatives."""
        ratio = C / self.local.bounds.C
        self.local.raise_bounds(replace(self.local.bounds, C=C))
        if self._newton is not None:
            self._newton.raise_bounds(ratio)

    def newton(self, state: NewtonState) -> NewtonParts:
        """Return what makes passes over the present chunks."""
        if self._newton is None or self._newton.row_step != state.row_step:
            is_of_classes, problem = self.trainer.is_of_classes, self.trainer.problem
            self._newton = NewtonParts(problem, state, self.local, is_of_classes=is_of_classes)
        return self._newton

    @np.errstate(over="ignore", invalid="ignore")  # of steps that lead far beyond; they are not taken
    def run_pass(self, state: Any, model: Array, sums: Array, budget: Budget) -> None:
        """Add up what the state asks for, over the local rows; `sums` is OUT, and zero but for its head."""
        self.newton(state).run(state, model.reshape(-1, state.D), budget, sums)

    def solve(self, model: Array, budget: Budget) -> Update:
        """Make a pass over the local rows, or several of little data on one task; a DataError names one that has a NaN
        or an infinity.
        """
        state = self.trainer.look(budget.progress)
        update = self._solve_once(state, model, budget)
        if state.passes == 1:
            return update
        room = np.zeros(len(model) + state.room)
        if budget.num_ranks == 1 and not update.is_partial:
            reached = self._go_on(type(state).decode(budget.progress), model, update.delta, budget)
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

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, model: Array, progress: Array) -> Update:
        """Find what a certificate needs."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        return self.evaluate_rows(model, progress)

    def evaluate_rows(self, model: Array, progress: Array) -> Update:
        """Find it of the local rows; there are some."""
        state = NewtonState.look(progress)
        return self.newton(state).certify(state, model.reshape(-1, state.D))

    def close(self) -> None:
        """End the kernel threads."""
        self.local.close()
