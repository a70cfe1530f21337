"""Rows with so few columns that a matrix of second derivatives can be made: their Newton directions are exact."""

from collections.abc import Callable

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton.blocks import Blocks
from chicle_elastic.solvers.linear.newton.state import Block
from chicle_elastic.solvers.linear.products import cholesky_factor, cholesky_solve, unpack
from chicle_elastic.solvers.linear.race import DENSE_VALUE, MULTIPLICATION, Work
from chicle_elastic.solvers.linear.rows import ALL, NewtonRows
from chicle_elastic.solvers.linear.wide.rows import WideRows

MAX_FEATURES = 2047
"""Features up to which a matrix of second derivatives is made."""
LEAST_TAU = 5.0
"""Least first tau of the hinge. With 0.2 dense rows take a third more Newton steps, with 50 as many as with 5."""


class ExactRows(WideRows):
    """See `WideRows`.

    Args:
        rows: All local rows.
        num_values: Feature values of them.
        full: What curvatures that are not 0 are multiples of, shape (num_rows,), the same multiple for all rows in a
            step: then sums of second derivatives are found from those of the step before. None if they are anything.
    """

    least_tau = LEAST_TAU

    def __init__(self, rows: NewtonRows, num_values: int, full: Array | None = None) -> None:
        super().__init__(rows, num_values if rows.is_sparse else DENSE_VALUE * num_values, Work())
        self._full = full
        self._blocks = Blocks(rows, None, 1, full)

    def direction(self, curvatures: Array, gradient: Array, eta: float, is_spent: Callable[[], bool]) -> Array:
        """See `WideRows`; there is no residual, and no end before."""
        which, D = np.flatnonzero(curvatures), self.num_columns
        if not len(which):
            return -gradient
        is_few = len(which) < D
        if is_few:
            # H is I plus few rows z_i = sqrt(c_i) x_i, so that H^-1 = I - Z^T (I + Z Z^T)^-1 Z (Woodbury).
            z_FD = self._rows.dense(which) * np.sqrt(curvatures[which])[:, None]
            matrix = z_FD @ z_FD.T
            self.work.add(MULTIPLICATION * len(which) ** 2 * D)
        else:
            packed, ratio = np.zeros(D * (D + 1) // 2), 1.0
            if self._full is not None:
                ratio = float(curvatures[which[0]] / self._full[which[0]])
                curvatures = np.where(curvatures != 0, self._full, 0.0)
            before = self._blocks.num_added
            self._blocks.add(0, Block.EXACT, curvatures, ALL, packed)
            self.work.add(MULTIPLICATION * (self._blocks.num_added - before) * D * D / 2)
            packed *= ratio
            matrix = unpack(packed, D)
        matrix.reshape(-1)[:: len(matrix) + 1] += 1.0
        self.work.add(MULTIPLICATION * len(matrix) ** 3 / 3)
        factor = cholesky_factor(matrix)
        if factor is None:  # more digits than float64 has
            return -gradient
        if is_few:
            return np.asarray(cholesky_solve(factor, z_FD @ gradient) @ z_FD - gradient)
        return -cholesky_solve(factor, gradient)
