"""The local solver of CoCoA: SCD passes over all local chunks, by threads that each keep a replica of w."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np

from chicle_elastic.chunks import blocks
from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Solver, StopFlag, Update
from chicle_elastic.solvers.cocoa_tables import (
    SMALL_VALUES,
    Bounds,
    LocalTables,
    Notes,
    build_tables,
    dual_sums,
    num_between_bounds,
    objective_sums,
    require_finite_rows,
    screen_addresses,
    upper_of_rows,
)
from chicle_elastic.solvers.kernels import scd
from chicle_elastic.solvers.local_chunk import LocalChunk
from chicle_elastic.solvers.newton import MAX_FEATURES, NewtonFinish, Pace
from chicle_elastic.solvers.newton_rows import NewtonRows, newton_rows
from chicle_elastic.solvers.objectives import Loss
from chicle_elastic.solvers.screening import Screening
from chicle_elastic.solvers.threads import ThreadChoice, kernel_threads

MIN_VALUES_PER_THREAD = 1 << 18
"""Feature values per thread below which another thread costs more than it brings."""
BLOCKS_PER_LOOK = 16
"""Blocks between two looks at the clock when the budget has a deadline (the stop flag is polled more often)."""
AHEAD_BYTES = 4096
MAX_ROWS_AHEAD = 40
"""Rows are asked for this far ahead: about as much as arrives while the rows before it are worked on."""
FINEST_GAP = 1e-9
"""Relative gap at which Newton steps end: rounding in their gradient is as large. Passes go on from there."""
NO_ADDRESSES = np.empty(0, dtype=np.uint64)
FIRST_TAU = 5.0
"""tau of the first proximal Newton step, as a multiple of the mean C_i."""
NEAR = 0.9
"""An output whose estimated gap is below this share of `tol` is left alone by Newton steps."""

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


class CocoaSolver(Solver):
    """One per uni-task.

    Args:
        ctx: Of the task.
        loss: The loss.
        bounds: Where the C_i come from.
        intercept: Value of the intercept column; 0 for none.
        tol: Relative gap to be reached; decides whether a Newton finish pays.
        num_threads: Most threads to use.
    """

    def __init__(
        self, ctx: Context, *, loss: Loss, bounds: Bounds, intercept: float, tol: float, num_threads: int
    ) -> None:
        super().__init__(ctx)
        self.loss = loss
        self.bounds = bounds
        self.intercept = intercept
        self.tol = tol
        self.num_threads = num_threads
        self._notes: dict[ChunkId, Notes] = {}
        self._arrived: set[ChunkId] = set()
        self._tables: LocalTables | None = None
        self._are_rows_checked = False
        self._screening: Screening | None = None
        self._must_visit_all = False
        self._dual_sums: Array | None = None
        self._newton: NewtonFinish | None = None
        self._rows: NewtonRows | None = None
        self._pace = Pace()
        self._gaps: Array = np.empty(0)
        self._pool: ThreadPoolExecutor | None = None
        self._choice = ThreadChoice(num_threads)

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Forget the tables; they are built again inside the next iteration, when chunks may be read."""
        super().attach(added, removed)
        for chunk_id in (*removed, *(chunk.id for chunk in added)):
            self._notes.pop(chunk_id, None)
        self._arrived.difference_update(removed)
        self._arrived.update(chunk.id for chunk in added)
        self._tables = None
        self._are_rows_checked = False
        self._dual_sums = None
        self._choice = ThreadChoice(self.num_threads)
        self._newton, self._rows = None, None
        self._pace = Pace()

    def solve(self, model: Array, budget: Budget) -> Update:
        """One SCD pass over the local samples (or `budget.samples` of them), or a Newton step where that pays.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        tables = self._local_tables()
        if budget.num_tasks > 1 or budget.samples is not None or budget.is_spent() or self._newton is None:
            return self._scd_pass(tables, model, budget)
        return self._newton_step(self._newton, tables, model, budget)

    def _scd_pass(self, tables: LocalTables, model: Array, budget: Budget) -> Update:
        order = self.ctx.rng.permutation(np.arange(len(tables.bucket_row), dtype=np.int32))
        if budget.samples is not None:
            order = order[: -(-budget.samples // tables.bucket_rows)]
        num_threads = self._useful_threads(tables)
        if budget.num_tasks == 1:
            num_threads = min(num_threads, self._choice.num_threads)
        sigma = float(budget.num_tasks * num_threads)
        w = model.reshape(tables.num_outputs, -1)
        screen = self._screen_table(tables, w, budget.iteration)

        cursor = np.zeros(1, dtype=np.int64)

        def run(_: int) -> tuple[Array, Array, Array]:
            scratch = scd.make_scratch(tables.rows, tables.num_outputs)
            vectors = w.copy()
            processed = np.zeros(len(tables.ids), dtype=np.int64)
            stats = np.zeros((tables.num_outputs, 5))
            while cursor[0] < len(order) and not budget.is_spent():
                scd.scd_pass(
                    int(self.loss),
                    tables.rows,
                    tables.samples,
                    screen,
                    tables.bucket_chunk,
                    tables.bucket_row,
                    tables.bucket_rows,
                    order,
                    cursor,
                    len(order) if budget.deadline_s is None else BLOCKS_PER_LOOK,
                    scd.positives(tables.num_outputs),
                    self.intercept,
                    sigma,
                    self._rows_ahead(tables),
                    budget.stop.memory,
                    scratch,
                    vectors,
                    processed,
                    stats,
                )
            return vectors, processed, stats

        started_s = budget.clock.now()
        results = self._run_parts(run, range(num_threads), budget.stop)
        duration_s = budget.clock.now() - started_s
        # In place: with a million features every array costs as much as many rows.
        delta = results[0][0]
        delta -= w
        for vectors, _, _ in results[1:]:
            vectors -= w
            delta += vectors
        if sigma != 1.0:
            delta /= sigma
        processed: Array = np.sum([part for _, part, _ in results], axis=0)
        for chunk_id, num_rows in zip(tables.ids, processed.tolist(), strict=True):
            self.chunks[chunk_id].count(num_rows)
        stats: Array = np.sum([part for _, _, part in results], axis=0)
        samples = int(processed.sum())
        if not self._are_rows_checked:
            require_finite_rows(tables, self._notes)
            self._are_rows_checked = samples == tables.num_rows
        self._current_screening(tables).end_pass(stats[:, 2].sum() / max(1, samples * tables.num_outputs))
        self._dual_sums = self._dual_sums_after(tables, stats)
        num_visited = int(stats[:, 3].sum())
        is_narrow = w.shape[1] - 1 <= MAX_FEATURES
        if budget.num_tasks == 1 and budget.samples is None and (is_narrow or self._choice.is_open):
            following = w + delta
            self._gaps = stats[:, 0]
            gap = float(np.max(self._relative_gaps(tables, following, stats[:, 0])))
            self._choice.add(gap, duration_s / max(1, num_visited))
            if is_narrow:
                self._consider_newton(tables, gap, w.shape[1], num_visited)
        return Update(
            delta=delta.ravel(),
            samples=samples,
            weight=1.0,
            metrics=_metrics(gap=stats[:, 0], dual=self._dual_sums),
            is_partial=samples < tables.num_rows,
        )

    def _consider_newton(self, tables: LocalTables, gap: float, D: int, num_visited: int) -> None:
        """Learn how a pass got on; the next iteration is a Newton step if the passes to come would cost more."""
        self._pace.add(gap, num_visited)
        if gap <= FINEST_GAP or self._pace.passes_to(self.tol) == 0.0:
            return
        visited_values = self._pace.visited() * tables.num_values / tables.num_rows
        read_values = tables.num_values * tables.num_outputs
        if not self._pace.is_slow(self.tol, visited_values=visited_values, read_values=read_values, hessian_values=0):
            return  # the duals between their bounds need not be counted
        num_free = num_between_bounds(tables, self._notes, self.loss, self.bounds.C)
        hessian_values = (num_free + tables.num_outputs * D // 3) * D * D  # built, and solved with
        if self._pace.is_slow(
            self.tol, visited_values=visited_values, read_values=read_values, hessian_values=hessian_values
        ):
            taus = np.full(tables.num_outputs, FIRST_TAU * upper_of_rows(tables, self._notes, self.bounds.C).mean())
            self._newton = NewtonFinish(self.loss, taus)
            self._screening = None
            self._must_visit_all = True  # Newton steps move duals that were settled

    def _newton_step(self, newton: NewtonFinish, tables: LocalTables, model: Array, budget: Budget) -> Update:
        w = model.reshape(tables.num_outputs, -1)
        upper = upper_of_rows(tables, self._notes, self.bounds.C)
        targets = np.concatenate([block.targets for block in tables.keep_alive])

        def signs_and_duals(k: int) -> tuple[Array, Array]:
            signs = np.where(targets == scd.positives(tables.num_outputs)[k], 1.0, -1.0)
            return signs, np.concatenate([block.state[:, k, 0] for block in tables.keep_alive])

        gaps = self._gaps.copy()
        if self._rows is None:
            # Passes estimate gaps, sometimes too small ones: such an output would be left alone for ever.
            self._rows = newton_rows(tables, self.intercept)
            for k in range(tables.num_outputs):
                signs, alpha = signs_and_duals(k)
                gaps[k] = newton.gap(self._rows, signs, upper, alpha, w[k])
        following = w.copy()
        relative_gaps = self._relative_gaps(tables, w, gaps)
        # At least one, because a step that changes nothing would be repeated for ever.
        chosen = np.flatnonzero(relative_gaps > min(NEAR * self.tol, 0.999 * float(relative_gaps.max())))
        for k in chosen.tolist():
            signs, alpha = signs_and_duals(k)
            following[k], gaps[k] = newton.step(self._rows, signs, upper, alpha, w[k], k, budget.is_spent)
            for block, duals in zip(
                tables.keep_alive, np.split(alpha, np.cumsum(tables.samples.lengths)[:-1]), strict=True
            ):
                block.state[:, k, 0] = duals
        for chunk in self.chunks.values():
            chunk.count(chunk.num_rows)
        self._dual_sums, self._gaps = None, gaps
        if np.max(self._relative_gaps(tables, following, gaps)) <= FINEST_GAP:
            self._newton, self._rows, self._pace = None, None, Pace()
        return Update(
            delta=(following - w).ravel(),
            samples=tables.num_rows,
            weight=1.0,
            metrics=_metrics(gap=gaps, dual=self._current_dual_sums(tables)),
        )

    def _relative_gaps(self, tables: LocalTables, w: Array, gaps: Array) -> Array:
        """Estimated relative gap per output, shape (outputs,)."""
        primal = self._current_dual_sums(tables) - 0.5 * np.einsum("kd,kd->k", w, w) + gaps
        with np.errstate(over="ignore"):  # beyond all numbers, where the objective is next to nothing
            return np.asarray(gaps / np.maximum(primal, np.finfo(np.float64).tiny))

    def recover(self, model: Array) -> Array:
        """w of the local duals, in float64, flattened. Rows whose duals are 0 are not looked at: everybody waits."""
        return self._evaluate(model, has_losses=False).delta

    def evaluate(self, model: Array) -> Update:
        """w of the local duals, and the sums of losses (at `model`) and of dual values of the local samples."""
        return self._evaluate(model, has_losses=True)

    def _evaluate(self, model: Array, *, has_losses: bool) -> Update:
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        tables = self._local_tables()
        w = model.reshape(tables.num_outputs, -1)

        def run(part: Array) -> tuple[Array, Array]:
            rebuilt, stats = blocks.zeros(w.shape, w.dtype.name), np.zeros((tables.num_outputs, 2))
            scd.objective_sums(
                int(self.loss),
                tables.rows,
                tables.samples,
                int(part[0]),
                int(part[-1]) + 1,
                scd.positives(tables.num_outputs),
                self.intercept,
                has_losses,
                w,
                rebuilt,
                stats,
            )
            return rebuilt, stats

        chunks = np.arange(len(tables.ids))
        if tables.num_values <= SMALL_VALUES:
            results = [objective_sums(tables, self._notes, self.loss, self.bounds.C, self.intercept, w)]
        else:
            results = self._run_parts(run, np.array_split(chunks, min(self._useful_threads(tables), len(chunks))))
        stats: Array = np.sum([part for _, part in results], axis=0)
        rebuilt = results[0][0]
        for part, _ in results[1:]:  # in place: with a million features a fresh array costs as much as many rows
            rebuilt += part
        self._dual_sums = stats[:, 1].copy()
        self._must_visit_all = True  # rows that screening left out wrongly must not keep a gap open for ever
        return Update(
            delta=rebuilt.ravel(), samples=0, weight=1.0, metrics=_metrics(loss=stats[:, 0], dual=stats[:, 1])
        )

    def close(self) -> None:
        """End the kernel threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _useful_threads(self, tables: LocalTables) -> int:
        return max(1, min(self.num_threads, tables.num_values // MIN_VALUES_PER_THREAD))

    def _rows_ahead(self, tables: LocalTables) -> int:
        row_bytes = 4 * max(1, tables.num_values // tables.num_rows)
        return int(np.clip(AHEAD_BYTES // row_bytes, 4, MAX_ROWS_AHEAD))

    def _local_tables(self) -> LocalTables:
        """Tables over the local chunks; called inside an iteration only, because it reads them."""
        if self._tables is None:
            self._tables = build_tables(self.chunks, self._notes, self.bounds)
        return self._tables

    def _current_dual_sums(self, tables: LocalTables) -> Array:
        """Dual sums of the local samples: carried along, or found anew after chunks have changed hands."""
        if self._dual_sums is None:
            self._dual_sums = dual_sums(tables, self._notes, self.loss, self.bounds.C)
        return self._dual_sums

    def _dual_sums_after(self, tables: LocalTables, stats: Array) -> Array:
        """Dual sums after a pass with these statistics; no dual is read for it if the pass looked at all of them."""
        if self._dual_sums is not None:
            return np.asarray(self._dual_sums + stats[:, 1])
        if (stats[:, 3] == tables.num_rows).all():
            return np.asarray(stats[:, 4] + stats[:, 1])
        return self._current_dual_sums(tables)

    def _current_screening(self, tables: LocalTables) -> Screening:
        if self._screening is None:
            self._screening = Screening(tables.num_outputs, tables.rows.num_features)
        return self._screening

    def _screen_table(self, tables: LocalTables, w: Array, iteration: int) -> scd.ScreenTable:
        screening = self._current_screening(tables)
        must_visit_all = screening.begin_pass(w, iteration) or self._must_visit_all
        # Without screening duals move and slack does not: what came with a chunk must not go on with it.
        to_forget = self._notes if must_visit_all else () if screening.is_on else self._arrived
        for chunk_id in to_forget:
            slack_of_chunk = self._notes[chunk_id].slack
            if slack_of_chunk is not None:
                slack_of_chunk.fill(0)
        self._must_visit_all = False
        self._arrived.clear()
        slack = stamp = NO_ADDRESSES
        if screening.is_on:
            slack, stamp = screen_addresses(tables, self._notes)
        return scd.ScreenTable(
            slack=slack,
            stamp=stamp,
            moved=screening.moved,
            now=screening.now,
            caution=screening.caution,
            is_on=screening.is_on,
            like_stamp=np.empty(0, np.uint8),
        )

    def _run_parts(
        self, run: Callable[[_Part], _Result], parts: Sequence[_Part], stop: StopFlag | None = None
    ) -> list[_Result]:
        """`run` on each part: here when there is one, else on the persistent threads; results in order.

        When it is interrupted no thread is left writing duals behind the caller's back.
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


def _metrics(**columns: Array) -> dict[str, float]:
    """{"name/k": value} of columns of shape (outputs,)."""
    return {f"{name}/{k}": float(value) for name, column in columns.items() for k, value in enumerate(column)}
