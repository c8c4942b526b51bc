"""Launch parameters: rows of a block, channels of a sweep's program, warps. The same for every length and pattern.

`TUNED` holds what was chosen for an architecture; `resolvent gpu-check --tune` measures others. No GPU has timed these:
blocks are the largest that compile without spilling registers (tests/gpu/resources.json).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch

LARGEST_DIM = 256


@dataclass(frozen=True)
class Sizes:
    """Rows of a block (16, 32 or 64), channels that one program of a sweep takes, and warps of a program.

    Gradients of scores hold more at once: `slopes` are the rows of their blocks.
    """

    block: int
    channels: int
    warps: int = 4
    slopes: int = 16


# By architecture, and by the wider of D and D', padded to a power of two. "default" serves all that are not listed.
TUNED: dict[str, dict[int, Sizes]] = {
    "default": {
        16: Sizes(32, 16),
        32: Sizes(32, 32),
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
    wide = padded(max(d, key_dim))
    chosen = _OVERRIDE.get() or TUNED.get(architecture(device), TUNED["default"])[wide]
    return replace(chosen, channels=min(chosen.channels, padded(d)))


def architecture(device: torch.device) -> str:
    """As compilers name it: sm_90, gfx942; "interpreter" without a GPU."""
    if device.type != "cuda":
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def padded(size: int) -> int:
    """The power of two, at least 16, that holds so many channels: what tensor cores multiply."""
    return max(16, 1 << (size - 1).bit_length())
