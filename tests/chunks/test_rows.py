"""Slices, selections and concatenations of rows, held against SciPy; and the check of CSR rows."""

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.chunks.rows import (
    bytes_per_row,
    concatenate_chunks,
    concatenate_rows,
    csr_fault,
    rows_of,
    slice_rows,
    take_chunk,
    take_rows,
)
from chicle_elastic.chunks.views import Array, CsrRows, Rows
from chicle_elastic.errors import DataError, UsageError
from tests.chunks.samples import assert_same_chunk, dense, sample_chunk


def random_matrix(seed: int, num_rows: int = 40, num_features: int = 9) -> sparse.csr_matrix:
    """A third of the entries; some rows are empty."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(num_rows, num_features)) * (rng.random((num_rows, num_features)) < 0.3)
    values[rng.random(num_rows) < 0.2] = 0
    return sparse.csr_matrix(values)


def to_dense(rows: Rows) -> Array:
    """The rows as a matrix."""
    return rows.to_scipy().toarray() if isinstance(rows, CsrRows) else rows


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_selected_rows_are_those_of_scipy(seed: int, is_sparse: bool) -> None:
    """Slices of slices, and positions in any order, repeated ones among them."""
    rng = np.random.default_rng(seed)
    matrix = random_matrix(seed)
    rows = rows_of(matrix if is_sparse else matrix.toarray())
    start, stop = sorted(rng.choice(41, size=2, replace=False).tolist())
    part = slice_rows(rows, start, stop)
    assert np.array_equal(to_dense(part), matrix[start:stop].toarray())
    positions = rng.integers(stop - start, size=15)
    taken = take_rows(part, positions)
    assert np.array_equal(to_dense(taken), matrix[start:stop][positions].toarray())
    joined = concatenate_rows([part, taken])
    assert np.array_equal(to_dense(joined), np.vstack([to_dense(part), to_dense(taken)]))
    if isinstance(taken, CsrRows) and isinstance(joined, CsrRows):
        assert taken.indptr[0] == 0
        assert csr_fault(taken) is None
        assert csr_fault(joined) is None


def test_slices_are_views() -> None:
    """No entry is copied."""
    matrix = random_matrix(0)
    part = slice_rows(rows_of(matrix), 3, 20)
    assert isinstance(part, CsrRows)
    assert np.shares_memory(part.values, matrix.data)
    assert np.shares_memory(part.indptr, matrix.indptr)


def test_the_most_columns_win_in_a_concatenation() -> None:
    """Blocks of svmlight files learn of columns as they come."""
    few, many = rows_of(random_matrix(1, num_features=3)), rows_of(random_matrix(2, num_features=8))
    assert concatenate_rows([few, many]).shape == (80, 8)


def test_dense_and_csr_rows_do_not_mix() -> None:
    """The message counts them."""
    with pytest.raises(UsageError, match="1 of 2 blocks"):
        concatenate_rows([rows_of(random_matrix(1)), np.zeros((2, 9))])


def test_a_chunk_is_selected_with_all_that_belongs_to_its_rows() -> None:
    """Targets, weights, ids and state follow."""
    chunk = sample_chunk("csr-float32-int32")
    order = np.random.default_rng(0).permutation(chunk.num_rows)
    taken = take_chunk(chunk, order)
    assert np.array_equal(dense(taken), dense(chunk)[order])
    assert np.array_equal(taken.state, chunk.state[order])
    back = take_chunk(taken, np.argsort(order))
    assert_same_chunk(back, chunk)
    assert concatenate_chunks([chunk, taken]).num_rows == 22


def test_bytes_per_row_sum_up_to_the_arrays() -> None:
    """For CSR the bytes of entries and of indptr."""
    rows = rows_of(random_matrix(3))
    assert isinstance(rows, CsrRows)
    sizes = bytes_per_row(rows)
    assert isinstance(sizes, np.ndarray)
    assert sizes.sum() == rows.values.nbytes + rows.indices.nbytes + rows.indptr.nbytes - rows.indptr.itemsize
    assert bytes_per_row(np.zeros((5, 7), np.float32)) == 28


@pytest.mark.parametrize(
    ("indptr", "indices", "fault"),
    [
        ([0, 2, 1, 3], [0, 1, 2], "indptr descends at row 1: from 2 to 1"),
        ([-1, 2, 3], [0, 1, 2], "begins below 0"),
        ([0, 2, 4], [0, 1, 2], "ends at 4, but there are 3 indices"),
        ([0, 2, 3], [0, 4, 2], "the index 4, but 4 columns"),
        ([0, 2, 3], [-1, 0, 2], "the index -1"),
        ([0, 1, 3], [0, 2, 2], "row 1 are not strictly ascending"),
        ([0, 0, 2, 2, 4], [1, 3, 2, 0], "row 3 are not strictly ascending"),
    ],
)
def test_every_fault_of_csr_rows_is_named(indptr: list[int], indices: list[int], fault: str) -> None:
    """By the row where there is one."""
    rows = CsrRows(np.array(indptr), np.array(indices), np.ones(len(indices)), 4)
    assert fault in str(csr_fault(rows))
    with pytest.raises(DataError, match=fault):
        rows_of(rows)


def test_unsorted_indices_and_duplicates_are_put_in_order_in_a_copy() -> None:
    """The caller's matrix stays as it is."""
    matrix = sparse.csr_matrix((np.array([1.0, 2, 3, 4]), np.array([2, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 3))
    before = matrix.data.copy(), matrix.indices.copy()
    rows = rows_of(matrix)
    assert np.array_equal(to_dense(rows), [[2, 0, 1], [0, 7, 0]])
    assert isinstance(rows, CsrRows)
    assert csr_fault(rows) is None
    assert np.array_equal(matrix.data, before[0])
    assert np.array_equal(matrix.indices, before[1])


def test_arrays_with_gaps_are_copied_because_kernels_reach_them_by_address() -> None:
    """Every second column, the transposed matrix, a CSR matrix over every second number."""
    wide = np.arange(24.0).reshape(4, 6)
    for X in (wide[:, ::2], wide.T, wide[::-1]):
        rows = rows_of(X)
        assert isinstance(rows, np.ndarray)
        assert rows.flags.c_contiguous
        assert np.array_equal(rows, X)
    gaps = CsrRows(np.array([0, 1, 2]), np.array([0, 9, 1, 9])[::2], np.array([5.0, 9, 6, 9])[::2], 2)
    rows = rows_of(gaps)
    assert isinstance(rows, CsrRows)
    assert rows.indices.flags.c_contiguous
    assert rows.values.flags.c_contiguous
    assert np.array_equal(to_dense(rows), [[5, 0], [0, 6]])


def test_images_are_flattened_without_a_copy() -> None:
    """uint8 stays uint8."""
    images = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
    rows = rows_of(images)
    assert rows.shape == (2, 48)
    assert isinstance(rows, np.ndarray)
    assert np.shares_memory(rows, images)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros(5), r"shape \(5,\); chunks need at least one row and one column"),
        (np.zeros((0, 5)), r"shape \(0, 5\)"),
        (np.zeros((5, 0)), r"shape \(5, 0\)"),
        (np.zeros((5, 2), int), "X has dtype int64; chunks hold float32, float64, uint8"),
        (np.zeros((5, 2), ">f8"), "dtype >f8"),
        (sparse.csr_matrix(np.eye(3, dtype=np.uint8)), "X has dtype uint8; chunks hold float32, float64:"),
        (sparse.csr_matrix((0, 3)), r"shape \(0, 3\)"),
        (CsrRows(np.array([0, 1]), np.array([0], np.uint32), np.ones(1), 2), "indices of dtype uint32"),
        ([[1.0, 2.0]], "X is a list"),
    ],
)
def test_data_that_cannot_be_rows_is_refused(X: object, message: str) -> None:
    """The message has shape or dtype, and what would do."""
    with pytest.raises(UsageError, match=message):
        rows_of(X)  # type: ignore[arg-type]
