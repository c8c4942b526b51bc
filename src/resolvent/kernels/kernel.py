"""A compiled function by its name: its machine code is loaded when it is first called, without importing Numba.

Arguments are NumPy arrays that are contiguous, integers, booleans, NumPy's floats, and tuples, of which only the length
counts. Their types choose the variant, as in Numba, and their values go to the code as 8 bytes each: of an array the
address and the shape. Where there is no machine code (no folder, a system where it does not load), Numba's own
dispatcher is called instead.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from resolvent.kernels import process
from resolvent.kernels.variant import KernelVariant

Run = Callable[[Sequence[object], Sequence[object]], None]  # of arguments, and of their values

_LETTERS = {bool: "b", np.bool_: "b", int: "i", np.int64: "i", np.float32: "f", np.float64: "d"}
_PACKED = {"b": "q", "i": "q", "f": "f4x", "d": "d"}
_recorded: ContextVar[list[KernelVariant] | None] = ContextVar("recorded", default=None)


class Memory(NamedTuple):
    """A contiguous array as its type in NumPy's letters, its address and its length: quicker to make than an array.

    Whoever makes it keeps what lies there alive.
    """

    kind: str
    address: int
    length: int

    def array(self) -> npt.NDArray[np.generic]:
        dtype = np.dtype(self.kind)
        memory = (ctypes.c_byte * (self.length * dtype.itemsize)).from_address(self.address)
        array: npt.NDArray[np.generic] = np.ctypeslib.as_array(memory).view(dtype)
        return array


class Kernel:
    """The function of a module of this package, such as "forward.forward"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._variants: dict[tuple[str, ...], Run] = {}
        self._functions: dict[KernelVariant, Callable[[bytes], int] | None] = {}

    def __call__(self, *arguments: object) -> None:
        self.run(arguments, *_unpack(arguments))

    def bind(self, *arguments: object) -> Callable[..., None]:
        """The kernel with these first arguments, which are looked at once for any number of calls."""
        types, values = _unpack(arguments)

        def call(*rest: object) -> None:
            more_types, more_values = _unpack(rest)
            self.run((*arguments, *rest), [*types, *more_types], [*values, *more_values])

        return call

    def compiled(self, *arguments: object) -> tuple[int, bytes] | None:
        """For others to call: the address of its machine code, and its one argument; None if there is no such code."""
        types, values = _unpack(arguments)
        variant = KernelVariant(self.name, ",".join(types))
        if variant not in self._functions:
            self._functions[variant] = process.obtain(variant)
        function = self._functions[variant]
        if function is None:
            return None
        return ctypes.cast(function, ctypes.c_void_p).value or 0, _packer(variant)(*values)  # type: ignore[arg-type]

    def run(self, arguments: Sequence[object], types: list[str], values: list[object]) -> None:
        recorded = _recorded.get()
        if recorded is not None:
            recorded.append(KernelVariant(self.name, ",".join(types)))
            return
        key = tuple(types)
        run = self._variants.get(key)
        if run is None:
            run = self._variants[key] = self._prepare(KernelVariant(self.name, ",".join(types)))
        run(arguments, values)

    def _prepare(self, variant: KernelVariant) -> Run:
        function = process.obtain(variant)
        if function is None:
            return self._numba
        pack = _packer(variant)

        def run(_: Sequence[object], values: Sequence[object]) -> None:
            if function(pack(*values)):
                raise RuntimeError(f"kernel {self.name} failed: expected status 0.")

        return run

    def _numba(self, arguments: Sequence[object], _: Sequence[object]) -> None:
        module, _, function = self.name.partition(".")
        arrays = (argument.array() if isinstance(argument, Memory) else argument for argument in arguments)
        getattr(import_module(f"resolvent.kernels.{module}"), function)(*arrays)


@contextmanager
def variants_of() -> Iterator[list[KernelVariant]]:
    """Instead of running kernels, list those that would run in this thread."""
    wanted: list[KernelVariant] = []
    token = _recorded.set(wanted)
    try:
        yield wanted
    finally:
        _recorded.reset(token)


def _unpack(arguments: Sequence[object]) -> tuple[list[str], list[object]]:
    types, values = list[str](), list[object]()
    for argument in arguments:
        kind = type(argument)
        if kind is np.ndarray:
            memory = argument.__array_interface__  # type: ignore[attr-defined]
            if memory["strides"] is not None:
                raise ValueError(f"expected a contiguous array, got strides {memory['strides']}.")
            shape = memory["shape"]
            types.append(memory["typestr"] if len(shape) == 1 else f"{memory['typestr']}:{len(shape)}")
            values += (memory["data"][0], *shape)
        elif kind is Memory:
            types.append(argument.kind)  # type: ignore[attr-defined]
            values += (argument.address, argument.length)  # type: ignore[attr-defined]
        elif kind is tuple:
            types.append(f"t{len(argument)}")  # type: ignore[arg-type]
        elif kind not in _LETTERS:
            raise TypeError(f"kernels take arrays, integers, booleans, NumPy's floats and tuples, got {kind.__name__}.")
        else:
            types.append(_LETTERS[kind])
            values.append(argument)
    return types, values


@cache
def _packer(variant: KernelVariant) -> Callable[..., bytes]:
    return struct.Struct("=" + "".join(map(_packed, variant.types.split(",")))).pack


def _packed(letters: str) -> str:
    if letters[0] == "t":
        return ""
    return _PACKED.get(letters) or "q" * (1 + int((letters + ":1").split(":")[1]))
