"""Sums of second derivatives of one task, found from sums that are known already where that takes less time.

At w = 0 all outputs have the same second derivatives. Those of the squared hinge are 2 C_i or 0, and from step to step
fewer and fewer rows change sides: what they have is added or taken away.
"""

import math
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.products import packed_diagonal
from chicle_elastic.solvers.linear.rows import NewtonRows

MOST_UPDATES = 16
"""Updates after which a sum is found anew, as their rounding errors add up."""
SHARE_CHANGED = 0.5
"""Rows that change sides, as a share of those that count, up to which a sum is updated."""
LEAST_LEFT = 1e-6
"""Share of what a diagonal value was since it was found anew; below, what is left may be the rounding of what was taken
away, as after a single row of huge values."""


@dataclass(slots=True)
class _Sum:
    """Of rows: which they are, or their weights; and the diagonal at its largest since the sum was found anew."""

    weights: Array
    columns: Array
    block: Array
    peak: Array
    num_updates: int = 0


class Blocks:
    """Sums of c_i x_i x_i^T over the same rows.

    Args:
        rows: The rows.
        full: What c_i is where it is not 0, shape (num_rows,), float64, for the squared hinge; None if it is anything.
        is_rough: Whether the sums are for a preconditioner only.
    """

    def __init__(self, rows: NewtonRows, full: Array | None, *, is_rough: bool) -> None:
        self._rows = rows
        self._full = full
        self._is_rough = is_rough
        self._shared: _Sum | None = None
        self._known: dict[int, _Sum] = {}

    def add(self, k: int, curvatures: Array, columns: Array, out: Array) -> None:
        """Add the sum of output `k`.

        Args:
            k: The output.
            curvatures: c_i, shape (num_rows,), float64, not to be changed afterwards.
            columns: Columns of the block, ascending, int64; empty for all.
            out: Packed; added to.
        """
        found = self._same(curvatures, columns) or self._updated(k, curvatures, columns)
        if found is None:
            block = np.zeros(len(out))
            self._add(curvatures, columns, block)
            found = _Sum(curvatures, columns, block, _diagonal(block))
        out += found.block
        self._shared = found
        if self._full is not None:
            # A mask takes an eighth of the memory.
            self._known[k] = _Sum(curvatures != 0, columns, found.block, found.peak, found.num_updates)

    def scale(self, ratio: float) -> None:
        """All c_i have become `ratio` times as large."""
        if self._full is None:
            return
        self._full = self._full * ratio
        for known in self._known.values():
            known.block, known.peak = known.block * ratio, known.peak * ratio

    def end_pass(self) -> None:
        """Forget what only outputs of the same pass may share."""
        self._shared = None

    def _same(self, curvatures: Array, columns: Array) -> _Sum | None:
        last = self._shared
        is_same = (
            last is not None and np.array_equal(last.columns, columns) and np.array_equal(last.weights, curvatures)
        )
        return last if is_same else None

    def _updated(self, k: int, curvatures: Array, columns: Array) -> _Sum | None:
        last = self._known.get(k)
        if self._full is None or last is None or last.num_updates == MOST_UPDATES:
            return None
        is_curved = curvatures != 0
        changed = is_curved != last.weights
        num_changed = np.count_nonzero(changed)
        if num_changed > SHARE_CHANGED * np.count_nonzero(is_curved) or not np.array_equal(last.columns, columns):
            return None
        block = last.block.copy()
        if num_changed:
            self._add(np.where(changed & is_curved, curvatures, 0.0), columns, block)
            gone = np.zeros(len(block))
            self._add(np.where(changed & last.weights, self._full, 0.0), columns, gone)
            block -= gone
        diagonal = _diagonal(block)
        if (diagonal < LEAST_LEFT * last.peak).any():
            return None
        return _Sum(curvatures, columns, block, np.maximum(last.peak, diagonal), last.num_updates + 1)

    def _add(self, weights: Array, columns: Array, out: Array) -> None:
        self._rows.add_products(weights, columns, out, is_rough=self._is_rough)


def _diagonal(block: Array) -> Array:
    """Of a packed triangle."""
    return packed_diagonal(block, (math.isqrt(8 * len(block) + 1) - 1) // 2)
