"""Sums that come out the same on every processor.

Each task of a cluster merges by itself and has to come to the very same decision as the others. The all-reduce gives
all of them the same bits, but BLAS and NumPy's own reductions add in an order that depends on the vector length of the
processor. Sums of decisions go through these functions: elementwise products and sums in a fixed order, which IEEE 754
defines to the last bit. What may differ (a factorisation, a direction) is never compared with anything; the tasks send
it along, and go on with its mean.
"""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import EPSILON

SAME = 1e-13  # relative difference that is none, of an objective
LANES = 64  # Partial sums, each over every so many-th value: enough for any vector unit to be busy
SAME_WEIGHT = LANES * EPSILON
"""The same of a weight, as means of all tasks' steps have; targets without noise need all these digits."""


def dot(a: Array, b: Array) -> float:
    """<a, b> of two float64 vectors of equal length."""
    return float(dots(a[None], b[None])[0])


def squared(a: Array) -> float:
    """|a|^2."""
    return dot(a, a)


def dots(a: Array, b: Array) -> Array:
    """<a_k, b_k> of each row of two float64 matrices of equal shape; shape (rows,)."""
    products = a * b
    num_rows, length = products.shape
    whole = length // LANES * LANES
    partial = products[:, whole:]
    if whole:
        # Summed along the middle axis: each lane adds its values one after the other, whatever the processor.
        lanes = np.add.reduce(products[:, :whole].reshape(num_rows, -1, LANES), axis=1)
        partial = np.concatenate([lanes, partial], axis=1)
    # Sums of all beginnings cannot be reordered, and the last of them is the sum.
    return np.add.accumulate(partial, axis=1)[:, -1] if length else np.zeros(num_rows)


def is_same(a: Array, b: Array) -> bool:
    """Say whether all weights of b are those of a, but for rounding."""
    return bool((np.abs(a - b) <= SAME_WEIGHT * np.abs(b)).all())


def ticks_of(row_ids: Array) -> Array:
    """Return numbers from 0 to 1, spread evenly over the rows of a data set: a sample of them is the same on any task.

    They are multiples of the golden ratio, modulo 1 (Knuth, The Art of Computer Programming 3, section 6.4).
    """
    return np.asarray(row_ids * 0.6180339887498949 % 1.0)


def solve_positive(matrix: Array, right: Array) -> Array:
    """Solve a small positive definite system by Gaussian elimination without pivots; not finite where it is none."""
    rows = np.column_stack([matrix, right])
    size = len(right)
    with np.errstate(all="ignore"):
        for k in range(size):
            rows[k] = rows[k] / rows[k, k]
            for below in (rows[:k], rows[k + 1 :]):
                below -= below[:, k : k + 1] * rows[k]
    return rows[:, size].copy()
