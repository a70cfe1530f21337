"""Where the rows are: per-chunk tables of addresses, so that kernels reach every local row without a copy.

Chunks lie anywhere (slots of several arenas, memory of the caller). A kernel gets one table row per chunk and makes
array views from addresses as it goes; the pieces of a loop that differ between dense and CSR rows are the functions
below, chosen by the type of the table when the kernel is compiled.

The caller keeps the chunks alive, and the addresses are valid for one iteration only (chunks move at the boundary).
"""

from typing import NamedTuple

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.solvers.local_chunk import RowBlock


class DenseTable(NamedTuple):
    """Rows of C-contiguous matrices.

    Attributes:
        rows: Address of the first value per chunk, shape (num_chunks,), uint64.
        like: Empty array whose dtype is that of the values.
        num_features: Columns.
    """

    rows: Array
    like: Array
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
    return DenseTable(rows=addresses(dense), like=np.empty(0, first.dtype), num_features=first.shape[1])


def addresses(arrays: list[Array]) -> Array:
    """Address of the first element of each array, shape (len(arrays),), uint64."""
    return np.array([array.ctypes.data for array in arrays], dtype=np.uint64)


@intrinsic
def _pointer(typingctx, address):
    """The address as a void pointer."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


def array_at(address, length, like):
    """View of `length` values of the dtype of `like` at `address` (in kernels only)."""
    raise NotImplementedError("array_at exists in compiled code only")


@overload(array_at)
def _array_at(address, length, like):
    def implementation(address, length, like):
        return carray(_pointer(address), (length,), like.dtype)

    return implementation


def row_dot(table, chunk, row, vector):
    """<x, vector[:num_features]> of one row (in kernels only)."""
    raise NotImplementedError("row_dot exists in compiled code only")


def row_add(table, chunk, row, factor, vector):
    """vector[:num_features] += factor * x of one row (in kernels only)."""
    raise NotImplementedError("row_add exists in compiled code only")


def row_norm(table, chunk, row):
    """|x|^2 of one row (in kernels only)."""
    raise NotImplementedError("row_norm exists in compiled code only")


def _is_dense(table) -> bool:
    return table.instance_class is DenseTable


@overload(row_dot)
def _row_dot(table, chunk, row, vector):
    if _is_dense(table):

        def dense(table, chunk, row, vector):
            d = np.uintp(table.num_features)
            x = array_at(table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize), d, table.like)
            total = 0.0
            for j in range(d):
                total += x[j] * vector[j]
            return total

        return dense

    def csr(table, chunk, row, vector):
        ends = array_at(table.indptr[chunk], row + 2, table.like_indptr)
        begin, end = np.uintp(ends[row]), np.uintp(ends[row + np.uintp(1)])
        indices = array_at(table.indices[chunk], end, table.like_indices)
        values = array_at(table.values[chunk], end, table.like_values)
        total = 0.0
        for e in range(begin, end):
            total += values[e] * vector[np.uintp(indices[e])]
        return total

    return csr


@overload(row_add)
def _row_add(table, chunk, row, factor, vector):
    if _is_dense(table):

        def dense(table, chunk, row, factor, vector):
            d = np.uintp(table.num_features)
            x = array_at(table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize), d, table.like)
            for j in range(d):
                vector[j] += factor * x[j]

        return dense

    def csr(table, chunk, row, factor, vector):
        ends = array_at(table.indptr[chunk], row + 2, table.like_indptr)
        begin, end = np.uintp(ends[row]), np.uintp(ends[row + np.uintp(1)])
        indices = array_at(table.indices[chunk], end, table.like_indices)
        values = array_at(table.values[chunk], end, table.like_values)
        for e in range(begin, end):
            vector[np.uintp(indices[e])] += factor * values[e]

    return csr


@overload(row_norm)
def _row_norm(table, chunk, row):
    if _is_dense(table):

        def dense(table, chunk, row):
            d = np.uintp(table.num_features)
            x = array_at(table.rows[chunk] + np.uint64(row) * np.uint64(d * table.like.itemsize), d, table.like)
            total = 0.0
            for j in range(d):
                total += np.float64(x[j]) * np.float64(x[j])
            return total

        return dense

    def csr(table, chunk, row):
        ends = array_at(table.indptr[chunk], row + 2, table.like_indptr)
        begin, end = np.uintp(ends[row]), np.uintp(ends[row + np.uintp(1)])
        values = array_at(table.values[chunk], end, table.like_values)
        total = 0.0
        for e in range(begin, end):
            total += np.float64(values[e]) * np.float64(values[e])
        return total

    return csr
