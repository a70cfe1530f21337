"""Pieces of LLVM code for many values per instruction, for `lanes` and `sparse_lanes`.

Vectors are addresses (uint64) of first values.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

LANES = 16  # values per operation; a machine with shorter vectors takes several instructions
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


def full_vectors(builder, length, body, *, unroll):
    """Loops that call `body(position, number)` for all full vectors; `number` counts from 0 to `unroll` - 1."""
    step = INDEX(LANES * unroll)
    rounds = builder.udiv(length, step)
    with cgutils.for_range(builder, rounds) as loop:
        start = builder.mul(loop.index, step)
        for number in range(unroll):
            body(builder.add(start, INDEX(LANES * number)), number)
    if unroll == 1:
        return
    done = builder.mul(rounds, step)
    with cgutils.for_range(builder, builder.udiv(builder.sub(length, done), INDEX(LANES))) as loop:
        body(builder.add(done, builder.mul(loop.index, INDEX(LANES))), 0)


def shorter_vector(builder, length, lanes):
    """Whether the rest has a vector of `lanes` values, and where it begins (after the longer ones)."""
    is_there = builder.icmp_unsigned("!=", builder.and_(length, INDEX(lanes)), INDEX(0))
    return is_there, builder.and_(length, INDEX(-2 * lanes))
