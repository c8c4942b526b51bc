"""Launch parameters: rows of a block, channels of a sweep's program, warps. The same for every length and pattern.

`TUNED` holds what was chosen for an architecture. No GPU has timed these: blocks are the largest that compile without
spilling registers (tests/gpu/resources.json). `resolvent bench gpu --tune --out FILE` measures others, and the variable
RESOLVENT_GPU_SIZES names a file from which they are taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import torch

from resolvent.untrusted import read

LARGEST_DIM = 256
_REGISTERS = 255  # the most of a thread; two programs of four warps fill a multiprocessor with them


@dataclass(frozen=True)
class Sizes:
    """Rows of a block (16, 32 or 64), channels that one program of a sweep takes, and warps of a program.

    Gradients of scores hold more at once: `slopes` are the rows of their blocks. `chunk` are the rows that a step takes
    where few heads leave programs idle and few rows are alive, a power of two of blocks; 0 for steps of single blocks.
    """

    block: int
    channels: int
    warps: int = 4
    slopes: int = 16
    chunk: int = 128


# By architecture, and by the wider of D and D', padded to a power of two. "default" serves all that are not listed.
TUNED: dict[str, dict[int, Sizes]] = {
    "default": {
        16: Sizes(32, 16),
        32: Sizes(16, 32),
        64: Sizes(32, 32),
        128: Sizes(16, 32),
        256: Sizes(16, 32, 8),
    },
}
_OVERRIDE: ContextVar[Sizes | None] = ContextVar("sizes", default=None)


@contextmanager
def using(sizes: Sizes) -> Iterator[None]:
    """Other sizes than the table has: for tests and tuning."""
    token = _OVERRIDE.set(sizes)
    try:
        yield
    finally:
        _OVERRIDE.reset(token)


def sizes_for(device: torch.device, d: int, key_dim: int) -> Sizes:
    wide, name = padded(max(d, key_dim)), architecture(device)
    chosen = _OVERRIDE.get() or _measured(os.environ.get("RESOLVENT_GPU_SIZES", "")).get((name, wide))
    chosen = chosen or TUNED.get(name, TUNED["default"])[wide]
    return replace(chosen, channels=min(chosen.channels, padded(d)))


@lru_cache(maxsize=4)
def _measured(path: str) -> dict[tuple[str, int], Sizes]:
    """What a report of `bench gpu --tune` found, by architecture and padded dimension."""
    if not path:
        return {}
    report = read(Path(path))
    tuned = report.get("tuned") if isinstance(report, dict) else None
    if not tuned:
        raise ValueError(f"RESOLVENT_GPU_SIZES: expected a report of 'bench gpu --tune --out', got {path}.")
    return {(tuned["architecture"], padded(tuned["head_dim"])): _checked(tuned["sizes"])}


def _checked(sizes: dict[str, int]) -> Sizes:
    allowed = {
        "block": (16, 32, 64),
        "channels": (16, 32, 64),
        "warps": (2, 4, 8),
        "slopes": (16, 32, 64),
        "chunk": (0, 64, 128, 256),
    }
    for field in fields(Sizes):
        if sizes.get(field.name) not in allowed[field.name]:
            expected = ", ".join(map(str, allowed[field.name]))
            raise ValueError(f"RESOLVENT_GPU_SIZES: expected {field.name} {expected}, got {sizes.get(field.name)!r}.")
    return Sizes(**{field.name: sizes[field.name] for field in fields(Sizes)})


def architecture(device: torch.device) -> str:
    """As compilers name it: sm_90, gfx942; "interpreter" without a GPU."""
    if device.type != "cuda":
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def compiler_options(warps: int, *, hip: bool, roomy: bool = False) -> dict[str, int]:
    """How a kernel is compiled. A single stage: nothing is fetched ahead of what a sweep stores.

    `roomy` kernels may take all registers: left alone, NVIDIA's assembler puts a few numbers on the stack in order to
    fit more programs on a multiprocessor.
    """
    options = {"num_warps": warps, "num_stages": 1}
    return options | {"maxnreg": _REGISTERS} if roomy and not hip else options


def programs_at_once(device: torch.device) -> int:
    """How many programs a GPU runs together, two for each multiprocessor; without one, as many as an H100."""
    return 2 * (torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132)


def padded(size: int) -> int:
    """The power of two, at least 16, that holds so many channels: what tensor cores multiply."""
    return max(16, 1 << (size - 1).bit_length())
