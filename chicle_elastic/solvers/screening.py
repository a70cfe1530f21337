"""When rows that cannot matter now are left out of a pass, and how far w has moved since they were looked at.

The rule itself is in `kernels.scd`; here is what it needs between passes. Nothing of it is ever certified.
"""

import math
from collections import deque

import numpy as np

from chicle_elastic.chunks.views import Array

START_BELOW = 0.2
"""Share of duals that move in a pass below which screening starts; above, it costs more than it saves."""
MAX_REMEMBERED = 12
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
    """

    def __init__(self, outputs: int, num_features: int) -> None:
        self.caution = caution_of(num_features)
        self.is_on = False
        self.now = 0
        self.moved = np.zeros((outputs, 256), dtype=np.float32)
        self._past: deque[tuple[int, Array]] = deque()

    def begin_pass(self, w: Array) -> None:
        """Learn where w is, shape (outputs, num_features + 1), at the start of a pass; it must not change later."""
        if not self.is_on:
            return
        self.now = (self.now + 1) % 256
        if w.size <= MAX_EXACT_VALUES:
            if len(self._past) == MAX_REMEMBERED:
                self.moved[:, self._past.popleft()[0]] = np.inf
            for stamp, past in self._past:
                self.moved[:, stamp] = self.caution * np.linalg.norm(w - past, axis=1)
        else:
            if self._past:
                step = _distances(w, self._past.pop()[1])
                self.moved += (self.caution * step)[:, None].astype(np.float32)
        self.moved[:, self.now] = 0.0
        self._past.append((self.now, w))

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
