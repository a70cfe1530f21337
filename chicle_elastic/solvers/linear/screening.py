"""Screening: when a pass leaves out rows that cannot matter now, and how far w has moved since they were visited.

The rule itself is in `kernels.scd`; this module keeps its state between passes. No certificate depends on it.

The screening data of a row, its slack and the iteration of that slack, moves with its chunk in the solver cache
(`NOTE_BYTES`): all tasks start an iteration with the same w, so a task that has taken part since then knows how far w
has moved, too, and need not read rows again only because they have moved.
"""

import math

import numpy as np

from chicle_elastic.chunks.views import Array

NOTE_BYTES = 5
"""Bytes per sample and output: the slack (float32) and the iteration (uint8), see `kernels.scd.ScreenTable`."""
NUM_STAMPS = 256
"""Iterations that a stamp tells apart. After as many nothing is known of any row, else it might be an older one."""
START_BELOW = 0.2
"""Share of duals that move in a pass below which screening starts; above, it costs more than it saves."""
COLUMNS_PER_BLOCK = 1 << 14
LEAST_CAUTION, MOST_CAUTION = 0.05, 0.5
"""How much of the worst case (Cauchy-Schwarz) is feared."""


def caution_of(num_features: int) -> float:
    """The share feared: three times what a step in a random direction does to the margin of a row, 1 / sqrt(d)."""
    return min(max(3.0 / math.sqrt(num_features), LEAST_CAUTION), MOST_CAUTION)


class Screening:
    """The distances of one solver's w.

    Args:
        outputs: Outputs of the model.
        num_features: Columns.

    Attributes:
        moved: How far w has moved at most since the start of the iteration with each stamp (the steps since then, added
            up), times the caution; infinite where that is not known. Shape (outputs, NUM_STAMPS), float32.
        now: Stamp of this iteration.
    """

    def __init__(self, outputs: int, num_features: int) -> None:
        self.caution = caution_of(num_features)
        self.is_on = False
        self.now = 0
        self.moved = np.full((outputs, NUM_STAMPS), np.inf, dtype=np.float32)
        self._era = -1
        self._last: Array | None = None

    def begin_pass(self, w: Array, iteration: int) -> bool:
        """Learn where w is at the start of an iteration.

        Args:
            w: Shape (outputs, num_features + 1); it must not change later.
            iteration: Its number.

        Returns:
            Whether stamps begin anew (or begin): what is known of rows is to be forgotten.
        """
        if not self.is_on:
            return False
        era, self.now = divmod(iteration, NUM_STAMPS)
        is_new_era, self._era = era != self._era, era
        if is_new_era:
            # A solver without rows makes no passes: what it knew of a stamp may be of 256 iterations before.
            self.moved.fill(np.inf)
            self._last = None
        if self._last is not None:
            self.moved += (self.caution * _distances(w, self._last))[:, None].astype(np.float32)
        self.moved[:, self.now] = 0.0
        self._last = w
        return is_new_era

    def end_pass(self, share_moved: float) -> None:
        """Learn what share of the duals moved."""
        self.is_on = self.is_on or share_moved < START_BELOW


def _distances(w: Array, past: Array) -> Array:
    """|w_k - past_k|, shape (outputs,), without another array as large as these."""
    squares = np.zeros(len(w))
    for start in range(0, w.shape[1], COLUMNS_PER_BLOCK):
        change = w[:, start : start + COLUMNS_PER_BLOCK] - past[:, start : start + COLUMNS_PER_BLOCK]
        squares += np.einsum("kd,kd->k", change, change)
    return np.sqrt(squares)
