"""Sparse rows, eight values per instruction, spelled out.

LLVM leaves `vector[indices[i]]` scalar. With gathers a row is a fifth of the instructions, so that the processor sees
further ahead and waits for several cache lines of the vector at once. Processors without gathers get single loads.

Columns of a row have to be different (`CsrRows`): a scatter that meets one twice would lose one of the two sums.

The functions write code into a kernel; `tables` makes them known to numba. Vectors and indices are the address (uint64)
of the first value and the numba type of the values.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from chicle_elastic.solvers.kernels.vectors import FLAGS, INDEX, INT32, converted, halved, load_lanes, repeated

GATHERED = 8  # values per gather: as many float64 as the longest vectors hold


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


def dot_gathered(context, builder, length, indices, x, vector):
    """Sum of x[i] * vector[indices[i]] over `length` entries (uintp), in the precision of the vector, as float64."""
    sum_type = vector[1]
    element = context.get_value_type(sum_type)
    zero = ir.Constant(ir.VectorType(element, GATHERED), [0.0] * GATHERED)
    places = {
        GATHERED: cgutils.alloca_once_value(builder, zero),
        1: cgutils.alloca_once_value(builder, ir.Constant(element, 0.0)),
    }

    def add(position, lanes):
        values = load_lanes(context, builder, x[0], position, x[1], lanes, sum_type)
        pointers = _pointers(context, builder, indices, position, vector, lanes)
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
    value = builder.fadd(full, builder.load(places[1]), flags=FLAGS)
    return converted(context, builder, value, sum_type, types.float64, 1)


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

    _for_all(builder, length, add)
