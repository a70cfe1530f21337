"""Dense rows, many values per instruction, spelled out.

A loop that LLVM vectorises by itself takes 32 values or more at a time and leaves the rest to scalar code: a row of 28
would be scalar altogether. Here full vectors are followed by one of half the length, a quarter, and so on, as the
number of values has it. Nothing beyond a row is touched, no alignment is expected. Sums are in the order of the lanes.

The functions write code into a kernel; `tables` makes them known to numba. Each vector is the address (uint64) of its
first value and the numba type of its values.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

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


def dot(context, builder, length, x, y, sum_type):
    """<x, y> over `length` values (uintp), summed in `sum_type`, as float64."""

    def product(position, lanes):
        a, b = (load_lanes(context, builder, place, position, given, lanes, sum_type) for place, given in (x, y))
        return builder.fmul(a, b, flags=FLAGS)

    def add(position, number):
        total = builder.fadd(builder.load(places[number]), product(position, LANES), flags=FLAGS)
        builder.store(total, places[number])

    # Four sums, because one would make every vector of a long row wait for the one before.
    zero = ir.Constant(ir.VectorType(context.get_value_type(sum_type), LANES), [0.0] * LANES)
    places = [cgutils.alloca_once_value(builder, zero) for _ in range(4)]
    full_vectors(builder, length, add, unroll=4)
    a, b, c, d = (builder.load(place) for place in places)
    value = builder.fadd(builder.fadd(a, b, flags=FLAGS), builder.fadd(c, d, flags=FLAGS), flags=FLAGS)
    lanes = LANES
    while lanes > 1:
        value = halved(builder, value, lanes)
        lanes //= 2
        end = cgutils.alloca_once_value(builder, value)
        is_there, position = shorter_vector(builder, length, lanes)
        with builder.if_then(is_there):
            builder.store(builder.fadd(value, product(position, lanes), flags=FLAGS), end)
        value = builder.load(end)
    return converted(context, builder, value, sum_type, types.float64, 1)


def add_scaled(context, builder, length, factor, x, y):
    """y += factor * x over `length` values (uintp), in the precision of y; `factor` is a float64."""
    target, kind = y
    factor = converted(context, builder, factor, types.float64, kind, 1)

    def add(position, lanes):
        a, b = (load_lanes(context, builder, place, position, given, lanes, kind) for place, given in (x, y))
        product = builder.fmul(a, repeated(builder, factor, lanes), flags=FLAGS)
        pointer = pointer_to(context, builder, target, position, kind, lanes)
        builder.store(builder.fadd(b, product, flags=FLAGS), pointer, align=kind.bitwidth // 8)

    full_vectors(builder, length, lambda position, _: add(position, LANES), unroll=1)
    lanes = LANES // 2
    while lanes >= 1:
        is_there, position = shorter_vector(builder, length, lanes)
        with builder.if_then(is_there):
            add(position, lanes)
        lanes //= 2
