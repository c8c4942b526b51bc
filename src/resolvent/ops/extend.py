"""Going on from a cache by any number of tokens: prefill, chunked prefill and decoding are one operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops import whole
from resolvent.ops.heads import repeated
from resolvent.ops.rows import rows
from resolvent.ops.slots import DecodeCache
from resolvent.patterns.strides import Integers

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # x, qa, ka, qb, kb, gate

FEW = 8  # so many tokens are quicker one by one


def advance(inputs: Inputs, cache: DecodeCache, starts: list[int], scale: float, backend: Any, step: Any) -> Tensor:
    """Outputs of the new tokens; the cache holds what the tokens after them need.

    `backend.mix` does long chunks, `step` single tokens where no gradient is asked for. Sequences at the same
    position go together; rows before `starts[b]` are padding, and their outputs zero.
    """
    n, heads = inputs[0].shape[-2], cache.heads
    if not cache.batch:
        return repeated(inputs[0], heads)
    ends = [position + n - start for position, start in zip(cache.positions.tolist(), starts, strict=True)]
    cache.make_room(max(ends))  # before anything is written
    together = len(set(zip(cache.positions.tolist(), starts, strict=True))) == 1
    groups = [slice(0, cache.batch)] if together else [slice(b, b + 1) for b in range(cache.batch)]
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *cache.parts.values()))
    if not differentiable and any(part.requires_grad for part in cache.parts.values()):
        cache.parts = {
            name: part.detach().clone() for name, part in cache.parts.items()
        }  # others may need the old ones
    outputs, parts = [], []
    for group in groups:
        start = starts[group.start]
        chunk = inputs if together and not start else tuple(t[group, :, start:] for t in inputs)
        old = cache.parts if together else {name: part[group] for name, part in cache.parts.items()}
        if start == n:
            y, kept = repeated(chunk[0], heads), old
        elif n - start <= FEW and not differentiable:
            y, kept = _one_by_one(chunk, cache, group, old, scale, step), old
        else:
            y, kept = _at_once(chunk, cache, group, old, scale, backend, in_place=not differentiable)
        outputs.append(torch.nn.functional.pad(y, (0, 0, start, 0)) if start else y)
        parts.append(kept)
    if differentiable:
        cache.parts = {name: torch.cat([part[name] for part in parts]) for name in cache.parts}
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _at_once(
    chunk: tuple[Tensor, ...], cache: DecodeCache, group: slice, parts: dict[str, Tensor], scale: float, backend: Any,
    in_place: bool,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Known rows are taken from their slots and put before the new ones; what stays alive goes back into slots."""
    x, qa, ka, qb, kb, gate = chunk
    position = int(cache.positions[group.start])
    where = rows(cache.pattern, (0, x.shape[-2]), position)
    news = {"values": x, "keys_a": ka, "keys_b": kb}
    slots = _index(cache.slots_of(where.held), x)
    known = {name: part.index_select(2, slots) for name, part in parts.items()}
    for name, new in news.items():  # what a pattern does not keep it does not read
        front = known.get(name, new.new_zeros((*new.shape[:2], where.known, new.shape[-1])))
        news[name] = torch.cat([front, new], 2) if where.known else new
    values, qa, keys_a, qb, keys_b = (
        repeated(t, cache.heads) for t in (news["values"], qa, news["keys_a"], qb, news["keys_b"])
    )
    given = (values, qa, keys_a, qb, keys_b, gate, where, scale)
    rest = {"values": x, "keys_a": ka, "keys_b": kb}
    if "logs" in known:
        y, logs = whole.mix(*given, backend, known["outputs"], known["logs"][..., 0])
        rest |= {"outputs": y, "logs": logs[..., None]}
    else:
        y = backend.mix(*given, known.get("outputs"))
        rest |= {"outputs": y}
    into, stay = (_index(found, x) for found in cache.advance(group, x.shape[-2]))
    write = torch.Tensor.index_copy_ if in_place else torch.Tensor.index_copy
    kept = {name: write(part, 2, into, rest[name].index_select(2, stay)) for name, part in parts.items()}
    return y, kept


def _one_by_one(
    chunk: tuple[Tensor, ...], cache: DecodeCache, group: slice, parts: dict[str, Tensor], scale: float, step: Any
) -> Tensor:
    outputs, n = [], chunk[0].shape[2]
    for t in range(n):
        reads = cache.reads(group)
        into, _ = cache.advance(group, 1)
        token = chunk if n == 1 else tuple(tensor[:, :, t : t + 1] for tensor in chunk)
        outputs.append(step(token, parts, cache.pattern, reads, int(into[0]) if len(into) else -1, scale))
    return outputs[0] if n == 1 else torch.cat(outputs, 2)


def _index(values: Integers, like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device)
