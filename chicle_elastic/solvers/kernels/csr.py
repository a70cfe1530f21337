"""The form of CSR rows, looked at as fast as memory is read."""

import numpy as np

from chicle_elastic.solvers.kernels.jit import kernel


@kernel
def count_descents(indptr, indices):
    """Neighbours within a row whose second column is not above the first: 0 for sorted rows without duplicates.

    Args:
        indptr: Shape (num_rows + 1,), int32 or int64; as checked where the matrix was made.
        indices: Shape (num_values,), int32 or int64.

    NumPy equivalent::

        result = sum(int((np.diff(indices[indptr[i] : indptr[i + 1]]) <= 0).sum()) for i in range(len(indptr) - 1))
    """
    total = np.int64(0)
    begin, end, one = np.uintp(indptr[0]), np.uintp(indptr[len(indptr) - 1]), np.uintp(1)
    for entry in range(begin + one, end):
        total += np.int64(indices[entry] <= indices[entry - one])
    for row in range(1, len(indptr) - 1):
        start = np.uintp(indptr[row])
        if begin < start < end and start != np.uintp(indptr[row - 1]):
            total -= np.int64(indices[start] <= indices[start - one])
    return total


@kernel
def mark_columns(indices, occurs):
    """Mark the columns that have values; False where an index is no column, and the marks are then not complete.

    Args:
        indices: Shape (num_values,), int32 or int64.
        occurs: Shape (num_features,), bool. Written: True for every index.

    NumPy equivalent::

        occurs[indices] = True
    """
    number = np.uintp(len(occurs))
    for entry in range(np.uintp(0), np.uintp(len(indices))):
        column = np.uintp(indices[entry])  # huge where the index is below 0
        if column >= number:
            return False
        occurs[column] = True
    return True
