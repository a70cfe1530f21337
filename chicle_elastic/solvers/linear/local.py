"""The chunks of one task as the methods see them: tables for kernels, columns per output, and threads."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import StopFlag
from chicle_elastic.solvers.kernels.descent import positives
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, primal_losses
from chicle_elastic.solvers.linear.rows import NewtonRows, newton_rows
from chicle_elastic.solvers.linear.tables import (
    Bounds,
    LocalTables,
    Notes,
    build_tables,
    dual_sums,
    require_finite_rows,
    require_finite_values,
    upper_of_rows,
)
from chicle_elastic.solvers.linear.threads import kernel_threads
from chicle_elastic.solvers.local_chunk import LocalChunk

MIN_VALUES_PER_THREAD = 1 << 20
"""Feature values per thread below which another thread costs more than it brings.

Measured with two threads on two cores (Zen 5), hinge loss: with 2^18 dense fits of 2^19 to 2^20 values took 1.0 to 1.9
times as long as on one thread. With 2^22 fits of 4 million values lose the third that a second thread saves there.
"""

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


class LocalPart:
    """Keep what passes read of the rows of some chunks: a matrix, bounds, signs and duals.

    Args:
        tables: Over these chunks.
        notes: What is remembered of each chunk.
        C: Factor of the sum of losses.
        intercept: Value of the intercept column; 0 for none.
        num_parts: Parts that the local chunks are cut into, which share what memory copies may take.
    """

    def __init__(
        self, tables: LocalTables, notes: Mapping[ChunkId, Notes], C: float, intercept: float, num_parts: int = 1
    ) -> None:
        self.tables = tables
        self._notes = notes
        self._C = C
        self._intercept = intercept
        self._num_parts = num_parts
        self._rows: NewtonRows | None = None
        self._upper: Array | None = None
        self._signs: Array | None = None

    def raise_bounds(self, C: float) -> None:
        """Forget the C_i, which have grown with C; the matrix stays."""
        self._C, self._upper = C, None
        self.tables.samples = self.tables.samples._replace(uniform_upper=C)

    @property
    def rows(self) -> NewtonRows:
        """All rows, the intercept column included."""
        if self._rows is None:
            self._rows = newton_rows(self.tables, self._intercept, self._num_parts)
        return self._rows

    def drop_rows(self) -> None:
        """Give back the memory of `rows`, which may be a copy."""
        self._rows = None

    @property
    def upper(self) -> Array:
        """C_i of all rows, shape (num_rows,), float64."""
        if self._upper is None:
            self._upper = upper_of_rows(self.tables, self._notes, self._C)
        return self._upper

    @property
    def row_ids(self) -> Array:
        """Numbers of all rows in the data set, shape (num_rows,), int64."""
        return np.concatenate([block.row_ids for block in self.tables.keep_alive])

    @property
    def signs(self) -> Array:
        """+1 where the class is that of the output, else -1, shape (num_outputs, num_rows), float64."""
        if self._signs is None:
            codes = np.concatenate([block.targets for block in self.tables.keep_alive])
            self._signs = np.where(codes == positives(self.tables.num_outputs)[:, None], 1.0, -1.0)
        return self._signs

    def duals(self, k: int) -> Array:
        """A copy of the duals of output `k`, shape (num_rows,), float64."""
        return np.concatenate([block.state[:, k, 0] for block in self.tables.keep_alive])

    def write_duals(self, k: int, duals: Array) -> None:
        """Write the duals of output `k` into the chunks."""
        starts = np.cumsum(self.tables.samples.lengths)[:-1]
        for block, part in zip(self.tables.keep_alive, np.split(duals, starts), strict=True):
            block.state[:, k, 0] = part

    def certify(self, loss: Loss, w: Array, *, has_losses: bool) -> tuple[Array, Array]:
        """Find what a certificate needs.

        Args:
            loss: The loss.
            w: Where losses are evaluated, shape (num_outputs, D).
            has_losses: Without, the sums of losses are 0, and a row whose dual is 0 is not read.

        Returns:
            w of the duals, shape as `w`, and the sums of losses and of dual values per output, shape (num_outputs, 2).
        """
        rebuilt, sums = np.empty_like(w), np.zeros((len(w), 2))
        with np.errstate(over="ignore", invalid="ignore"):  # of features near the largest number
            for k, signs in enumerate(self.signs):
                alpha = self.duals(k)
                if has_losses:
                    sums[k, 0] = primal_losses(loss, signs * self.rows.times(w[k]), self.upper).sum()
                sums[k, 1] = dual_values(loss, alpha, self.upper).sum()
                rebuilt[k] = self.rows.weighted_sum(signs * alpha)
        return rebuilt, sums

    def require_finite(self) -> None:
        """Look at all values.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        with np.errstate(invalid="ignore"):  # 0 times a value is 0 but for NaN and infinity
            require_finite_values(self.tables, self.rows.times(np.zeros(self.rows.num_columns)))


class LocalData:
    """Of one solver. What is made of the chunks is made inside an iteration, when they may be read, and kept until
    some come or go.

    Args:
        chunks: Of the solver, by number; the solver changes it.
        loss: The loss.
        bounds: Where the C_i come from.
        intercept: Value of the intercept column; 0 for none.
        num_threads: Most threads to use.

    Attributes:
        notes: What is remembered of each chunk.
    """

    def __init__(
        self, chunks: Mapping[ChunkId, LocalChunk], *, loss: Loss, bounds: Bounds, intercept: float, num_threads: int
    ) -> None:
        self.loss = loss
        self.bounds = bounds
        self.intercept = intercept
        self.num_threads = num_threads
        self.notes: dict[ChunkId, Notes] = {}
        self._chunks = chunks
        self._whole: LocalPart | None = None
        self._parts: dict[int, list[LocalPart]] = {}  # by number: each method keeps those that it asked for
        self._dual_sums: Array | None = None
        self._are_rows_checked = False
        self._pool: ThreadPoolExecutor | None = None

    def change(self, added: Sequence[ChunkId], removed: Sequence[ChunkId]) -> None:
        """Forget what was made of the chunks."""
        for chunk_id in (*removed, *added):
            self.notes.pop(chunk_id, None)
        self._whole = self._dual_sums = None
        self._parts = {}
        self._are_rows_checked = False

    def raise_bounds(self, bounds: Bounds) -> None:
        """All C_i have grown by the same factor, inside an iteration; tables, norms and rows stay.

        Args:
            bounds: The same but for C.
        """
        self.bounds = bounds
        for chunk_id, note in self.notes.items():
            if note.upper is not None:
                note.upper[...] = bounds.of(self._chunks[chunk_id].peek())
        for part in itertools.chain([self._whole] if self._whole else (), *self._parts.values()):
            part.raise_bounds(bounds.C)
        self._dual_sums = None

    @property
    def whole(self) -> LocalPart:
        """All local rows; there is at least one chunk."""
        if self._whole is None:
            tables = build_tables(self._chunks, self.notes, self.bounds)
            self._whole = LocalPart(tables, self.notes, self.bounds.C, self.intercept)
        return self._whole

    def parts(self, most: int) -> list[LocalPart]:
        """Cut all local rows into a part for each useful thread, `most` at most; a chunk is in one part.

        They stay as long as the chunks do.
        """
        tables, most = self.tables, min(self.useful_threads, most)
        cuts = tables.even_cuts(most) if most > 1 else []
        if len(cuts) <= 2:
            return [self.whole]
        num_parts = len(cuts) - 1
        if num_parts not in self._parts:
            self._parts[num_parts] = [
                LocalPart(tables.part(begin, end), self.notes, self.bounds.C, self.intercept, num_parts)
                for begin, end in itertools.pairwise(cuts)
            ]
        return self._parts[num_parts]

    @property
    def tables(self) -> LocalTables:
        """For the kernels; there is at least one chunk."""
        return self.whole.tables

    @property
    def rows(self) -> NewtonRows:
        """See `LocalPart`."""
        return self.whole.rows

    def drop_rows(self) -> None:
        """See `LocalPart`."""
        self.whole.drop_rows()

    @property
    def upper(self) -> Array:
        """See `LocalPart`."""
        return self.whole.upper

    @property
    def signs(self) -> Array:
        """See `LocalPart`."""
        return self.whole.signs

    def duals(self, k: int) -> Array:
        """See `LocalPart`."""
        return self.whole.duals(k)

    def write_duals(self, k: int, duals: Array) -> None:
        """See `LocalPart`."""
        self.whole.write_duals(k, duals)
        self._dual_sums = None

    @property
    def dual_sums(self) -> Array:
        """Sums of dual values per output: carried along by the methods, or found anew."""
        if self._dual_sums is None:
            self._dual_sums = dual_sums(self.tables, self.notes, self.loss, self.bounds.C)
        return self._dual_sums

    def set_dual_sums(self, sums: Array | None) -> None:
        """What a method found; None where duals have changed and it did not."""
        self._dual_sums = sums

    def check_rows(self, num_visited: int) -> None:
        """Look at the norms that passes have found so far, until all are known.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        if not self._are_rows_checked:
            require_finite_rows(self.tables, self.notes)
            self._are_rows_checked = num_visited == self.tables.num_rows

    def check_all_rows(self, parts: Sequence[LocalPart] | None = None) -> None:
        """Look at all rows, where no pass finds their norms.

        Args:
            parts: All rows, for a thread each; by default in one piece.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        if not self._are_rows_checked:
            self.run_parts(LocalPart.require_finite, parts or [self.whole])
            self._are_rows_checked = True

    def count_all(self) -> int:
        """Write down that every local row was processed; returns how many there are."""
        for chunk in self._chunks.values():
            chunk.count(chunk.num_rows)
        return self.tables.num_rows

    @property
    def useful_threads(self) -> int:
        """Threads that are worth their start."""
        return max(1, min(self.num_threads, self.tables.num_values // MIN_VALUES_PER_THREAD))

    def run_parts(
        self, run: Callable[[_Part], _Result], parts: Sequence[_Part], stop: StopFlag | None = None
    ) -> list[_Result]:
        """`run` on each part: here when there is one, else on the persistent threads; results in order.

        When it is interrupted no thread is left writing behind the caller's back.
        """
        if len(parts) == 1:
            return [run(parts[0])]
        if self._pool is None:
            self._pool = kernel_threads(self.num_threads)
        futures = [self._pool.submit(run, part) for part in parts]
        try:
            return [future.result() for future in futures]
        except BaseException:
            if stop is not None:
                stop.set()
            wait(futures)
            raise

    def close(self) -> None:
        """End the kernel threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
