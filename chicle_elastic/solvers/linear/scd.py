"""Passes of coordinate descent over all local rows, by threads that each keep a replica of w (CoCoA's local solver)."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.kernels import scd
from chicle_elastic.solvers.kernels.losses import LOSSES
from chicle_elastic.solvers.kernels.tables import DenseKind
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.pace import BLAS_ADVANTAGE, CALL_VALUES, Pace
from chicle_elastic.solvers.linear.rows import ChunkedRows
from chicle_elastic.solvers.linear.screening import Screening
from chicle_elastic.solvers.linear.tables import LocalTables, num_between_bounds, screen_addresses
from chicle_elastic.solvers.linear.threads import ThreadChoice
from chicle_elastic.solvers.linear.wide.exact import MAX_FEATURES, ExactRows
from chicle_elastic.solvers.linear.wide.finish import WideFinish
from chicle_elastic.solvers.linear.wide.hinge import WideHinge, first_tau
from chicle_elastic.solvers.linear.wide.rows import CopiedRows, RowsInChunks, WideRows
from chicle_elastic.solvers.linear.wide.smooth import WideSmooth
from chicle_elastic.solvers.local_chunk import LocalChunk

BLOCKS_PER_LOOK = 16
"""Blocks between two looks at the clock when the budget has a deadline (the stop flag is polled more often)."""
AHEAD_BYTES = 4096
MAX_ROWS_AHEAD = 40
"""Rows are asked for this far ahead: about as much as arrives while the rows before it are worked on."""
FINEST_GAP = 1e-9
"""Relative gap at which Newton steps end: rounding in their gradient is as large. Passes go on from there."""
NO_ADDRESSES = np.empty(0, dtype=np.uint64)
MOST_WIDE_VALUES = 1 << 23
"""Feature values of wide sparse data up to which they are copied for a Newton finish: 96 MiB a copy, of which smooth
losses have nearly three."""
WIDE_STEP = 12
"""What the products of conjugate gradients cost in a Newton step over wide rows, per value of the rows, as a number of
values of a pass of coordinate descent, which waits for the value before it."""
MOST_KEPT_VALUES = 1 << 22
"""Values of the second derivatives of all outputs up to which they are kept from step to step: 32 MiB."""
VALUES_PER_ITERATION = 1 << 22
"""Feature values that passes of one thread visit before the runtime is asked what next; a pass is always finished."""
FIRST_CORRECTION, LEAST_CORRECTION, AGAIN = 0.5, 0.1, 0.8
"""When a certificate is worth while, as in `LinearTrainer.verdict`."""


class CoordinatePasses:
    """Of one solver, for as long as it lives.

    One class because each pass leaves what the next one begins with: screening, gaps, the pace, the finish.

    Args:
        ctx: Of the task.
        local: Its data.
        chunks: Of the solver, by number.
        tol: Relative gap to be reached; decides whether a Newton finish pays.
        descends_only: There is no Newton finish.
    """

    def __init__(
        self,
        ctx: Context,
        local: LocalData,
        chunks: dict[ChunkId, LocalChunk],
        *,
        tol: float,
        descends_only: bool = False,
    ) -> None:
        self.ctx = ctx
        self.tol = tol
        self._descends_only = descends_only
        self._local = local
        self._chunks = chunks
        self._screening: Screening | None = None
        self._must_visit_all = False
        self._finish: dict[int, WideFinish] = {}
        self._columns: Array = np.empty(0, dtype=np.int64)
        self._is_stuck = False
        self._pace = Pace()
        self._gaps: Array = np.empty(0)
        self._last_gap, self._correction, self._goal = math.inf, FIRST_CORRECTION, tol
        self._choice = ThreadChoice(local.num_threads)
        self._growth = 1.0

    def change(self) -> None:
        """Chunks have come or gone."""
        self._choice = ThreadChoice(self._local.num_threads)
        self._growth = 1.0
        self._end_finish()

    def _end_finish(self, *, is_stuck: bool = False) -> None:
        self._finish, self._pace, self._is_stuck = {}, Pace(), is_stuck

    def raise_bounds(self, ratio: float) -> None:
        """All C_i have become `ratio` times as large, and there are duals from before.

        Newton steps over narrow rows go on from these duals. Coordinate descent of the hinge goes on faster from duals
        that have grown with their bounds, and w with them; several tasks would have to agree on that, and keep them.
        """
        self._must_visit_all = True
        self._last_gap, self._correction, self._goal = math.inf, FIRST_CORRECTION, self.tol
        self._choice = ThreadChoice(self._local.num_threads)
        had_finish = bool(self._finish)
        self._end_finish()
        if had_finish and self._is_narrow(self._local.tables):
            self._begin_finish(self._local.tables)
        elif self._local.loss is Loss.HINGE:
            self._growth = ratio

    def visit_all(self) -> None:
        """The next pass leaves no row out, whatever screening says."""
        self._must_visit_all = True

    def certified(self, relative_gap: float) -> None:
        """Learn the gap that a certificate found, to tell from an estimate when the next one is worth while."""
        if 0 < self._last_gap < math.inf and relative_gap > 0:
            self._correction = min(max(relative_gap / self._last_gap, LEAST_CORRECTION), 1.0 / LEAST_CORRECTION)
        self._goal = AGAIN * self.tol

    def run(self, model: Array, budget: Budget) -> Update:
        """A pass over the local samples (or `budget.samples` of them), or a Newton step where that pays.

        Alone, and with little data, it is several passes: what is between two iterations takes longer than a pass.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        tables = self._local.tables
        if budget.num_tasks > 1 or budget.samples is not None or budget.is_spent() or not self._finish:
            self._finish = {}  # the duals go on without it
            return self._iteration(tables, model, budget)
        return self._newton_steps(tables, model, budget)

    def _iteration(self, tables: LocalTables, model: Array, budget: Budget) -> Update:
        w = model.reshape(tables.num_outputs, -1)
        is_alone = budget.num_tasks == 1 and budget.samples is None
        num_threads = self._local.useful_threads
        if budget.num_tasks == 1:
            num_threads = min(num_threads, self._choice.num_threads)
        start = self._grown(w, budget)
        work = _Work(
            screen=self._screen_table(tables, start, budget.iteration),
            sigma=float(budget.num_tasks * num_threads),
            scratches=[scd.make_scratch(tables.rows, tables.num_outputs) for _ in range(num_threads)],
            vectors=[start.copy() for _ in range(num_threads)],
        )
        processed, stats, duration_s = self._pass(tables, work, budget)
        for chunk_id, num_rows in zip(tables.ids, processed.tolist(), strict=True):
            self._chunks[chunk_id].count(num_rows)  # once, however many passes follow
        samples = int(processed.sum())
        self._local.check_rows(samples)
        self._gaps = stats[:, 0]
        self._current_screening(tables).end_pass(stats[:, 2].sum() / max(1, samples * tables.num_outputs))
        if is_alone and self._local.useful_threads == 1:
            self._more_passes(tables, work, stats, budget)
        delta = work.change_of(w)
        if is_alone and self._local.useful_threads > 1 and (self._may_finish(tables) or self._choice.is_open):
            self._learn(tables, w + delta, stats)
            self._choice.add(self._last_gap, duration_s / max(1.0, stats[:, 3].sum()))
        return Update(
            delta=delta.ravel(),
            samples=samples,
            weight=1.0,
            metrics=metrics_of(gap=self._gaps, dual=self._local.dual_sums),
            is_partial=samples < tables.num_rows,
        )

    def _grown(self, w: Array, budget: Budget) -> Array:
        """w to begin a pass with: after C has grown, that of the duals, which grow by as much."""
        growth, self._growth = self._growth, 1.0
        if growth == 1.0 or budget.num_tasks > 1:
            return w
        for k in range(len(w)):
            self._local.write_duals(k, np.minimum(growth * self._local.duals(k), self._local.upper))
        return growth * w

    def _more_passes(self, tables: LocalTables, work: "_Work", stats: Array, budget: Budget) -> None:
        """What an iteration of one thread does after its first pass, which came to `stats`."""
        values = 0.0
        has_screen = work.screen.is_on
        while True:
            self._learn(tables, work.vectors[0], stats)
            values += stats[:, 3].sum() * tables.num_values / tables.num_rows + CALL_VALUES
            is_enough = values >= VALUES_PER_ITERATION or self._current_screening(tables).is_on != has_screen
            if is_enough or self._finish or self._is_near or budget.is_spent():
                return
            _, stats, _ = self._pass(tables, work, budget)
            self._gaps = stats[:, 0]
            if not has_screen:
                share = stats[:, 2].sum() / max(1.0, stats[:, 3].sum())
                self._current_screening(tables).end_pass(share)

    def _learn(self, tables: LocalTables, w: Array, stats: Array) -> None:
        """Learn from a pass of the only task that led to `w`."""
        self._last_gap = float(np.max(self._relative_gaps(w, self._gaps)))
        if self._may_finish(tables):
            self._consider_newton(tables, self._last_gap, w.shape[1], int(stats[:, 3].sum()))

    @property
    def _is_near(self) -> bool:
        """Whether a certificate would be asked for, as far as that can be told here; see `LinearTrainer.verdict`."""
        return self._last_gap * self._correction <= self._goal

    def _is_narrow(self, tables: LocalTables) -> bool:
        return tables.rows.num_features <= MAX_FEATURES

    def _may_finish(self, tables: LocalTables) -> bool:
        """Whether there are Newton steps for such data."""
        if self._descends_only or self._is_stuck:
            return False
        is_sparse = not isinstance(tables.rows.kind, DenseKind) and tables.num_outputs == 1
        return self._is_narrow(tables) or is_sparse

    def _pass(self, tables: LocalTables, work: "_Work", budget: Budget) -> tuple[Array, Array, float]:
        """One pass.

        Returns:
            Rows processed per chunk, shape (num_chunks,); the statistics of `scd_pass`; and how long it took.
        """
        order = self.ctx.rng.permutation(np.arange(len(tables.bucket_row), dtype=np.int32))
        if budget.samples is not None:
            order = order[: -(-budget.samples // tables.bucket_rows)]
        cursor = np.zeros(1, dtype=np.int64)

        def run(number: int) -> tuple[Array, Array]:
            processed = np.zeros(len(tables.ids), dtype=np.int64)
            stats = np.zeros((tables.num_outputs, 5))
            while cursor[0] < len(order) and not budget.is_spent():
                scd.scd_pass(
                    LOSSES[self._local.loss],
                    tables.rows,
                    tables.samples,
                    work.screen,
                    tables.bucket_chunk,
                    tables.bucket_row,
                    tables.bucket_rows,
                    order,
                    cursor,
                    len(order) if budget.deadline_s is None else BLOCKS_PER_LOOK,
                    scd.positives(tables.num_outputs),
                    self._local.intercept,
                    work.sigma,
                    self._rows_ahead(tables),
                    budget.stop.memory,
                    work.scratches[number],
                    work.vectors[number],
                    processed,
                    stats,
                )
            return processed, stats

        started_s = budget.clock.now()
        results = self._local.run_parts(run, range(len(work.vectors)), budget.stop)
        duration_s = budget.clock.now() - started_s
        stats = np.sum([part for _, part in results], axis=0)
        self._carry_dual_sums(tables, stats)
        return np.sum([part for part, _ in results], axis=0), stats, duration_s

    def _consider_newton(self, tables: LocalTables, gap: float, D: int, num_visited: int) -> None:
        """Learn how a pass got on; the next iteration is a Newton step if the passes to come would cost more."""
        self._pace.add(gap, num_visited)
        if gap <= FINEST_GAP or self._pace.passes_to(self.tol) == 0.0:
            return
        is_slow = partial(
            self._pace.is_slow,
            self.tol,
            num_duals=tables.num_rows * tables.num_outputs,
            row_values=tables.num_values / tables.num_rows,
        )
        if not is_slow(step_values=0):
            return  # the duals between their bounds need not be counted
        if self._is_narrow(tables):
            num_free = num_between_bounds(tables, self._local.notes, self._local.loss, self._local.bounds.C)
            step_values = (num_free + tables.num_outputs * D // 3) * D * D // BLAS_ADVANTAGE  # built and solved with
        else:
            step_values = WIDE_STEP * tables.num_values
        if not is_slow(step_values=step_values):
            return
        self._begin_finish(tables)

    def _begin_finish(self, tables: LocalTables) -> None:
        local, tol = self._local, AGAIN * self.tol
        rows: WideRows
        num_kept = tables.num_outputs * tables.rows.num_features**2 // 2
        is_kept = (local.loss is Loss.HINGE or local.loss.has_kinks) and num_kept <= MOST_KEPT_VALUES
        full = local.upper if is_kept else None
        if self._is_narrow(tables):
            rows, columns = ExactRows(local.rows, full), None
        elif tables.num_values > MOST_WIDE_VALUES and isinstance(local.rows, ChunkedRows):
            rows, columns = RowsInChunks(local.rows, tables, local.intercept), None
        else:
            rows, columns = CopiedRows.of(tables, local.intercept)
        self._columns = np.arange(rows.num_columns) if columns is None else columns
        norms = np.concatenate([local.notes[chunk_id].norms for chunk_id in tables.ids])
        tau = first_tau(norms, local.upper, rows.least_tau)
        for k in range(tables.num_outputs):
            signs, upper, duals = local.signs[k], local.upper, local.duals(k)
            if k and isinstance(rows, ExactRows):  # each has second derivatives of its own
                rows = ExactRows(local.rows, full)
            if local.loss is Loss.HINGE:
                self._finish[k] = WideHinge(rows, signs, upper, duals, tol=tol, tau=tau)
            else:
                self._finish[k] = WideSmooth(rows, local.loss, signs, upper, duals, tol=tol)
        self._screening = None
        self._must_visit_all = True  # Newton steps move duals that were settled

    def _newton_steps(self, tables: LocalTables, model: Array, budget: Budget) -> Update:
        w = model.reshape(tables.num_outputs, -1)
        delta, self._gaps = np.negative(w), np.zeros(tables.num_outputs)
        # At least one output, because an iteration that changes nothing would be repeated for ever.
        open_ones = [finish for finish in self._finish.values() if not finish.is_there] or [*self._finish.values()]
        for finish in open_ones:
            finish.run(budget.is_spent)
        for k, finish in self._finish.items():
            self._local.write_duals(k, finish.alpha)
            delta[k, self._columns] += finish.w
            self._gaps[k] = finish.gap
        self._last_gap = float(np.max(self._relative_gaps(w + delta, self._gaps)))
        is_stuck = any(finish.is_stuck for finish in self._finish.values())
        if is_stuck or self._last_gap <= FINEST_GAP:
            self._end_finish(is_stuck=is_stuck)
            self._local.drop_rows()
        return Update(
            delta=delta.ravel(),
            samples=self._local.count_all(),
            weight=1.0,
            metrics=metrics_of(gap=self._gaps, dual=self._local.dual_sums),
        )

    def _relative_gaps(self, w: Array, gaps: Array) -> Array:
        """Estimated relative gap per output, shape (outputs,)."""
        primal = self._local.dual_sums - 0.5 * np.einsum("kd,kd->k", w, w) + gaps
        with np.errstate(over="ignore"):  # beyond all numbers, where the objective is next to nothing
            return np.asarray(gaps / np.maximum(primal, np.finfo(np.float64).tiny))

    def _carry_dual_sums(self, tables: LocalTables, stats: Array) -> None:
        """Dual sums after a pass with these statistics; no dual is read for it if the pass looked at all of them."""
        if self._local.knows_dual_sums:
            self._local.set_dual_sums(self._local.dual_sums + stats[:, 1])
        elif (stats[:, 3] == tables.num_rows).all():
            self._local.set_dual_sums(stats[:, 4] + stats[:, 1])

    def _rows_ahead(self, tables: LocalTables) -> int:
        row_bytes = 4 * max(1, tables.num_values // tables.num_rows)
        return int(np.clip(AHEAD_BYTES // row_bytes, 4, MAX_ROWS_AHEAD))

    def _current_screening(self, tables: LocalTables) -> Screening:
        if self._screening is None:
            self._screening = Screening(tables.num_outputs, tables.rows.num_features)
        return self._screening

    def _screen_table(self, tables: LocalTables, w: Array, iteration: int) -> scd.ScreenTable:
        screening = self._current_screening(tables)
        must_visit_all = screening.begin_pass(w, iteration) or self._must_visit_all
        # Without screening duals move and slack does not: what came with a chunk must not go on with it.
        to_forget = self._local.notes if must_visit_all else () if screening.is_on else self._local.arrived
        for chunk_id in to_forget:
            slack_of_chunk = self._local.notes[chunk_id].slack
            if slack_of_chunk is not None:
                slack_of_chunk.fill(0)
        self._must_visit_all = False
        self._local.arrived.clear()
        slack = stamp = NO_ADDRESSES
        if screening.is_on:
            slack, stamp = screen_addresses(tables, self._local.notes)
        return scd.ScreenTable(
            slack=slack,
            stamp=stamp,
            moved=screening.moved,
            now=screening.now,
            caution=screening.caution,
            is_on=screening.is_on,
        )


@dataclass(slots=True, kw_only=True)
class _Work:
    """What the passes of an iteration share, and what each thread has of its own."""

    screen: scd.ScreenTable
    sigma: float
    scratches: list[scd.Scratch]
    vectors: list[Array]

    def change_of(self, w: Array) -> Array:
        """By how much the threads together change w; at the end, because it is found in their vectors."""
        # In place: with a million features every array costs as much as many rows.
        delta = self.vectors[0]
        delta -= w
        for vectors in self.vectors[1:]:
            vectors -= w
            delta += vectors
        if self.sigma != 1.0:
            delta /= self.sigma
        return delta


def metrics_of(**columns: Array) -> dict[str, float]:
    """{"name/k": value} of columns of shape (outputs,)."""
    return {f"{name}/{k}": float(value) for name, column in columns.items() for k, value in enumerate(column)}
