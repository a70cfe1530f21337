"""Screening: when a pass leaves out rows that cannot matter now, and how far w has moved since they were visited.

The rule itself is in `kernels.scd`; this module keeps its state between passes. No certificate depends on it.

The screening data of a row, its slack and the iteration of that slack, moves with its chunk in the solver cache
(`NOTE_BYTES`): all tasks start an iteration with the same w, so a task that has taken part since then knows how far w
has moved, too, and need not read rows again only because they have moved.
"""

import math
from collections import deque

import numpy as np

from chicle_elastic.chunks.views import Array

NOTE_BYTES = 5
"""Bytes per sample and output: the slack (float32) and the iteration (uint8), see `kernels.scd.ScreenTable`."""
NUM_STAMPS = 256
"""Iterations that a stamp tells apart. After as many nothing is known of any row, else it might be an older one."""
START_BELOW = 0.2
"""Share of duals that move in a pass below which screening starts; above, it costs more than it saves."""
MAX_REMEMBERED = 12
"""Passes whose w is kept. The distance to one before them is bounded by way of the oldest that is."""
MAX_EXACT_VALUES = 1 << 14
"""Values of w up to which its distance to each of the last passes is found; beyond, the steps are added up."""
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
        moved: Distance that w has moved since the start of the iteration with each stamp, times the caution; infinite
            where that is not known. ndarray of shape (outputs, NUM_STAMPS), float32.
        now: Stamp of this iteration.
    """

    def __init__(self, outputs: int, num_features: int) -> None:
        self.caution = caution_of(num_features)
        self.is_on = False
        self.now = 0
        self.moved = np.full((outputs, NUM_STAMPS), np.inf, dtype=np.float32)
        self._era = -1
        self._past: deque[tuple[int, Array]] = deque()
        self._to_oldest = np.zeros((outputs, NUM_STAMPS), dtype=np.float32)
        self._is_older = np.zeros(NUM_STAMPS, dtype=np.bool_)

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
            self._is_older.fill(False)
            self._past.clear()
        if w.size <= MAX_EXACT_VALUES:
            if len(self._past) == MAX_REMEMBERED:
                self._forget_oldest()
            for stamp, past in self._past:
                self.moved[:, stamp] = self.caution * np.linalg.norm(w - past, axis=1)
            if self._is_older.any():
                oldest = self._past[0][0]
                self.moved[:, self._is_older] = self._to_oldest[:, self._is_older] + self.moved[:, [oldest]]
        elif self._past:
            step = _distances(w, self._past.pop()[1])
            self.moved += (self.caution * step)[:, None].astype(np.float32)
        self.moved[:, self.now] = 0.0
        self._is_older[self.now] = False
        self._past.append((self.now, w))
        return is_new_era

    def _forget_oldest(self) -> None:
        stamp, past = self._past.popleft()
        self._is_older[stamp] = True
        self._to_oldest[:, stamp] = 0.0
        step = self.caution * np.linalg.norm(self._past[0][1] - past, axis=1)
        self._to_oldest[:, self._is_older] += step[:, None]

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
