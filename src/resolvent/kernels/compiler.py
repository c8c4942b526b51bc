"""The process that compiles kernels: `python -m resolvent.kernels.compiler NAME TYPES …`."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resolvent.kernels.variant import KernelVariant, team_symbol


def main(words: list[str]) -> None:
    """Compile what nobody else has compiled."""
    gc.disable()  # which looks through millions of Numba's objects in vain, for a sixth of the time
    for name, types in zip(words[::2], words[1::2], strict=True):
        variant = KernelVariant(name, types)
        if variant.path is None:
            sys.exit("no folder can be written")
        with _locked(variant.path):
            if variant.read() is None:
                sys.modules.setdefault("scipy", None)  # type: ignore[arg-type]  # Numba would import it, in vain
                from resolvent.kernels.emit import compile_object  # and Numba, which those who only wait do not need

                code = compile_object(variant)
                _check(code, variant.symbol)
                variant.write(code)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for others who write this file, on systems with file locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock")
    with lock.open("wb") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):  # Windows; some network disks. Then several may write, one after another
            pass
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _check(code: bytes, symbol: str) -> None:
    """That a process without Numba can load it: what cannot be loaded would end the process of a user."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        path.write_bytes(code)
        script = str(Path(__file__).with_name("loader.py"))
        subprocess.run([sys.executable, "-P", script, str(path), symbol, team_symbol(symbol)], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
