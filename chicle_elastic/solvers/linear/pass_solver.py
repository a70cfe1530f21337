"""A solver whose iteration is one pass over the rows of its chunks: what is common to all losses.

The sums of a pass begin with the number of tasks that were interrupted (nothing may follow from the sums then), the
number of rows read, and 1 if the task is the only one; what follows is a matter of the state's phase.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np

from chicle_elastic.chunks.rows import as_floats
from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.errors import DataError
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.local_chunk import LocalChunk, RowBlock


class Head(IntEnum):
    """Places in the sums of a pass that come first."""

    INTERRUPTED = 0
    ROWS = 1
    ALONE = 2


HEAD = len(Head)


class PassSolver(Solver):
    """Makes one pass over the local rows an iteration; the state says what it adds up."""

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks; it is made again inside the next iteration, when they may be read."""
        super().attach(added, removed)
        self.forget([chunk.id for chunk in added], removed)

    @abstractmethod
    def forget(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks, and what passes have found out about them."""

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx)
        self.trainer = trainer

    @abstractmethod
    def run_pass(self, state: Any, model: Array, sums: Array, budget: Budget) -> None:
        """Add up what the state asks for, over the local rows; `sums` is OUT, and zero but for its head."""

    def evaluate_rows(self, model: Array, progress: Array) -> Update:
        """Find what a certificate needs of the local rows; there are some."""
        raise NotImplementedError

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

    def evaluate(self, model: Array, progress: Array) -> Update:
        """Find what a certificate needs."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        return self.evaluate_rows(model, progress)


def count_all(chunks: Mapping[ChunkId, LocalChunk]) -> int:
    """Write down that every row of these chunks was processed; returns how many there are."""
    num_rows = 0
    for chunk in chunks.values():
        chunk.count(chunk.num_rows)
        num_rows += chunk.num_rows
    return num_rows


def require_finite(chunk_id: ChunkId, block: RowBlock, values: Array) -> None:
    """Raise a DataError with chunk and row if a row whose value is not finite has a feature that is not."""
    for row in np.flatnonzero(~np.isfinite(values)).tolist():
        if isinstance(block.rows, CsrRows):
            values = block.rows.values[block.rows.indptr[row] : block.rows.indptr[row + 1]]
        else:
            values = as_floats(block.rows[row])
        if not np.isfinite(values).all():  # else the value is beyond its dtype, which is no crime
            raise DataError(
                f"chunk {chunk_id}, row {row} (row {int(block.row_ids[row])} of the data set): a feature is NaN or "
                "infinite; leave the sample out or fill the value in"
            )
