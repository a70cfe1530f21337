"""Checks that all formats share: values, targets and weights are refused with their place in the file."""

from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.readers.base import Block, Origin
from chicle_elastic.chunks.readers.checks import checked_rows, checked_targets, checked_weights
from chicle_elastic.chunks.views import Array, CsrRows, Rows
from chicle_elastic.errors import DataError

ORIGIN = Origin(path=Path("train.csv"), unit="line", numbers=[11, 12, 15], first_column=2)


def block(rows: "Rows | None" = None, targets: Array | None = None, weights: Array | None = None) -> Block:
    """Three rows from lines 11, 12 and 15."""
    return Block(
        rows=np.zeros((3, 2)) if rows is None else rows,
        targets=np.zeros(3) if targets is None else targets,
        weights=weights,
        origin=ORIGIN,
        bytes_read=0,
    )


def dense(value: float, dtype: str = "float64") -> Block:
    """Ones, and `value` in line 15, column 3."""
    rows = np.ones((3, 2))
    rows[2, 1] = value
    return block(rows.astype(dtype))


def sparse(value: float) -> Block:
    """Three rows behind an unrelated entry; `value` is in line 15 at feature 7, whose number in the file is 9."""
    indptr, indices = np.array([1, 2, 2, 4]), np.array([0, 3, 4, 7], dtype=np.int32)
    return block(CsrRows(indptr, indices, np.array([np.nan, 1, 2, value]), 8))


@pytest.mark.parametrize("value", [256, -1, 0.5, 1e9])
def test_a_value_that_is_no_byte_is_refused_for_uint8(value: float) -> None:
    """Bytes are whole numbers of 0 to 255, and NumPy would wrap the others round silently."""
    with pytest.raises(DataError, match=r"train.csv:15: column 3: value .* does not fit uint8 \(0 to 255\)"):
        checked_rows(dense(value), "uint8")
    assert checked_rows(dense(255), "uint8").dtype == np.uint8


def test_sound_rows_come_back_contiguous_and_start_at_entry_0() -> None:
    """What is handed to the writer does not depend on how the reader sliced it."""
    wide = np.arange(12, dtype=">f8").reshape(3, 4)[:, 1:]
    rows = checked_rows(block(wide), "float32")
    assert isinstance(rows, np.ndarray)
    assert rows.flags.c_contiguous
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, wide)

    csr = checked_rows(sparse(5.0), "float32")
    assert isinstance(csr, CsrRows)
    np.testing.assert_array_equal(csr.indptr, [0, 1, 1, 3])
    np.testing.assert_array_equal(csr.indices, [3, 4, 7])
    np.testing.assert_array_equal(csr.values, np.array([1, 2, 5], dtype=np.float32))


def test_targets_are_finite_numbers_or_text() -> None:
    """Whole numbers that float64 cannot hold would merge two classes."""
    with pytest.raises(DataError, match=r"^train.csv:12: the label nan is not finite"):
        checked_targets(block(targets=np.array([1, np.nan, 2])))
    with pytest.raises(DataError, match=r"^train.csv:15: the label '' is empty"):
        checked_targets(block(targets=np.array(["a", "b", ""])))
    with pytest.raises(DataError, match=r"^train.csv:11: the label 9007199254740993 is too large"):
        checked_targets(block(targets=np.array([2**53 + 1, 1, 2])))
    np.testing.assert_array_equal(checked_targets(block(targets=np.array([3, -4, 5], dtype=np.int8))), [3, -4, 5])


@pytest.mark.parametrize("weight", [-1e-9, np.nan, np.inf])
def test_a_weight_is_a_finite_number_of_at_least_0(weight: float) -> None:
    """Weights are checked like everything else; none at all is fine."""
    with pytest.raises(DataError, match=r"^train.csv:12: the weight .* is not a finite number >= 0"):
        checked_weights(block(weights=np.array([0, weight, 1])))
    assert checked_weights(block()) is None
    weights = checked_weights(block(weights=np.array([0, 1, 2], dtype=np.float32)))
    assert weights is not None
    assert weights.dtype == np.float64
