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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from resolvent.kernels import process
from resolvent.kernels.layouts import TEAM_HEADER
from resolvent.kernels.variant import KernelVariant

if TYPE_CHECKING:
    from resolvent.kernels.loader import MachineCode

_LETTERS = {bool: "b", np.bool_: "b", int: "i", np.int64: "i", np.float32: "f", np.float64: "d"}
_PACKED = {"b": "q", "i": "q", "f": "f4x", "d": "d"}
_TEAM = struct.Struct(f"={len(TEAM_HEADER)}q")
_recorded: ContextVar[list[KernelVariant] | None] = ContextVar("recorded", default=None)


class Memory(NamedTuple):
    """A contiguous array as its type in NumPy's letters, its address and its length: quicker to make than an array.

    Whoever makes it keeps what lies there alive, or hands over its `owner`.
    """

    kind: str
    address: int
    length: int
    owner: object = None

    def array(self) -> npt.NDArray[np.generic]:
        dtype = np.dtype(self.kind)
        memory = (ctypes.c_byte * (self.length * dtype.itemsize)).from_address(self.address)
        array: npt.NDArray[np.generic] = np.ctypeslib.as_array(memory).view(dtype)
        return array


class Kernel:
    """The function of a module of this package, such as "forward.forward"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._codes: dict[tuple[str, ...], MachineCode | None] = {}

    def __call__(self, *arguments: object) -> None:
        self.run(arguments, *_unpack(arguments))

    def bind(self, *arguments: object) -> BoundKernel:
        """The kernel with these first arguments, which are looked at once for any number of calls."""
        return BoundKernel(self, arguments, *_unpack(arguments))

    def compiled(self, *arguments: object) -> tuple[int, bytes] | None:
        """For others to call: the address of its machine code, and its one argument; None if there is no such code."""
        types, values = _unpack(arguments)
        code = self.code(types)
        return None if code is None else (code.address, _packer(tuple(types))(*values))

    def run(self, arguments: Sequence[object], types: list[str], values: list[object]) -> None:
        if self.recorded(types):
            return
        code = self.code(types)
        if code is None:
            self._numba(arguments)
        elif code.call(_packer(tuple(types))(*values)):
            raise self.failure()

    def recorded(self, types: Sequence[str]) -> bool:
        """Whether calls are listed instead (`variants_of`)."""
        recorded = _recorded.get()
        if recorded is not None:
            recorded.append(self._variant(types))
        return recorded is not None

    def code(self, types: Sequence[str]) -> MachineCode | None:
        """Of the variant for these types; None if there is none, and Numba's own dispatcher is to be called."""
        key = tuple(types)
        if key not in self._codes:
            self._codes[key] = process.obtain(self._variant(types))
        return self._codes[key]

    def failure(self) -> RuntimeError:
        return RuntimeError(f"kernel {self.name} failed: expected status 0.")

    def _variant(self, types: Sequence[str]) -> KernelVariant:
        return KernelVariant(self.name, ",".join(types))

    def _numba(self, arguments: Sequence[object]) -> None:
        module, _, function = self.name.partition(".")
        arrays = (argument.array() if isinstance(argument, Memory) else argument for argument in arguments)
        getattr(import_module(f"resolvent.kernels.{module}"), function)(*arrays)


class BoundKernel:
    """A kernel with its first arguments. Scratch follows, and the jobs: the first, and the one after the last."""

    def __init__(
        self, kernel: Kernel, arguments: Sequence[object], types: Sequence[str], values: Sequence[object]
    ) -> None:
        self.kernel, self._arguments, self._types, self._values = kernel, arguments, types, values

    def __call__(self, *rest: object) -> None:
        types, values = _unpack(rest)
        self.kernel.run((*self._arguments, *rest), [*self._types, *types], [*self._values, *values])

    def for_team(
        self, scratch: Sequence[Sequence[object]], ranges: bytes, thread_number: int
    ) -> tuple[int, ctypes.Array[ctypes.c_char]] | None:
        """The address of what every thread of a team is to call, and its argument; None if there is no such code.

        scratch        of each thread that may take part
        ranges         of jobs, pairs of 8-byte integers, which threads take in turns
        thread_number  the address of a function that says which thread calls it
        """
        unpacked = [_unpack((*own, 0, 0)) for own in scratch]
        types = [*self._types, *unpacked[0][0]]
        code = self.kernel.code(types)
        if code is None:
            return None
        pack = _packer(tuple(types))
        blocks = [pack(*self._values, *values) for _, values in unpacked]
        header = {
            "thread_number": thread_number, "next": 0, "ranges": len(ranges) // 16, "status": 0,
            "block_slots": len(blocks[0]) // 8, "blocks": len(blocks),
        }  # fmt: skip
        data = _TEAM.pack(*(header[name] for name in TEAM_HEADER)) + ranges + b"".join(blocks)
        return code.team, ctypes.create_string_buffer(data, len(data))

    def check(self, data: ctypes.Array[ctypes.c_char]) -> None:
        """After a team has run: that no call has failed."""
        if _TEAM.unpack_from(data)[TEAM_HEADER.index("status")]:
            raise self.kernel.failure()


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
def _packer(types: tuple[str, ...]) -> Callable[..., bytes]:
    return struct.Struct("=" + "".join(map(_packed, types))).pack


def _packed(letters: str) -> str:
    if letters[0] == "t":
        return ""
    return _PACKED.get(letters) or "q" * (1 + int((letters + ":1").split(":")[1]))
