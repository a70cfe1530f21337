"""Passes of coordinate descent over the local rows (CoCoA's local solver), and local Newton steps of the only task."""

import math
from enum import IntEnum
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, lie_in_file
from chicle_elastic.solvers.base import Budget, Update
from chicle_elastic.solvers.kernels import descent as kernels
from chicle_elastic.solvers.kernels.losses import LOSSES
from chicle_elastic.solvers.kernels.tables import DenseKind
from chicle_elastic.solvers.linear import kinked
from chicle_elastic.solvers.linear.certified import AGAIN, correction
from chicle_elastic.solvers.linear.kinked import KinkedNewton
from chicle_elastic.solvers.linear.local import LocalData, ThreadChoice
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from chicle_elastic.solvers.linear.objectives import SLIGHT, TINY, Loss
from chicle_elastic.solvers.linear.products import CACHED_VALUES
from chicle_elastic.solvers.linear.race import CACHED_ROW_VALUES, DENSE_VALUE, PASS_VALUES, ROW_VALUES, Race
from chicle_elastic.solvers.linear.tables import LocalTables
from chicle_elastic.solvers.linear.wide.finish import MAX_FEATURES, LocalNewton, has_steps, step_work
from chicle_elastic.solvers.local_chunk import count_all

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


FIRST_STEPS, STEPS_OF_KINKS = 24, 6
"""Newton steps of each output that the first turn of the race pays for: most problems with corners do not need more in
all, and most with kinks no more than 6. With 24 for kinks too, the slowest of 20 problems of a million values takes 2.7
times as long as by Newton steps alone, and with 8 twice as long; with 4 one table takes three times as long as with 6,
because descent was nearly there.
"""
PASSES_PER_STEP = 16
"""Passes that cost about as much as a Newton step where both methods do the same work with the squared hinge: over 29
tables (medians) it takes 62 passes or 4 steps. Without the race the geometric mean of the work of what begins would be
1.3 times as large with 4 and 1.6 times with 64. The hinge takes 33 passes or 14 steps, so that descent begins."""
ITERATIONS_PER_TURN = 64
"""Iterations that a turn of the race takes at most, so that `max_iter` of them do not end before Newton steps begin."""
MANY_PASSES = 8
"""Passes that one iteration has at most for that."""


class Method(IntEnum):
    """The methods of the race."""

    DESCENT = 0
    NEWTON = 1


class CoordinatePasses:
    """Makes the passes of a solver. Each leaves what the next begins with: duals left out, gaps, the race, steps."""

    def __init__(
        self,
        rng: np.random.Generator,  # of the task
        local: LocalData,  # its data
        *,
        tol: float,  # relative gap to be reached
        descends_only: bool = False,  # there are no Newton steps
        loss: Any = None,  # one of `kernels.losses.LOSSES`; by default that of the rows
        first_steps: int | None = None,  # of each output, in the first turn
    ) -> None:
        self._rng, self._loss = rng, loss
        self._first_steps = first_steps or (STEPS_OF_KINKS if local.loss.has_kinks else FIRST_STEPS)
        self.tol = tol
        self._descends_only = descends_only
        self._local = local
        self._must_visit_all = False
        self._is_warm = False  # passes began with duals of before
        self._has_turned = False  # to the other method, which has to learn of it
        self._is_kernel_stuck = False
        self.last_gap, self._correction, self._goal = math.inf, correction(0.0, 0.0), tol
        self.change()

    def change(self) -> None:
        """Chunks have come or gone."""
        self._choice = ThreadChoice(self._local.num_threads)
        self._growth = 1.0
        self._descent: Descent | None = None
        self._end_newton()

    def _end_newton(self, *, is_stuck: bool = False) -> None:
        self._newton: LocalNewton | KinkedNewton | None = None
        self._race: Race | None = None
        self._is_stuck = is_stuck

    def raise_bounds(self, ratio: float) -> None:
        """All C_i have become `ratio` times as large, and there are duals from before.

        Newton steps over narrow rows go on from these duals. Coordinate descent of the hinge goes on faster from duals
        that have grown with their bounds, and w with them; several tasks would have to agree on that, and keep them.
        """
        is_newton, self._has_turned = self.is_newton, True
        self.last_gap, self._correction, self._goal = math.inf, correction(0.0, 0.0), self.tol
        self.visit_all()
        self.change()
        if is_newton and self._is_narrow:
            self._race = Race(self._first_turn, Method.NEWTON)
        elif self._local.loss is Loss.HINGE:
            self._growth = ratio

    def visit_all(self) -> None:
        """The next pass leaves no row out."""
        self._must_visit_all = True

    def certified(self, gap: float) -> None:
        """Learn the gap that a certificate found, to tell from an estimate when the next one is worth while."""
        if self.last_gap < math.inf:
            self._correction = correction(gap, self.last_gap)
        self._goal = AGAIN * self.tol

    def run(self, model: Array, budget: Budget) -> Update:
        """Make a pass over the local samples, or `budget.samples` of them; alone several, or Newton steps in turns."""
        if budget.num_tasks > 1 or budget.samples is not None or budget.is_spent():
            self._end_newton(is_stuck=self._is_stuck)  # the duals go on without it
        elif self.last_gap == math.inf and self._race is None and self._newton_begins:
            self._race = Race(self._first_turn, Method.NEWTON)
        if self.is_newton:
            return self._newton_steps(model, budget)
        return self._descend(model, budget)

    def _descend(self, model: Array, budget: Budget) -> Update:
        """Make a pass; of the only task some, where iterations would be short, or too many until Newton's turn."""
        tables = self._local.tables
        w = model.reshape(tables.num_outputs, -1)
        found = self._grown(w, budget)
        if self._descent is None:
            self._descent, self._is_warm = Descent(self._local, self._rng, self._loss), bool(w.any())
        descent, is_alone = self._descent, budget.num_tasks == 1 and budget.samples is None
        num_threads = self._local.useful_threads
        if budget.num_tasks == 1:
            num_threads = min(num_threads, self._choice.num_threads)
        is_small = is_alone and num_threads == 1 and tables.bucket_rows == 1 and not budget.is_spent()
        if self._must_visit_all:
            descent.visit_all()
            self._must_visit_all = False
        values_of_visit = _visit_work(tables, CACHED_ROW_VALUES if is_small else ROW_VALUES)
        looks = 0 if is_small else CACHED_ROW_VALUES * tables.num_rows * tables.num_outputs
        done, num_passes, enough = 0.0, 0, self._work_per_iteration(is_small, is_alone, values_of_visit)
        while True:
            if num_passes and num_passes % MANY_PASSES == 0:  # those that were left out may have to move by now
                descent.visit_all()
            before = descent.visits
            most_work = max(PASS_VALUES, min(before * values_of_visit, enough - done) / tables.num_outputs)
            if is_small:
                goal, most_visits = self._goal / max(self._correction, 1.0), math.ceil(most_work / values_of_visit)
                found = descent.run_apart(found, budget, goal=goal, most_visits=most_visits)
            else:
                found, processed = descent.run(found, budget, num_threads=num_threads)
            visits, num_passes = descent.visits - before, num_passes + 1
            done += visits * values_of_visit + looks
            if is_alone and (self._may_finish or self._choice.is_open or is_small):
                self._learn(visits * values_of_visit + looks + PASS_VALUES)
                self._choice.add(self.last_gap, visits / num_threads)
            if done >= enough or self.is_newton or self.is_near or self.last_gap <= SLIGHT or budget.is_spent():
                break
        if is_small or num_passes > 1:
            samples = count_all(self._local.chunks)
        else:
            samples = int(processed.sum())
            for chunk_id, num_rows in zip(tables.ids, processed.tolist(), strict=True):
                self._local.chunks[chunk_id].count(num_rows)
        return Update(
            delta=(found - w).ravel(),
            samples=samples,
            weight=1.0,
            metrics=metrics_of(gap=descent.gaps, dual=self._local.dual_sums),
            is_partial=samples < tables.num_rows,
        )

    @property
    def is_newton(self) -> bool:
        """Say whether it is the turn of Newton steps."""
        return self._race is not None and self._race.running == Method.NEWTON

    @property
    def _newton_begins(self) -> bool:
        """Say whether Newton steps are likely to end with less work."""
        tables = self._local.tables
        if not (self._local.loss.has_kinks and self._is_narrow and self._may_finish):
            return False
        pass_work = tables.num_rows * _visit_work(tables, CACHED_ROW_VALUES)
        return self._step_work < PASSES_PER_STEP * pass_work

    @property
    def _has_kernel(self) -> bool:
        """Say whether a kernel takes the Newton steps with less work."""
        local = self._local
        can_take_them = local.loss.has_kinks and self._is_narrow and not local.outside.any()
        return can_take_them and not self._is_kernel_stuck and kinked.step_work(local.tables) <= step_work(local.tables)

    @property
    def _step_work(self) -> float:
        """Return what a Newton step of an output costs, at the most."""
        return (kinked.step_work if self._has_kernel else step_work)(self._local.tables)

    def _work_per_iteration(self, is_small: bool, is_alone: bool, values_of_visit: float) -> float:
        """Return the work after which an iteration ends with the pass that is being made."""
        least = MOST_BLOCK_VALUES if is_small else 0  # before the runtime is asked what next
        if not is_alone or not self._may_finish:
            return least
        pass_work = self._local.tables.num_rows * self._local.tables.num_outputs * values_of_visit
        return max(least, min(self._first_turn / ITERATIONS_PER_TURN, MANY_PASSES * pass_work))

    @property
    def _first_turn(self) -> float:
        return self._first_steps * self._local.tables.num_outputs * self._step_work

    def _left(self, relative_gaps: Array) -> float:
        """Return what is left to do, over all outputs: the logarithm of the gap over that of a certificate."""
        goal = min(max(self._goal / self._correction, SLIGHT), 1.0)
        return float(np.log(np.clip(relative_gaps, goal, 1.0) / goal).sum())

    def _grown(self, w: Array, budget: Budget) -> Array:
        """w to begin a pass with: after C has grown, that of the duals, which grow by as much."""
        growth, self._growth = self._growth, 1.0
        if growth == 1.0 or budget.num_tasks > 1:
            return w
        for k in range(len(w)):
            self._local.write_duals(k, np.minimum(growth * self._local.duals(k), self._local.upper))
        return growth * w

    def _learn(self, work: float) -> None:
        """Learn from passes of the only task."""
        assert self._descent is not None
        relative = self._descent.relative_gaps
        self.last_gap = float(np.max(relative))
        if not self._may_finish or self.last_gap <= SLIGHT:
            return
        if self._race is None:
            # Duals of before are near the end, where passes are slow and Newton steps fast: one step's work has to do.
            is_short = self._is_warm and self._is_narrow
            self._race = Race(self._first_turn, Method.DESCENT, 1.0 / FIRST_STEPS if is_short else 1.0)
        if not self.is_near:  # a certificate may end it all
            self._race.add(work, self._left(relative))
            self._has_turned = self.is_newton

    @property
    def is_near(self) -> bool:
        """Say whether a certificate would be asked for, as far as can be told here; see `LinearTrainer.verdict`."""
        return self.last_gap * self._correction <= self._goal

    @property
    def _is_narrow(self) -> bool:
        return self._local.tables.rows.num_features <= MAX_FEATURES

    @property
    def _may_finish(self) -> bool:
        """Say whether there are Newton steps for such data."""
        return not (self._descends_only or self._is_stuck) and has_steps(self._local.tables)

    def _newton_steps(self, model: Array, budget: Budget) -> Update:
        race, w = self._race, model.reshape(self._local.tables.num_outputs, -1)
        assert race is not None
        if self._newton is None:
            goal = AGAIN * self.tol
            self._newton = KinkedNewton(self._local, w, goal) if self._has_kernel else LocalNewton(self._local, goal)
        elif self._has_turned:
            self._newton.offer(w)
        newton = self._newton
        before = newton.work
        if self._has_turned:
            race.begin(self._left(newton.relative_left))
        self._has_turned = False
        self.visit_all()  # Newton steps move duals that were settled
        with np.errstate(over="ignore", invalid="ignore"):
            newton.run(budget, lambda: race.is_over(newton.work - before))
        newton.write_duals()
        delta = newton.w() - w
        self.last_gap = float(np.max(newton.relative_gaps))
        race.add(newton.work - before, self._left(newton.relative_left))
        self._has_turned = not self.is_newton
        if self._descent is not None:
            self._descent.gaps = self._descent.relative_gaps = np.full(len(w), np.inf)  # the duals have changed
        is_stuck = newton.is_stuck
        if is_stuck and isinstance(newton, KinkedNewton):  # the other steps correct duals that rounding has spoiled
            self._newton, self._is_kernel_stuck, is_stuck = None, True, False
            if not np.isfinite(newton.gaps).all():  # no step at all, and a trainer takes infinity for the end
                return self._newton_steps(model, budget)
        elif is_stuck or self.last_gap <= SLIGHT:
            self._end_newton(is_stuck=is_stuck)
            self._local.forget("rows")
        has_given_up = is_stuck and self._local.loss is not Loss.HINGE
        gaps = np.full(len(w), np.inf) if has_given_up else newton.gaps
        return Update(
            delta=delta.ravel(),
            samples=count_all(self._local.chunks),
            weight=1.0,
            metrics=metrics_of(gap=gaps, dual=self._local.dual_sums),
        )


def _visit_work(tables: LocalTables, row_values: int) -> float:
    """Return what a visit of a row costs in a pass, on average."""
    value = DENSE_VALUE if isinstance(tables.rows.kind, DenseKind) else 1.0
    return value * tables.num_values / tables.num_rows + row_values


def metrics_of(**columns: Array) -> dict[str, float]:
    """{"name/k": value} of columns of shape (outputs,)."""
    return {f"{name}/{k}": float(value) for name, column in columns.items() for k, value in enumerate(column)}
