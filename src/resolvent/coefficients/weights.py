"""A and B written out on their patterns, and what a researcher asks about them. For looking, not for training."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops import portable, reference, solve, whole
from resolvent.ops.portable_plan import plan
from resolvent.ops.rows import rows
from resolvent.patterns import Pattern

Scores = dict[
    str, Tensor | None
]  # qa, ka, qb, kb of a group of heads, each (B, heads, N, D); what is not used is left out
LARGEST = 4096  # tokens up to which n × n matrices are written out


@dataclass(frozen=True)
class Weights:
    """Coefficients of some heads, laid out as for `solve`: alpha on the pattern `a`, beta on `b`."""

    alpha: Tensor
    beta: Tensor | None
    a: Pattern
    b: Pattern

    @property
    def n(self) -> int:
        return int(self.alpha.shape[-2])

    @property
    def heads(self) -> int:
        return int(self.alpha.shape[1])

    def apply_a(self, x: Tensor) -> Tensor:
        return solve(x, self.alpha, None, replace(self.a, recurrent=False))

    def apply_b(self, x: Tensor) -> Tensor:
        """B x, at the cost of the pattern."""
        if self.beta is None:
            return torch.zeros_like(x)
        return solve(x, pad(self.beta, (1, 0)), None, replace(self.b, direct="all", recurrent=False))

    def resolve(self, x: Tensor) -> Tensor:
        """(I - B)^-1 x."""
        if self.beta is None:
            return x
        return solve(x, self._ones(), self.beta, replace(self.b, direct="diagonal"))

    def row_sums(self) -> Tensor:
        """T 1, (B, H, N): ones where the coefficients are normalised."""
        return self.resolve(self.apply_a(self._ones()))[..., 0]

    def resolvent_norm(self) -> Tensor:
        """(B, H): the largest row sum of |(I - B)^-1|, which bounds how much an error can grow."""
        size = replace(self, beta=None if self.beta is None else self.beta.abs())
        return size.resolve(self._ones())[..., 0].amax(-1)

    def hop_spectrum(self, most: int = 32) -> Tensor:
        """(B, H, most + 1): the share of T that was fed back 0, 1, … most times; the last entry has all the rest.

        T 1 = Σ_k B^k A 1, averaged over tokens: `most` products on the pattern, no matrix.
        """
        term = self.apply_a(self._ones())
        total, shares = self.resolve(term)[..., 0].mean(-1), []
        for _ in range(most):
            shares.append(term[..., 0].mean(-1))
            term = self.apply_b(term)
        rest = self.resolve(term)[..., 0].mean(-1)
        return torch.stack([*shares, rest], -1) / total[..., None]

    def matrices(self) -> tuple[Tensor, Tensor]:
        """A and B as (B, H, N, N)."""
        if self.n > LARGEST:
            raise ValueError(f"matrices are n × n: expected at most {LARGEST:,} tokens, got {self.n:,}.")
        return self._matrix(self.a, self.alpha), self._matrix(self.b, None, self.beta)

    def transfer(self) -> Tensor:
        """T = (I - B)^-1 A, (B, H, N, N)."""
        return reference.transfer(*self.matrices())

    def _matrix(self, p: Pattern, alpha: Tensor | None, beta: Tensor | None = None) -> Tensor:
        matrix = self.alpha.new_zeros((*self.alpha.shape[:-1], self.n + 1))
        sources = torch.from_numpy(rows(p, (0, self.n)).table).to(matrix.device).long()
        columns = sources.where(sources >= 0, self.n)  # what is beyond a row's sources lands in a column apart
        if alpha is not None:
            own = torch.arange(self.n, device=matrix.device)[:, None]
            columns = torch.cat([own, columns], 1) if p.direct == "all" else own
            matrix.scatter_(-1, columns.expand(alpha.shape), alpha)
        if beta is not None:
            matrix.scatter_(-1, columns.expand(beta.shape), beta)
        return matrix[..., :-1]

    def _ones(self) -> Tensor:
        return torch.ones_like(self.alpha[..., :1])


def written_out(
    scores: Scores, gate: Tensor, p: Pattern, scale: float, normalise: str = "gate", tied: Tensor | None = None
) -> Weights:  # fmt: skip
    """The coefficients that `mix` uses, as `Weights`. Arguments as there; keys may be shared by groups of heads."""
    qa, ka, qb, kb = (_for_each_head(scores.get(name), gate.shape[1]) for name in ("qa", "ka", "qb", "kb"))
    where = rows(replace(p, direct="diagonal") if tied is not None else p, (0, gate.shape[-1]))
    layout = plan(where, gate.device)
    if normalise == "whole" and p.recurrent:
        spare = gate[..., None]
        none = gate.new_zeros((*gate.shape[:2], 0))
        qa, ka, qb, kb = (spare * 0 if t is None else t for t in (qa, ka, qb, kb))
        alpha, beta, _ = whole.coefficients(qa, ka, qb, kb, gate, where, scale, none)
        return Weights(alpha, beta, p, p)
    g = gate * layout.feeds if p.recurrent else torch.zeros_like(gate)
    weigh = 1 - g[..., None]
    if where.pattern.direct == "diagonal" or qa is None or ka is None:
        alpha = weigh
    else:
        sums = torch.cat([(qa * ka).sum(-1, keepdim=True), portable.dots(qa, ka, layout)], -1) * scale
        alpha = weigh * torch.where(layout.direct, sums, -torch.inf).softmax(-1)
    if not p.recurrent:
        return Weights(alpha, None, p, p)
    if qb is None or kb is None:
        beta = g[..., None] * layout.valid
    else:
        sums = portable.dots(qb, kb, layout) * scale
        sums = sums.masked_fill(
            ~layout.valid & layout.feeds[:, None], -torch.inf
        )  # rows without sources come to nothing
        beta = g[..., None] * sums.softmax(-1) * layout.valid
    if tied is not None:
        delta = tied[:, None, None]
        alpha = torch.cat([1 - (1 + delta) * beta.sum(-1, keepdim=True), delta * beta], -1)
        return Weights(alpha, beta, replace(p, direct="all"), p)
    return Weights(alpha, beta, p, p)


def _for_each_head(t: Tensor | None, heads: int) -> Tensor | None:
    """Keys shared by a group of heads, once for each."""
    return None if t is None else t.repeat_interleave(heads // t.shape[1], 1)
