"""Machine code from an object file into this process. Needs llvmlite alone; as a script it tries a file out."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

from llvmlite import binding

_engines: list[object] = []  # they own the code


def load(code: bytes, symbol: str) -> Callable[[bytes], int]:
    """The function of this name, which takes its packed arguments and returns 0; the GIL is free while it runs."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)(engine.get_function_address(symbol))


if __name__ == "__main__":  # LLVM ends the process if it finds a symbol of the code nowhere
    load(Path(sys.argv[1]).read_bytes(), sys.argv[2])
