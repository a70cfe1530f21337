"""Which columns a working set has: Celer's rule and size (Massias, Gramfort and Salmon 2018)."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.certified import TINY


def working_set(slopes: Array, w: Array, norms: Array, *, l1: float, first: int, most: int) -> Array:
    """The columns with a weight and those that are closest to having one, twice as many as there are weights.

    If that are more than there is room for, the worst columns.

    Args:
        slopes: Negative gradient of all but the l1 penalty, shape (d,), float64.
        w: The weights, shape (d,), float64.
        norms: Lengths of the columns, shape (d,), float64; columns of length 0 are left out.
        l1: Factor of the penalty.
        first: Columns at least.
        most: Columns at most.

    Returns:
        Ascending, int64.
    """
    signs = np.sign(w)
    num_weights = int(np.count_nonzero(signs))
    if 2 * num_weights <= most or num_weights + first <= most:
        size = min(max(first, 2 * num_weights), most)
        scores = np.where(signs != 0, np.inf, (np.abs(slopes) - l1) / np.maximum(norms, TINY))
    else:
        size = most
        excess = np.where(signs != 0, np.abs(slopes - l1 * signs), np.abs(slopes) - l1)
        scores = excess / np.maximum(norms, TINY)
    return _largest(np.where(norms > 0, scores, -np.inf), size)


def _largest(scores: Array, size: int) -> Array:
    """Places of the largest scores, of equal ones the first; a sort of all takes ten times as long."""
    if size >= len(scores):
        return np.arange(len(scores))
    least = np.partition(scores, -size)[-size]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return np.sort(np.concatenate([above, equal[: size - len(above)]]))
