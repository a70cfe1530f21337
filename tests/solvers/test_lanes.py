"""Rows of every length: each length takes another mixture of full, half, quarter, ... vectors."""

import numba
import numpy as np
import pytest

from chicle_elastic.solvers.kernels.lanes import LANES
from chicle_elastic.solvers.kernels.memory import address_of
from chicle_elastic.solvers.kernels.tables import DenseKind, row_add, row_cross, row_dot

LENGTHS = [*range(2 * LANES + 2), 4 * LANES - 1, 4 * LANES, 5 * LANES + 7, 8 * LANES + 15, 784]
PAIRS = [("float32", "float32"), ("float32", "float64"), ("float64", "float64"), ("uint8", "float32")]


@numba.njit
def dot_of(kind, row, y):
    """<x, y>."""
    return row_dot(kind, row, address_of(y), y[0])


@numba.njit
def cross_of(kind, row, other):
    """<x, x'>."""
    return row_cross(kind, row, other)


@numba.njit
def add_to(kind, factor, row, y):
    """y += factor * x."""
    row_add(kind, factor, row, address_of(y), y[0])


def row_of(length, x):
    """A dense row."""
    return np.uint64(length), np.uint64(0), np.uint64(x.ctypes.data)


def kind_of(x, work):
    """The kind of rows with values as in `x`."""
    return DenseKind(like=x.dtype.type(0), like_work=np.dtype(work).type(0))


def values(length, dtype, seed):
    """Small whole numbers, whose sums are exact in any order and precision."""
    low = 0 if dtype == "uint8" else -4
    return np.random.default_rng([seed, length]).integers(low, 5, size=length).astype(dtype)


@pytest.mark.parametrize(("x_dtype", "y_dtype"), PAIRS)
def test_dot_sums_exactly_the_values_of_the_row(x_dtype, y_dtype):
    """Equal to NumPy for every length; the values behind the row are NaN (255) and would show."""
    for length in LENGTHS:
        x, y = values(length, x_dtype, 0), values(length, y_dtype, 1)
        behind = np.full(LANES, np.nan) if y_dtype != "uint8" else np.full(LANES, 255)
        padded_x = np.concatenate([x, np.full(LANES, 255, "uint8") if x_dtype == "uint8" else behind.astype(x_dtype)])
        padded_y = np.concatenate([y, behind.astype(y_dtype)])
        expected = float(x.astype(float) @ y.astype(float))
        kind, row = kind_of(x, y_dtype), row_of(length, padded_x)
        assert dot_of(kind, row, padded_y) == expected
        assert cross_of(kind, row, row) == float(x.astype(float) @ x.astype(float))


@pytest.mark.parametrize(("x_dtype", "y_dtype"), PAIRS)
def test_add_scaled_writes_exactly_the_values_of_the_row(x_dtype, y_dtype):
    """Equal to NumPy for every length; what stands behind the row stays."""
    for length in LENGTHS:
        x, y = values(length + LANES, x_dtype, 2), values(length + LANES, y_dtype, 3)
        expected = y.copy()
        expected[:length] += 0.5 * x[:length]
        add_to(kind_of(x, y_dtype), 0.5, row_of(length, x), y)
        np.testing.assert_array_equal(y, expected)


def test_a_float32_row_is_summed_in_float64_where_that_is_asked_for():
    """1 and many tiny values: float32 would lose all of the tiny ones."""
    x = np.full(785, 2.0**-13, dtype=np.float32)
    x[0] = 1.0
    assert cross_of(kind_of(x, "float64"), row_of(785, x), row_of(785, x)) == 1.0 + 784 * 2.0**-26
