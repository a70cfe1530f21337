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
        return csr_table([block.rows for block in blocks if isinstance(block.rows, CsrRows)])
    dense = [block.rows for block in blocks if not isinstance(block.rows, CsrRows)]
    work_dtype = np.float64 if first.dtype == np.float64 else np.float32
    return DenseTable(
        rows=addresses(dense),
        like=np.empty(0, first.dtype),
        like_work=np.empty(0, work_dtype),
        num_features=first.shape[1],
    )


def csr_table(parts: list[CsrRows]) -> CsrTable:
    """Table over parts that all have the same dtypes (at least one); the caller keeps them alive."""
    first = parts[0]
    return CsrTable(
        indptr=addresses([rows.indptr for rows in parts]),
        indices=addresses([rows.indices for rows in parts]),
        values=addresses([rows.values for rows in parts]),
        like_indptr=np.empty(0, first.indptr.dtype),
        like_indices=np.empty(0, first.indices.dtype),
        like_values=np.empty(0, first.values.dtype),
        num_features=first.num_features,
    )


def by_kind(function):
    """A function for kernels whose body depends on the kind of the table, its first argument.

    Args:
        function: Gets numba's types of the arguments, and returns the body for them.
    """

    def in_kernels_only(*_):
        raise NotImplementedError(f"{function.__name__} exists in compiled code only")

    overload(in_kernels_only, jit_options=INLINE)(function)
    return in_kernels_only


def _is_dense(table) -> bool:
    return table.instance_class is DenseTable


@register_jitable(**INLINE)
def dense_row(table, chunk, row):
    """Number of values of a dense row, and the address of the first."""
    d = np.uintp(table.num_features)
    return d, table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize)


@register_jitable(**INLINE)
def csr_row(table, chunk, row):
    """Number of entries of a CSR row, and the addresses of its indices and values."""
    begin = np.uintp(load(table.indptr[chunk], row, table.like_indptr))
    length = np.uintp(load(table.indptr[chunk], row + np.uintp(1), table.like_indptr)) - begin
    indices = table.indices[chunk] + np.uint64(begin) * np.uint64(table.like_indices.itemsize)
    values = table.values[chunk] + np.uint64(begin) * np.uint64(table.like_values.itemsize)
    return length, indices, values


@by_kind
def load_work(table, vector, work):
    """The working copy of `vector`; the vector itself for CSR rows."""

    def dense(table, vector, work):
        for j in range(np.uintp(table.num_features)):
            work[j] = vector[j]
        return work

    return dense if _is_dense(table) else lambda table, vector, work: vector


@by_kind
def fold_work(table, vector, gathered):
    """Add what a block has gathered to `vector`, and gather from zero again."""

    def dense(table, vector, gathered):
        for j in range(np.uintp(table.num_features)):
            vector[j] += gathered[j]
            gathered[j] = 0

    return dense if _is_dense(table) else lambda table, vector, gathered: None


@by_kind
def gather_into(table, vector, gathered):
    """Where steps are gathered: apart for dense rows, in the vector itself for CSR rows."""
    return (lambda table, vector, gathered: gathered) if _is_dense(table) else (lambda table, vector, gathered: vector)


@by_kind
def row_prefetch(table, chunk, row):
    """Ask for a row ahead of time."""

    def dense(table, chunk, row):
        d, x = dense_row(table, chunk, row)
        prefetch_range(x, x + np.uint64(d) * np.uint64(table.like.itemsize))

    def csr(table, chunk, row):
        length, indices, values = csr_row(table, chunk, row)
        prefetch_range(indices, indices + np.uint64(length) * np.uint64(table.like_indices.itemsize))
        prefetch_range(values, values + np.uint64(length) * np.uint64(table.like_values.itemsize))

    return dense if _is_dense(table) else csr


@by_kind
def bucket_prefetch(table, chunk, row):
    """Ask ahead of time for what `row_prefetch` of a bucket's rows reads itself."""

    def csr(table, chunk, row):
        prefetch(table.indptr[chunk] + np.uint64(row) * np.uint64(table.like_indptr.itemsize))

    return (lambda table, chunk, row: None) if _is_dense(table) else csr


@by_kind
def row_dot(table, chunk, row, vector):
    """<x, vector[:num_features]> of one row, in the precision of the vector, as float64."""

    def dense(table, chunk, row, vector):
        d, x = dense_row(table, chunk, row)
        return dot(d, x, table.like, np.uint64(vector.ctypes.data), vector, vector)

    def csr(table, chunk, row, vector):
        length, indices, values = csr_row(table, chunk, row)
        place = np.uint64(vector.ctypes.data)
        return dot_gathered(length, indices, table.like_indices, values, table.like_values, place, vector)

    return dense if _is_dense(table) else csr


@by_kind
def overlaps(table):
    """Whether the product of the next row is begun before this row's step is known.

    The steps are a chain: each product has to wait for the step before it, and for short rows the processor does little
    else. Begun early, a product misses one step, which is made good by that step times <x, x'> of the two rows. Long
    rows have enough to do, and CSR rows have no cheap <x, x'>.
    """
    return (lambda table: table.num_features <= MAX_OVERLAPPED) if _is_dense(table) else (lambda table: False)


@by_kind
def row_cross(table, chunk, row, other_chunk, other_row):
    """<x, x'> of two rows in the precision of the working copy, as float64."""

    def dense(table, chunk, row, other_chunk, other_row):
        d, x = dense_row(table, chunk, row)
        _, y = dense_row(table, other_chunk, other_row)
        return dot(d, x, table.like, y, table.like, table.like_work)

    return dense if _is_dense(table) else lambda table, chunk, row, other_chunk, other_row: 0.0


@by_kind
def row_add(table, chunk, row, factor, vector):
    """vector[:num_features] += factor * x of one row."""

    def dense(table, chunk, row, factor, vector):
        d, x = dense_row(table, chunk, row)
        add_scaled(d, factor, x, table.like, np.uint64(vector.ctypes.data), vector)

    def csr(table, chunk, row, factor, vector):
        length, indices, values = csr_row(table, chunk, row)
        place = np.uint64(vector.ctypes.data)
        add_scattered(length, factor, indices, table.like_indices, values, table.like_values, place, vector)

    return dense if _is_dense(table) else csr


@by_kind
def row_add_squares(table, chunk, row, factor, vector):
    """vector[:num_features] += factor * x * x of one row, elementwise."""

    def dense(table, chunk, row, factor, vector):
        d, x = dense_row(table, chunk, row)
        for j in range(d):
            value = load(x, j, table.like)
            vector[j] += factor * value * value

    def csr(table, chunk, row, factor, vector):
        length, indices, values = csr_row(table, chunk, row)
        for j in range(length):
            value = load(values, j, table.like_values)
            vector[np.uintp(load(indices, j, table.like_indices))] += factor * value * value

    return dense if _is_dense(table) else csr


@by_kind
def row_step(table, chunk, row, factor, work, gathered):
    """Add factor * x to the working copy and to what is gathered, which are one vector for CSR rows."""

    def dense(table, chunk, row, factor, work, gathered):
        d, x = dense_row(table, chunk, row)
        add_scaled(d, factor, x, table.like, np.uint64(work.ctypes.data), work)
        add_scaled(d, factor, x, table.like, np.uint64(gathered.ctypes.data), gathered)

    def csr(table, chunk, row, factor, work, gathered):
        row_add(table, chunk, row, factor, work)

    return dense if _is_dense(table) else csr


@by_kind
def row_dot_and_norm(table, chunk, row, vector):
    """(`row_dot`, `row_norm`) in one look at the row."""

    def dense(table, chunk, row, vector):
        d, x = dense_row(table, chunk, row)
        return dot_and_square(d, x, table.like, np.uint64(vector.ctypes.data), vector, vector)

    def csr(table, chunk, row, vector):
        return row_dot(table, chunk, row, vector), row_norm(table, chunk, row)

    return dense if _is_dense(table) else csr


@by_kind
def row_norm(table, chunk, row):
    """|x|^2 of one row in float32, or float64 for float64 values, as float64."""

    def dense(table, chunk, row):
        d, x = dense_row(table, chunk, row)
        return dot(d, x, table.like, x, table.like, table.like_work)

    def csr(table, chunk, row):
        length, _, x = csr_row(table, chunk, row)
        return dot(length, x, table.like_values, x, table.like_values, table.like_values)

    return dense if _is_dense(table) else csr
