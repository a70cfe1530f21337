"""A solver whose iteration is one pass over the rows of its chunks: what is common to all losses.

The sums of a pass begin with the number of tasks that were interrupted (nothing may follow from the sums then), the
number of rows read, and 1 if the task is the only one; what follows is a matter of the state's phase.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.local_chunk import LocalChunk

INTERRUPTED, ROWS, ALONE, HEAD = 0, 1, 2, 3
"""Places in the sums of a pass, and how many there are."""


class PassState(Protocol):
    """Says what the next pass adds up."""

    @classmethod
    def look(cls, progress: Array) -> Self:
        """See `ProgressState`."""
        ...


State = TypeVar("State", bound=PassState)
Rows = TypeVar("Rows")


class PassSolver(Solver, Generic[State, Rows]):
    """Keeps what is made of the chunks until some come or go, and makes one pass an iteration.

    Args:
        ctx: Of the task.
    """

    state_type: ClassVar[type[PassState]]

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self._local: Rows | None = None

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks; it is made again inside the next iteration, when they may be read."""
        super().attach(added, removed)
        self._local = None
        self.forget()

    def forget(self) -> None:
        """Forget what passes have found out about the chunks; by default nothing is kept."""

    @property
    def local(self) -> Rows:
        """The present chunks, read; there is at least one."""
        if self._local is None:
            self._local = self.read_chunks()
        return self._local

    @abstractmethod
    def read_chunks(self) -> Rows:
        """Make of the chunks what passes need."""

    def sums_size(self, state: State) -> int:
        """Length of the sums of the next pass; by default the state says so."""
        return int(state.sums_size)  # type: ignore[attr-defined]

    @abstractmethod
    def run_pass(self, state: State, model: Array, sums: Array, budget: Budget) -> None:
        """Add up what the state asks for, over the local rows; `sums` is OUT, and zero but for the rows."""

    def run_without_rows(self, state: State, model: Array, sums: Array, budget: Budget) -> bool:
        """Do the work of an iteration that reads no rows; returns whether this is one. By default none is."""
        return False

    def solve(self, model: Array, budget: Budget) -> Update:
        """Make one pass over the local rows.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        state: State = self.state_type.look(budget.progress)  # type: ignore[assignment]
        sums = np.zeros(self.sums_size(state))
        sums[ALONE] = budget.num_ranks == 1
        if self.run_without_rows(state, model, sums, budget):
            return Update(delta=sums, samples=0, weight=1.0, is_partial=True)
        if not self.chunks:
            return Update(delta=sums, samples=0, weight=0.0)
        if budget.is_spent():
            sums[INTERRUPTED] = 1.0
            return Update(delta=sums, samples=0, weight=1.0, is_partial=True)
        num_rows = 0
        for chunk in self.chunks.values():
            chunk.count(chunk.num_rows)
            num_rows += chunk.num_rows
        sums[ROWS] = num_rows
        self.run_pass(state, model, sums, budget)
        return Update(delta=sums, samples=num_rows, weight=1.0)
