"""The walk of a token: how many files lie between a layer and the kernel, as a debugger would show them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import resolvent as rv
from resolvent.ops.cpu import decode
from resolvent.ops.cpu.kernels import forward

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


def files_above(module: Any, name: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[str]:
    """Our files on the stack when the kernel is called, from the layer down, the kernel's own file last."""
    kernel, files = getattr(module, name), list[str]()

    def seen(*arguments: object) -> object:
        frame = sys._getframe(1)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCE):
                files.insert(0, path.relative_to(SOURCE).as_posix())
            frame = frame.f_back
        return kernel(*arguments)

    monkeypatch.setattr(module, name, seen)
    with one_thread():
        call()
    assert files[0] == "mixer.py"
    return [*dict.fromkeys(files), Path(kernel.py_func.__code__.co_filename).relative_to(SOURCE).as_posix()]


def test_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = rv.Mixer(32, 2, "exponential+cache"), torch.randn(1, 20, 32)
    files = files_above(forward, "forward", monkeypatch, lambda: layer(x))
    assert files[-1] == "ops/cpu/kernels/forward.py"
    assert len(files) <= MOST, files
    walk(files)


@torch.no_grad()
def test_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = rv.Mixer(32, 2, "exponential+cache"), torch.randn(1, 20, 32)
    _, cache = layer.extend(x)
    files = files_above(decode, "decode", monkeypatch, lambda: layer.extend(x[:, :1], cache))
    assert files[-1] == "ops/cpu/kernels/decode.py"
    assert len(files) <= MOST, files
    walk(files)


def walk(files: list[str]) -> None:
    """As ARCHITECTURE.md has it."""
    text = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text()
    assert " → ".join(f"`{file}`" for file in files) in text.replace("\n", " "), files
