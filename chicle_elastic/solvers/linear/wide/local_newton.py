"""Newton steps of the only task, for all outputs: where their rows are, and what they have cost."""

from collections.abc import Callable
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.kernels.tables import DenseKind
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES, MOST_COLUMNS
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.race import DENSE_VALUE, MULTIPLICATION, PASS_VALUES
from chicle_elastic.solvers.linear.rows import NewtonRows
from chicle_elastic.solvers.linear.tables import LocalTables
from chicle_elastic.solvers.linear.wide.finish import WideFinish, WideHinge
from chicle_elastic.solvers.linear.wide.rows import MOST_COPIED_VALUES, WIDE_STEP, WideRows, with_columns

MAX_FEATURES = MOST_COLUMNS - 1  # Features up to which a matrix of second derivatives is made
MOST_VALUES = 4 * MOST_BLOCK_VALUES  # of rows, and of products of rows, up to which these products are made: 128 MiB


def step_work(tables: LocalTables) -> float:
    """What a Newton step of one output costs, at the most where columns are few, and roughly where they are many."""
    D, n = tables.rows.num_features + 1, tables.num_rows
    if D <= MAX_FEATURES + 1:
        return PASS_VALUES + MULTIPLICATION * (n / 2 + D / 3) * D * D
    if is_exact(tables):
        return PASS_VALUES + MULTIPLICATION * n**3 / 3 + 4 * DENSE_VALUE * tables.num_values
    return float(PASS_VALUES + WIDE_STEP * tables.num_values)


def is_exact(tables: LocalTables) -> bool:
    """Say whether a matrix of products of all columns, or of all dense rows, can be made."""
    if tables.rows.num_features <= MAX_FEATURES:
        return True
    return _is_dense(tables) and max(tables.num_rows**2, tables.num_values) <= MOST_VALUES


def has_steps(tables: LocalTables) -> bool:
    """Say whether there are Newton steps over such rows: over large dense wide ones they do not come to an end, and
    beside rows in files there is no memory for what they keep of each.
    """
    return not tables.are_in_files and (is_exact(tables) or not _is_dense(tables))


def _is_dense(tables: LocalTables) -> bool:
    return isinstance(tables.rows.kind, DenseKind)


class LocalNewton:
    """Begins at the duals of the only task, and ends the steps of an output at the relative gap `tol`.

    `finishes` has the best duals so far, their gap and w, per output.
    """

    def __init__(self, local: LocalData, tol: float) -> None:
        tables, loss, upper = local.tables, local.loss, local.upper
        num_features, num_outputs = tables.rows.num_features, tables.num_outputs
        is_kept = (loss is Loss.HINGE or loss.has_kinks) and num_outputs * num_features**2 // 2 <= MOST_BLOCK_VALUES
        whole: Any = local.rows
        self._local, self._outside = local, local.outside
        self._columns = np.arange(num_features + 1)
        if whole.is_sparse and num_features > MAX_FEATURES and tables.num_values <= MOST_COPIED_VALUES:
            matrix = whole.taken(np.arange(tables.num_rows))
            matrix, self._columns = with_columns(matrix, np.bincount(matrix.indices, minlength=num_features + 1) > 0)
            whole = NewtonRows(matrix)
        self._rows: list[WideRows] = []
        self.finishes: list[WideFinish] = []
        for k in range(num_outputs):
            if num_features <= MAX_FEATURES or not k:  # each has second derivatives of its own
                full = upper if is_kept else None
                rows = WideRows(whole, tables.num_values, is_exact=is_exact(tables), full=full)
                self._rows.append(rows)
            kind = WideHinge if loss is Loss.HINGE else WideFinish
            outside, others = self._outside[k, self._columns], float(local.other_duals[k])
            finish = kind(
                rows, loss, local.signs[k], upper, local.duals(k), outside=outside, other_duals=others, tol=tol
            )
            self.finishes.append(finish)

    @property
    def work(self) -> float:
        """Return what all steps have cost so far."""
        return sum(rows.work for rows in self._rows)

    @property
    def is_stuck(self) -> bool:
        """Whether the steps of an output have led nowhere for long."""
        return any(finish.is_stuck for finish in self.finishes)

    @property
    def gaps(self) -> Array:
        """Return the gaps of the best duals and their w, shape (outputs,)."""
        return np.array([finish.gap for finish in self.finishes])

    @property
    def relative_gaps(self) -> Array:
        """The same, as shares of P."""
        return np.array([finish.relative_gap for finish in self.finishes])

    @property
    def relative_left(self) -> Array:
        """How far the steps of each output have got."""
        return np.array([finish.relative_left for finish in self.finishes])

    def w(self) -> Array:
        """w of these duals, shape (outputs, num_features + 1)."""
        found = self._outside.copy()
        for k, finish in enumerate(self.finishes):
            found[k, self._columns] = finish.w
        return found

    def offer(self, w: Array) -> None:
        """Go on from the duals in the chunks, whose w this is, where they are better."""
        for k, finish in enumerate(self.finishes):
            finish.offer(self._local.duals(k))

    def write_duals(self) -> None:
        """Leave the best duals in the chunks."""
        for k, finish in enumerate(self.finishes):
            self._local.write_duals(k, finish.alpha)

    def run(self, budget: Budget, is_over: Callable[[], bool]) -> None:
        """Take steps, at least one, until all outputs are at their goal, or as `WideFinish.run` says."""
        # At least one output, because an iteration that changes nothing would be repeated for ever.
        for finish in [finish for finish in self.finishes if not finish.is_there] or self.finishes:
            finish.run(budget.is_spent, is_over=is_over)
