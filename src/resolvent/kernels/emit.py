"""Numba's source into object files. Only `compiler.py` imports this, in a process of its own.

Numba would also make wrappers for Python, and optimize and translate every function that is called by another before
it does so with the kernel, twice; here none of it is needed, and compiling takes half as long. So this changes Numba's
own settings.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
from llvmlite import ir
from numba.core import compiler, dispatcher, types
from numba.core.codegen import AOTCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

from resolvent.kernels.layouts import TEAM_HEADER
from resolvent.kernels.variant import KernelVariant, team_symbol

_SCALARS = {"b": types.boolean, "i": types.int64, "f": types.float32, "d": types.float64}


class _ObjectLibrary(AOTCodeLibrary):
    """A function, which is optimized where all that it calls is at hand: in `compile_object`."""

    def _optimize_final_module(self) -> None:
        pass


class _ObjectCodegen(JITCPUCodegen):
    """Code for this processor that is not run here."""

    _library_class = _ObjectLibrary

    def _add_module(self, _) -> None:
        pass


def _without_wrappers(_, flags):
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    return flags


cpu_target.target_context._internal_codegen = _ObjectCodegen("resolvent")
# Numba wants a builtin function for each that it compiles, as a key: one that is never called, and no other's.
cpu_target.target_context.get_executable = lambda *_: [].append
dispatcher._FunctionCompiler._customize_flags = _without_wrappers


def compile_object(variant: KernelVariant) -> bytes:
    """The kernel, a function `variant.symbol` that calls it with packed arguments, and one for a team (`kernel.py`)."""
    module, _, function = variant.name.partition(".")
    source = getattr(import_module(f"resolvent.kernels.{module}"), function)
    flags = compiler.Flags()
    source.targetdescr.options.parse_as_flags(flags, source.targetoptions)
    typing, context = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    context.refresh()
    arguments = tuple(map(_type, variant.types.split(",")))
    with global_compiler_lock:
        compiled = compiler.compile_extra(
            typing, context, source.py_func, arguments, types.void, _without_wrappers(None, flags), {}
        )
        library = context.codegen().create_library(variant.symbol)
        library.add_ir_module(_entry(context, compiled.fndesc, variant.symbol))
        library._final_module.link_in(compiled.library._get_module_for_linking(), preserve=True)
        passes, builder = context.codegen()._module_pass_manager()
        passes.run(library._final_module, builder)
        return context.codegen()._tm.emit_object(library._final_module)


def _type(letters: str):
    if letters in _SCALARS:
        return _SCALARS[letters]
    if letters[0] == "t":
        return types.UniTuple(types.int64, int(letters[1:]))
    dtype, _, dimensions = letters.partition(":")
    return types.Array(from_dtype(np.dtype(dtype)), int(dimensions or 1), "C")


def _entry(context, kernel, symbol: str):
    module, slot = context.create_module(symbol), ir.IntType(64)
    callee = ir.Function(
        module, context.call_conv.get_function_type(kernel.restype, kernel.argtypes), kernel.llvm_func_name
    )
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [slot.as_pointer()]), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    slots = (builder.gep(entry.args[0], [ir.Constant(slot, number)]) for number in range(1 << 16))
    values = [_value(context, builder, kind, slots) for kind in kernel.argtypes]
    status, _ = context.call_conv.call_function(builder, callee, kernel.restype, kernel.argtypes, values)
    builder.ret(status.code)
    _team_entry(module, entry)
    return module


def _team_entry(module, entry) -> None:
    """A function for every thread of a team: while there are ranges of jobs, take one and call the kernel on it.

    Its argument is `TEAM_HEADER`, and what follows it (`layouts.py`). Nothing here needs Python, so no thread waits for
    another but at the end, where the team meets.
    """
    slot, i32 = ir.IntType(64), ir.IntType(32)
    team = ir.Function(module, ir.FunctionType(ir.VoidType(), [slot.as_pointer()]), team_symbol(entry.name))
    (call,) = team.args
    start, take, work, end = (team.append_basic_block(name) for name in ("start", "take", "work", "end"))
    builder = ir.IRBuilder(start)

    def at(index):
        return builder.gep(call, [index if isinstance(index, ir.Value) else ir.Constant(slot, index)])

    def field(name):
        return at(TEAM_HEADER.index(name))

    get_number = builder.inttoptr(builder.load(field("thread_number")), ir.FunctionType(i32, []).as_pointer())
    number = builder.zext(builder.call(get_number, []), slot)
    size, count = builder.load(field("block_slots")), builder.load(field("ranges"))
    ranges = ir.Constant(slot, len(TEAM_HEADER))
    first_block = builder.add(ranges, builder.shl(count, ir.Constant(slot, 1)))
    block = at(builder.add(first_block, builder.mul(number, size)))
    jobs = [builder.gep(block, [builder.sub(size, ir.Constant(slot, back))]) for back in (2, 1)]
    has_block = builder.icmp_unsigned("<", number, builder.load(field("blocks")))
    builder.cbranch(has_block, take, end)
    builder.position_at_end(take)
    taken = builder.atomic_rmw("add", field("next"), ir.Constant(slot, 1), "monotonic")
    builder.cbranch(builder.icmp_unsigned("<", taken, count), work, end)
    builder.position_at_end(work)
    position = builder.add(ranges, builder.shl(taken, ir.Constant(slot, 1)))
    for offset, job in enumerate(jobs):
        builder.store(builder.load(at(builder.add(position, ir.Constant(slot, offset)))), job)
    status = builder.zext(builder.call(entry, [block]), slot)
    builder.atomic_rmw("or", field("status"), status, "monotonic")
    builder.branch(take)
    builder.position_at_end(end)
    builder.ret_void()


def _value(context, builder, kind, slots):
    if isinstance(kind, types.Array):
        return _array(context, builder, kind, slots)
    if isinstance(kind, types.UniTuple):
        return context.get_constant_null(kind)
    if kind == types.boolean:
        return builder.trunc(builder.load(next(slots)), ir.IntType(1))
    return builder.load(builder.bitcast(next(slots), context.get_value_type(kind).as_pointer()))


def _array(context, builder, kind, slots):
    element = context.get_data_type(kind.dtype)
    data = builder.load(builder.bitcast(next(slots), element.as_pointer().as_pointer()))
    shape = [builder.load(next(slots)) for _ in range(kind.ndim)]
    size = context.get_constant(types.intp, context.get_abi_sizeof(element))
    strides = [size]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = context.make_array(kind)(context, builder)
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
    return array._getvalue()
