"""The kernels that models commonly use, so that they can be compiled before anybody needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from resolvent.kernels import KernelVariant, variants_of
from resolvent.ops.api import extend, mix, solve
from resolvent.ops.cache.stages import decode_cache
from resolvent.ops.cpu.ahead import two_before
from resolvent.ops.cpu.stack import stack_variants
from resolvent.ops.rows import Rows, rows_of
from resolvent.ops.scan import scan
from resolvent.patterns import Pattern, explicit, pattern

_TOKENS = 32  # so many that cache-efficient strides differ from others
_USUAL = "first-order", "exponential", "exponential+cache"
HEAD_DIMS = (16, 32, 64)  # and their multiples: 48 is three times 16, 128 twice 64


def usual_variants(precision: Literal["float32", "float64"] = "float32") -> list[KernelVariant]:
    """Sweeps forward and backward, decoding, solving and scans, for every size of heads."""
    dtype = torch.float64 if precision == "float64" else torch.float32
    before, shifted, listed, general = *map(pattern, _USUAL), explicit(two_before)
    for chosen in (before, shifted, listed, general):
        rows_of(chosen.stages[0], (0, _TOKENS)).local_table  # noqa: B018  # now, while kernels run
    with _one_thread(), variants_of() as wanted:
        Rows(listed.stages[0], (0, _TOKENS)).local_table  # noqa: B018
        for d in HEAD_DIMS:
            for chosen in (before, shifted, listed, general):
                _mix(chosen, d, dtype)
            _decode(listed, d, dtype)
        _solve(shifted, dtype)
        decay, x = (_ones(1, _TOKENS, 4, dtype=dtype) for _ in range(2))
        scan(decay, x).sum().backward()
    whole_models = [variant for d in HEAD_DIMS for variant in stack_variants(d)] if dtype == torch.float32 else []
    return list(dict.fromkeys(wanted + whole_models))


@contextmanager
def _one_thread() -> Iterator[None]:
    """The one in which kernels are listed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _mix(chosen: Pattern, d: int, dtype: torch.dtype) -> None:
    x, q, k = (_ones(1, 1, _TOKENS, d, dtype=dtype) for _ in range(3))
    mix(x, chosen, a=(q, k), b=(q, k), gate=_ones(1, 1, _TOKENS, dtype=dtype) / 2, backend="cpu").sum().backward()


@torch.no_grad()
def _decode(chosen: Pattern, d: int, dtype: torch.dtype) -> None:
    x = _ones(1, 1, 1, d, dtype=dtype)
    cache = decode_cache(chosen, 1, 1, d, d, max_tokens=8, dtype=dtype)
    for _ in range(2):
        extend(x, chosen, cache, a=(x, x), b=(x, x), gate=_ones(1, 1, 1, dtype=dtype) / 2)


def _solve(chosen: Pattern, dtype: torch.dtype) -> None:
    width = chosen.widest_row(_TOKENS)
    alpha, beta = _ones(1, 1, _TOKENS, width + 1, dtype=dtype), _ones(1, 1, _TOKENS, width, dtype=dtype)
    solve(_ones(1, 1, _TOKENS, 16, dtype=dtype), chosen, alpha, beta, backend="cpu").sum().backward()


def _ones(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(shape, dtype=dtype, device="cpu").requires_grad_()
