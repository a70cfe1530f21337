"""The sum of x_i x_i^T over the rows with curvature, found from the last one where few rows have come or gone.

From one Newton step of the hinge to the next a tenth of these rows changes, and less along a path of C. Adding those
that came and taking away those that went costs as many products as there are such rows.
"""

import numpy as np
from scipy.linalg.blas import dsyrk

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.rows import NewtonRows

ROWS_PER_PRODUCT = 1 << 14
MOST_UPDATES = 64
"""Updates after which the sum is found anew, as their rounding errors add up."""
SHARE_CHANGED = 0.5
"""Rows that come or go, as a share of those in the sum, up to which it is updated."""
LEAST_LEFT = 1e-6
"""Share of what a diagonal value was since the sum was found anew; below, what is left may be the rounding of what was
taken away, as after a single row of huge values."""


class CurvedSum:
    """Of one output."""

    def __init__(self) -> None:
        self._chosen: Array | None = None
        self._sum: Array = np.zeros((0, 0))
        self._peak: Array = np.zeros(0)
        self._num_updates = 0

    def over(self, rows: NewtonRows, chosen: Array) -> Array:
        """Sum over some of the rows.

        Args:
            rows: The same ones each time.
            chosen: Whether a row counts, shape (num_rows,), bool; not to be changed afterwards.

        Returns:
            Upper triangle of a square matrix of Fortran order, shape (D, D); not to be written.
        """
        if not self._update(rows, chosen):
            self._sum = _add(rows, chosen, chosen, np.zeros((rows.num_columns, rows.num_columns), order="F"))
            self._peak = self._sum.diagonal().copy()
            self._num_updates = 0
        self._chosen = chosen
        return self._sum

    def _update(self, rows: NewtonRows, chosen: Array) -> bool:
        """Whether it could be found from the last sum."""
        last = self._chosen
        if last is None or self._num_updates == MOST_UPDATES:
            return False
        changed = chosen != last
        if np.count_nonzero(changed) > SHARE_CHANGED * np.count_nonzero(chosen):
            return False
        self._sum = _add(rows, changed, chosen, self._sum)
        self._num_updates += 1
        diagonal = self._sum.diagonal()
        self._peak = np.maximum(self._peak, diagonal)
        return bool((diagonal >= LEAST_LEFT * self._peak).all())


def _add(rows: NewtonRows, changed: Array, chosen: Array, total: Array) -> Array:
    """Add those of the changed rows that are chosen, and take away the others."""
    which = np.flatnonzero(changed)
    for start in range(0, len(which), ROWS_PER_PRODUCT):
        part = which[start : start + ROWS_PER_PRODUCT]
        dense, is_added = rows.dense(part), chosen[part]
        if not is_added.all():
            total = dsyrk(-1.0, dense[~is_added].T, beta=1.0, c=total, overwrite_c=1)
            dense = dense[is_added]
        if len(dense):
            total = dsyrk(1.0, dense.T, beta=1.0, c=total, overwrite_c=1)
    return total
