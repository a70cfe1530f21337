"""Sparse rows, eight values per instruction, spelled out.

LLVM leaves `vector[indices[i]]` scalar. With gathers a row is a fifth of the instructions, so that the processor sees
further ahead and waits for several cache lines of the vector at once. Processors without gathers get single loads.

Columns of a row have to be different (`CsrRows`): a scatter that meets one twice would lose one of the two sums.

Everything takes addresses (uint64) of first values; of the arrays `like_...` only the dtype counts.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from chicle_elastic.solvers.kernels.vectors import FLAGS, INDEX, INT32, halved, load_lanes, repeated

GATHERED = 8
"""Values per gather: as many float64 as the longest vectors hold."""


def _all_lanes(lanes):
    return ir.Constant(ir.VectorType(ir.IntType(1), lanes), [1] * lanes)


def _pointers(context, builder, indices, position, like_i, vector, element_type, lanes):
    """Pointers to `vector[indices[position + lane]]`."""
    columns = load_lanes(context, builder, indices, position, like_i.dtype, lanes, like_i.dtype)
    element = context.get_value_type(element_type)
    base = builder.inttoptr(vector, element.as_pointer())
    if lanes == 1:
        return builder.gep(base, [builder.zext(columns, INDEX) if like_i.dtype.bitwidth < 64 else columns])
    if like_i.dtype.bitwidth < 64:
        columns = builder.zext(columns, ir.VectorType(INDEX, lanes))
    size = ir.Constant(ir.VectorType(INDEX, lanes), [element_type.bitwidth // 8] * lanes)
    places = builder.add(repeated(builder, vector, lanes), builder.mul(columns, size))
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


def _for_all(builder, length, body):
    """`body(position, lanes)` for full vectors, one of half the length if it fits, and what is left, one by one."""
    with cgutils.for_range(builder, builder.udiv(length, INDEX(GATHERED))) as loop:
        body(builder.mul(loop.index, INDEX(GATHERED)), GATHERED)
    half = GATHERED // 2
    with builder.if_then(builder.icmp_unsigned("!=", builder.and_(length, INDEX(half)), INDEX(0))):
        body(builder.and_(length, INDEX(-GATHERED)), half)
    done = builder.and_(length, INDEX(-half))
    with cgutils.for_range(builder, builder.sub(length, done)) as loop:
        body(builder.add(done, loop.index), 1)


@intrinsic
def dot_gathered(typingctx, length, indices, like_i, x, like_x, vector, like_vector):
    """Sum of x[i] * vector[indices[i]] over `length` entries, in the precision of the vector, as float64."""
    sum_type = like_vector.dtype

    def codegen(context, builder, signature, args):
        length, indices, _, x, _, vector, _ = args
        element = context.get_value_type(sum_type)
        zero = ir.Constant(ir.VectorType(element, GATHERED), [0.0] * GATHERED)
        places = {
            GATHERED: cgutils.alloca_once_value(builder, zero),
            1: cgutils.alloca_once_value(builder, ir.Constant(element, 0.0)),
        }

        def add(position, lanes):
            values = load_lanes(context, builder, x, position, like_x.dtype, lanes, sum_type)
            pointers = _pointers(context, builder, indices, position, like_i, vector, sum_type, lanes)
            product = builder.fmul(values, _gather(builder, pointers, element, lanes), flags=FLAGS)
            if lanes == GATHERED // 2:
                product, lanes = total(product, lanes), 1
            builder.store(builder.fadd(builder.load(places[lanes]), product, flags=FLAGS), places[lanes])

        def total(value, lanes):
            while lanes > 1:
                value = halved(builder, value, lanes)
                lanes //= 2
            return value

        _for_all(builder, length, add)
        full = total(builder.load(places[GATHERED]), GATHERED)
        return builder.fadd(full, builder.load(places[1]), flags=FLAGS)

    arguments = (types.uintp, types.uint64, like_i, types.uint64, like_x, types.uint64, like_vector)
    return types.float64(*arguments), codegen


@intrinsic
def add_scattered(typingctx, length, factor, indices, like_i, x, like_x, vector, like_vector):
    """vector[indices[i]] += factor * x[i] over `length` entries, in the precision of the vector (float64)."""

    def codegen(context, builder, signature, args):
        length, factor, indices, _, x, _, vector, _ = args
        element = context.get_value_type(like_vector.dtype)

        def add(position, lanes):
            values = load_lanes(context, builder, x, position, like_x.dtype, lanes, like_vector.dtype)
            pointers = _pointers(context, builder, indices, position, like_i, vector, like_vector.dtype, lanes)
            product = builder.fmul(values, repeated(builder, factor, lanes), flags=FLAGS)
            changed = builder.fadd(_gather(builder, pointers, element, lanes), product, flags=FLAGS)
            _scatter(builder, changed, pointers, element, lanes)

        _for_all(builder, length, add)
        return context.get_dummy_value()

    arguments = (types.uintp, types.float64, types.uint64, like_i, types.uint64, like_x, types.uint64, like_vector)
    return types.void(*arguments), codegen
