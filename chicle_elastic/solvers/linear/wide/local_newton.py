"""Newton steps of the only task, for all outputs: where their rows are, and what they have cost."""

from collections.abc import Callable, Sequence

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.race import MULTIPLICATION, STEP_VALUES
from chicle_elastic.solvers.linear.rows import ChunkedRows
from chicle_elastic.solvers.linear.tables import LocalTables
from chicle_elastic.solvers.linear.wide.exact import MAX_FEATURES, ExactRows
from chicle_elastic.solvers.linear.wide.finish import WideFinish
from chicle_elastic.solvers.linear.wide.hinge import WideHinge, first_tau
from chicle_elastic.solvers.linear.wide.rows import CopiedRows, RowsInChunks, WideRows
from chicle_elastic.solvers.linear.wide.smooth import WideSmooth

MOST_WIDE_VALUES = 1 << 23
"""Feature values of wide sparse data up to which they are copied: 96 MiB a copy, of which smooth losses have nearly
three."""
MOST_KEPT_VALUES = 1 << 22
"""Values of the second derivatives of all outputs up to which they are kept from step to step: 32 MiB."""
WIDE_STEP = 12
"""Products with a vector that conjugate gradients take in a step over wide rows, roughly."""


def step_work(tables: LocalTables) -> float:
    """What a Newton step of one output costs, at the most where columns are few, and roughly where they are many."""
    D = tables.rows.num_features + 1
    if D <= MAX_FEATURES + 1:
        return STEP_VALUES + MULTIPLICATION * (tables.num_rows / 2 + D / 3) * D * D
    return float(STEP_VALUES + WIDE_STEP * tables.num_values)


class LocalNewton:
    """Begins at the duals of the local data.

    Args:
        local: The data of the only task.
        tol: Relative gap of an output at which its steps end.
    """

    def __init__(self, local: LocalData, tol: float) -> None:
        tables = local.tables
        num_kept = tables.num_outputs * tables.rows.num_features**2 // 2
        is_kept = (local.loss is Loss.HINGE or local.loss.has_kinks) and num_kept <= MOST_KEPT_VALUES
        full = local.upper if is_kept else None
        is_narrow = tables.rows.num_features <= MAX_FEATURES
        columns: Array | None = None
        if is_narrow:
            rows: WideRows = ExactRows(local.rows, tables.num_values, full)
        elif tables.num_values > MOST_WIDE_VALUES and isinstance(local.rows, ChunkedRows):
            rows = RowsInChunks(local.rows, tables, local.intercept)
        else:
            rows, columns = CopiedRows.of(tables, local.intercept)
        self._num_columns = tables.rows.num_features + 1
        self._columns = np.arange(rows.num_columns) if columns is None else columns
        self._rows = [rows]
        self._finishes: list[WideFinish] = []
        norms = np.concatenate([note.norms for note in tables.notes])
        tau = first_tau(norms, local.upper, rows.least_tau)
        for k in range(tables.num_outputs):
            signs, upper, duals = local.signs[k], local.upper, local.duals(k)
            if k and is_narrow:  # each has second derivatives of its own
                rows = ExactRows(local.rows, tables.num_values, full)
                self._rows.append(rows)
            if local.loss is Loss.HINGE:
                self._finishes.append(WideHinge(rows, signs, upper, duals, tol=tol, tau=tau))
            else:
                self._finishes.append(WideSmooth(rows, local.loss, signs, upper, duals, tol=tol))

    @property
    def work(self) -> float:
        """What all steps have cost so far."""
        return sum(rows.work.values for rows in self._rows)

    @property
    def is_stuck(self) -> bool:
        """Whether the steps of an output have led nowhere for long."""
        return any(finish.is_stuck for finish in self._finishes)

    @property
    def duals(self) -> list[Array]:
        """The best so far, per output, each of shape (num_rows,)."""
        return [finish.alpha for finish in self._finishes]

    @property
    def gaps(self) -> Array:
        """Of these duals and their w, per output, shape (outputs,)."""
        return np.array([finish.gap for finish in self._finishes])

    @property
    def relative_gaps(self) -> Array:
        """The same, as shares of P."""
        return np.array([finish.relative_gap for finish in self._finishes])

    @property
    def relative_left(self) -> Array:
        """How far the steps of each output have got."""
        return np.array([finish.relative_left for finish in self._finishes])

    def w(self) -> Array:
        """w of these duals, shape (outputs, num_features + 1)."""
        found = np.zeros((len(self._finishes), self._num_columns))
        for k, finish in enumerate(self._finishes):
            found[k, self._columns] = finish.w
        return found

    def offer(self, duals: Sequence[Array]) -> None:
        """Go on from these duals, per output, where they are better."""
        for finish, alpha in zip(self._finishes, duals, strict=True):
            finish.offer(alpha)

    def run(self, is_spent: Callable[[], bool], is_over: Callable[[], bool]) -> None:
        """Take steps, at least one, until all outputs are at their goal, or as `WideFinish.run` says."""
        # At least one output, because an iteration that changes nothing would be repeated for ever.
        for finish in [finish for finish in self._finishes if not finish.is_there] or self._finishes:
            finish.run(is_spent, is_over=is_over)
