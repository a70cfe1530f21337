"""Memory by address: what kernels need to reach chunks wherever they lie (in kernels only).

Plain loads and stores, because they give the compiler least to do: the first `fit` on a machine waits for it.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels.lanes import is_half, load_lanes, pointer_to

CACHE_LINE = 64
# Numbers of these dtypes, for `load` and the like
CODE, COUNT, FLAG = np.int32(0), np.int64(0), np.uint8(0)
NUMBER, PLACE, REAL = np.uint32(0), np.uint64(0), np.float64(0)


def addresses(arrays: list[Array]) -> Array:
    """Address of the first element of each array, shape (len(arrays),), uint64."""
    return np.array([array.ctypes.data for array in arrays], dtype=np.uint64)


@intrinsic
def address_of(typingctx, array):
    """Address (uint64) of the first element of an array."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(make_array(array)(context, builder, args[0]).data, ir.IntType(64))

    return types.uint64(array), codegen


@intrinsic
def item_size(typingctx, like):
    """Bytes (uint64) of a number like this one."""

    def codegen(context, builder, signature, args):
        return ir.IntType(64)(like.bitwidth // 8)

    return types.uint64(like), codegen


@intrinsic
def load(typingctx, address, index, like):
    """Load the value at `index` behind an address, of the dtype of `like`; 16-bit floats become float32."""
    result = types.float32 if is_half(like) else like

    def codegen(context, builder, signature, args):
        return load_lanes(context, builder, args[0], args[1], like, 1, result)

    return result(types.uint64, types.uintp, like), codegen


@intrinsic
def store(typingctx, address, index, value, like):
    """Write `value` at position `index` (uintp) behind `address` (uint64), as the dtype of the number `like`."""

    def codegen(context, builder, signature, args):
        pointer = pointer_to(context, builder, args[0], args[1], like, 1)
        builder.store(args[2], pointer, align=like.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uintp, like, like), codegen


def prefetch_items(builder, begin, count, item):
    """Write code that asks ahead of time for `count` items (uintp) of a numba type; no address does harm."""
    byte_pointer, int32, int64 = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)
    declaration = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], declaration)
    length = builder.mul(count, int64(item.bitwidth // 8))
    lines = builder.udiv(builder.add(length, int64(2 * CACHE_LINE - 2)), int64(CACHE_LINE))
    with cgutils.for_range(builder, lines) as loop:
        line = builder.add(begin, builder.mul(loop.index, int64(CACHE_LINE)))
        # To be read, into the second level (the first one has room for few requests and makes the next wait), data.
        builder.call(function, [builder.inttoptr(line, byte_pointer), int32(0), int32(2), int32(1)])


@intrinsic
def prefetch(typingctx, address, first, count, like):
    """Ask for `count` items (uintp) from number `first` on behind `address` (uint64) that have the dtype of `like`."""

    def codegen(context, builder, signature, args):
        begin = builder.add(args[0], builder.mul(args[1], ir.IntType(64)(like.bitwidth // 8)))
        prefetch_items(builder, begin, args[2], like)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uintp, types.uintp, like), codegen


@intrinsic
def fetch_add(typingctx, address, value):
    """Add to the int64 at `address` (uint64) as one step for all threads; returns what was there before."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "monotonic")

    return types.int64(types.uint64, types.int64), codegen
