"""npy and npz: rows come out as they went in, a few at a time; damaged or misfit arrays are refused by name."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.chunks.readers.arrays import read_npy, read_npz
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.errors import DataError, UsageError
from tests.convert.inputs import joined

X = np.random.default_rng(0).normal(size=(50, 6))
Y = np.arange(50) % 3
W = np.linspace(0.5, 2, 50)


def save(folder: Path, name: str, array: Array) -> Path:
    """The array as an .npy file."""
    np.save(folder / name, array)
    return folder / name


def npz(folder: Path, **arrays: Array) -> Path:
    """The arrays as data.npz."""
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def csr_arrays(matrix: sparse.csr_matrix) -> dict[str, Array]:
    """The members that scipy.sparse.save_npz writes, without the format."""
    return {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": np.array(matrix.shape)}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int64", ">f4", "float16", "bool"])
def test_npy_rows_keep_values_and_dtype_in_any_order(tmp_path: Path, order: str, dtype: str) -> None:
    """C order is streamed, Fortran order is mapped; both give the same blocks."""
    array = np.asarray(X * 50, dtype=dtype, order=order)  # type: ignore[call-overload]
    options = ReadOptions(block_bytes=333, targets=save(tmp_path, "y.npy", Y))
    blocks = list(read_npy(save(tmp_path, "X.npy", array), options))
    rows, targets = joined(blocks)
    assert len(blocks) > 1 or array.nbytes < 600
    assert rows.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(rows, array)
    np.testing.assert_array_equal(targets, Y)


@pytest.mark.parametrize("block_bytes", [1, 100, 100_000])
def test_npz_of_a_sparse_matrix_is_read_row_by_row(tmp_path: Path, block_bytes: int) -> None:
    """What scipy.sparse.save_npz wrote, with y added; empty rows included."""
    matrix = sparse.random(200, 30, density=0.1, format="csr", random_state=np.random.default_rng(1))
    sparse.save_npz(tmp_path / "X.npz", matrix)
    with np.load(tmp_path / "X.npz") as saved:
        path = npz(tmp_path, y=np.arange(200), **saved)
    rows, targets = joined(list(read_npz(path, ReadOptions(block_bytes=block_bytes))))
    np.testing.assert_array_equal(rows, matrix.toarray())
    np.testing.assert_array_equal(targets, np.arange(200))


def test_unsorted_and_repeated_entries_keep_their_meaning(tmp_path: Path) -> None:
    """SciPy allows both; chunks hold ascending indices, and entries that repeat are added up."""
    path = npz(
        tmp_path,
        data=np.array([1.0, 2, 3, 4]),
        indices=np.array([3, 0, 2, 2]),
        indptr=np.array([0, 2, 4]),
        shape=np.array([2, 5]),
        y=np.array([0, 1]),
    )
    (block,) = read_npz(path, ReadOptions())
    assert isinstance(block.rows, CsrRows)
    np.testing.assert_array_equal(block.rows.indices, [0, 3, 2])
    np.testing.assert_array_equal(block.rows.to_scipy().toarray(), [[2, 0, 0, 1, 0], [0, 0, 7, 0, 0]])


def test_targets_and_weights_may_lie_in_files_of_their_own(tmp_path: Path) -> None:
    """--targets and --weights, for npz in place of its own arrays; bytes become text."""
    options = ReadOptions(
        targets=save(tmp_path, "y.npy", np.array([b"b", b"a"])), weights=save(tmp_path, "w.npy", np.array([1.0, 2.0]))
    )
    (block,) = read_npz(npz(tmp_path, X=X[:2], y=Y[:2]), options)
    assert list(block.targets) == ["b", "a"]
    assert block.weights is not None
    np.testing.assert_array_equal(block.weights, [1, 2])


def test_npy_without_targets_is_a_usage_error(tmp_path: Path) -> None:
    """The message names the option."""
    with pytest.raises(UsageError, match="--targets"):
        list(read_npy(save(tmp_path, "X.npy", X), ReadOptions()))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "there is no array 'y' among ['X']"),
        ({"y": Y}, "there is no array 'X' among ['y']"),
        ({"X": X, "y": Y[:-1]}, "[y]: shape (49,), but "),
        ({"X": X, "y": np.stack([Y, Y])}, "[y]: shape (2, 50), but "),
        ({"X": X, "y": Y, "sample_weight": W[:-1]}, "[sample_weight]: shape (49,), but "),
        ({"X": X, "y": Y, "sample_weight": Y.astype(str)}, "[sample_weight]: weights of dtype <U21"),
        ({"X": X, "y": Y.astype(object)}, "[y]: holds Python objects, which are never loaded"),
        ({"X": X, "y": Y + 1j}, "[y]: targets of dtype complex128"),
        ({"X": X.astype(object), "y": Y}, "[X]: holds Python objects"),
        ({"X": X + 1j, "y": Y}, "[X]: features of dtype complex128"),
        ({"X": X.astype(str), "y": Y}, "[X]: features of dtype <U"),
        ({"X": X[:, 0], "y": Y}, "[X]: shape (50,); features need one row per sample"),
        ({"X": np.float64(3), "y": Y}, "[X]: shape () is not that of an array of samples"),
        ({"X": np.asfortranarray(X), "y": Y}, "[X]: stored in Fortran order"),
        ({"X": np.zeros(50, dtype="f8,i4"), "y": Y}, "[X]: arrays of dtype"),
    ],
)
def test_an_archive_that_does_not_fit_is_refused_with_the_array_named(
    tmp_path: Path, arrays: dict[str, Array], message: str
) -> None:
    """Missing, misshapen and mistyped arrays."""
    with pytest.raises(DataError) as caught:
        list(read_npz(npz(tmp_path, **arrays), ReadOptions()))
    assert message in str(caught.value)


CSR = csr_arrays(sparse.csr_matrix(np.diag([1.0, 2, 3])))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.array([0, 3, 2])}, "[indices], row 1: column 3 is out of range, the matrix has 3 columns"),
        ({"indices": np.array([0, 1, -1])}, "[indices], row 2: column -1 is out of range"),
        ({"indptr": np.array([0, 2, 1, 3])}, "[indptr], row 1: the pointers go back"),
        ({"indptr": np.array([1, 2, 3, 3])}, "[indptr]: starts with 1 and not with 0"),
        ({"indptr": np.array([0, 1, 2, 9])}, "[indptr]: points to entry 9, but there are 3 values"),
        ({"indptr": np.array([0, 1, 2, 2])}, "[indptr]: ends with 2, but there are 3 values"),
        ({"indptr": np.array([0, 1, 3])}, "3 pointers, 3 indices and 3 values do not make a CSR matrix of 3 rows"),
        ({"data": np.ones(2)}, "4 pointers, 3 indices and 2 values do not make"),
        ({"data": np.ones(3, dtype="U1")}, "[data]: shape (3,) of <U1 is not part of a CSR matrix"),
        ({"shape": np.array([3])}, "[shape]: 1 values; the shape of a matrix has two"),
        ({"format": np.array("csc")}, "a sparse matrix of format 'csc'; save matrix.tocsr()"),
        ({"y": np.zeros(4)}, "[y]: shape (4,), but "),
    ],
)
def test_a_sparse_matrix_that_lies_about_itself_is_refused(
    tmp_path: Path, changes: dict[str, Array], message: str
) -> None:
    """Pointers, indices and lengths are checked before they are used."""
    with pytest.raises(DataError) as caught:
        list(read_npz(npz(tmp_path, **{**CSR, "y": np.zeros(3), **changes}), ReadOptions()))
    assert message in str(caught.value)


def test_a_header_that_claims_a_huge_row_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """The shape in a header is a claim, not a fact."""
    handle = io.BytesIO()
    np.lib.format.write_array_header_1_0(handle, {"descr": "<f8", "fortran_order": False, "shape": (10, 10**13)})
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("X.npy", handle.getvalue())
        archive.writestr("y.npy", handle.getvalue())
    with pytest.raises(DataError, match="takes 80000000000000 bytes"):
        list(read_npz(tmp_path / "lie.npz", ReadOptions()))
