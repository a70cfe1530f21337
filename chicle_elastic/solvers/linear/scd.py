"""Passes of coordinate descent over all local rows, by threads that each keep a replica of w (CoCoA's local solver)."""

import math
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.kernels import scd
from chicle_elastic.solvers.kernels.losses import LOSSES
from chicle_elastic.solvers.kernels.tables import DenseKind
from chicle_elastic.solvers.linear.descent import Descent
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.race import (
    CACHED_ROW_VALUES,
    DENSE_VALUE,
    LOOK_VALUES,
    PASS_VALUES,
    ROW_VALUES,
    Race,
)
from chicle_elastic.solvers.linear.screening import Screening
from chicle_elastic.solvers.linear.tables import LocalTables, screen_addresses
from chicle_elastic.solvers.linear.threads import ThreadChoice
from chicle_elastic.solvers.linear.wide.exact import MAX_FEATURES
from chicle_elastic.solvers.linear.wide.local_newton import LocalNewton, step_work
from chicle_elastic.solvers.local_chunk import LocalChunk

BLOCKS_PER_LOOK = 16
"""Blocks between two looks at the clock when the budget has a deadline (the stop flag is polled more often)."""
AHEAD_BYTES = 4096
MAX_ROWS_AHEAD = 40
"""Rows are asked for this far ahead: about as much as arrives while the rows before it are worked on."""
DESCENT, NEWTON = 0, 1
"""Methods of the race."""
FIRST_STEPS = 24
"""Newton steps of each output that the first turn of the race pays for: most problems do not need more in all."""
MOST_CACHED_VALUES = 1 << 21
"""Feature values that stay in the caches of a processor, where rows may be visited in any order: 16 MiB of float64."""
FINEST_GAP = 1e-9
"""Relative gap at which Newton steps end: rounding in their gradient is as large. Passes go on from there."""
NO_ADDRESSES = np.empty(0, dtype=np.uint64)
VALUES_PER_ITERATION = 1 << 22
"""Feature values of small data that passes visit before the runtime is asked what next; a pass is always finished."""
FIRST_CORRECTION, LEAST_CORRECTION, AGAIN = 0.5, 0.1, 0.8
"""When a certificate is worth while, as in `LinearTrainer.verdict`."""


class CoordinatePasses:
    """Of one solver, for as long as it lives.

    One class because each pass leaves what the next one begins with: screening, gaps, the race, Newton's steps.

    Args:
        ctx: Of the task.
        local: Its data.
        chunks: Of the solver, by number.
        tol: Relative gap to be reached.
        descends_only: There are no Newton steps.
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
        self._race: Race | None = None
        self._newton: LocalNewton | None = None
        self._descent: Descent | None = None
        self._has_turned = False  # to the other method, which has to learn of it
        self._own: tuple[Array, list[Array], Array] | None = None
        self._is_stuck = False
        self._gaps: Array = np.empty(0)
        self._last_gap, self._correction, self._goal = math.inf, FIRST_CORRECTION, tol
        self._choice = ThreadChoice(local.num_threads)
        self._growth = 1.0

    def change(self) -> None:
        """Chunks have come or gone."""
        self._choice = ThreadChoice(self._local.num_threads)
        self._growth = 1.0
        self._end_newton()

    def _end_newton(self, *, is_stuck: bool = False) -> None:
        self._newton = self._race = self._own = self._descent = None
        self._is_stuck = is_stuck

    def raise_bounds(self, ratio: float) -> None:
        """All C_i have become `ratio` times as large, and there are duals from before.

        Newton steps over narrow rows go on from these duals. Coordinate descent of the hinge goes on faster from duals
        that have grown with their bounds, and w with them; several tasks would have to agree on that, and keep them.
        """
        self._must_visit_all = self._has_turned = True
        self._last_gap, self._correction, self._goal = math.inf, FIRST_CORRECTION, self.tol
        self._choice = ThreadChoice(self._local.num_threads)
        is_newton = self._is_newton
        self._end_newton()
        if is_newton and self._is_narrow(self._local.tables):
            self._race = self._new_race(self._local.tables, first=NEWTON)
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
        """Make a pass over the local samples, or `budget.samples` of them; alone several, or Newton steps in turns.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        tables = self._local.tables
        if budget.num_tasks > 1 or budget.samples is not None or budget.is_spent():
            self._end_newton(is_stuck=self._is_stuck)  # the duals go on without it
        elif self._is_newton:
            return self._newton_steps(tables, model, budget)
        elif self._local.useful_threads == 1 and tables.num_values <= MOST_CACHED_VALUES:
            return self._descend(tables, model, budget)
        return self._iteration(tables, model, budget)

    def _descend(self, tables: LocalTables, model: Array, budget: Budget) -> Update:
        """Some passes over small data: what is between two iterations takes longer than a pass."""
        w = model.reshape(tables.num_outputs, -1)
        if self._descent is None:
            self._descent = Descent(self._local, self.ctx.rng, self._grown(w, budget))
        elif self._has_turned:
            self._descent.offer(w)
        descent, self._has_turned = self._descent, False
        values_of_visit = self._visit_work(tables, CACHED_ROW_VALUES)
        begun = descent.visits
        while True:
            before = descent.visits
            descent.run(self._goal / self._correction, int(PASS_VALUES / values_of_visit), budget.stop)
            self._gaps = descent.gaps
            self._local.set_dual_sums(descent.dual_sums)
            self._learn(tables, descent.w, (descent.visits - before) * values_of_visit + PASS_VALUES)
            is_enough = (descent.visits - begun) * values_of_visit >= VALUES_PER_ITERATION
            if is_enough or self._is_newton or self._is_near or budget.is_spent():
                break
        for k, duals in enumerate(descent.duals):
            self._local.write_duals(k, duals)
        self._local.set_dual_sums(descent.dual_sums)
        return Update(
            delta=(descent.w - w).ravel(),
            samples=self._local.count_all(),
            weight=1.0,
            metrics=metrics_of(gap=self._gaps, dual=descent.dual_sums),
        )

    @property
    def _is_newton(self) -> bool:
        """Whether it is the turn of Newton steps."""
        return self._race is not None and self._race.running == NEWTON

    def _new_race(self, tables: LocalTables, first: int) -> Race:
        return Race(FIRST_STEPS * tables.num_outputs * step_work(tables), first)

    def _left(self, relative_gaps: Array) -> float:
        """Return what is left to do, over all outputs: the logarithm of the gap over that of a certificate."""
        goal = min(max(self._goal / self._correction, FINEST_GAP), 1.0)
        return float(np.log(np.clip(relative_gaps, goal, 1.0) / goal).sum())

    def _visit_work(self, tables: LocalTables, row_values: int) -> float:
        """Return what a visit of a row costs in a pass, on average."""
        value = DENSE_VALUE if isinstance(tables.rows.kind, DenseKind) else 1.0
        return value * tables.num_values / tables.num_rows + row_values

    def _iteration(self, tables: LocalTables, model: Array, budget: Budget) -> Update:
        w = model.reshape(tables.num_outputs, -1)
        is_alone = budget.num_tasks == 1 and budget.samples is None
        num_threads = self._local.useful_threads
        if budget.num_tasks == 1:
            num_threads = min(num_threads, self._choice.num_threads)
        start = self._own_w(w) if self._own is not None else self._grown(w, budget)
        work = _Work(
            screen=self._screen_table(tables, start, budget.iteration),
            sigma=float(budget.num_tasks * num_threads),
            scratches=[scd.make_scratch(tables.rows, tables.num_outputs) for _ in range(num_threads)],
            vectors=[start.copy() for _ in range(num_threads)],
        )
        order = self._order(tables)
        if budget.samples is not None:
            order = order[: -(-budget.samples // tables.bucket_rows)]
        processed, stats, duration_s = self._visit(tables, work, order, budget)
        for chunk_id, num_rows in zip(tables.ids, processed.tolist(), strict=True):
            self._chunks[chunk_id].count(num_rows)
        samples = int(processed.sum())
        self._local.check_rows(samples)
        self._gaps = stats[:, 0]
        self._current_screening(tables).end_pass(stats[:, 2].sum() / max(1, samples * tables.num_outputs))
        delta = work.change_of(w)
        if is_alone and (self._may_finish(tables) or self._choice.is_open):
            of_visits = stats[:, 3].sum() * self._visit_work(tables, ROW_VALUES)
            of_looks = LOOK_VALUES * tables.num_rows * tables.num_outputs
            self._learn(tables, w + delta, of_visits + of_looks + PASS_VALUES)
            if self._is_newton:
                w_there = w + delta
                own_duals = [self._local.duals(k) for k in range(len(w))]
                self._own = w_there, own_duals, self._dual_objectives(w_there)
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

    def _learn(self, tables: LocalTables, w: Array, work: float) -> None:
        """Learn from passes of the only task that led to `w`."""
        relative = self._relative_gaps(w, self._gaps)
        self._last_gap = float(np.max(relative))
        if not self._may_finish(tables) or self._last_gap <= FINEST_GAP:
            return
        if self._race is None:
            self._race = self._new_race(tables, first=DESCENT)
        if not self._is_near:  # a certificate may end it all
            self._race.add(work, self._left(relative))
            self._has_turned = self._is_newton

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
        return self._is_narrow(tables) or not isinstance(tables.rows.kind, DenseKind)

    def _order(self, tables: LocalTables) -> Array:
        """All buckets, shuffled."""
        order: Array = self.ctx.rng.permutation(np.arange(len(tables.bucket_row), dtype=np.int32))
        return order

    def _visit(self, tables: LocalTables, work: "_Work", order: Array, budget: Budget) -> tuple[Array, Array, float]:
        """Steps over the buckets of `order`.

        Returns:
            Rows processed per chunk, shape (num_chunks,); the statistics of `scd_pass`; and how long it took.
        """
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

    def _dual_objectives(self, w: Array) -> Array:
        """D per output where w is that of the duals, shape (outputs,)."""
        return self._local.dual_sums - 0.5 * np.einsum("kd,kd->k", w, w)

    def _own_w(self, w: Array) -> Array:
        """w to go on from when it is the turn of the passes again: theirs of before where that has the larger D."""
        assert self._own is not None
        (own_w, own_duals, own_objectives), self._own = self._own, None
        is_better = own_objectives > self._dual_objectives(w)
        for k in np.flatnonzero(is_better).tolist():
            self._local.write_duals(k, own_duals[k])
        return np.where(is_better[:, None], own_w, w)

    def _newton_steps(self, tables: LocalTables, model: Array, budget: Budget) -> Update:
        race, w = self._race, model.reshape(tables.num_outputs, -1)
        assert race is not None
        if self._newton is None:
            self._newton = LocalNewton(self._local, tables, AGAIN * self.tol)
        elif self._has_turned:
            self._newton.offer([self._local.duals(k) for k in range(len(w))])
        newton = self._newton
        before = newton.work
        if self._has_turned:
            race.begin(self._left(newton.relative_left))
        self._screening, self._has_turned = None, False
        self._must_visit_all = True  # Newton steps move duals that were settled
        newton.run(lambda: budget.is_spent() or race.is_over(newton.work - before))
        for k, duals in enumerate(newton.duals):
            self._local.write_duals(k, duals)
        delta, self._gaps = newton.w() - w, newton.gaps
        self._last_gap = float(np.max(newton.relative_gaps))
        race.add(newton.work - before, self._left(newton.relative_left))
        self._has_turned = not self._is_newton
        if newton.is_stuck or self._last_gap <= FINEST_GAP:
            self._end_newton(is_stuck=newton.is_stuck)
            self._local.drop_rows()
        has_given_up = newton.is_stuck and self._local.loss is not Loss.HINGE
        gaps = np.full(len(w), np.inf) if has_given_up else newton.gaps
        return Update(
            delta=delta.ravel(),
            samples=self._local.count_all(),
            weight=1.0,
            metrics=metrics_of(gap=gaps, dual=self._local.dual_sums),
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
