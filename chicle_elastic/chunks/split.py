"""Arrays become chunks: how large a chunk is, and which rows go where.

With one task in process the chunks are views over the caller's memory, in the caller's order. Otherwise rows are
shuffled, so that every chunk is a random sample of the data whatever order it came in (label-sorted input costs CoCoA
an order of magnitude more iterations), and each chunk is gathered into memory of its own.
"""

from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, Chunk, CsrRows, Rows, StateSpec
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId

CHUNK_BYTES = 1 << 20
IMAGE_CHUNK_BYTES = 200 << 10
MIN_CHUNKS_PER_TASK = 16
ROW_MULTIPLE = 8
"""Kernels visit rows in buckets of this many; a chunk of whole buckets wastes none."""


def choose_chunk_bytes(total_bytes: int, max_tasks: int, *, is_image: bool = False) -> int:
    """Size of a chunk: 1 MiB (200 KiB for images), but so small that every task has at least 16 of them.

    Args:
        total_bytes: Bytes of the whole data set.
        max_tasks: Largest number of tasks the job will have, >= 1.
        is_image: uint8 samples.

    Returns:
        Bytes, >= 1. A chunk holds at least one row, however large.
    """
    largest = IMAGE_CHUNK_BYTES if is_image else CHUNK_BYTES
    return max(1, min(largest, total_bytes // (MIN_CHUNKS_PER_TASK * max_tasks)))


def choose_rows_per_chunk(num_rows: int, total_bytes: int, chunk_bytes: int) -> int:
    """Rows that fit `chunk_bytes` on average: at least 1, and whole buckets of 8 where that is possible.

    Raises:
        UsageError: `chunk_bytes` is not positive.
    """
    if chunk_bytes < 1:
        raise UsageError(f"chunks of {chunk_bytes} bytes cannot be; give a size >= 1, or None for the default")
    rows = max(1, num_rows * chunk_bytes // max(1, total_bytes))
    return min(num_rows, rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows)


def as_rows(X: Any) -> Rows:
    """`X` as the rows of a chunk, without a copy: a C-contiguous matrix, or CSR.

    Raises:
        UsageError: `X` is neither.
    """
    from scipy.sparse import issparse

    if issparse(X):
        if X.format != "csr":
            raise UsageError(f"sparse data must be CSR, not {X.format!r}; convert it with X.tocsr()")
        return CsrRows(X.indptr, X.indices, X.data, int(X.shape[1]))
    if X.ndim != 2 or not X.flags.c_contiguous:
        raise UsageError(f"dense data must be a C-contiguous matrix, got shape {X.shape}; use np.ascontiguousarray(X)")
    rows: Array = X
    return rows


def num_bytes(rows: Rows) -> int:
    """Bytes of the features of `rows`."""
    if isinstance(rows, CsrRows):
        entry_bytes = rows.indices.itemsize + rows.values.itemsize
        return rows.indptr.nbytes + rows.num_nonzeros * entry_bytes
    return rows.nbytes


def slice_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Rows `start` to `stop` as views."""
    if isinstance(rows, CsrRows):
        return CsrRows(rows.indptr[start : stop + 1], rows.indices, rows.values, rows.num_features)
    return rows[start:stop]


def gather_rows(rows: Rows, row_ids: Array) -> Rows:
    """The rows `row_ids` in that order, in memory of their own; CSR starts at 0."""
    if not isinstance(rows, CsrRows):
        return rows[row_ids]
    starts = rows.indptr[row_ids].astype(np.int64)
    lengths = rows.indptr[row_ids + 1].astype(np.int64) - starts
    indptr = np.zeros(len(row_ids) + 1, dtype=rows.indptr.dtype)
    np.cumsum(lengths, out=indptr[1:])
    entries = np.repeat(starts - indptr[:-1], lengths) + np.arange(int(indptr[-1]))
    return CsrRows(indptr, rows.indices[entries], rows.values[entries], rows.num_features)


def cut(
    chunk_id: int, rows: Rows, targets: Array, weights: Array | None, row_ids: Array, state: StateSpec, *, copy: bool
) -> Chunk:
    """One chunk of the samples `row_ids`, which are consecutive unless `copy` is set; its state is fresh."""
    if copy:
        part = gather_rows(rows, row_ids)
        part_targets, part_weights = targets[row_ids], None if weights is None else weights[row_ids]
    else:
        start, stop = int(row_ids[0]), int(row_ids[-1]) + 1
        part = slice_rows(rows, start, stop)
        part_targets, part_weights = targets[start:stop], None if weights is None else weights[start:stop]
    return Chunk(
        id=ChunkId(chunk_id),
        rows=part,
        targets=part_targets,
        weights=part_weights,
        row_ids=row_ids,
        state=state.zeros(len(row_ids)),
    )
