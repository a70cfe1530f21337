"""Coordinate descent with shrinking over the small data of the only task (`kernels.descent`), for all outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import StopFlag
from chicle_elastic.solvers.kernels import descent as kernels
from chicle_elastic.solvers.kernels.losses import LOSSES
from chicle_elastic.solvers.linear.local import LocalData


@dataclass(slots=True)
class _Output:
    """See `kernels.descend`."""

    alpha: Array
    order: Array
    counts: Array
    figures: Array


class Descent:
    """Begins at the duals of the local data.

    Args:
        local: The data of the only task.
        rng: Of the task.
        w: Of the duals, shape (outputs, num_features + 1).

    Attributes:
        w: Of the present duals, of the same shape.
        visits: Rows that were visited so far, over all outputs.
    """

    def __init__(self, local: LocalData, rng: np.random.Generator, w: Array) -> None:
        self._local = local
        lengths = local.tables.samples.lengths
        self._chunks = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        self._places = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        self._norms, self._are_norms_kept = np.zeros(len(self._chunks)), False
        self.w, self.visits = w.copy(), 0
        self._has_begun = np.zeros(len(w), dtype=bool)
        order = np.flatnonzero(local.upper).astype(np.int32)
        seeds = rng.integers(1, np.iinfo(np.int64).max, len(w))
        self._outputs = [
            _Output(
                alpha=local.duals(k),
                order=order.copy(),
                counts=np.array([len(order), seeds[k], 0]),
                figures=np.array([np.inf, -np.inf, 0.0, local.dual_sums[k]]),
            )
            for k in range(len(w))
        ]

    def offer(self, w: Array) -> None:
        """Go on from the duals in the chunks, whose w this is, where their D is larger."""
        sums = self._local.dual_sums
        is_better = sums - _half_squares(w) > self.dual_sums - _half_squares(self.w)
        for k in np.flatnonzero(is_better).tolist():
            output = self._outputs[k]
            output.alpha = self._local.duals(k)
            output.counts[kernels.ACTIVE] = len(output.order)
            output.figures[:] = np.inf, -np.inf, 0.0, sums[k]
            self.w[k] = w[k]
            self._has_begun[k] = False

    @property
    def duals(self) -> Sequence[Array]:
        """Per output, each of shape (num_rows,)."""
        return [output.alpha for output in self._outputs]

    @property
    def gaps(self) -> Array:
        """Estimates, shape (outputs,)."""
        return np.array([output.figures[kernels.GAP] for output in self._outputs])

    @property
    def dual_sums(self) -> Array:
        """Sums of dual values, shape (outputs,)."""
        return np.array([output.figures[kernels.DUAL_SUM] for output in self._outputs])

    def run(self, goal: float, most_visits: int, stop: StopFlag) -> None:
        """Make passes for each output until its gap seems to be `goal` of its objective, or after so many visits.

        Of those for which it does already only if it does for all: a certificate was of another opinion.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        local = self._local
        signs, upper = local.signs, local.upper
        primals = self.dual_sums - _half_squares(self.w) + self.gaps
        is_open = (self.gaps > goal * primals) | ~self._has_begun
        self._has_begun[:] = True
        for k in np.flatnonzero(is_open if is_open.any() else ~is_open).tolist():
            output = self._outputs[k]
            kernels.descend(
                LOSSES[local.loss],
                local.tables.rows,
                self._chunks,
                self._places,
                signs[k],
                upper,
                local.intercept,
                goal,
                most_visits,
                stop.memory,
                self._norms,
                output.alpha,
                self.w[k],
                output.order,
                output.counts,
                output.figures,
            )
        self.visits = sum(int(output.counts[kernels.VISITS]) for output in self._outputs)
        if not self._are_norms_kept:  # a first pass visits all rows
            local.keep_norms(self._norms)
            self._are_norms_kept = True


def _half_squares(w: Array) -> Array:
    return np.asarray(0.5 * np.einsum("kd,kd->k", w, w))
