"""Rows, many values per instruction, spelled out: these functions write LLVM code into a kernel (see `tables`).

A vector is the address (uint64) of its first value and the numba type of its values; lengths are uintp.

Dense rows. A loop that LLVM vectorises by itself takes 32 values or more at a time and leaves the rest to scalar code:
a row of 28 would be scalar altogether. Here full vectors are followed by one of half the length, a quarter, and so on,
as the number of values has it. Nothing beyond a row is touched, no alignment is expected. Sums are in the order of the
lanes.

Sparse rows. LLVM leaves `vector[indices[i]]` scalar. With gathers a row is a fifth of the instructions, so that the
processor sees further ahead and waits for several cache lines of the vector at once. Processors without gathers get
single loads. Columns of a row have to be different (`CsrRows`): a scatter that meets one twice would lose one of the
two sums.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

LANES = 16  # values per operation; a machine with shorter vectors takes several instructions. Half of them a gather
FLAGS = ("reassoc", "contract", "arcp", "nsz")  # as jit.FASTMATH
INDEX = ir.IntType(64)
INT32 = ir.IntType(32)


def pointer_to(context, builder, address, position, element_type, lanes):
    """Pointer to `lanes` values from `position` on."""
    scalar = context.get_value_type(element_type)
    base = builder.inttoptr(address, scalar.as_pointer())
    target = scalar if lanes == 1 else ir.VectorType(scalar, lanes)
    return builder.bitcast(builder.gep(base, [position]), target.as_pointer())


def is_half(given):
    """Whether a numba type stands for the bits of 16-bit floats: int16 for those of float16, uint16 of bfloat16."""
    return isinstance(given, types.Integer) and given.bitwidth == 16


def load_lanes(context, builder, address, position, element_type, lanes, wanted):
    """`lanes` values behind an address, converted to the numba type `wanted`."""
    pointer = pointer_to(context, builder, address, position, element_type, lanes)
    value = builder.load(pointer, align=element_type.bitwidth // 8)
    return converted(context, builder, value, element_type, wanted, lanes)


def converted(context, builder, value, given, wanted, lanes):
    """A value or vector as another numba type."""
    if given == wanted:
        return value
    if is_half(given):
        value, given = _from_half(builder, value, lanes, is_brain=not given.signed), types.float32
        return converted(context, builder, value, given, wanted, lanes)
    scalar = context.get_value_type(wanted)
    target = scalar if lanes == 1 else ir.VectorType(scalar, lanes)
    if isinstance(given, types.Integer):
        return builder.sitofp(value, target) if given.signed else builder.uitofp(value, target)
    return builder.fpext(value, target) if wanted.bitwidth > given.bitwidth else builder.fptrunc(value, target)


def _from_half(builder, bits, lanes, *, is_brain):
    """Bits of float16 or bfloat16 as float32, by whole numbers: not every processor has an instruction for it."""

    def number(scalar, value):
        return ir.Constant(ir.VectorType(scalar, lanes), [value] * lanes) if lanes > 1 else ir.Constant(scalar, value)

    def as_float(value):
        return builder.bitcast(value, number(ir.FloatType(), 0.0).type)

    wide = builder.sext(bits, number(INT32, 0).type)
    if is_brain:
        return as_float(builder.shl(wide, number(INT32, 16)))
    moved = builder.and_(builder.shl(wide, number(INT32, 13)), number(INT32, 0x8FFFFFFF))
    # The exponent is 112 too small, and that of infinity and NaN has all bits.
    is_finite = builder.icmp_unsigned("!=", builder.and_(wide, number(INT32, 0x7C00)), number(INT32, 0x7C00))
    value = builder.fmul(as_float(moved), number(ir.FloatType(), 2.0**112))
    return builder.select(is_finite, value, as_float(builder.or_(moved, number(INT32, 0x7F800000))))


def repeated(builder, scalar, lanes):
    """A vector of one value."""
    if lanes == 1:
        return scalar
    empty = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, scalar, INT32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))


def halved(builder, value, lanes):
    """Sum of the lower and the upper half of a vector."""
    if lanes == 2:
        parts = [builder.extract_element(value, INT32(lane)) for lane in (0, 1)]
    else:
        empty, half = ir.Constant(value.type, ir.Undefined), lanes // 2
        lane_numbers = ir.VectorType(INT32, half)
        parts = [
            builder.shuffle_vector(value, empty, ir.Constant(lane_numbers, [*range(begin, begin + half)]))
            for begin in (0, half)
        ]
    return builder.fadd(*parts, flags=FLAGS)


def full_vectors(builder, length, widest, body, *, unroll):
    """Loops that call `body(position, number)` for all full vectors; `number` counts from 0 to `unroll` - 1."""
    step = INDEX(widest * unroll)
    rounds = builder.udiv(length, step)
    with cgutils.for_range(builder, rounds) as loop:
        start = builder.mul(loop.index, step)
        for number in range(unroll):
            body(builder.add(start, INDEX(widest * number)), number)
    if unroll == 1:
        return
    done = builder.mul(rounds, step)
    with cgutils.for_range(builder, builder.udiv(builder.sub(length, done), INDEX(widest))) as loop:
        body(builder.add(done, builder.mul(loop.index, INDEX(widest))), 0)


def shorter_vector(builder, length, lanes):
    """Whether the rest has a vector of `lanes` values, and where it begins (after the longer ones)."""
    is_there = builder.icmp_unsigned("!=", builder.and_(length, INDEX(lanes)), INDEX(0))
    return is_there, builder.and_(length, INDEX(-2 * lanes))


def total(context, builder, length, widest, product, sum_type, *, unroll):
    """Sum of `product(position, lanes)` over `length` values (uintp), summed in `sum_type`, as float64."""
    zero = ir.Constant(ir.VectorType(context.get_value_type(sum_type), widest), [0.0] * widest)
    places = [cgutils.alloca_once_value(builder, zero) for _ in range(unroll)]

    def add(position, number):
        more = builder.fadd(builder.load(places[number]), product(position, widest), flags=FLAGS)
        builder.store(more, places[number])

    full_vectors(builder, length, widest, add, unroll=unroll)
    values = [builder.load(place) for place in places]
    while len(values) > 1:
        values = [builder.fadd(*pair, flags=FLAGS) for pair in zip(values[::2], values[1::2], strict=True)]
    value, lanes = values[0], widest
    while lanes > 1:
        value = halved(builder, value, lanes)
        lanes //= 2
        end = cgutils.alloca_once_value(builder, value)
        is_there, position = shorter_vector(builder, length, lanes)
        with builder.if_then(is_there):
            builder.store(builder.fadd(value, product(position, lanes), flags=FLAGS), end)
        value = builder.load(end)
    return converted(context, builder, value, sum_type, types.float64, 1)


def for_all(builder, length, widest, body):
    """Call `body(position, lanes)` for full vectors, and for one of half the length, a quarter, and so on."""
    full_vectors(builder, length, widest, lambda position, _: body(position, widest), unroll=1)
    lanes = widest // 2
    while lanes >= 1:
        is_there, position = shorter_vector(builder, length, lanes)
        with builder.if_then(is_there):
            body(position, lanes)
        lanes //= 2


def dot(context, builder, length, x, y, sum_type):
    """<x, y> over `length` values (uintp), summed in `sum_type`, as float64."""

    def product(position, lanes):
        a, b = (load_lanes(context, builder, place, position, given, lanes, sum_type) for place, given in (x, y))
        return builder.fmul(a, b, flags=FLAGS)

    # Four sums, because one would make every vector of a long row wait for the one before.
    return total(context, builder, length, LANES, product, sum_type, unroll=4)


def add_scaled(context, builder, length, factor, x, y):
    """y += factor * x over `length` values (uintp), in the precision of y; `factor` is a float64."""
    target, kind = y
    factor = converted(context, builder, factor, types.float64, kind, 1)

    def add(position, lanes):
        a, b = (load_lanes(context, builder, place, position, given, lanes, kind) for place, given in (x, y))
        product = builder.fmul(a, repeated(builder, factor, lanes), flags=FLAGS)
        pointer = pointer_to(context, builder, target, position, kind, lanes)
        builder.store(builder.fadd(b, product, flags=FLAGS), pointer, align=kind.bitwidth // 8)

    for_all(builder, length, LANES, add)


def _all_lanes(lanes):
    return ir.Constant(ir.VectorType(ir.IntType(1), lanes), [1] * lanes)


def _pointers(context, builder, indices, position, vector, lanes):
    """Pointers to `vector[indices[position + lane]]`."""
    (place, kind), (address, element_type) = indices, vector
    columns = load_lanes(context, builder, place, position, kind, lanes, kind)
    element = context.get_value_type(element_type)
    base = builder.inttoptr(address, element.as_pointer())
    if lanes == 1:
        return builder.gep(base, [builder.zext(columns, INDEX) if kind.bitwidth < 64 else columns])
    if kind.bitwidth < 64:
        columns = builder.zext(columns, ir.VectorType(INDEX, lanes))
    size = ir.Constant(ir.VectorType(INDEX, lanes), [element_type.bitwidth // 8] * lanes)
    places = builder.add(repeated(builder, address, lanes), builder.mul(columns, size))
    return builder.inttoptr(places, ir.VectorType(element.as_pointer(), lanes))


def _gather(builder, pointers, element, lanes):
    if lanes == 1:
        return builder.load(pointers)
    vector = ir.VectorType(element, lanes)
    signature = ir.FunctionType(vector, [pointers.type, INT32, _all_lanes(lanes).type, vector])
    name = f"llvm.masked.gather.v{lanes}{element.intrinsic_name}.v{lanes}p0"
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.call(function, [pointers, INT32(8), _all_lanes(lanes), ir.Constant(vector, ir.Undefined)])


def _scatter(builder, values, pointers, element, lanes):
    if lanes == 1:
        builder.store(values, pointers)
        return
    signature = ir.FunctionType(ir.VoidType(), [values.type, pointers.type, INT32, _all_lanes(lanes).type])
    name = f"llvm.masked.scatter.v{lanes}{element.intrinsic_name}.v{lanes}p0"
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    builder.call(function, [values, pointers, INT32(8), _all_lanes(lanes)])


def dot_gathered(context, builder, length, indices, x, vector):
    """Sum of x[i] * vector[indices[i]] over `length` entries (uintp), in the precision of the vector, as float64."""
    kind = vector[1]

    def product(position, lanes):
        values = load_lanes(context, builder, x[0], position, x[1], lanes, kind)
        pointers = _pointers(context, builder, indices, position, vector, lanes)
        gathered = _gather(builder, pointers, context.get_value_type(kind), lanes)
        return builder.fmul(values, gathered, flags=FLAGS)

    return total(context, builder, length, LANES // 2, product, kind, unroll=1)


def add_scattered(context, builder, length, factor, indices, x, vector):
    """vector[indices[i]] += factor * x[i] over `length` entries (uintp), in the precision of the vector."""
    kind = vector[1]
    element, factor = context.get_value_type(kind), converted(context, builder, factor, types.float64, kind, 1)

    def add(position, lanes):
        values = load_lanes(context, builder, x[0], position, x[1], lanes, kind)
        pointers = _pointers(context, builder, indices, position, vector, lanes)
        product = builder.fmul(values, repeated(builder, factor, lanes), flags=FLAGS)
        changed = builder.fadd(_gather(builder, pointers, element, lanes), product, flags=FLAGS)
        _scatter(builder, changed, pointers, element, lanes)

    for_all(builder, length, LANES // 2, add)
