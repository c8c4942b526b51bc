"""SIMD vectors as values in Numba kernels, so that a row stays in registers while many others are added to it.

Left to itself, LLVM vectorises a loop over a row's elements, but loads and stores the sums again for every source. Here
`load` gives a whole span of a row as one value of a vector type, which LLVM splits into whatever registers the machine
has: measured, a read takes a third of the time (docs/log.md). How long a span is comes as a tuple whose length counts
units of `UNIT` elements, since a tuple's length is part of its type: 64 elements are `(0,) * 4`.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic, models, register_model

from resolvent.kernels.sizes import UNIT


class Vector(types.Type):
    def __init__(self, dtype, lanes):
        self.dtype, self.lanes = dtype, lanes
        super().__init__(name=f"Vector({dtype}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        element = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, kind, ir.VectorType(element, kind.lanes))


@intrinsic
def load(typing, array, at, size):
    """array[at : at + size]; of 16-bit integers, which are bfloat16, as float32."""
    halves = array.dtype == types.int16

    def emit(context, builder, signature, arguments):
        kind = context.get_value_type(signature.return_type)
        stored = ir.VectorType(ir.IntType(16), kind.count) if halves else kind
        pointer = _pointer(context, builder, signature, arguments, stored)
        vector = builder.load(pointer, align=array.dtype.bitwidth // 8)
        if not halves:
            return vector
        integers = ir.VectorType(ir.IntType(32), kind.count)  # a float32 begins with the bits of its bfloat16
        return builder.bitcast(builder.shl(builder.zext(vector, integers), _constant(integers, 16)), kind)

    return Vector(types.float32 if halves else array.dtype, size.count * UNIT)(array, at, size), emit


@intrinsic
def store(typing, array, at, vector):
    """array[at : at + len(vector)] = vector"""

    def emit(context, builder, signature, arguments):
        kind = context.get_value_type(vector)
        pointer = _pointer(context, builder, signature, arguments, kind)
        builder.store(arguments[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, at, vector), emit


@intrinsic
def prefetch(typing, array, at, size):
    """Ask for array[at : at + size] before it is needed."""

    def emit(context, builder, signature, arguments):
        width = array.dtype.bitwidth // 8
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0")
        for line in range(0, size.count * UNIT * width, 64):
            offset = builder.add(arguments[1], ir.Constant(arguments[1].type, line // width))
            address = builder.bitcast(builder.gep(base, [offset]), byte)
            builder.call(ask, [address, *(ir.Constant(number, value) for value in (0, 2, 1))])  # read, into L2, data
        return context.get_dummy_value()

    return types.void(array, at, size), emit


def _pointer(context, builder, signature, arguments, kind):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    _check_bounds(builder, array, arguments[1], kind.count)
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), kind.as_pointer())


def _check_bounds(builder, array, at, count):
    """With NUMBA_BOUNDSCHECK=1, as Numba does for single elements: end the process at the first access outside.

    What stands in `at` is unsigned, so that below zero is far beyond the end.
    """
    if not config.BOUNDSCHECK:
        return
    last = builder.add(at, ir.Constant(at.type, count - 1))
    first_outside, last_outside = (builder.icmp_unsigned(">=", index, array.nitems) for index in (at, last))
    with builder.if_then(builder.or_(first_outside, last_outside), likely=False):
        trap = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, trap, "llvm.trap"), [])


@intrinsic
def splat(typing, number, size):
    """A vector of one number."""

    def emit(context, builder, signature, arguments):
        return _splat(builder, context.get_value_type(signature.return_type), arguments[0])

    return Vector(number, size.count * UNIT)(number, size), emit


@intrinsic
def fma(typing, number, vector, start):
    """Of a number and two vectors: number · vector + start."""

    def emit(context, builder, signature, arguments):
        kind = context.get_value_type(vector)
        factor = _splat(builder, kind, arguments[0])
        return _call(builder, kind, "llvm.fmuladd", [factor, *arguments[1:]])

    return vector(number, vector, start), emit


@intrinsic
def fma_vectors(typing, left, right, start):
    """Of three vectors, element by element: left · right + start."""

    def emit(context, builder, signature, arguments):
        return _call(builder, context.get_value_type(left), "llvm.fmuladd", list(arguments))

    return left(left, right, start), emit


@intrinsic
def times(typing, number, vector):
    """Of a number and a vector: number · vector."""

    def emit(context, builder, signature, arguments):
        return builder.fmul(_splat(builder, context.get_value_type(vector), arguments[0]), arguments[1])

    return vector(number, vector), emit


@intrinsic
def product(typing, left, right):
    """Element by element."""

    def emit(context, builder, signature, arguments):
        return builder.fmul(*arguments)

    return left(left, right), emit


@intrinsic
def plus(typing, left, right):
    """Element by element."""

    def emit(context, builder, signature, arguments):
        return builder.fadd(*arguments)

    return left(left, right), emit


@intrinsic
def inverse(typing, vector):
    """One over every element."""

    def emit(context, builder, signature, arguments):
        return builder.fdiv(_constant(context.get_value_type(vector), 1.0), arguments[0])

    return vector(vector), emit


@intrinsic
def larger(typing, left, right):
    """Element by element; a NaN may or may not show."""

    def emit(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return left(left, right), emit


@intrinsic
def less(typing, vector, other):
    """Every element less a number, or less that of another vector."""

    def emit(context, builder, signature, arguments):
        return builder.fsub(arguments[0], _as_vector(context, builder, vector, other, arguments[1]))

    return vector(vector, other), emit


@intrinsic
def dot(typing, left, right):
    """The scalar product."""

    def emit(context, builder, signature, arguments):
        return _reduce(builder, "llvm.vector.reduce.fadd", _unit_sums(builder, *arguments), -0.0)

    return left.dtype(left, right), emit


def _unit_sums(builder, left, right):
    """Products, unit by unit into one unit of sums: half the operations of multiplying all and then adding up."""
    units = left.type.count // UNIT
    left_units, right_units = ([_slice(builder, v, unit, UNIT) for unit in range(units)] for v in (left, right))
    sums = builder.fmul(left_units[0], right_units[0])
    for pair in zip(left_units[1:], right_units[1:], strict=True):
        sums = _call(builder, sums.type, "llvm.fmuladd", [*pair, sums])
    return sums


@intrinsic
def dots(typing, left, first, second, third, fourth):
    """The scalar products of a vector with four others, as a vector of four: added up together, in half the steps."""

    def emit(context, builder, signature, arguments):
        a, b, c, d = (_folded(builder, arguments[0], right) for right in arguments[1:])
        ab = builder.fadd(_shuffle(builder, a, b, _EVEN_PAIRS), _shuffle(builder, a, b, _ODD_PAIRS))
        cd = builder.fadd(_shuffle(builder, c, d, _EVEN_PAIRS), _shuffle(builder, c, d, _ODD_PAIRS))
        sums = builder.fadd(_shuffle(builder, ab, cd, _EVEN_HALVES), _shuffle(builder, ab, cd, _ODD_HALVES))
        return builder.fadd(*(_slice(builder, sums, half, 4) for half in (0, 1)))

    return Vector(left.dtype, 4)(left, first, second, third, fourth), emit


# Of two vectors of eight, whose four elements each are to be added up in both halves alike: as AVX shuffles them.
_EVEN_PAIRS, _ODD_PAIRS = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
_EVEN_HALVES, _ODD_HALVES = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)


def _folded(builder, left, right):
    """Eight sums, whose total is the scalar product."""
    sums = _unit_sums(builder, left, right)
    return builder.fadd(*(_slice(builder, sums, half, UNIT // 2) for half in (0, 1)))


@intrinsic
def store_apart(typing, array, at, step, vector):
    """array[at + step · k] = vector[k]"""

    def emit(context, builder, signature, arguments):
        for lane, address in enumerate(_addresses(context, builder, signature, arguments, vector)):
            builder.store(builder.extract_element(arguments[3], ir.Constant(ir.IntType(32), lane)), address)
        return context.get_dummy_value()

    return types.void(array, at, step, vector), emit


@intrinsic
def add_apart(typing, array, at, step, vector):
    """array[at + step · k] += vector[k]"""

    def emit(context, builder, signature, arguments):
        for lane, address in enumerate(_addresses(context, builder, signature, arguments, vector)):
            element = builder.extract_element(arguments[3], ir.Constant(ir.IntType(32), lane))
            builder.store(builder.fadd(builder.load(address), element), address)
        return context.get_dummy_value()

    return types.void(array, at, step, vector), emit


def _addresses(context, builder, signature, arguments, vector):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    at = arguments[1]
    for lane in range(vector.lanes):
        _check_bounds(builder, array, at, 1)
        yield builder.gep(array.data, [at])
        if lane + 1 < vector.lanes:
            at = builder.add(at, arguments[2])


@intrinsic
def total(typing, vector):
    """The sum of the elements."""

    def emit(context, builder, signature, arguments):
        return _reduce(builder, "llvm.vector.reduce.fadd", arguments[0], -0.0)

    return vector.dtype(vector), emit


@intrinsic
def highest(typing, vector):
    """The largest element; a NaN may or may not show."""

    def emit(context, builder, signature, arguments):
        rest = arguments[0]  # halved by hand: LLVM's own reduction minds NaN, one element after another
        while rest.type.count > 1:
            low, high = (_slice(builder, rest, half, rest.type.count // 2) for half in (0, 1))
            rest = builder.select(builder.fcmp_ordered(">", low, high), low, high)
        return builder.extract_element(rest, ir.Constant(ir.IntType(32), 0))

    return vector.dtype(vector), emit


@intrinsic
def exp_less(typing, vector, less):
    """exp(vector - less) for `less` ≥ vector up to rounding; relative error 2e-7 in float32. NaN stays NaN.

    `less` is a number or a vector.
    """

    def emit(context, builder, signature, arguments):
        kind = context.get_value_type(vector)
        difference = builder.fsub(arguments[0], _as_vector(context, builder, vector, less, arguments[1]))
        if vector.dtype != types.float32:
            return _call(builder, kind, "llvm.exp", [difference])
        # 2^z = 2^floor(z) · 2^frac(z): the exponent's bits, and a polynomial.
        z = builder.fmul(difference, _constant(kind, 1.4426950408889634))
        z = builder.select(builder.fcmp_ordered("<", z, _constant(kind, -126.0)), _constant(kind, -126.0), z)
        floor = _call(builder, kind, "llvm.floor", [z])
        fraction = builder.fsub(z, floor)
        power = _constant(kind, 1.8775767e-3)
        for coefficient in (8.9893397e-3, 5.5826318e-2, 2.4015361e-1, 6.9315308e-1, 9.9999994e-1):
            power = _call(builder, kind, "llvm.fmuladd", [power, fraction, _constant(kind, coefficient)])
        integers = ir.VectorType(ir.IntType(32), kind.count)
        # Adding 1.5 · 2^23 leaves the integer in the low bits (a conversion would mind NaN, element by element).
        shifted = builder.bitcast(builder.fadd(floor, _constant(kind, 12582912.0)), integers)
        exponent = builder.shl(shifted, _constant(integers, 23))
        result = builder.bitcast(builder.add(builder.bitcast(power, integers), exponent), kind)
        return builder.select(builder.fcmp_unordered("uno", z, z), z, result)

    return vector(vector, less), emit


def _splat(builder, kind, number):
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None))


def _as_vector(context, builder, vector, other, value):
    """A vector, or a number in all places of one."""
    return value if isinstance(other, Vector) else _splat(builder, context.get_value_type(vector), value)


def _constant(kind, value):
    return ir.Constant(kind, [value] * kind.count)


def _slice(builder, vector, number, lanes):
    return _shuffle(builder, vector, vector, range(number * lanes, (number + 1) * lanes))


def _shuffle(builder, left, right, lanes):
    """The elements with these numbers among those of both."""
    indices = [ir.Constant(ir.IntType(32), lane) for lane in lanes]
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(ir.IntType(32), len(indices)), indices))


def _call(builder, kind, name, arguments):
    """An LLVM intrinsic on vectors of one kind."""
    name += f".v{kind.count}{_FLOAT[str(kind.element)]}"
    function = ir.FunctionType(kind, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


def _reduce(builder, name, vector, *start):
    element = vector.type.element
    arguments = [ir.Constant(element, value) for value in start] + [vector]
    function = ir.FunctionType(element, [argument.type for argument in arguments])
    name = f"{name}.v{vector.type.count}{_FLOAT[str(element)]}"
    # Any order will do: pairwise, in registers.
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function, name), arguments, fastmath=("reassoc",)
    )


_FLOAT = {"float": "f32", "double": "f64"}
