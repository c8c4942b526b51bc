"""One kernel for one list of argument types, and the file that keeps its machine code."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from resolvent.disk_cache import kernel_folder
from resolvent.files import atomic_write

# Of Numba, on which the code depends.
_SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT", "NUMBA_BOUNDSCHECK")
_DIGEST = 32  # bytes in front of the code


class KernelVariant(NamedTuple):
    """`name` is a module of this package and a function in it; `types` are those of its arguments (`kernel.py`)."""

    name: str
    types: str

    @property
    def symbol(self) -> str:
        return "resolvent_" + hashlib.sha256(f"{self.name} {self.types}".encode()).hexdigest()[:16]

    @property
    def path(self) -> Path | None:
        """The file for this machine, these sources and these versions; None if no folder can be written."""
        folder = kernel_folder()
        return None if folder is None else folder / f"{self.name}-{self.symbol[10:]}-{_identity()}.o"

    def read(self) -> bytes | None:
        """The object file; None if there is none, or it is damaged."""
        path = self.path
        try:
            stored = b"" if path is None else path.read_bytes()
        except OSError:
            return None
        code = stored[_DIGEST:]
        return code if code and hashlib.sha256(code).digest() == stored[:_DIGEST] else None

    def write(self, code: bytes) -> None:
        if self.path is not None:
            with atomic_write(self.path) as temporary:
                temporary.write_bytes(hashlib.sha256(code).digest() + code)


def team_symbol(symbol: str) -> str:
    """The name of the function that a team of threads calls."""
    return f"{symbol}_team"


@cache
def _identity() -> str:
    """A digest of all that machine code depends on: sources, compiler, settings, processor."""
    from llvmlite import binding

    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    facts = [version("numba"), version("llvmlite"), binding.get_process_triple(), binding.get_host_cpu_name()]
    facts += [binding.get_host_cpu_features().flatten(), *(os.environ.get(name, "") for name in _SETTINGS)]
    digest.update("\n".join(facts).encode())
    return digest.hexdigest()[:16]
