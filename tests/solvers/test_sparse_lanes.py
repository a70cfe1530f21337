"""Sparse rows of every length: each takes another mixture of full vectors, half of one, and single entries."""

import numba
import numpy as np
import pytest

from chicle_elastic.solvers.kernels.lanes import LANES
from chicle_elastic.solvers.kernels.memory import REAL, address_of
from chicle_elastic.solvers.kernels.tables import CsrKind, row_add, row_dot

LENGTHS = [*range(3 * LANES // 2 + 2), 39, 784]
NUM_COLUMNS = 1000
TYPES = [("int32", "float32"), ("int64", "float32"), ("int32", "float64"), ("int64", "float64")]


@numba.njit
def dot_of(kind, row, vector):
    """Sum of values[i] * vector[indices[i]]."""
    return row_dot(kind, row, address_of(vector), REAL)


@numba.njit
def add_to(kind, factor, row, vector):
    """vector[indices[i]] += factor * values[i]."""
    row_add(kind, factor, row, address_of(vector), REAL)


def as_row(length, indices, values):
    """The kind of a sparse row, and the row."""
    kind = CsrKind(np.int32(0), indices.dtype.type(0), values.dtype.type(0), REAL)
    return kind, (np.uint64(length), np.uint64(indices.ctypes.data), np.uint64(values.ctypes.data))


def row(length, index_dtype, value_dtype):
    """A row of small whole numbers with another entry behind it, and a vector of such numbers."""
    rng = np.random.default_rng(length)
    indices = np.sort(rng.choice(NUM_COLUMNS, size=length + 1, replace=False)).astype(index_dtype)
    return indices, rng.integers(-4, 5, size=length + 1).astype(value_dtype), rng.integers(-4, 5, NUM_COLUMNS) * 1.0


@pytest.mark.parametrize(("index_dtype", "value_dtype"), TYPES)
def test_dot_gathered_sums_exactly_the_entries_of_the_row(index_dtype, value_dtype):
    """Equal to NumPy; where the row does not point the vector is NaN and would show, as would the entry behind it."""
    for length in LENGTHS:
        indices, values, vector = row(length, index_dtype, value_dtype)
        expected = float(values[:length].astype(float) @ vector[indices[:length]])
        holed = np.full(NUM_COLUMNS, np.nan)
        holed[indices[:length]] = vector[indices[:length]]
        assert dot_of(*as_row(length, indices, values), holed) == expected


@pytest.mark.parametrize(("index_dtype", "value_dtype"), TYPES)
def test_add_scattered_writes_exactly_the_entries_of_the_row(index_dtype, value_dtype):
    """Equal to NumPy; every other entry of the vector stays."""
    for length in LENGTHS:
        indices, values, vector = row(length, index_dtype, value_dtype)
        expected = vector.copy()
        expected[indices[:length]] += 0.5 * values[:length]
        kind, entries = as_row(length, indices, values)
        add_to(kind, 0.5, entries, vector)
        np.testing.assert_array_equal(vector, expected)
