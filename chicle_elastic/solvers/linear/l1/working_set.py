"""Which columns a working set has: Celer's rule and size (Massias, Gramfort and Salmon 2018)."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.certified import TINY


def working_set(slopes: Array, w: Array, norms: Array, *, l1: float, first: int, most: int) -> Array:
    """Return the columns with a weight and those that are closest to having one, twice as many as there are weights.

    If that are more than there is room for, the worst columns. Columns of length 0 are left out.

    Args:
        slopes: Negative gradient of all but the l1 penalty, shape (d,), float64.
        w: The weights, shape (d,), float64.
        norms: Lengths of the columns, shape (d,), float64.
        l1: Factor of the penalty.
        first: Columns at least.
        most: Columns at most.

    Returns:
        Ascending, int64.
    """
    num_weights = int(np.count_nonzero(w))
    has_room = 2 * num_weights <= most or num_weights + first <= most
    size = min(max(first, 2 * num_weights) if has_room else most, most, len(w))
    scores = (np.abs(slopes - l1 * np.sign(w)) - l1 * (w == 0)) / np.maximum(norms, TINY)
    scores[norms == 0], scores[(w != 0) & (norms > 0) & has_room] = -np.inf, np.inf
    least = np.partition(scores, -size)[-size]  # a sort of all takes ten times as long
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return np.sort(np.concatenate([above, equal[: size - len(above)]]))
