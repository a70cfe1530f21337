"""Coordinate descent with shrinking over all local rows (`kernels.descent`), by threads with a replica of w each."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, lie_in_file
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.kernels import descent as kernels
from chicle_elastic.solvers.kernels.losses import LOSSES
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.tables import LocalTables

BLOCKS_PER_LOOK = 16
"""Blocks between two looks at the clock when the budget has a deadline (the stop flag is polled more often)."""
AHEAD_BYTES = 4096
MAX_ROWS_AHEAD = 40
"""Rows are asked for this far ahead: about as much as arrives while the rows before it are worked on."""
MOST_NEAR_VALUES = 1 << 17
"""Feature values that stay in the second cache, where nothing is asked for ahead: 1 MiB of float64."""


@dataclass(slots=True)
class _Order:
    """In what order these outputs visit the buckets; see `kernels.shuffle`."""

    first: int
    end: int
    buckets: Array
    counts: Array


class Descent:
    """Moves the duals of the local rows, as long as these stay.

    Args:
        local: The rows.
        rng: Of the task.
        loss: One of `kernels.losses.LOSSES`; by default that of the rows.

    Attributes:
        gaps: Estimates of the last passes, shape (outputs,); of many passes the gaps, where these are at the goal.
        visits: Duals that were looked at so far.
    """

    def __init__(self, local: LocalData, rng: np.random.Generator, loss: Any = None) -> None:
        self._local, self._rng, self._loss = local, rng, LOSSES[local.loss] if loss is None else loss
        num_outputs = local.tables.num_outputs
        self.gaps = np.full(num_outputs, np.inf)
        self.visits = 0.0
        self._num_left = np.sum([np.count_nonzero(left_out, axis=0) for left_out in self._left_outs()], axis=0)
        self._bounds = np.tile([np.inf, -np.inf, kernels.FIRST_PER_GAP], (num_outputs, 1))
        self._orders: list[_Order] = []
        self._is_in_files = any(lie_in_file(block.rows) for block in local.tables.keep_alive)
        self._positives = kernels.positives(num_outputs)
        row_bytes = 4 * max(1, local.tables.num_values // local.tables.num_rows)
        self._rows_ahead = min(max(AHEAD_BYTES // row_bytes, 4), MAX_ROWS_AHEAD)
        if local.tables.num_values <= MOST_NEAR_VALUES:
            self._rows_ahead = kernels.BLOCK_ROWS
        self._is_apart = False
        self._scratches = [kernels.make_scratch(local.tables.rows) for _ in range(local.useful_threads)]

    def _left_outs(self) -> list[Array]:
        return [note.left_out for note in self._local.tables.notes]

    def visit_all(self) -> None:
        """Let the next pass leave no row out; inside of an iteration."""
        for left_out in self._left_outs():
            left_out.fill(0)
        self._num_left[:], self._bounds[:, : kernels.PER_GAP] = 0, (np.inf, -np.inf)
        for order in self._orders:
            np.copyto(order.buckets, ~order.buckets, where=order.buckets < 0)
            order.counts[kernels.ACTIVE] = len(order.buckets)

    def run(
        self, start: Array, budget: Budget, *, num_threads: int, goal: float = 0.0, most_visits: int = 0
    ) -> tuple[Array, Array]:
        """Make a pass over the local rows, or `budget.samples` of them; or many passes of one thread for each output.

        Args:
            start: w to begin with, shape (outputs, num_features + 1).
            budget: Says when to end.
            num_threads: How many share a pass.
            goal: Relative gap at which an output is done with many passes. It takes part again only where all are
                done: a certificate was of another opinion.
            most_visits: Visits of rows after which no further pass begins; 0 for one pass.

        Returns:
            The new w, and rows processed per chunk, shape (num_chunks,).

        Raises:
            DataError: A feature is NaN or infinite.
        """
        tables, local = self._local.tables, self._local
        vectors, stats = [start.copy() for _ in range(num_threads)], self._new_stats(num_threads)
        scale = float(budget.num_tasks * num_threads)
        done = relative_gaps(start, self.gaps, local.dual_sums) <= goal if most_visits else np.zeros(len(start), bool)
        for order in self._orders_of(tables, is_apart=most_visits > 0):
            if done[order.first] and not done.all():
                stats[0, order.first, kernels.GAP] = self.gaps[order.first]
                continue
            kernels.shuffle(order.buckets, order.counts)
            num_buckets = int(order.counts[kernels.ACTIVE])
            if self._is_in_files:  # one chunk after the other: a disk does not read here and there at its rate
                ranks, active = self._rng.permutation(len(tables.ids)), order.buckets[:num_buckets]
                active[:] = active[np.argsort(ranks[tables.bucket_chunk[active]], kind="stable")]
            if budget.samples is not None:
                num_buckets = min(num_buckets, -(-budget.samples // tables.bucket_rows))
            processed = self._visit(order, num_buckets, vectors, stats, scale, budget, goal, most_visits)
        is_whole = int(processed.sum()) == tables.num_rows
        self._learn(stats, is_one_pass=not most_visits, is_whole=is_whole)
        local.check_rows(tables.num_rows if most_visits else int(processed.sum()))
        found = vectors[0]
        if scale != 1.0:  # in place: with a million features every array costs as much as many rows
            found -= start
            for vector in vectors[1:]:
                vector -= start
                found += vector
            found /= scale
            found += start
        return found, processed

    def _new_stats(self, num_threads: int) -> Array:
        """Statistics of each thread, see `kernels.descend`, to begin with."""
        stats = np.zeros((num_threads, len(self.gaps), kernels.NUM_STATS))
        stats[:, :, kernels.MOST], stats[:, :, kernels.LEAST] = -np.inf, np.inf
        stats[0, :, kernels.LEFT] = self._num_left
        return stats

    def _learn(self, stats: Array, *, is_one_pass: bool, is_whole: bool) -> None:
        sums, local = stats.sum(axis=0), self._local
        self.gaps, self._num_left = sums[:, kernels.GAP], sums[:, kernels.LEFT]
        self.visits += float(sums[:, kernels.VISITS].sum())
        local.dual_sums = local.dual_sums + sums[:, kernels.CHANGE]
        if is_one_pass:
            most, least = stats[:, :, kernels.MOST].max(axis=0), stats[:, :, kernels.LEAST].min(axis=0)
            self._bounds[:, kernels.ABOVE] = np.where(is_whole & (most > 0), most, np.inf)
            self._bounds[:, kernels.BELOW] = np.where(is_whole & (least < 0), least, -np.inf)

    def _orders_of(self, tables: LocalTables, *, is_apart: bool) -> list[_Order]:
        """One order, or one for each output whose passes are many."""
        num_outputs = tables.num_outputs
        if not self._orders or is_apart != self._is_apart:  # what many passes have left out is in none of other passes
            self._is_apart = is_apart
            cuts = range(num_outputs) if is_apart else [0]
            size = len(tables.bucket_row)
            self._orders = [
                _Order(
                    first,
                    first + 1 if is_apart else num_outputs,
                    np.arange(size, dtype=np.int32),
                    np.array([0, size, self._rng.integers(1, np.iinfo(np.int64).max)]),
                )
                for first in cuts
            ]
        return self._orders

    def _visit(
        self,
        order: _Order,
        num_buckets: int,
        vectors: list[Array],
        stats: Array,
        scale: float,
        budget: Budget,
        goal: float,
        most_visits: int,
    ) -> Array:
        """Make passes over an order; returns the rows processed per chunk, shape (num_chunks,)."""
        local, tables, dual_sums = self._local, self._local.tables, self._local.dual_sums
        max_blocks = len(order.buckets) if budget.deadline_s is None else BLOCKS_PER_LOOK

        def run(number: int) -> Array:
            processed = np.zeros(len(tables.ids), dtype=np.int64)
            while most_visits or (order.counts[kernels.CURSOR] < num_buckets and not budget.is_spent()):
                kernels.descend(
                    self._loss,
                    tables.rows,
                    tables.samples,
                    tables.bucket_chunk,
                    tables.bucket_row,
                    tables.bucket_rows,
                    order.buckets,
                    order.counts,
                    num_buckets,
                    max_blocks,
                    self._positives,
                    order.first,
                    order.end,
                    local.intercept,
                    scale,
                    goal,
                    most_visits,
                    dual_sums,
                    self._rows_ahead,
                    budget.stop.memory,
                    self._scratches[number],
                    self._bounds,
                    vectors[number],
                    processed,
                    stats[number],
                )
                if most_visits:
                    break
            return processed

        return np.sum(local.run_parts(run, range(len(vectors)), budget.stop), axis=0)


def relative_gaps(w: Array, gaps: Array, dual_sums: Array) -> Array:
    """Divide estimated gaps by P, which follows from them where w is that of the duals; shape (outputs,)."""
    primal = dual_sums - 0.5 * np.einsum("kd,kd->k", w, w) + gaps
    with np.errstate(over="ignore", invalid="ignore"):  # beyond all numbers, where the objective is next to nothing
        return np.where(np.isinf(gaps), np.inf, gaps / np.maximum(primal, TINY))
