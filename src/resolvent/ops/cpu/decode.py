"""One token out of a cache, by a kernel where the cache lies in memory as it wants it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from resolvent.kernels import UNIT, Kernel, Memory
from resolvent.ops import portable
from resolvent.ops.backend import Token
from resolvent.ops.cpu.layout import as_array, scalar, span
from resolvent.ops.cpu.threads import in_threads
from resolvent.ops.inputs import Inputs

decode, keep = Kernel("decode.decode"), Kernel("decode.keep")
_WORTH_THREADS = 4096  # reads × heads of a single token, below which waking a thread costs more than it saves
_NOTHING = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.float32, torch.float64)}


def step(token: Token, scale: float) -> Tensor:
    """See `Backend.step`."""
    if not _kernel_takes(token.inputs, token.cache):
        return portable.step(token, scale)
    inputs, cache, reads, begins, writes, direct, recurrent = token[:7]
    x, gate, dk = inputs.x, inputs.gate, inputs.key_dim
    (batch, heads, _), groups, d = gate.shape, x.shape[1], x.shape[-1]
    y = x.new_empty((*gate.shape, d))
    kept = [cache.get(name, _NOTHING[x.dtype]) for name in ("values", "keys_a", "outputs", "keys_b")]
    slots = max(tensor.shape[2] for tensor in cache.values()) if cache else 0
    tensors = [t.contiguous().resolve_neg() for t in (*inputs, *kept, y)]
    letters = as_array(_NOTHING[x.dtype]).dtype.str
    arrays = [Memory(letters, t.data_ptr(), t.numel()) for t in tensors]
    sizes, scored = (d, dk, span(d, x), span(dk, x)), "keys_b" in cache
    share = heads // max(groups, 1)
    settings = (reads, begins, writes, heads, slots, share, *sizes, scalar(x, scale), direct, recurrent, scored)
    most = len(reads) if len(writes) == 1 else int(np.diff(begins).max())
    capacity = (most // UNIT + 2) * UNIT

    def work(first: int, last: int) -> None:
        scratch = np.empty(capacity + 2, dtype=letters)
        decode(*arrays, *settings, scratch, scratch[capacity:], first, last)

    if len(reads) * heads * batch // len(writes) < _WORTH_THREADS:
        work(0, batch * heads)
    else:
        in_threads(work, batch * heads, (0, 1))
    if share > 1:
        x_, _, ka, _, kb, _, values, keys_a, _, keys_b, _ = arrays
        keep(x_, ka, kb, values, keys_a, keys_b, writes, groups, slots, *sizes, direct, scored)
    return y


def _kernel_takes(inputs: Inputs, cache: Mapping[str, Tensor]) -> bool:
    """Whether the kernel takes rows as they lie: whole units of float32 or float64, next to each other.

    Heads that share keys share values, too, but in B's stage of a pair, where the values are what A's brings.
    """
    x, key_dim = inputs.x, inputs.key_dim
    if x.shape[1] != inputs.kb.shape[1]:
        return False
    sized = all(size and size % UNIT == 0 for size in (x.shape[-1], key_dim))
    units = sized and x.dtype in (torch.float32, torch.float64)
    on_cpu = x.device.type == "cpu"
    return on_cpu and units and all(t.is_contiguous() and t.dtype == x.dtype for t in cache.values())
