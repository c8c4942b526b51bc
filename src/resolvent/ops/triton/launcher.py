"""Where every kernel is launched: one place, so that launches can be counted, compiled elsewhere and reasoned about.

`recording()` lists launches; without `run` nothing is computed, so that tensors may be on the device "meta" and Triton
need not be there. The ahead-of-time checks and the counts of launches all see what calls do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

Constants = dict[str, Any]  # numbers, flags and names of types, by the names of a kernel's arguments


@dataclass(frozen=True)
class Launched:
    """A launch: the kernel's module and name, its programs, arguments in order, and compile-time constants."""

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[object, ...]
    constants: Constants

    @property
    def programs(self) -> int:
        count = 1
        for size in self.grid:
            count *= size
        return count

    @property
    def named(self) -> Constants:
        """Arguments and constants by name."""
        return dict(zip(parameters(self.kernel), self.arguments, strict=False)) | self.constants


_RECORD: ContextVar[tuple[list[Launched], bool] | None] = ContextVar("record of launches", default=None)


@contextmanager
def recording(*, run: bool = False) -> Iterator[list[Launched]]:
    """A list that every launch inside is added to; kernels run only if asked to."""
    record: list[Launched] = []
    token = _RECORD.set((record, run))
    try:
        yield record
    finally:
        _RECORD.reset(token)


def launch(kernel: str, grid: tuple[int, ...], *arguments: object, **constants: object) -> None:
    """Launch a kernel of this package, such as "forward_pass.sweep"."""
    record = _RECORD.get()
    if record is not None:
        launches, run = record
        launches.append(Launched(kernel, grid, arguments, constants))
        if not run:
            return
    compute = {"COMPUTE": _element_type(constants["COMPUTE"])}
    find_kernel(kernel)[grid](*arguments, **(constants | compute))


@lru_cache(maxsize=32)
def find_kernel(name: str) -> Any:
    """The compiled-on-demand function of this name."""
    module, _, function = name.partition(".")
    return getattr(import_module(f"resolvent.ops.triton.{module}"), function)


def _element_type(name: object) -> object:
    import triton.language as tl

    element: object = getattr(tl, str(name))
    return element


@lru_cache(maxsize=32)
def parameters(kernel: str) -> tuple[str, ...]:
    """The names of a kernel's arguments, from its source: Triton need not be there."""
    module, _, function = kernel.partition(".")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    definition = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return tuple(argument.arg for argument in definition.args.args)
