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

LANES = 16
"""Values per operation; a machine with shorter vectors takes several instructions."""
_FLAGS = ("reassoc", "contract", "arcp", "nsz")  # as jit.FASTMATH
_INDEX = ir.IntType(64)
_INT32 = ir.IntType(32)


def _pointer(context, builder, address, position, element_type, lanes):
    """Pointer to `lanes` values from `position` on."""
    scalar = context.get_value_type(element_type)
    base = builder.inttoptr(address, scalar.as_pointer())
    target = scalar if lanes == 1 else ir.VectorType(scalar, lanes)
    return builder.bitcast(builder.gep(base, [position]), target.as_pointer())


def _load(context, builder, address, position, element_type, lanes, wanted):
    """`lanes` values behind an address, converted to the numba type `wanted`."""
    pointer = _pointer(context, builder, address, position, element_type, lanes)
    value = builder.load(pointer, align=element_type.bitwidth // 8)
    return _converted(context, builder, value, element_type, wanted, lanes)


def _converted(context, builder, value, given, wanted, lanes):
    if given == wanted:
        return value
    scalar = context.get_value_type(wanted)
    target = scalar if lanes == 1 else ir.VectorType(scalar, lanes)
    if isinstance(given, types.Integer):
        return builder.sitofp(value, target) if given.signed else builder.uitofp(value, target)
    return builder.fpext(value, target) if wanted.bitwidth > given.bitwidth else builder.fptrunc(value, target)


def _repeated(builder, scalar, lanes):
    """A vector of one value."""
    if lanes == 1:
        return scalar
    empty = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, scalar, _INT32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_INT32, lanes), [0] * lanes))


def _halved(builder, value, lanes):
    """Sum of the lower and the upper half of a vector."""
    if lanes == 2:
        parts = [builder.extract_element(value, _INT32(lane)) for lane in (0, 1)]
    else:
        empty, half = ir.Constant(value.type, ir.Undefined), lanes // 2
        lane_numbers = ir.VectorType(_INT32, half)
        parts = [
            builder.shuffle_vector(value, empty, ir.Constant(lane_numbers, [*range(begin, begin + half)]))
            for begin in (0, half)
        ]
    return builder.fadd(*parts, flags=_FLAGS)


def _full_vectors(builder, length, body, *, unroll):
    """Loops that call `body(position, number)` for all full vectors; `number` counts from 0 to `unroll` - 1."""
    step = _INDEX(LANES * unroll)
    rounds = builder.udiv(length, step)
    with cgutils.for_range(builder, rounds) as loop:
        start = builder.mul(loop.index, step)
        for number in range(unroll):
            body(builder.add(start, _INDEX(LANES * number)), number)
    if unroll == 1:
        return
    done = builder.mul(rounds, step)
    with cgutils.for_range(builder, builder.udiv(builder.sub(length, done), _INDEX(LANES))) as loop:
        body(builder.add(done, builder.mul(loop.index, _INDEX(LANES))), 0)


def _shorter_vector(builder, length, lanes):
    """Whether the rest has a vector of `lanes` values, and where it begins (after the longer ones)."""
    is_there = builder.icmp_unsigned("!=", builder.and_(length, _INDEX(lanes)), _INDEX(0))
    return is_there, builder.and_(length, _INDEX(-2 * lanes))


def _sums(context, builder, length, products, sum_type, num_sums=1):
    """Sums over all positions of each of `products(position, lanes)`, as float64."""

    def add(position, number):
        for place, product in zip(places[number], products(position, LANES), strict=True):
            builder.store(builder.fadd(builder.load(place), product, flags=_FLAGS), place)

    # Four sums of each, because one would make every vector of a long row wait for the one before.
    zero = ir.Constant(ir.VectorType(context.get_value_type(sum_type), LANES), [0.0] * LANES)
    places = [[cgutils.alloca_once_value(builder, zero) for _ in range(num_sums)] for _ in range(4)]
    _full_vectors(builder, length, add, unroll=4)
    values = []
    for four in zip(*places, strict=True):
        a, b, c, d = (builder.load(place) for place in four)
        values.append(builder.fadd(builder.fadd(a, b, flags=_FLAGS), builder.fadd(c, d, flags=_FLAGS), flags=_FLAGS))
    lanes = LANES
    while lanes > 1:
        values = [_halved(builder, value, lanes) for value in values]
        lanes //= 2
        ends = [cgutils.alloca_once_value(builder, value) for value in values]
        is_there, position = _shorter_vector(builder, length, lanes)
        with builder.if_then(is_there):
            for value, end, product in zip(values, ends, products(position, lanes), strict=True):
                builder.store(builder.fadd(value, product, flags=_FLAGS), end)
        values = [builder.load(end) for end in ends]
    return [_converted(context, builder, value, sum_type, types.float64, 1) for value in values]


@intrinsic
def dot(typingctx, length, x, like_x, y, like_y, like_sum):
    """<x, y> over `length` values, summed in the precision of `like_sum`, as float64."""
    sum_type = like_sum.dtype

    def codegen(context, builder, signature, args):
        length, x, _, y, _, _ = args

        def products(position, lanes):
            a = _load(context, builder, x, position, like_x.dtype, lanes, sum_type)
            b = _load(context, builder, y, position, like_y.dtype, lanes, sum_type)
            return [builder.fmul(a, b, flags=_FLAGS)]

        return _sums(context, builder, length, products, sum_type)[0]

    return types.float64(types.uintp, types.uint64, like_x, types.uint64, like_y, like_sum), codegen


@intrinsic
def dot_and_square(typingctx, length, x, like_x, y, like_y, like_sum):
    """(<x, y>, <x, x>) in one look at x, as `dot`."""
    sum_type = like_sum.dtype

    def codegen(context, builder, signature, args):
        length, x, _, y, _, _ = args

        def products(position, lanes):
            a = _load(context, builder, x, position, like_x.dtype, lanes, sum_type)
            b = _load(context, builder, y, position, like_y.dtype, lanes, sum_type)
            return [builder.fmul(a, b, flags=_FLAGS), builder.fmul(a, a, flags=_FLAGS)]

        both = _sums(context, builder, length, products, sum_type, num_sums=2)
        return context.make_tuple(builder, signature.return_type, both)

    pair = types.UniTuple(types.float64, 2)
    return pair(types.uintp, types.uint64, like_x, types.uint64, like_y, like_sum), codegen


@intrinsic
def add_scaled(typingctx, length, factor, x, like_x, y, like_y):
    """y += factor * x over `length` values, in the precision of y."""

    def codegen(context, builder, signature, args):
        length, factor, x, _, y, _ = args
        factor = _converted(context, builder, factor, types.float64, like_y.dtype, 1)

        def add(position, lanes):
            a = _load(context, builder, x, position, like_x.dtype, lanes, like_y.dtype)
            b = _load(context, builder, y, position, like_y.dtype, lanes, like_y.dtype)
            product = builder.fmul(a, _repeated(builder, factor, lanes), flags=_FLAGS)
            pointer = _pointer(context, builder, y, position, like_y.dtype, lanes)
            builder.store(builder.fadd(b, product, flags=_FLAGS), pointer, align=like_y.dtype.bitwidth // 8)

        _full_vectors(builder, length, lambda position, _: add(position, LANES), unroll=1)
        lanes = LANES // 2
        while lanes >= 1:
            is_there, position = _shorter_vector(builder, length, lanes)
            with builder.if_then(is_there):
                add(position, lanes)
            lanes //= 2
        return context.get_dummy_value()

    return types.void(types.uintp, types.float64, types.uint64, like_x, types.uint64, like_y), codegen
