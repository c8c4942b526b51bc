"""The walk of a token: how many files lie between a layer and the kernel, as a debugger would show them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import resolvent as rv
from resolvent.kernels import Kernel

SOURCE = Path(rv.__file__).parent
MOST = 8


@contextmanager
def one_thread() -> Iterator[None]:
    """In which the stack is one piece."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def files_above(kernel: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[str]:
    """Our files on the stack when the kernel is called, from the layer down, the kernel's own file last."""
    run, files = Kernel.run, list[str]()

    def seen(self: Kernel, *arguments: Any) -> None:
        frame = sys._getframe(1) if self.name == kernel else None
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCE):
                files.insert(0, path.relative_to(SOURCE).as_posix())
            frame = frame.f_back
        run(self, *arguments)

    monkeypatch.setattr(Kernel, "run", seen)
    with one_thread():
        call()
    assert files[0] == "mixer.py"
    return [*dict.fromkeys(files), f"kernels/{kernel.split('.')[0]}.py"]


def test_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = rv.Mixer(32, 2, "exponential+cache"), torch.randn(1, 20, 32)
    files = files_above("forward.forward", monkeypatch, lambda: layer(x))
    assert len(files) <= MOST, files
    walk(files)


@torch.no_grad()
def test_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = rv.Mixer(32, 2, "exponential+cache"), torch.randn(1, 20, 32)
    _, cache = layer.extend(x)
    files = files_above("decode.decode", monkeypatch, lambda: layer.extend(x[:, :1], cache))
    assert len(files) <= MOST, files
    walk(files)


def walk(files: list[str]) -> None:
    """As ARCHITECTURE.md has it."""
    text = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text()
    assert " → ".join(f"`{file}`" for file in files) in text.replace("\n", " "), files
