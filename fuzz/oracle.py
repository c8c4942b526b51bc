"""y = (I - B)^-1 A x with matrices written out in float64, from who reads whom. Shares no code with the package."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fuzz.patterns import Sets


class Reads(NamedTuple):
    """(B, 1, N, N) who reads whom in A, the diagonal aside, and in B; (B, 1, N, 1) which rows are not padding."""

    a: Tensor
    b: Tensor
    inside: Tensor


def reads(sets: tuple[Sets, Sets], batch: int, n: int, cuts: list[int], starts: list[int]) -> Reads:
    """Of A and B, from the sources of each token; each sequence begins anew."""
    a, b = (torch.zeros(batch, 1, n, n, dtype=torch.bool) for _ in sets)
    inside = torch.zeros(batch, 1, n, 1, dtype=torch.bool)
    for sequence in range(batch):
        edges = [starts[sequence], n] if starts else cuts
        for first, last in pairwise(edges):
            inside[sequence, 0, first:last] = True
            for mask, sources in zip((a, b), sets, strict=True):
                for i in range(last - first):
                    mask[sequence, 0, first + i, [first + j for j in sources[i]]] = True
    return Reads(a, b, inside)


def softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Over the entries of each row that the mask has; zeros in rows that have none."""
    masked = scores.masked_fill(~mask, -torch.inf)
    top = masked.amax(-1, keepdim=True).detach()
    weights = (masked - torch.where(top.isfinite(), top, 0)).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1)


def mix(
    tensors: Mapping[str, Tensor], rows: Reads, *, direct: bool, recurrent: bool, scale: float,
    joint: bool,
) -> Tensor:  # fmt: skip
    """`tensors` have all heads: x, and what there is of qa, ka, qb, kb, gate (B, H, N) and tied (H, 1, 1)."""
    inside = rows.inside
    x, scores_a, scores_b = _operands(tensors, inside, scale)
    n = x.shape[2]
    eye = torch.eye(n, dtype=torch.bool)
    in_a = ((rows.a | eye) if direct else eye.expand(rows.a.shape)) & inside
    identity = torch.eye(n, dtype=x.dtype)
    if not recurrent:
        return softmax(scores_a, in_a) @ x
    gate = torch.where(inside & rows.b.any(-1, keepdim=True), tensors["gate"][..., None], 0)
    feedback = gate * softmax(scores_b, rows.b)
    left = identity - feedback
    if joint:  # T~ = (I - exp R)^-1 exp P, its rows normalized; a factor that all of exp P share falls out
        top = scores_a.masked_fill(~in_a, -torch.inf).amax((-2, -1), keepdim=True).detach()
        weights = torch.where(in_a, scores_a - torch.where(top.isfinite(), top, 0), -torch.inf).exp()
        ones = torch.ones_like(x[..., :1])
        both = _resolve(left, weights @ torch.cat([x, ones], -1))
        return both[..., :-1] / torch.where(inside, both[..., -1:], 1)
    a = (1 - gate) * softmax(scores_a, in_a)
    if "tied" in tensors:
        delta = tensors["tied"]
        own = torch.where(inside, 1 - (1 + delta) * feedback.sum(-1, keepdim=True), 0)
        a = delta * feedback + own * identity
    return _resolve(left, a @ x)


def _operands(tensors: Mapping[str, Tensor], inside: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Values and scores; what stands in padding is dropped before anything is multiplied by it."""
    kept = {name: torch.where(inside, tensors[name], 0) for name in ("x", "qa", "ka", "qb", "kb") if name in tensors}
    x = kept["x"]
    none = x.new_zeros(*x.shape[:2], x.shape[2], x.shape[2])
    scores_a = kept["qa"] @ kept["ka"].mT * scale if "qa" in kept else none
    scores_b = kept["qb"] @ kept["kb"].mT * scale if "qb" in kept else none
    return x, scores_a, scores_b


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, sets: tuple[Sets, Sets], *, direct: bool) -> Tensor:
    """From explicit coefficients: column c weighs the c-th nearest source, alpha's column 0 the token itself."""
    n = x.shape[2]
    a, b = (x.new_zeros(*x.shape[:2], n, n) for _ in range(2))
    own = torch.arange(n)
    a = a.index_put((*_all(x), own, own), alpha[..., 0])
    if direct:
        a = _put(a, alpha[..., 1:], sets[0])
    if beta is not None:
        b = _put(b, beta, sets[1])
    return _resolve(torch.eye(n, dtype=x.dtype) - b, a @ x)


def _put(matrix: Tensor, coefficients: Tensor, sets: Sets) -> Tensor:
    rows = [(i, c, j) for i, sources in enumerate(sets) for c, j in enumerate(sorted(sources, reverse=True))]
    i, c, j = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).unbind(1)
    return matrix.index_put((*_all(matrix), i, j), coefficients[:, :, i, c]) if rows else matrix


def _resolve(left: Tensor, right: Tensor) -> Tensor:
    y: Tensor = torch.linalg.solve_triangular(left, right, upper=False, unitriangular=True)
    return y


def _all(x: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of every batch and head, to go with indices of entries."""
    return torch.arange(x.shape[0])[:, None, None], torch.arange(x.shape[1])[None, :, None]
