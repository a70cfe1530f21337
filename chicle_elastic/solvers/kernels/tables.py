"""Where the rows are, and what a kernel does with one: dense and CSR rows behind the same few functions.

Chunks lie anywhere (slots of several arenas, memory of the caller), so a kernel gets a table with addresses per chunk.
The functions at the end write code into the kernel that is compiled: the kind of rows is a type. The caller keeps the
chunks alive, and addresses are valid for one iteration only (chunks move at the boundary). Tables have few arrays,
because the compiler, for which a first fit waits, takes each array that is passed on for seven values.

Precision. Sums that last are float64. Rows that are read as float32 are multiplied with a float32 *working copy* of the
vector, twice as many values per instruction. What a block of rows adds is gathered apart in float64 and folded into the
vector when the block ends, so float32 error never outlives a block. For float64 rows and CSR rows, which touch few
entries of a long vector, the float64 vector itself is worked on.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from chicle_elastic.chunks.views import Array, CsrRows, name_of
from chicle_elastic.solvers.kernels.lanes import INDEX, add_scaled, add_scattered, dot, dot_gathered, load_lanes
from chicle_elastic.solvers.kernels.memory import addresses, prefetch_items
from chicle_elastic.solvers.local_chunk import RowBlock


class DenseKind(NamedTuple):
    """The kind of the rows of C-contiguous matrices."""

    like: Any  # a number of the dtype of the values; of 16-bit floats, one of their bits (`lanes.is_half`)
    like_work: Any  # a number of the dtype of the working copy: float64 for float64 values, else float32


class CsrKind(NamedTuple):
    """The kind of the rows of CSR matrices."""

    # like_indptr, like_indices, like: numbers of the dtypes; `like` is that of the values
    like_indptr: Any
    like_indices: Any
    like: Any
    like_work: Any  # a float64: there is no working copy


class RowTable(NamedTuple):
    """Rows of matrices."""

    kind: DenseKind | CsrKind  # what they have in common
    # per chunk the address of the first value of dense rows, or of indptr, indices and values, shape (num_chunks, 1 or
    # 3), uint64
    places: Array
    num_features: int  # columns


def row_table(blocks: list[RowBlock]) -> RowTable:
    """Table over blocks that all have the same kind and dtypes (at least one)."""
    first = blocks[0].rows
    if isinstance(first, CsrRows):
        return csr_table([block.rows for block in blocks if isinstance(block.rows, CsrRows)])
    dense = [block.rows for block in blocks if not isinstance(block.rows, CsrRows)]
    work_dtype = np.float64 if first.dtype == np.float64 else np.float32
    kind = DenseKind(like=number_like(first), like_work=work_dtype(0))
    return RowTable(kind=kind, places=addresses(dense)[:, None], num_features=first.shape[1])


def number_like(rows: Array) -> Any:
    """Return a number of the type that kernels know the values of dense rows by."""
    return {"float16": np.int16, "bfloat16": np.uint16}.get(name_of(rows.dtype), rows.dtype.type)(0)


def csr_table(parts: list[CsrRows]) -> RowTable:
    """Table over parts that all have the same dtypes (at least one); the caller keeps them alive."""
    first = parts[0]
    kind = CsrKind(*(part.dtype.type(0) for part in (first.indptr, first.indices, first.values, np.zeros(0))))
    places = addresses([part for rows in parts for part in (rows.indptr, rows.indices, rows.values)])
    return RowTable(kind=kind, places=places.reshape(-1, 3), num_features=first.num_features)


def _is_dense(kind) -> bool:
    return kind.instance_class is DenseKind


@intrinsic
def is_dense(typingctx, kind):
    """Whether rows are dense, known when a kernel is compiled."""

    def codegen(context, builder, signature, args):
        return ir.Constant(ir.IntType(1), _is_dense(kind))

    return types.boolean(kind), codegen


ROW = types.UniTuple(types.uint64, 3)
"""A row for the functions below: number of its values, address of its indices (0 for dense rows), and of its values."""


@intrinsic
def row_at(typingctx, table, chunk, row):
    """The `ROW` of a number in a chunk (both uintp)."""
    kind, places, num_features = table.types
    width = 1 if _is_dense(kind) else 3

    def codegen(context, builder, signature, args):
        _, chunk, row = args
        columns = context.cast(builder, builder.extract_value(args[0], 2), num_features, types.uint64)
        pointers = make_array(places)(context, builder, builder.extract_value(args[0], 1)).data
        first = builder.mul(chunk, INDEX(width))
        of_chunk = [builder.load(builder.gep(pointers, [builder.add(first, INDEX(k))])) for k in range(width)]

        def behind(address, number, element):
            return builder.add(address, builder.mul(number, INDEX(element.bitwidth // 8)))

        if _is_dense(kind):
            parts = [columns, INDEX(0), behind(of_chunk[0], builder.mul(row, columns), kind[0])]
        else:
            loaded = [
                load_lanes(context, builder, of_chunk[0], number, kind[0], 1, kind[0])
                for number in (row, builder.add(row, INDEX(1)))
            ]
            begin, end = (context.cast(builder, value, kind[0], ROW[0]) for value in loaded)
            indices, values = (behind(of_chunk[k], begin, kind[k]) for k in (1, 2))
            parts = [builder.sub(end, begin), indices, values]
        return context.make_tuple(builder, ROW, parts)

    return ROW(table, types.uintp, types.uintp), codegen


@intrinsic
def column_at(typingctx, kind, row, number):
    """The column (uintp) of a value of a row."""

    def codegen(context, builder, signature, args):
        if _is_dense(kind):
            return args[2]
        place = builder.extract_value(args[1], 1)
        column = load_lanes(context, builder, place, args[2], kind[1], 1, kind[1])
        return context.cast(builder, column, kind[1], types.uintp)

    return types.uintp(kind, ROW, types.uintp), codegen


@intrinsic
def row_prefetch(typingctx, kind, row):
    """Ask for a row ahead of time."""

    def codegen(context, builder, signature, args):
        length, indices, values = cgutils.unpack_tuple(builder, args[1], 3)
        if not _is_dense(kind):
            prefetch_items(builder, indices, length, kind[1])
        prefetch_items(builder, values, length, kind[-2])
        return context.get_dummy_value()

    return types.void(kind, ROW), codegen


@intrinsic
def row_dot(typingctx, kind, row, vector, like):
    """<x, vector[:num_features]> of one row, in the precision of the vector (address, and a number like its values)."""

    def codegen(context, builder, signature, args):
        length, indices, values = cgutils.unpack_tuple(builder, args[1], 3)
        if _is_dense(kind):
            return dot(context, builder, length, (values, kind[0]), (args[2], like), like)
        return dot_gathered(context, builder, length, (indices, kind[1]), (values, kind[2]), (args[2], like))

    return types.float64(kind, ROW, types.uint64, like), codegen


@intrinsic
def row_cross(typingctx, kind, row, other):
    """<x, x'> of two dense rows, or |x|^2 of any, in the precision of the working copy, as float64."""

    def codegen(context, builder, signature, args):
        (length, _, x), (_, _, y) = (cgutils.unpack_tuple(builder, arg, 3) for arg in args[1:])
        return dot(context, builder, length, (x, kind[-2]), (y, kind[-2]), kind[-1])

    return types.float64(kind, ROW, ROW), codegen


@intrinsic
def row_add(typingctx, kind, factor, row, vector, like):
    """vector[:num_features] += factor * x of one row; the vector as in `row_dot`."""

    def codegen(context, builder, signature, args):
        length, indices, values = cgutils.unpack_tuple(builder, args[2], 3)
        if _is_dense(kind):
            add_scaled(context, builder, length, args[1], (values, kind[0]), (args[3], like))
        else:
            add_scattered(context, builder, length, args[1], (indices, kind[1]), (values, kind[2]), (args[3], like))
        return context.get_dummy_value()

    return types.void(kind, types.float64, ROW, types.uint64, like), codegen


@intrinsic
def bucket_prefetch(typingctx, table, chunk, row):
    """Ask ahead of time for what `row_at` of a bucket's rows reads."""
    kind, places, _ = table.types

    def codegen(context, builder, signature, args):
        if not _is_dense(kind):
            pointers = make_array(places)(context, builder, builder.extract_value(args[0], 1)).data
            indptr = builder.load(builder.gep(pointers, [builder.mul(args[1], INDEX(3))]))
            begin = builder.add(indptr, builder.mul(args[2], INDEX(kind[0].bitwidth // 8)))
            prefetch_items(builder, begin, INDEX(1), kind[0])
        return context.get_dummy_value()

    return types.void(table, types.uintp, types.uintp), codegen
