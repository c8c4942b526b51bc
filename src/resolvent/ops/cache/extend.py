"""Continuing from a cache by any number of tokens: prefill, chunked prefill and decoding are one operation."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.ops import joint
from resolvent.ops.backend import Token
from resolvent.ops.cache.slots import DecodeCache
from resolvent.ops.inputs import Inputs, repeat_heads
from resolvent.ops.rows import rows_of
from resolvent.ops.stages import Runner
from resolvent.patterns.strides import Integers

FEW = 8  # so many tokens are quicker one by one


def advance(
    inputs: Inputs, cache: DecodeCache, starts: tuple[int, ...] | None, scale: float, backend: Runner
) -> Tensor:
    """Outputs of the new tokens; the cache, which has room for them, then holds what the tokens after them need.

    `backend.mix` does long chunks of sequences at the same position, `backend.step` single tokens of sequences at any
    position where no gradient is asked for; rows before `starts[b]` are padding, and their outputs zero.
    """
    n, heads = inputs.x.shape[-2], cache.heads
    if not cache.batch:
        return _no_rows(inputs.x, heads, backend)
    starts = starts or (0,) * cache.batch
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *cache.tensors.values()))
    stepwise = n <= FEW and not differentiable
    together = len(set(starts)) == 1 and (stepwise or len(set(cache.positions.tolist())) == 1)
    groups = [slice(0, cache.batch)] if together else [slice(b, b + 1) for b in range(cache.batch)]
    if not differentiable and any(t.requires_grad for t in cache.tensors.values()):
        # A graph may still need the present ones.
        cache.tensors = {name: t.detach().clone() for name, t in cache.tensors.items()}
    outputs, updates = [], []
    for group in groups:
        start = starts[group.start]
        chunk = inputs if together and not start else Inputs(*(t[group, :, start:] for t in inputs))
        tensors = cache.tensors if together else {name: t[group] for name, t in cache.tensors.items()}
        if start == n:
            y = _no_rows(chunk.x, heads, backend)
        elif n - start <= FEW and not differentiable:
            y = _one_by_one(chunk, cache, group, tensors, scale, backend)
        else:
            y, tensors = _at_once(chunk, cache, group, tensors, scale, backend, in_place=not differentiable)
        outputs.append(torch.nn.functional.pad(y, (0, 0, start, 0)) if start else y)
        updates.append(tensors)
    if differentiable:
        cache.tensors = {name: torch.cat([update[name] for update in updates]) for name in cache.tensors}
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _no_rows(x: Tensor, heads: int, backend: Runner) -> Tensor:
    """Outputs where there is nothing to compute, of the shape that others have."""
    empty = repeat_heads(x, heads)
    return backend.like_outputs(empty) if isinstance(backend, joint.DirectPart) else empty


def _at_once(
    chunk: Inputs,
    cache: DecodeCache,
    group: slice,
    tensors: dict[str, Tensor],
    scale: float,
    backend: Runner,
    *,
    in_place: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Known rows are taken from their slots and put before the new ones; what stays alive goes back into slots."""
    x, qa, ka, qb, kb, gate = chunk
    rows = rows_of(cache.pattern, (0, x.shape[-2]), int(cache.positions[group.start]))
    slots = _index(cache.pattern.slots_of(rows.held), x)
    known = {name: t.index_select(2, slots) for name, t in tensors.items()}
    new = {"values": x, "keys_a": ka, "keys_b": kb}
    values, keys_a, keys_b = (_after_known(known.get(name), t, rows.known) for name, t in new.items())
    inputs = Inputs(values, qa, keys_a, qb, keys_b, gate).with_all_heads()
    if "logs" in known and not isinstance(backend, joint.DirectPart):
        y, logs = joint.mix(inputs, rows, scale, backend, known["outputs"], known["logs"][..., 0])
        new |= {"outputs": y, "logs": logs[..., None]}
    else:
        y = backend.mix(inputs, rows, scale, known.get("outputs"))
        new |= {"outputs": y}
    into, stay = (_index(numbers, x) for numbers in cache.advance(group, x.shape[-2]))
    write = torch.Tensor.index_copy_ if in_place else torch.Tensor.index_copy
    return y, {name: write(t, 2, into, new[name].index_select(2, stay)) for name, t in tensors.items()}


def _after_known(known: Tensor | None, new: Tensor, count: int) -> Tensor:
    """New rows behind those known; what a pattern does not keep it does not read."""
    if not count:
        return new
    front = new.new_zeros((*new.shape[:2], count, new.shape[-1])) if known is None else known
    return torch.cat([front, new], 2)


def _one_by_one(
    chunk: Inputs, cache: DecodeCache, group: slice, tensors: dict[str, Tensor], scale: float, backend: Runner
) -> Tensor:
    pattern, step = cache.pattern, joint.step if "logs" in tensors else backend.step
    outputs, n = [], chunk.x.shape[2]
    for t in range(n):
        reads, begins = cache.reads(group)
        inputs = chunk if n == 1 else Inputs(*(tensor[:, :, t : t + 1] for tensor in chunk))
        writes = cache.take(group)
        settings = (pattern.direct == "all", pattern.recurrent, pattern, cache.positions[group] - 1, cache.capacity)
        outputs.append(step(Token(inputs, tensors, reads, begins, writes, *settings), scale))
    return outputs[0] if n == 1 else torch.cat(outputs, 2)


def _index(values: Integers, x: Tensor) -> Tensor:
    return torch.tensor(values, device=x.device)
