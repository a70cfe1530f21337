"""Coordinate descent with shrinking over all local rows (`kernels.descent`), by threads with a replica of w each."""

from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, lie_in_file
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.kernels import descent as kernels
from chicle_elastic.solvers.kernels.losses import LOSSES
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.products import CACHED_VALUES

BLOCKS_PER_LOOK = 16
"""Blocks between two looks at the clock when the budget has a deadline (the stop flag is polled more often)."""
AHEAD_BYTES = 4096
"""Rows are asked for this far ahead: about as much as arrives while the rows before it are worked on."""


class Descent:
    """Moves the duals of the local rows, as long as these stay.

    `gaps` are estimates of the last passes, shape (outputs,), and of many passes the gaps, where these are at the goal;
    `relative_gaps` the same as shares of P. The loss is one of `kernels.losses.LOSSES`, by default that of the rows.
    """

    def __init__(self, local: LocalData, rng: np.random.Generator, loss: Any = None) -> None:
        self._local, self._rng, tables = local, rng, local.tables
        self.gaps = self.relative_gaps = np.full(tables.num_outputs, np.inf)
        self.visits = 0.0  # duals that were looked at so far
        self._bounds = np.empty((tables.num_outputs, 3))
        self._bounds[:] = np.inf, -np.inf, kernels.FIRST_PER_GAP
        # In what order the buckets are visited: of all outputs together, or of each one; see `kernels.shuffle`.
        self._orders, self._counts = np.empty((0, 0), np.int32), np.empty((0, kernels.NUM_COUNTS), np.int64)
        self._is_in_files = any(lie_in_file(block.rows) for block in tables.keep_alive)
        row_bytes = 4 * max(1, tables.num_values // tables.num_rows)
        ahead = min(max(AHEAD_BYTES // row_bytes, 4), kernels.BUCKET_ROWS)
        if tables.num_values <= CACHED_VALUES:  # nothing has to be asked for ahead
            ahead = kernels.BLOCK_ROWS
        buckets = tables.bucket_chunk, tables.bucket_row, tables.bucket_rows
        kind = LOSSES[local.loss] if loss is None else loss
        positives = kernels.positives(tables.num_outputs)
        self._where = kind, tables.rows, tables.samples, *buckets, positives, local.intercept, ahead
        self._is_apart = False
        self._scratches = [kernels.make_scratch(tables.rows) for _ in range(local.useful_threads)]

    def visit_all(self) -> None:
        """Let the next pass leave no row out; inside of an iteration."""
        for note in self._local.tables.notes:
            note.left_out.fill(0)
        self._bounds[:, : kernels.PER_GAP] = np.inf, -np.inf
        np.copyto(self._orders, ~self._orders, where=self._orders < 0)
        self._counts[:, kernels.ACTIVE] = self._orders.shape[1]

    def run(self, start: Array, budget: Budget, *, num_threads: int) -> tuple[Array, Array]:
        """Make a pass over the local rows, or `budget.samples`, from a w (outputs, D); returns w and rows per chunk."""
        tables, local = self._local.tables, self._local
        vectors, stats = [start.copy() for _ in range(num_threads)], self._new_stats(num_threads)
        scale = float(budget.num_tasks * num_threads)
        self._begin_orders(is_apart=False)
        kernels.shuffle(self._orders[0], self._counts[0])
        num_buckets = int(self._counts[0, kernels.ACTIVE])
        if self._is_in_files:  # one chunk after the other: a disk does not read here and there at its rate
            ranks, active = self._rng.permutation(len(tables.ids)), self._orders[0, :num_buckets]
            active[:] = active[np.argsort(ranks[tables.bucket_chunk[active]], kind="stable")]
        if budget.samples is not None:
            num_buckets = min(num_buckets, -(-budget.samples // tables.bucket_rows))
        max_blocks = num_buckets if budget.deadline_s is None else BLOCKS_PER_LOOK

        def run(number: int) -> Array:
            processed = np.zeros(len(tables.ids), dtype=np.int64)
            while self._counts[0, kernels.CURSOR] < num_buckets and not budget.is_spent():
                how = np.zeros(1, np.bool_), num_buckets, max_blocks, scale, 0.0, 0
                where = vectors[number], processed, stats[number]
                kernels.descend(*self._arguments(budget, number, *how, *where))
            return processed

        processed = np.sum(local.run_parts(run, range(num_threads), budget.stop), axis=0)
        is_whole = int(processed.sum()) == tables.num_rows
        most, least = stats[:, :, kernels.MOST].max(axis=0), stats[:, :, kernels.LEAST].min(axis=0)
        self._bounds[:, kernels.ABOVE] = np.where(is_whole & (most > 0), most, np.inf)
        self._bounds[:, kernels.BELOW] = np.where(is_whole & (least < 0), least, -np.inf)
        local.check_rows(int(processed.sum()))
        found = vectors[0]
        if scale != 1.0:  # in place: with a million features every array costs as much as many rows
            found -= start
            for vector in vectors[1:]:
                vector -= start
                found += vector
            found /= scale
            found += start
        self._learn(stats.sum(axis=0), found)
        return found, processed

    def run_apart(self, start: Array, budget: Budget, *, goal: float, most_visits: int) -> Array:
        """Make many passes for each output over rows that stay in the cache, by one thread of the only task: as `run`.

        An output is done at the relative gap `goal`. It takes part again only where all are done: a certificate was of
        another opinion. After `most_visits` of rows no further pass of an output begins.
        """
        local, tables = self._local, self._local.tables
        self._begin_orders(is_apart=True)
        found, stats = start.copy(), self._new_stats(1)[0]
        stats[:, kernels.GAP] = self.gaps
        are_done = self.relative_gaps <= goal
        if are_done.all():
            are_done[:] = False
        how = are_done, 0, 0, 1.0, goal, most_visits
        kernels.descend(*self._arguments(budget, 0, *how, found, np.zeros(0, np.int64), stats))
        local.check_rows(tables.num_rows)
        self._learn(stats, found)
        return found

    def _new_stats(self, num_threads: int) -> Array:
        """Statistics of each thread, see `kernels.descend`, to begin with."""
        stats = np.zeros((num_threads, len(self.gaps), kernels.NUM_STATS))
        stats[:, :, kernels.MOST], stats[:, :, kernels.LEAST] = -np.inf, np.inf
        return stats

    def _learn(self, sums: Array, w: Array) -> None:
        """Learn from the statistics of passes that ended at w; P follows from them where w is that of the duals."""
        local, self.gaps = self._local, sums[:, kernels.GAP]
        self.visits += float(sums[:, kernels.VISITS].sum())
        local.dual_sums = local.dual_sums + sums[:, kernels.CHANGE]
        primal = local.dual_sums - 0.5 * np.einsum("kd,kd->k", w, w) + self.gaps
        with np.errstate(over="ignore", invalid="ignore"):  # beyond all numbers, where the objective is next to nothing
            self.relative_gaps = np.where(np.isinf(self.gaps), np.inf, self.gaps / np.maximum(primal, TINY))

    def _begin_orders(self, *, is_apart: bool) -> None:
        """Make one order, or one for each output, unless the last passes had the same."""
        if len(self._orders) and is_apart == self._is_apart:  # what one kind has left out is in none of the other
            return
        self._is_apart = is_apart
        number, size = self._local.tables.num_outputs if is_apart else 1, len(self._local.tables.bucket_row)
        self._orders = np.tile(np.arange(size, dtype=np.int32), (number, 1))
        self._counts = np.empty((number, kernels.NUM_COUNTS), np.int64)
        self._counts[:, : kernels.RANDOM] = 0, size
        self._counts[:, kernels.RANDOM] = self._rng.integers(1, np.iinfo(np.int64).max, size=number)

    def _arguments(self, budget: Budget, number: int, *others: Any) -> tuple[Any, ...]:
        """Return those of `kernels.descend`: what each call in the thread of this number has, and the others."""
        state = self._orders, self._counts, self._bounds, self._local.dual_sums
        return *self._where, *state, budget.stop.memory, self._scratches[number], *others
