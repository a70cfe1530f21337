"""Sums of second derivatives of one task, found from sums that are known already where that takes less time.

Second derivatives of the squared hinge are 2 C_i or 0, and from step to step fewer and fewer rows change sides: what
they have is added or taken away.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import ticks_of
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES
from chicle_elastic.solvers.linear.newton.state import Block
from chicle_elastic.solvers.linear.objectives import EPSILON
from chicle_elastic.solvers.linear.products import FEW_COLUMNS, pack, packed_diagonal
from chicle_elastic.solvers.linear.rows import NewtonRows

LEAST_LEFT = {Block.ROUGH: math.sqrt(np.finfo(np.float32).eps), Block.EXACT: math.sqrt(EPSILON)}
"""Share of what a diagonal value was since it was found anew: half of its digits. Below, what is left may be the
rounding of what was taken away, as after a single row of huge values."""


@dataclass(slots=True)
class _Sum:
    """Which rows it is of, and the diagonal at its largest since the sum was found anew."""

    kind: Block
    is_curved: Array
    columns: Array
    block: Array
    peak: Array


class Blocks:
    """Sums of c_i x_i x_i^T over the same rows, of which one in `row_step` is in the sample.

    `full` has what c_i is where it is not 0, of a loss with kinks.
    """

    def __init__(self, rows: NewtonRows, row_ids: Callable[[], Array], row_step: int, full: Array | None) -> None:
        self._rows = rows
        self._row_ids = row_ids
        self._row_step = row_step
        self._sample: tuple[Array, NewtonRows | None] | None = None
        self._full = full
        self._known: dict[int, _Sum] = {}
        self.num_added = 0  # rows whose products were added or taken away

    def add(self, k: int, kind: Block, curvatures: Array, columns: Array, out: Array) -> None:
        """Add the sum of output `k` over its `columns` (ascending, empty for all) to the packed `out`."""
        if kind is Block.SAMPLED:
            which, copy = self._sampled()
            weights = self._row_step * curvatures[which]
            if copy is None:
                spread = np.zeros(len(curvatures))
                spread[which] = weights
                self._rows.add_products(spread, columns, out, is_rough=True)
            else:
                copy.add_products(weights, columns, out, is_rough=True)
        elif self._full is None:
            self._add(kind, curvatures, columns, out)
        else:
            found = self._updated(k, kind, curvatures, columns)
            if found is None:
                block = np.zeros(len(out))
                self._add(kind, curvatures, columns, block)
                found = _Sum(kind, curvatures != 0, columns, block, _diagonal(block))
            self._known[k] = found
            out += found.block

    def scale(self, ratio: float) -> None:
        """All c_i have become `ratio` times as large."""
        if self._full is None:
            return
        self._full = self._full * ratio
        for known in self._known.values():
            known.block, known.peak = known.block * ratio, known.peak * ratio

    def _sampled(self) -> tuple[Array, NewtonRows | None]:
        """Numbers of the rows in the sample, which are the same for any number of tasks, and a copy that pays."""
        if self._sample is None:
            which = np.flatnonzero(self._row_step * ticks_of(self._row_ids()) < 1.0)
            self._sample = which, self._rows.rough_copy(which)
        return self._sample

    def _updated(self, k: int, kind: Block, curvatures: Array, columns: Array) -> _Sum | None:
        last = self._known.get(k)
        if last is None or last.kind is not kind:
            return None
        is_curved = curvatures != 0
        changed = is_curved != last.is_curved
        num_changed = np.count_nonzero(changed)
        if num_changed >= np.count_nonzero(is_curved) or not np.array_equal(last.columns, columns):
            return None
        block = last.block.copy()
        if num_changed:
            self._add_changes(kind, np.flatnonzero(changed), curvatures, columns, block)
        diagonal = _diagonal(block)
        if not (diagonal >= LEAST_LEFT[kind] * last.peak).all() or not np.isfinite(diagonal).all():
            return None
        return _Sum(kind, is_curved, columns, block, np.maximum(last.peak, diagonal))

    def _add_changes(self, kind: Block, changed: Array, curvatures: Array, columns: Array, out: Array) -> None:
        """Add those of the rows `changed` that have second derivatives now, and take the others away."""
        assert self._full is not None
        come, gone = curvatures[changed], self._full[changed]
        gone[come != 0] = 0.0
        num_columns = len(columns) or self._rows.num_columns
        is_dense_cheaper = num_columns <= FEW_COLUMNS or not self._rows.is_sparse
        if is_dense_cheaper and len(changed) * num_columns <= MOST_BLOCK_VALUES:
            with np.errstate(over="ignore", invalid="ignore"):
                rows: Any = self._rows.dense(changed, columns, is_rough=kind is not Block.EXACT)
                weighted = rows * (come - gone)[:, None].astype(rows.dtype)
                self.num_added += len(changed)
                pack(weighted.T @ rows, out)
            return
        spread = np.zeros(len(curvatures))
        spread[changed] = come
        self._add(kind, spread, columns, out)
        taken = np.zeros(len(out))
        spread[changed] = gone
        self._add(kind, spread, columns, taken)
        out -= taken

    def _add(self, kind: Block, weights: Array, columns: Array, out: Array) -> None:
        self.num_added += int(np.count_nonzero(weights))
        self._rows.add_products(weights, columns, out, is_rough=kind is not Block.EXACT)


def _diagonal(block: Array) -> Array:
    """Return the diagonal of a packed triangle."""
    return packed_diagonal(block, (math.isqrt(8 * len(block) + 1) - 1) // 2)
