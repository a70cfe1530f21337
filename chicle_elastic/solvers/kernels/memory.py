"""Memory by address: what kernels need to reach chunks wherever they lie (in kernels only).

Plain loads and stores, because they give the compiler least to do: the first `fit` on a machine waits for it.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels.jit import INLINE

CACHE_LINE = 64


def addresses(arrays: list[Array]) -> Array:
    """Address of the first element of each array, shape (len(arrays),), uint64."""
    return np.array([array.ctypes.data for array in arrays], dtype=np.uint64)


def _element_pointer(context, builder, address, index, element_type):
    """LLVM pointer to element `index` behind `address`."""
    data_type = context.get_data_type(element_type)
    base = builder.inttoptr(address, data_type.as_pointer())
    return builder.gep(base, [index])


@intrinsic
def load(typingctx, address, index, like):
    """The value at position `index` (uintp) behind `address` (uint64), of the dtype of the array `like`."""

    def codegen(context, builder, signature, args):
        pointer = _element_pointer(context, builder, args[0], args[1], signature.return_type)
        return context.unpack_value(builder, signature.return_type, pointer)

    return like.dtype(types.uint64, types.uintp, like), codegen


@intrinsic
def store(typingctx, address, index, value, like):
    """Write `value` at position `index` (uintp) behind `address` (uint64), as the dtype of the array `like`."""

    def codegen(context, builder, signature, args):
        element_type = signature.args[2]
        pointer = _element_pointer(context, builder, args[0], args[1], element_type)
        context.pack_value(builder, element_type, args[2], pointer)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uintp, like.dtype, like), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at `address` (uint64) ahead of time; no address does harm."""

    def codegen(context, builder, signature, args):
        byte_pointer, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        declaration = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], declaration)
        # To be read, into the second level (the first one has room for few requests and makes the next wait), data.
        builder.call(function, [builder.inttoptr(args[0], byte_pointer), int32(0), int32(2), int32(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), codegen


@intrinsic
def fetch_add(typingctx, address, value):
    """Add to the int64 at `address` (uint64) as one step for all threads; returns what was there before."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "monotonic")

    return types.int64(types.uint64, types.int64), codegen


@register_jitable(**INLINE)
def prefetch_range(begin, end):
    """Ask for all cache lines of the addresses `begin` to `end` (uint64)."""
    for line in range(begin, end + np.uint64(CACHE_LINE - 1), np.uint64(CACHE_LINE)):
        prefetch(line)


@register_jitable(**INLINE)
def prefetch_items(address, first, count, item_bytes):
    """Ask for `count` items from number `first` on behind `address` (all uint64)."""
    begin = address + np.uint64(first) * item_bytes
    prefetch_range(begin, begin + np.uint64(count) * item_bytes)
