"""The chunks of one task as the methods see them: tables for kernels, columns per output, and threads."""

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from typing import TypeVar

import numpy as np

from chicle_elastic.chunks.views import Array, ask_for, let_go
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import StopFlag
from chicle_elastic.solvers.linear.agreement import ticks_of
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES, values_of_row
from chicle_elastic.solvers.linear.objectives import ROWS_IN_CACHE, Loss, dual_values, primal_losses
from chicle_elastic.solvers.linear.rows import NewtonRows, newton_rows
from chicle_elastic.solvers.linear.tables import Bounds, LocalTables, Notes, build_tables
from chicle_elastic.solvers.local_chunk import MOST_CACHED_VALUES, LocalChunk

PHASE = 5  # passes with all threads, then with one, before the two are compared; the first of each is not counted


def kernel_threads(num_threads: int) -> ThreadPoolExecutor:
    """Threads that live as long as the solver, each on a processor of its own where they take all there are.

    A thread that was moved finds its w in the cache of another processor. With processors to spare the system places
    them: several fits side by side would all choose the first ones.
    """
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    numbers = itertools.count()

    def begin() -> None:
        if num_threads == len(processors):
            os.sched_setaffinity(0, {processors[next(numbers)]})

    return ThreadPoolExecutor(num_threads, thread_name_prefix="chicle-kernel", initializer=begin)


class ThreadChoice:
    """All threads, or one where that reaches the optimum with fewer visits one after the other (pure).

    Threads add up their steps, and each takes smaller ones for it (sigma'). On weakly regularised problems that costs
    twice the passes, and two threads need longer than one.
    """

    def __init__(self, most: int) -> None:
        self.num_threads = most
        self._most = most
        self._gaps: list[float] = []
        self._visits: list[float] = []
        self._speed = 0.0

    def add(self, relative_gap: float, num_visits: float) -> None:
        """Learn the gap that a pass with `num_threads` came to, and the visits that each of them has made."""
        if not self.is_open:
            return
        self._gaps.append(max(relative_gap, 1e-300))
        self._visits.append(num_visits)
        if len(self._gaps) < PHASE:
            return
        speed = math.log(self._gaps[0] / self._gaps[-1]) / max(sum(self._visits[1:]), 1.0)
        self._gaps, self._visits = [], []
        if self._speed == 0.0:
            self._speed, self.num_threads = max(speed, 1e-300), 1
            return
        self.num_threads = 1 if speed > self._speed else self._most
        self._speed = math.inf

    @property
    def is_open(self) -> bool:
        """Say whether it still has to learn."""
        return self._most > 1 and self._speed != math.inf


_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
MADE_OF_ROWS = "rows", "upper", "targets", "ticks", "signs", "counted"


class LocalPart:
    """Keep what passes read of the rows of some chunks: of `num_parts`, which share the memory of copies."""

    tables: LocalTables

    def __init__(self, tables: LocalTables, intercept: float, num_parts: int = 1) -> None:
        self.tables = tables
        self.intercept = intercept
        self._num_parts = num_parts

    def forget(self, *names: str) -> None:
        """Find what has these names anew when it is asked for; what is forgotten gives its memory back."""
        own = vars(self)
        for name in names:
            own.pop(name, None)

    def ask_for(self) -> None:
        """Let the system read rows in files while others are worked on."""
        if self.tables.are_in_files:
            for block in self.tables.keep_alive:
                ask_for(block.rows)

    def let_go(self) -> None:
        """Forget what was made of rows in files, and let the system take their pages first when it needs memory."""
        if self.tables.are_in_files:
            self.forget(*MADE_OF_ROWS)
            for block in self.tables.keep_alive:
                let_go(block.rows)

    @cached_property
    def rows(self) -> NewtonRows:
        """All rows, the intercept column included."""
        return newton_rows(self.tables, self.intercept, self._num_parts)

    @cached_property
    def upper(self) -> Array:
        """C_i of all rows, shape (num_rows,), float64."""
        return self.tables.upper()

    @cached_property
    def counted(self) -> Array | None:
        """Numbers of the rows that have a weight, ascending; None where all have one."""
        return None if self.upper.all() else np.flatnonzero(self.upper)

    @property
    def row_ids(self) -> Array:
        """Numbers of all rows in the data set, shape (num_rows,), int64."""
        return np.concatenate([block.row_ids for block in self.tables.keep_alive])

    @cached_property
    def ticks(self) -> Array:
        """Numbers from 0 to 1 that are spread evenly over the rows of the data set, shape (num_rows,), float64."""
        return ticks_of(self.row_ids)

    @cached_property
    def targets(self) -> Array:
        """y_i or class codes, shape (num_rows,), of their dtype."""
        return np.concatenate([block.targets for block in self.tables.keep_alive])

    def signs_of(self, num_outputs: int) -> Array:
        """Return +1 where the class is that of the output, else -1, shape (num_outputs, num_rows), float64."""
        from chicle_elastic.solvers.kernels.descent import positives  # which loads the compiler

        codes = np.concatenate([block.targets for block in self.tables.keep_alive])  # signs are kept, and these not
        return np.where(codes == positives(num_outputs)[:, None], 1.0, -1.0)

    @cached_property
    def signs(self) -> Array:
        """`signs_of` all outputs that have duals."""
        return self.signs_of(self.tables.num_outputs)

    def duals(self, k: int) -> Array:
        """A copy of the duals of output `k`, shape (num_rows,), float64."""
        return np.concatenate([block.state[:, k, 0] for block in self.tables.keep_alive])

    def write_duals(self, k: int, duals: Array) -> None:
        """Write the duals of output `k` into the chunks."""
        for block, part in zip(self.tables.keep_alive, self.tables.by_chunk(duals), strict=True):
            block.state[:, k, 0] = part

    def certify(self, loss: Loss, w: Array, *, has_losses: bool, is_known: bool) -> tuple[Array, Array]:
        """Find w of the duals, shape as `w`, and the sums of losses at `w` and of dual values, shape (num_outputs, 2).

        Without `has_losses` those are 0, and a row whose dual is 0 is not read. Where what belongs to the duals
        `is_known` it is not found again, and is 0.
        """
        rebuilt, sums = np.zeros_like(w), np.zeros((len(w), 2))
        most = max(1, ROWS_IN_CACHE // self.tables.num_rows)
        with np.errstate(over="ignore", invalid="ignore"):  # of features near the largest number
            for begin in range(0, len(w), most):
                outputs = slice(begin, begin + most)
                signs = self.signs[outputs]
                if has_losses:
                    sums[outputs, 0] = self._sums_of(primal_losses, loss, signs * self.rows.times(w[outputs]))
                if not is_known:
                    parts = [block.state[:, outputs, 0].T for block in self.tables.keep_alive]
                    alpha = np.concatenate(parts, axis=1)
                    sums[outputs, 1] = self._sums_of(dual_values, loss, alpha)
                    rebuilt[outputs] = self.rows.weighted_sum(signs * alpha)
        return rebuilt, sums

    def _sums_of(self, values_of: Callable[[Loss, Array, Array], Array], loss: Loss, given: Array) -> Array:
        """Sum over all rows what `values_of` the loss, something of each output and row, and C_i is."""
        total = np.zeros(len(given))
        for begin in range(0, given.shape[1], ROWS_IN_CACHE):
            part = slice(begin, begin + ROWS_IN_CACHE)
            total += values_of(loss, given[:, part], self.upper[part]).sum(axis=1)
        return total

    def require_finite(self) -> None:
        """Look at all values; a DataError names one that has a NaN or an infinity."""
        with np.errstate(invalid="ignore"):  # 0 times a value is 0 but for NaN and infinity
            self.tables.require_finite(self.rows.times(np.zeros(self.rows.num_columns)))


class LocalData(LocalPart):
    """Keep what is made of all chunks of one solver, inside an iteration, until some come or go."""

    def __init__(
        self,
        chunks: Mapping[ChunkId, LocalChunk],  # of the solver, by number; the solver changes it
        *,
        bounds: Bounds,  # where the C_i come from
        intercept: float,  # Value of the intercept column; 0 for none
        loss: Loss = Loss.HINGE,  # That of duals in the chunks, where there are some
        num_threads: int = 1,  # Most threads to use
    ) -> None:
        self.loss = loss
        self.bounds = bounds
        self.intercept = intercept
        self.num_threads = num_threads
        self.chunks = chunks
        self._num_parts = 1
        self._notes: dict[ChunkId, Notes] = {}
        self._parts: dict[int, list[LocalPart]] = {}  # by number: each method keeps those that it asked for
        self._are_rows_checked = False
        self._pool: ThreadPoolExecutor | None = None

    def change(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks."""
        for chunk_id in (*removed, *added):
            self._notes.pop(chunk_id, None)
        self.forget("tables", "dual_sums", *MADE_OF_ROWS)
        self._parts = {}
        self._are_rows_checked = False

    def raise_bounds(self, bounds: Bounds) -> None:
        """All C_i have grown by the same factor, inside an iteration; tables, norms and rows stay."""
        self.bounds = bounds
        for chunk_id, note in self._notes.items():
            if note.upper is not None:
                note.upper[...] = bounds.of(self.chunks[chunk_id].peek())
        for part in itertools.chain([self] if self.chunks else (), *self._parts.values()):
            part.tables.raise_bounds(bounds.C)
            part.forget("upper", "dual_sums")

    @cached_property
    def tables(self) -> LocalTables:  # type: ignore[override]
        """Over all local rows, for the kernels; there is at least one chunk."""
        return build_tables(self.chunks, self._notes, self.bounds)

    def parts(self, most: int) -> Sequence[LocalPart]:
        """Cut all rows into parts of whole chunks, one at least per useful thread, `most` at most; they are kept."""
        tables = self.tables
        values = tables.num_values + tables.num_rows * values_of_row(0, are_in_files=tables.are_in_files)
        most = min(max(self.useful_threads, -(-values // MOST_BLOCK_VALUES)), most)
        cuts = tables.even_cuts(most) if most > 1 else []
        if len(cuts) <= 2:
            return [self]
        num_parts = len(cuts) - 1
        if num_parts not in self._parts:
            self._parts[num_parts] = [
                LocalPart(tables.part(begin, end), self.intercept, num_parts) for begin, end in itertools.pairwise(cuts)
            ]
        return self._parts[num_parts]

    def write_duals(self, k: int, duals: Array) -> None:
        """See `LocalPart`."""
        super().write_duals(k, duals)
        self.forget("dual_sums")

    @cached_property
    def dual_sums(self) -> Array:
        """Sums of dual values per output, `other_duals` included: methods carry them along, or forget them."""
        return self.tables.dual_sums(self.loss) + self.other_duals

    @cached_property
    def outside(self) -> Array:
        """Return what rows elsewhere, with duals that stay, contribute to w; shape (outputs, D), 0 without."""
        return np.zeros((self.tables.num_outputs, self.tables.rows.num_features + 1))

    @cached_property
    def other_duals(self) -> Array:
        """The sums of their dual values, shape (outputs,)."""
        return np.zeros(self.tables.num_outputs)

    def check_rows(self, num_visited: int) -> None:
        """Look at the norms found so far, until all are known; a DataError names a row with a NaN or an infinity."""
        if not self._are_rows_checked:
            norms = [note.norms for note in self.tables.notes]
            if not all(np.isfinite(each.max()) for each in norms):  # a NaN is the maximum
                self.tables.require_finite(np.concatenate(norms))
            self._are_rows_checked = num_visited == self.tables.num_rows

    def pass_over(
        self,
        parts: Sequence[LocalPart],
        run: Callable[[int], _Result],
        take: Callable[[_Result], object],
        stop: StopFlag | None = None,
        *,
        must_check: bool = False,
    ) -> None:
        """Do as `each_part` with the numbers of these parts of all rows. Of rows in files, the next ones are asked for
        while a thread works. A DataError names a row that has a NaN or an infinity, if no pass has looked and it must.
        """
        must_check = must_check and not self._are_rows_checked

        def run_part(number: int) -> _Result:
            part = parts[number]
            if number + self.num_threads < len(parts):
                parts[number + self.num_threads].ask_for()
            try:
                if must_check:
                    part.require_finite()
                return run(number)
            finally:
                part.let_go()

        self.each_part(run_part, range(len(parts)), take, stop)
        self._are_rows_checked |= must_check

    @property
    def useful_threads(self) -> int:
        """Threads that are worth their start: each has half of what stays in the cache, or more.

        Measured with two threads on two cores (Zen 5), hinge loss: with an eighth dense fits of 2^19 to 2^20 values
        took 1.0 to 1.9 times as long as on one thread. With twice as much as the cache has, fits of 4 million values
        lose the third that a second thread saves there.
        """
        return max(1, min(self.num_threads, 2 * self.tables.num_values // MOST_CACHED_VALUES))

    def run_parts(
        self, run: Callable[[_Part], _Result], parts: Sequence[_Part], stop: StopFlag | None = None
    ) -> list[_Result]:
        """`run` on each part, here when there is one, else on the pool."""
        results = list[_Result]()
        self.each_part(run, parts, results.append, stop)
        return results

    def each_part(
        self,
        run: Callable[[_Part], _Result],
        parts: Sequence[_Part],
        take: Callable[[_Result], object],
        stop: StopFlag | None = None,
    ) -> None:
        """As `run_parts`, and give what comes of the parts to `take`, in their order. Sums over many parts need the
        memory of two more than there are threads. No thread outlives an interrupt.
        """
        if len(parts) == 1:
            take(run(parts[0]))
            return
        if self._pool is None:
            self._pool = kernel_threads(self.num_threads)
        left = iter(parts)
        futures = deque(self._pool.submit(run, part) for part in itertools.islice(left, self.num_threads + 1))
        try:
            while futures:
                wait([futures[0]])
                take(futures.popleft().result())
                futures.extend(self._pool.submit(run, part) for part in itertools.islice(left, 1))
        except BaseException:
            if stop is not None:
                stop.set()
            wait([future for future in futures if not future.cancel()])
            raise

    def close(self) -> None:
        """End the kernel threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
