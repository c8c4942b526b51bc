"""The walk of a token: how many files lie between a layer and the kernel, as a debugger would show them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import resolvent as rv
from resolvent.kernels import Kernel

SOURCE = Path(rv.__file__).parent
MOST = 8


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

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the stack is one piece
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Kernel, "run", seen)
            call()
    finally:
        torch.set_num_threads(threads)
    assert files[0] == "mixer.py"
    return [*dict.fromkeys(files), f"kernels/{kernel.split('.')[0]}.py"]


def test_walks_are_short_and_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer's forward pass, and one token from its cache."""
    text = " ".join((SOURCE.parents[1] / "ARCHITECTURE.md").read_text().split())
    layer, x = rv.Mixer(32, 2, "exponential+cache"), torch.randn(1, 20, 32)
    with torch.no_grad():
        _, cache = layer.extend(x)
    for kernel, call in (
        ("forward.forward", lambda: layer(x)),
        ("decode.decode", torch.no_grad()(lambda: layer.extend(x[:, :1], cache))),
    ):
        files = files_above(kernel, monkeypatch, call)
        assert len(files) <= MOST, files
        assert " → ".join(f"`{file}`" for file in files) in text, files
