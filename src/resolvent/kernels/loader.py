"""Machine code from an object file into this process. Needs llvmlite alone; as a script it tries a file out."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from llvmlite import binding

_engines: list[object] = []  # they own the code


class MachineCode(NamedTuple):
    """`call` takes packed arguments and returns 0, with the GIL free while it runs; addresses are for other code.

    team  of the function that every thread of a team is to call
    """

    call: Callable[[bytes], int]
    address: int
    team: int


def load(code: bytes, symbol: str, team_symbol: str) -> MachineCode:
    """The kernel of this name, by its two functions."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    address = engine.get_function_address(symbol)
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)(address)
    return MachineCode(call, address, engine.get_function_address(team_symbol))


if __name__ == "__main__":  # LLVM ends the process if it finds a symbol of the code nowhere
    load(Path(sys.argv[1]).read_bytes(), *sys.argv[2:])
