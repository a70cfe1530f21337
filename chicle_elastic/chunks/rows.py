"""Slices, selections and concatenations of rows, dense or CSR; and the check that CSR rows are what they claim."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from chicle_elastic.chunks.headers import CSR_VALUE_DTYPES
from chicle_elastic.chunks.views import BFLOAT16, INDEX_DTYPES, VALUE_DTYPES, Array, Chunk, CsrRows, Rows, dtype_of
from chicle_elastic.errors import DataError, UsageError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


VALUES_PER_BLOCK, MOST_ROWS = 1 << 18, 1 << 13  # values and rows of a block of dense rows that is converted at a time


class RowRange(NDArrayOperatorsMixin):
    """Row ids `start`, `start` + 1, ..., that take memory only while a caller looks at them. Stands for an ndarray of
    int64 of shape (stop - start,), and does whatever that would do."""

    dtype = np.dtype(np.int64)

    def __init__(self, start: int, stop: int) -> None:
        self._span = range(start, stop)
        self.shape = (len(self._span),)
        self.nbytes = len(self._span) * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self._span)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.arange(self._span.start, self._span.stop, dtype=dtype or self.dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = [np.asarray(part) if isinstance(part, RowRange) else part for part in inputs]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by copy and pickle, also before there is a span
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


def slice_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Rows `start` .. `stop - 1` as views."""
    if isinstance(rows, CsrRows):
        return dataclasses.replace(rows, indptr=rows.indptr[start : stop + 1])
    return rows[start:stop]


def take_rows(rows: Rows, positions: Array, out: Array | None = None) -> Rows:
    """Copies of the rows at `positions`, in this order; CSR rows start at 0.

    Args:
        out: OUT for dense rows: where to; None takes memory.
    """
    if not isinstance(rows, CsrRows):
        # All positions are there, and NumPy would copy once more to make sure before it writes to `out`.
        return np.take(rows, positions, axis=0, out=out, mode="raise" if out is None else "clip")
    starts = rows.indptr[positions]
    lengths = rows.indptr[positions + 1] - starts
    indptr = np.zeros(len(positions) + 1, dtype=rows.indptr.dtype)
    np.cumsum(lengths, out=indptr[1:])
    entries = np.repeat(starts - indptr[:-1], lengths) + np.arange(indptr[-1], dtype=indptr.dtype)
    return CsrRows(indptr, rows.indices[entries], rows.values[entries], rows.num_features)


def concatenate_rows(parts: Sequence[Rows]) -> Rows:
    """All rows in one, copied unless there is one part only; the most columns of any part win."""
    if len(parts) == 1:
        return parts[0]
    csr = [part for part in parts if isinstance(part, CsrRows)]
    if not csr:
        return np.concatenate([part for part in parts if not isinstance(part, CsrRows)])
    if len(csr) != len(parts):
        raise UsageError(f"{len(csr)} of {len(parts)} blocks of rows are CSR and the others dense; make them all alike")
    spans = [slice(int(part.indptr[0]), int(part.indptr[-1])) for part in csr]
    lengths = np.concatenate([np.diff(part.indptr) for part in csr])
    indptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return CsrRows(
        indptr=indptr,
        indices=np.concatenate([part.indices[span] for part, span in zip(csr, spans, strict=True)]),
        values=np.concatenate([part.values[span] for part, span in zip(csr, spans, strict=True)]),
        num_features=max(part.num_features for part in csr),
    )


def slice_chunk(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Rows `start` .. `stop - 1` of a chunk as views."""
    return _with_rows(chunk, slice_rows(chunk.rows, start, stop), slice(start, stop))


def take_chunk(chunk: Chunk, positions: Array) -> Chunk:
    """Copies of the rows of a chunk at `positions`, in this order."""
    return _with_rows(chunk, take_rows(chunk.rows, positions), positions)


def _with_rows(chunk: Chunk, rows: Rows, chosen: slice | Array) -> Chunk:
    return dataclasses.replace(
        chunk,
        rows=rows,
        targets=chunk.targets[chosen],
        row_ids=chunk.row_ids[chosen],
        state=chunk.state[chosen],
        weights=None if chunk.weights is None else chunk.weights[chosen],
    )


def concatenate_chunks(parts: Sequence[Chunk]) -> Chunk:
    """The rows of all parts in one chunk with the id of the first; all have weights, or none."""
    first = parts[0]
    if len(parts) == 1:
        return first
    weights = [part.weights for part in parts if part.weights is not None]
    return dataclasses.replace(
        first,
        rows=concatenate_rows([part.rows for part in parts]),
        targets=np.concatenate([part.targets for part in parts]),
        row_ids=np.concatenate([part.row_ids for part in parts]),
        state=np.concatenate([part.state for part in parts]),
        weights=np.concatenate(weights) if weights else None,
    )


def bytes_per_row(rows: Rows) -> Array | int:
    """Bytes of the features of each row: ndarray of shape (num_rows,), int64; one int where all are alike."""
    if not isinstance(rows, CsrRows):
        return int(rows.shape[1]) * rows.dtype.itemsize
    entry_bytes = rows.indices.itemsize + rows.values.itemsize
    sizes: Array = np.diff(rows.indptr).astype(np.int64) * entry_bytes + rows.indices.itemsize
    return sizes


def matrix_of(rows: Rows) -> Any:
    """Rows as an ndarray or a `scipy.sparse.csr_matrix`, sharing their memory."""
    return rows.to_scipy() if isinstance(rows, CsrRows) else rows


def as_floats(rows: Array, dtype: npt.DTypeLike | None = None) -> Array:
    """Return dense rows that NumPy computes with: values of 16 bits as float32, others as they are; or as `dtype`."""
    if rows.dtype == BFLOAT16:
        rows = np.left_shift(rows.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
    elif rows.dtype == np.float16:
        bits = rows.view(np.int16)
        if ((bits & 0x7C00) == 0x7C00).any():
            rows = rows.astype(np.float32)
        else:  # in a fifth of the time: the bits at their places, and an exponent that is 112 too small
            scaled = np.left_shift(bits, 13, dtype=np.int32)
            scaled &= ~0x70000000
            rows = scaled.view(np.float32)
            rows *= np.float32(2.0**112)
    return rows if dtype is None else rows.astype(dtype, copy=False)


def float_blocks(rows: Array, dtype: npt.DTypeLike | None = None) -> Iterator[Array]:
    """Yield what `as_floats` makes of dense rows, in order and some at a time."""
    step = min(max(VALUES_PER_BLOCK // rows.shape[1], 1), MOST_ROWS)
    return (as_floats(rows[begin : begin + step], dtype) for begin in range(0, len(rows), step))


def csr_fault(rows: CsrRows, *, is_canonical: bool = False) -> str | None:
    """What is wrong with CSR rows, in words; None when kernels can rely on them.

    A kernel reads `model[index]` without a check, so an index out of range would read memory beyond the model.
    """
    indptr, num_features = rows.indptr, rows.num_features
    if len(indptr) < 1 or int(indptr[0]) < 0:
        return "indptr is empty or begins below 0"
    if int(indptr[-1]) > min(len(rows.indices), len(rows.values)):
        return (
            f"indptr ends at {int(indptr[-1])}, but there are {len(rows.indices)} indices and {len(rows.values)} values"
        )
    descents = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(descents):
        row = int(descents[0])
        return f"indptr descends at row {row}: from {int(indptr[row])} to {int(indptr[row + 1])}"
    start, stop = int(indptr[0]), int(indptr[-1])
    indices = rows.indices[start:stop]
    if len(indices) == 0:
        return None
    # One look for both ends: as unsigned numbers the negative ones are the largest.
    if int(indices.view(indices.dtype.str.replace("i", "u")).max()) >= num_features:
        lowest, highest = int(indices.min()), int(indices.max())
        return f"there is the index {lowest if lowest < 0 else highest}, but {num_features} columns from 0"
    if is_canonical:
        return None
    is_bad = indices[1:] <= indices[:-1]
    begins = indptr[1:-1] - start
    is_bad[begins[(begins > 0) & (begins < len(indices))] - 1] = False  # the first of a row may be anything
    if is_bad.any():
        row = int(np.searchsorted(indptr, int(np.argmax(is_bad)) + start, side="right")) - 1
        return f"the indices of row {row} are not strictly ascending"
    return None


def plain_array(X: Array) -> Array:
    """Return an array as chunks have it, over the same memory: bool as int8, bfloat16 of ml_dtypes as `BFLOAT16`."""
    if X.dtype.kind == "b":
        return X.view(np.int8)
    return X.view(BFLOAT16) if X.dtype.kind == "V" and X.dtype.name == "bfloat16" else X


def rows_of(X: "Array | csr_matrix | CsrRows") -> Rows:
    """Data of a caller as rows that kernels can rely on, without a copy where that is possible. Raises UsageError when
    shape or dtype cannot be used, DataError when a CSR matrix is malformed."""
    rows: Rows
    is_canonical = False
    if isinstance(X, CsrRows):
        rows = _contiguous(X)
    elif isinstance(X, np.ndarray):
        if X.ndim < 2 or 0 in X.shape:
            raise UsageError(
                f"X has the shape {X.shape}; chunks need at least one row and one column (for a single feature: "
                "X.reshape(-1, 1))"
            )
        rows = np.require(plain_array(np.asarray(X)).reshape(len(X), -1), requirements=["C", "A"])
    else:
        rows = _csr_of(X)  # checked by SciPy
        is_canonical = True
    if min(rows.shape) < 1:
        raise UsageError(f"X has the shape {tuple(rows.shape)}; chunks need at least one row and one column")
    allowed = CSR_VALUE_DTYPES if isinstance(rows, CsrRows) else VALUE_DTYPES
    if rows.dtype not in [dtype_of(name) for name in allowed]:
        raise UsageError(f"X has dtype {rows.dtype}; chunks hold {', '.join(allowed)}: use X.astype(np.float32)")
    if isinstance(rows, CsrRows):
        for name, dtype in (("indptr", rows.indptr.dtype), ("indices", rows.indices.dtype)):
            if dtype not in (np.int32, np.int64):
                raise UsageError(f"X has {name} of dtype {dtype}; chunks hold {', '.join(INDEX_DTYPES)} there")
        if (fault := csr_fault(rows, is_canonical=is_canonical)) is not None:
            raise DataError(f"X is no CSR matrix that can be used: {fault}")
    return rows


def _csr_of(X: Any) -> CsrRows:
    from scipy.sparse import issparse

    if not issparse(X):
        raise UsageError(f"X is a {type(X).__name__}; pass an ndarray or a SciPy sparse matrix")
    if X.ndim != 2:
        raise UsageError(f"X has the shape {X.shape}; a sparse X needs rows and columns")
    matrix = X.tocsr()
    if not matrix.has_canonical_format:
        if matrix is X:
            matrix = X.copy()
        matrix.sum_duplicates()
    return _contiguous(CsrRows(matrix.indptr, matrix.indices, matrix.data, int(matrix.shape[1])))


def _contiguous(rows: CsrRows) -> CsrRows:
    """Return the same rows; arrays with gaps are copied, because kernels reach them by address."""
    return CsrRows(
        np.ascontiguousarray(rows.indptr),
        np.ascontiguousarray(rows.indices),
        np.ascontiguousarray(rows.values),
        rows.num_features,
    )
