"""Products of all rows with a vector, from either side, at the speed of memory (for the Newton finish).

In the NumPy equivalents `x(i)` is row i with the intercept column appended; rows are those of all chunks in order.
"""

import numpy as np

from chicle_elastic.solvers.kernels.jit import kernel
from chicle_elastic.solvers.kernels.tables import row_add, row_dot


@kernel
def row_products(
    rows,
    lengths,
    intercept,
    vector,
    result,  # OUT
):
    """<x_i, vector> of every row.

    Args:
        rows: `tables.DenseTable` or `tables.CsrTable`.
        lengths: Rows per chunk, shape (num_chunks,), int64.
        intercept: Value of the intercept column; 0 for none.
        vector: Shape (num_features + 1,), float64.
        result: Shape (num_rows,), float64.

    NumPy equivalent::

        for i in visited:
            result[i] = x(i) @ vector
    """
    offset = intercept * vector[rows.num_features]
    position = np.uintp(0)
    for chunk in range(len(lengths)):
        for row in range(np.uintp(lengths[chunk])):
            result[position] = row_dot(rows, np.uintp(chunk), row, vector) + offset
            position += np.uintp(1)


@kernel
def weighted_sum(
    rows,
    lengths,
    intercept,
    weights,
    result,  # OUT
):
    """sum_i weights_i x_i; rows of weight 0 are not read.

    Args:
        rows, lengths, intercept: As in `row_products`.
        weights: Shape (num_rows,), float64.
        result: The sum is added here, shape (num_features + 1,), float64.

    NumPy equivalent::

        for i in visited:
            result += weights[i] * x(i)
    """
    position, total = np.uintp(0), 0.0
    for chunk in range(len(lengths)):
        for row in range(np.uintp(lengths[chunk])):
            weight = weights[position]
            position += np.uintp(1)
            if weight != 0.0:
                row_add(rows, np.uintp(chunk), row, weight, result)
                total += weight
    result[rows.num_features] += intercept * total
