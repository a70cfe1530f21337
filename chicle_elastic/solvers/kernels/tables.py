"""Where the rows are, and what a kernel does with one: dense and CSR rows behind the same few functions.

Chunks lie anywhere (slots of several arenas, memory of the caller), so a kernel gets tables with one address per chunk
and makes array views as it goes. The functions at the end differ between dense and CSR rows; numba picks the right one
by the type of the table when it compiles a kernel. The caller keeps the chunks alive, and addresses are valid for one
iteration only (chunks move at the boundary).

Precision. Sums that last are float64. Dense rows of float32 are multiplied with a float32 *working copy* of the vector,
twice as many values per instruction. What a block of rows adds is gathered apart in float64 and folded into the vector
when the block ends, so float32 error never outlives a block and w = w(alpha) holds to float64. CSR rows touch few
entries of a long vector: there the float64 vector itself is worked on, and loading and folding do nothing.

Dense rows are handled in `lanes`.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import overload, register_jitable

from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.solvers.kernels.jit import INLINE
from chicle_elastic.solvers.kernels.lanes import add_scaled, dot, dot_and_square
from chicle_elastic.solvers.kernels.memory import addresses, load, prefetch, prefetch_range
from chicle_elastic.solvers.kernels.sparse_lanes import add_scattered, dot_gathered
from chicle_elastic.solvers.local_chunk import RowBlock

MAX_OVERLAPPED = 96
"""Columns up to which a row's product is begun before the step of the row before it is known; see `overlaps`."""


class DenseTable(NamedTuple):
    """Rows of C-contiguous matrices.

    Attributes:
        rows: Address of the first value per chunk, shape (num_chunks,), uint64.
        like: Empty array whose dtype is that of the values.
        like_work: Empty array whose dtype is that of the working copy: float64 for float64 values, else float32.
        num_features: Columns.
    """

    rows: Array
    like: Array
    like_work: Array
    num_features: int


class CsrTable(NamedTuple):
    """Rows of CSR matrices.

    Attributes:
        indptr, indices, values: Addresses per chunk, shape (num_chunks,), uint64.
        like_indptr, like_indices, like_values: Empty arrays with the dtypes.
        num_features: Columns.
    """

    indptr: Array
    indices: Array
    values: Array
    like_indptr: Array
    like_indices: Array
    like_values: Array
    num_features: int


RowTable = DenseTable | CsrTable


def row_table(blocks: list[RowBlock]) -> RowTable:
    """Table over blocks that all have the same kind and dtypes (at least one)."""
    first = blocks[0].rows
    if isinstance(first, CsrRows):
        csr = [block.rows for block in blocks if isinstance(block.rows, CsrRows)]
        return CsrTable(
            indptr=addresses([rows.indptr for rows in csr]),
            indices=addresses([rows.indices for rows in csr]),
            values=addresses([rows.values for rows in csr]),
            like_indptr=np.empty(0, first.indptr.dtype),
            like_indices=np.empty(0, first.indices.dtype),
            like_values=np.empty(0, first.values.dtype),
            num_features=first.num_features,
        )
    dense = [block.rows for block in blocks if not isinstance(block.rows, CsrRows)]
    work_dtype = np.float64 if first.dtype == np.float64 else np.float32
    return DenseTable(
        rows=addresses(dense),
        like=np.empty(0, first.dtype),
        like_work=np.empty(0, work_dtype),
        num_features=first.shape[1],
    )


def _is_dense(table) -> bool:
    return table.instance_class is DenseTable


def load_work(table, vector, work):
    """The working copy of `vector`; the vector itself for CSR rows (in kernels only)."""
    raise NotImplementedError("load_work exists in compiled code only")


@overload(load_work, jit_options=INLINE)
def _load_work(table, vector, work):
    if _is_dense(table):

        def dense(table, vector, work):
            for j in range(np.uintp(table.num_features)):
                work[j] = vector[j]
            return work

        return dense
    return lambda table, vector, work: vector


def fold_work(table, vector, gathered):
    """Add what a block has gathered to `vector`, and gather from zero again (in kernels only)."""
    raise NotImplementedError("fold_work exists in compiled code only")


@overload(fold_work, jit_options=INLINE)
def _fold_work(table, vector, gathered):
    if _is_dense(table):

        def dense(table, vector, gathered):
            for j in range(np.uintp(table.num_features)):
                vector[j] += gathered[j]
                gathered[j] = 0

        return dense
    return lambda table, vector, gathered: None


def gather_into(table, vector, gathered):
    """Where steps are gathered: apart for dense rows, in the vector itself for CSR rows (in kernels only)."""
    raise NotImplementedError("gather_into exists in compiled code only")


@overload(gather_into, jit_options=INLINE)
def _gather_into(table, vector, gathered):
    return (lambda table, vector, gathered: gathered) if _is_dense(table) else (lambda table, vector, gathered: vector)


@register_jitable(**INLINE)
def csr_row(table, chunk, row):
    """Number of entries of a CSR row, and the addresses of its indices and values."""
    begin = np.uintp(load(table.indptr[chunk], row, table.like_indptr))
    length = np.uintp(load(table.indptr[chunk], row + np.uintp(1), table.like_indptr)) - begin
    indices = table.indices[chunk] + np.uint64(begin) * np.uint64(table.like_indices.itemsize)
    values = table.values[chunk] + np.uint64(begin) * np.uint64(table.like_values.itemsize)
    return length, indices, values


def row_prefetch(table, chunk, row):
    """Ask for a row ahead of time (in kernels only)."""
    raise NotImplementedError("row_prefetch exists in compiled code only")


@overload(row_prefetch, jit_options=INLINE)
def _row_prefetch(table, chunk, row):
    if _is_dense(table):

        def dense(table, chunk, row):
            row_bytes = np.uint64(table.num_features) * np.uint64(table.like.itemsize)
            begin = table.rows[chunk] + np.uint64(row) * row_bytes
            prefetch_range(begin, begin + row_bytes)

        return dense

    def csr(table, chunk, row):
        length, indices, values = csr_row(table, chunk, row)
        prefetch_range(indices, indices + np.uint64(length) * np.uint64(table.like_indices.itemsize))
        prefetch_range(values, values + np.uint64(length) * np.uint64(table.like_values.itemsize))

    return csr


def bucket_prefetch(table, chunk, row):
    """Ask ahead of time for what `row_prefetch` of a bucket's rows reads itself (in kernels only)."""
    raise NotImplementedError("bucket_prefetch exists in compiled code only")


@overload(bucket_prefetch, jit_options=INLINE)
def _bucket_prefetch(table, chunk, row):
    if _is_dense(table):
        return lambda table, chunk, row: None
    return lambda table, chunk, row: prefetch(
        table.indptr[chunk] + np.uint64(row) * np.uint64(table.like_indptr.itemsize)
    )


def row_dot(table, chunk, row, vector):
    """<x, vector[:num_features]> of one row, in the precision of the vector, as float64 (in kernels only)."""
    raise NotImplementedError("row_dot exists in compiled code only")


@overload(row_dot, jit_options=INLINE)
def _row_dot(table, chunk, row, vector):
    if _is_dense(table):

        def dense(table, chunk, row, vector):
            d = np.uintp(table.num_features)
            x = table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize)
            return dot(d, x, table.like, np.uint64(vector.ctypes.data), vector, vector)

        return dense

    def csr(table, chunk, row, vector):
        length, indices, values = csr_row(table, chunk, row)
        return dot_gathered(
            length, indices, table.like_indices, values, table.like_values, np.uint64(vector.ctypes.data), vector
        )

    return csr


def overlaps(table):
    """Whether the product of the next row is begun before this row's step is known (in kernels only).

    The steps are a chain: each product has to wait for the step before it, and for short rows the processor does little
    else. Begun early, a product misses one step, which is made good by that step times <x, x'> of the two rows. Long
    rows have enough to do, and CSR rows have no cheap <x, x'>.
    """
    raise NotImplementedError("overlaps exists in compiled code only")


@overload(overlaps, jit_options=INLINE)
def _overlaps(table):
    if _is_dense(table):
        return lambda table: table.num_features <= MAX_OVERLAPPED
    return lambda table: False


def row_cross(table, chunk, row, other_chunk, other_row):
    """<x, x'> of two rows in the precision of the working copy, as float64 (in kernels only)."""
    raise NotImplementedError("row_cross exists in compiled code only")


@overload(row_cross, jit_options=INLINE)
def _row_cross(table, chunk, row, other_chunk, other_row):
    if _is_dense(table):

        def dense(table, chunk, row, other_chunk, other_row):
            d = np.uintp(table.num_features)
            row_bytes = np.uint64(d * table.like.itemsize)
            x = table.rows[chunk] + np.uint64(row) * row_bytes
            y = table.rows[other_chunk] + np.uint64(other_row) * row_bytes
            return dot(d, x, table.like, y, table.like, table.like_work)

        return dense
    return lambda table, chunk, row, other_chunk, other_row: 0.0


def row_add(table, chunk, row, factor, vector):
    """vector[:num_features] += factor * x of one row (in kernels only)."""
    raise NotImplementedError("row_add exists in compiled code only")


@overload(row_add, jit_options=INLINE)
def _row_add(table, chunk, row, factor, vector):
    if _is_dense(table):

        def dense(table, chunk, row, factor, vector):
            d = np.uintp(table.num_features)
            x = table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize)
            add_scaled(d, factor, x, table.like, np.uint64(vector.ctypes.data), vector)

        return dense

    def csr(table, chunk, row, factor, vector):
        length, indices, values = csr_row(table, chunk, row)
        add_scattered(
            length,
            factor,
            indices,
            table.like_indices,
            values,
            table.like_values,
            np.uint64(vector.ctypes.data),
            vector,
        )

    return csr


def row_step(table, chunk, row, factor, work, gathered):
    """Add factor * x to the working copy and to what is gathered, which are one vector for CSR (in kernels only)."""
    raise NotImplementedError("row_step exists in compiled code only")


@overload(row_step, jit_options=INLINE)
def _row_step(table, chunk, row, factor, work, gathered):
    if _is_dense(table):

        def dense(table, chunk, row, factor, work, gathered):
            d = np.uintp(table.num_features)
            x = table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize)
            add_scaled(d, factor, x, table.like, np.uint64(work.ctypes.data), work)
            add_scaled(d, factor, x, table.like, np.uint64(gathered.ctypes.data), gathered)

        return dense
    return lambda table, chunk, row, factor, work, gathered: row_add(table, chunk, row, factor, work)


def row_dot_and_norm(table, chunk, row, vector):
    """(`row_dot`, `row_norm`) in one look at the row (in kernels only)."""
    raise NotImplementedError("row_dot_and_norm exists in compiled code only")


@overload(row_dot_and_norm, jit_options=INLINE)
def _row_dot_and_norm(table, chunk, row, vector):
    if _is_dense(table):

        def dense(table, chunk, row, vector):
            d = np.uintp(table.num_features)
            x = table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize)
            return dot_and_square(d, x, table.like, np.uint64(vector.ctypes.data), vector, vector)

        return dense
    return lambda table, chunk, row, vector: (row_dot(table, chunk, row, vector), row_norm(table, chunk, row))


def row_norm(table, chunk, row):
    """|x|^2 of one row in float32, or float64 for float64 values, as float64 (in kernels only)."""
    raise NotImplementedError("row_norm exists in compiled code only")


@overload(row_norm, jit_options=INLINE)
def _row_norm(table, chunk, row):
    if _is_dense(table):

        def dense(table, chunk, row):
            d = np.uintp(table.num_features)
            x = table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize)
            return dot(d, x, table.like, x, table.like, table.like_work)

        return dense

    def csr(table, chunk, row):
        length, _, x = csr_row(table, chunk, row)
        return dot(length, x, table.like_values, x, table.like_values, table.like_values)

    return csr
