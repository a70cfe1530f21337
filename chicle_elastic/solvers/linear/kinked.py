"""Newton steps of the only task over few columns, by one call of a kernel for all outputs of a loss with kinks.

A step of `wide` over a small matrix is calls of NumPy and BLAS, which take a tenth of a millisecond whatever the size.
"""

from collections.abc import Callable

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.kernels import kinked as kernels
from chicle_elastic.solvers.linear.agreement import dots
from chicle_elastic.solvers.linear.certified import MOST_INNER, MOST_LEFT
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.race import DENSE_VALUE, ROW_VALUES
from chicle_elastic.solvers.linear.tables import LocalTables
from chicle_elastic.solvers.linear.wide.finish import STEPS_PER_ITERATION

MULTIPLICATION = 0.2
"""A multiplication and addition in the kernel, which takes longer than one of BLAS (see `race`): taken for equal, 4,000
rows of 400 columns took eight times as long as by BLAS."""


def step_work(tables: LocalTables) -> float:
    """Return what a step of one output costs at the most."""
    D, n = tables.rows.num_features + 1, tables.num_rows
    return n * ROW_VALUES + 3.0 * DENSE_VALUE * tables.num_values + MULTIPLICATION * (n / 2 + D / 6) * D * D


class KinkedNewton:
    """Begins at the w of the duals of the only task, and ends the steps of an output at the relative gap `tol`."""

    def __init__(self, local: LocalData, w: Array, tol: float) -> None:
        self._local, self._tol = local, tol
        self._w, self._points = w.copy(), w.copy()
        self._stats = np.zeros((len(w), kernels.NUM_STATS))
        self._stats[:, [kernels.GAP, kernels.LEFT]] = np.inf
        self._stats[:, kernels.DUAL] = local.dual_sums
        size, of_rows = w.shape[1], np.empty((2, local.tables.num_rows))
        self._room = np.empty((size, size)), np.empty((kernels.NUM_VECTORS, size)), of_rows
        self._duals = np.array([local.duals(k) for k in range(len(w))])

    @property
    def work(self) -> float:
        """Return what all steps have cost so far."""
        return float(self._stats[:, kernels.STEPS].sum()) * step_work(self._local.tables)

    @property
    def is_stuck(self) -> bool:
        """Say whether the steps of an output have found no direction, or no end."""
        has_no_end = (self._stats[:, kernels.STEPS] >= MOST_INNER) & (self.relative_gaps > self._tol)
        return bool(has_no_end.any() or self._stats[:, kernels.FAULTS].any())

    @property
    def gaps(self) -> Array:
        """Return the gaps of the best duals and their w, shape (outputs,)."""
        return self._stats[:, kernels.GAP].copy()

    @property
    def relative_gaps(self) -> Array:
        """The same, as shares of P."""
        return self._shares(self._stats[:, kernels.GAP])

    @property
    def relative_left(self) -> Array:
        """How far the steps of each output have got."""
        return self._shares(np.minimum(self._stats[:, kernels.GAP], self._stats[:, kernels.LEFT]))

    def _shares(self, gaps: Array) -> Array:
        """Divide gaps by P."""
        with np.errstate(over="ignore", invalid="ignore"):  # beyond all numbers, where P is next to nothing
            return np.asarray(gaps / np.maximum(self._stats[:, kernels.PRIMAL], TINY))

    def w(self) -> Array:
        """w of these duals, shape (outputs, num_features + 1)."""
        return self._w.copy()

    def offer(self, w: Array) -> None:
        """Go on from the duals in the chunks, whose w this is."""
        sums = self._local.certify(self._local.loss, w, has_losses=True, is_known=True)[1]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = dots(w, w)
        self._w[:] = self._points[:] = w
        self._duals[:] = [self._local.duals(k) for k in range(len(w))]
        self._stats[:, kernels.DUAL] = self._local.dual_sums
        self._stats[:, kernels.GAP] = sums[:, 0] - self._local.dual_sums + squares
        self._stats[:, kernels.PRIMAL] = sums[:, 0] + 0.5 * squares

    def run(self, budget: Budget, is_over: Callable[[], bool]) -> None:
        """Take steps until all outputs are at their goal, or a number of them; more where a certificate says so."""
        local, tables = self._local, self._local.tables
        goal = self._tol if (self.relative_gaps > self._tol).any() else 0.0
        where = tables.rows, tables.samples.lengths, local.intercept, local.signs, local.upper
        how = 0.5 * local.loss.most_slope, goal, MOST_LEFT, STEPS_PER_ITERATION, budget.stop.memory
        kernels.newton_steps(*where, *how, *self._room, self._points, self._w, self._duals, self._stats)

    def write_duals(self) -> None:
        """Leave the best duals in the chunks."""
        for k, duals in enumerate(self._duals):
            self._local.write_duals(k, duals)
        self._local.dual_sums = self._stats[:, kernels.DUAL].copy()
