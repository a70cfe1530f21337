"""Dense rows, many values per instruction, spelled out.

A loop that LLVM vectorises by itself takes 32 values or more at a time and leaves the rest to scalar code: a row of 28
would be scalar altogether. Here full vectors are followed by one of half the length, a quarter, and so on, as the
number of values has it. Nothing beyond a row is touched, no alignment is expected. Sums are in the order of the lanes.

Everything takes addresses (uint64) of first values; of the arrays `like_...` only the dtype counts.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from chicle_elastic.solvers.kernels.vectors import (
    FLAGS,
    LANES,
    converted,
    full_vectors,
    halved,
    load_lanes,
    pointer_to,
    repeated,
    shorter_vector,
)


def _sums(context, builder, length, products, sum_type, num_sums=1):
    """Sums over all positions of each of `products(position, lanes)`, as float64."""

    def add(position, number):
        for place, product in zip(places[number], products(position, LANES), strict=True):
            builder.store(builder.fadd(builder.load(place), product, flags=FLAGS), place)

    # Four sums of each, because one would make every vector of a long row wait for the one before.
    zero = ir.Constant(ir.VectorType(context.get_value_type(sum_type), LANES), [0.0] * LANES)
    places = [[cgutils.alloca_once_value(builder, zero) for _ in range(num_sums)] for _ in range(4)]
    full_vectors(builder, length, add, unroll=4)
    values = []
    for four in zip(*places, strict=True):
        a, b, c, d = (builder.load(place) for place in four)
        values.append(builder.fadd(builder.fadd(a, b, flags=FLAGS), builder.fadd(c, d, flags=FLAGS), flags=FLAGS))
    lanes = LANES
    while lanes > 1:
        values = [halved(builder, value, lanes) for value in values]
        lanes //= 2
        ends = [cgutils.alloca_once_value(builder, value) for value in values]
        is_there, position = shorter_vector(builder, length, lanes)
        with builder.if_then(is_there):
            for value, end, product in zip(values, ends, products(position, lanes), strict=True):
                builder.store(builder.fadd(value, product, flags=FLAGS), end)
        values = [builder.load(end) for end in ends]
    return [converted(context, builder, value, sum_type, types.float64, 1) for value in values]


@intrinsic
def dot(typingctx, length, x, like_x, y, like_y, like_sum):
    """<x, y> over `length` values, summed in the precision of `like_sum`, as float64."""
    sum_type = like_sum.dtype

    def codegen(context, builder, signature, args):
        length, x, _, y, _, _ = args

        def products(position, lanes):
            a = load_lanes(context, builder, x, position, like_x.dtype, lanes, sum_type)
            b = load_lanes(context, builder, y, position, like_y.dtype, lanes, sum_type)
            return [builder.fmul(a, b, flags=FLAGS)]

        return _sums(context, builder, length, products, sum_type)[0]

    return types.float64(types.uintp, types.uint64, like_x, types.uint64, like_y, like_sum), codegen


@intrinsic
def dot_and_square(typingctx, length, x, like_x, y, like_y, like_sum):
    """(<x, y>, <x, x>) in one look at x, as `dot`."""
    sum_type = like_sum.dtype

    def codegen(context, builder, signature, args):
        length, x, _, y, _, _ = args

        def products(position, lanes):
            a = load_lanes(context, builder, x, position, like_x.dtype, lanes, sum_type)
            b = load_lanes(context, builder, y, position, like_y.dtype, lanes, sum_type)
            return [builder.fmul(a, b, flags=FLAGS), builder.fmul(a, a, flags=FLAGS)]

        both = _sums(context, builder, length, products, sum_type, num_sums=2)
        return context.make_tuple(builder, signature.return_type, both)

    pair = types.UniTuple(types.float64, 2)
    return pair(types.uintp, types.uint64, like_x, types.uint64, like_y, like_sum), codegen


@intrinsic
def add_scaled(typingctx, length, factor, x, like_x, y, like_y):
    """y += factor * x over `length` values, in the precision of y."""

    def codegen(context, builder, signature, args):
        length, factor, x, _, y, _ = args
        factor = converted(context, builder, factor, types.float64, like_y.dtype, 1)

        def add(position, lanes):
            a = load_lanes(context, builder, x, position, like_x.dtype, lanes, like_y.dtype)
            b = load_lanes(context, builder, y, position, like_y.dtype, lanes, like_y.dtype)
            product = builder.fmul(a, repeated(builder, factor, lanes), flags=FLAGS)
            pointer = pointer_to(context, builder, y, position, like_y.dtype, lanes)
            builder.store(builder.fadd(b, product, flags=FLAGS), pointer, align=like_y.dtype.bitwidth // 8)

        full_vectors(builder, length, lambda position, _: add(position, LANES), unroll=1)
        lanes = LANES // 2
        while lanes >= 1:
            is_there, position = shorter_vector(builder, length, lanes)
            with builder.if_then(is_there):
                add(position, lanes)
            lanes //= 2
        return context.get_dummy_value()

    return types.void(types.uintp, types.float64, types.uint64, like_x, types.uint64, like_y), codegen
