"""Products of all rows with a vector, from either side, at the speed of memory (for the Newton finish).

In the NumPy equivalents `x(i)` is row i with the intercept column appended; rows are those of all chunks in order.
"""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels.jit import kernel
from chicle_elastic.solvers.kernels.memory import REAL, address_of, load
from chicle_elastic.solvers.kernels.tables import column_at, number_like, row_add, row_at, row_dot


@kernel
def row_products(
    rows,  # `tables.RowTable`
    lengths,  # rows per chunk, shape (num_chunks,), int64
    intercept,  # Value of the intercept column; 0 for none
    vector,  # shape (num_features + 1,), float64
    result,  # OUT: shape (num_rows,), float64
):
    """<x_i, vector> of every row.

    NumPy equivalent::

        for i in visited:
            result[i] = x(i) @ vector
    """
    place, offset = address_of(vector), intercept * vector[rows.num_features]
    position = np.uintp(0)
    for chunk in range(len(lengths)):
        for row in range(np.uintp(lengths[chunk])):
            at = row_at(rows, chunk, row)
            result[position] = row_dot(rows.kind, at, place, REAL) + offset
            position += np.uintp(1)


@kernel
def weighted_sum(
    rows,  # rows, lengths, intercept: as in `row_products`
    lengths,
    intercept,
    weights,  # shape (num_rows,), float64
    are_squared,  # whether values are squared first
    result,  # OUT: the sum is added here, shape (num_features + 1,), float64
):
    """sum_i weights_i x_i, or of x_i * x_i (elementwise); rows of weight 0 are not read.

    NumPy equivalent::

        for i in visited:
            result += weights[i] * (x(i) * x(i) if are_squared else x(i))
    """
    place, position, total = address_of(result), np.uintp(0), 0.0
    for chunk in range(len(lengths)):
        for row in range(np.uintp(lengths[chunk])):
            weight = weights[position]
            position += np.uintp(1)
            if weight != 0.0:
                at = row_at(rows, chunk, row)
                if are_squared:
                    for j in range(at[0]):
                        value = load(at[2], j, rows.kind.like)
                        result[column_at(rows.kind, at, j)] += weight * value * value
                else:
                    row_add(rows.kind, weight, at, place, REAL)
                total += weight
    result[rows.num_features] += (intercept * intercept if are_squared else intercept) * total


@kernel
def curved_product(
    rows,  # rows, lengths, intercept, weights: as in `weighted_sum`
    lengths,
    intercept,
    weights,
    vector,  # shape (num_features + 1,), float64
    products,  # OUT: <x_i, vector> of the rows that are read, shape (num_rows,), float64
    result,  # OUT: the sum is added here, shape (num_features + 1,), float64
):
    """sum_i weights_i <x_i, vector> x_i in one look at the rows; rows of weight 0 are not read.

    NumPy equivalent::

        for i in visited:
            if weights[i] != 0:
                products[i] = x(i) @ vector
                result += weights[i] * products[i] * x(i)
    """
    offset = intercept * vector[rows.num_features]
    position, total = np.uintp(0), 0.0
    for chunk in range(len(lengths)):
        for row in range(np.uintp(lengths[chunk])):
            weight = weights[position]
            if weight != 0.0:
                at = row_at(rows, chunk, row)
                product = row_dot(rows.kind, at, address_of(vector), REAL) + offset
                products[position] = product
                row_add(rows.kind, weight * product, at, address_of(result), REAL)
                total += weight * product
            position += np.uintp(1)
    result[rows.num_features] += intercept * total


@kernel
def scaled_rows(
    first,  # address of the rows, which follow each other; they may be those of `out` that are written
    like,  # `tables.number_like` of them
    scales,  # shape (n,)
    last,  # Value of one more column at the end; 0 for no such column
    begin,  # the first row of `out` to be written
    out,  # OUT: shape (num_rows, num_columns), the last column included
):
    """Dense rows times a factor each, in one look at them and in the precision of the product.

    NumPy equivalent::

        out[begin : begin + n] = scales[:, None] * rows
    """
    num_features = out.shape[1] - (1 if last != 0.0 else 0)
    for row in range(len(scales)):
        scale, start = scales[row], np.uintp(row) * np.uintp(num_features)
        for column in range(np.uintp(num_features)):
            out[begin + row, column] = load(first, start + column, like) * scale
        if last != 0.0:
            out[begin + row, num_features] = scale * last


def scale_rows(rows: Array, scales: Array, last: float, begin: int, out: Array) -> None:
    """Call `scaled_rows` for C-contiguous rows."""
    scaled_rows(rows.ctypes.data, number_like(rows), scales, last, begin, out)


@kernel
def sparse_products(
    rows,  # `tables.RowTable` of CSR rows
    lengths,  # rows of each chunk, shape (num_chunks,), int64; 0 for a chunk that is left out
    first_row,  # number among all rows of the first row of each chunk, shape (num_chunks,), int64
    intercept,  # Value of the intercept column; 0 for none
    weights,  # of all rows, shape (num_rows,), float64; rows of weight 0 are not read
    # Place of each column in the triangle, ascending, or -1 where it has none; shape (num_features + 1,), int64
    places,
    row_places,  # OUT: row_places, row_values: Room, shape (h,), uint64 and float64, for h columns in the triangle
    row_values,  # OUT
    result,  # OUT: the sum is added here, packed by rows, shape (h (h + 1) / 2,), float64
):
    """Lower triangle of sum_i weights_i x_i x_i^T in some columns, from the entries of CSR rows alone.

    NumPy equivalent::

        inside = places >= 0
        for i in visited:
            result += weights[i] * np.outer(x(i)[inside], x(i)[inside])[np.tril_indices(len(row_values))]
    """
    last = places[rows.num_features]
    for chunk in range(len(lengths)):
        position = first_row[chunk]
        for row in range(np.uintp(lengths[chunk])):
            weight = weights[position]
            position += 1
            if weight == 0.0:
                continue
            at = row_at(rows, chunk, row)
            count = 0
            for entry in range(at[0]):
                place = places[column_at(rows.kind, at, entry)]
                if place >= 0:
                    row_places[count] = np.uintp(place)
                    row_values[count] = load(at[2], entry, rows.kind.like)
                    count += 1
            if last >= 0 and intercept != 0.0:
                row_places[count] = np.uintp(last)
                row_values[count] = intercept
                count += 1
            for a in range(count):
                factor = weight * row_values[a]
                begin = row_places[a] * (row_places[a] + np.uintp(1)) // np.uintp(2)
                for b in range(a + 1):
                    result[begin + row_places[b]] += factor * row_values[b]
