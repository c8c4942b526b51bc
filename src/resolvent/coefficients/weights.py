"""A and B written out on their patterns, and what a researcher asks about them. For looking, not for training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops import joint, portable, reference, solve
from resolvent.ops.by_distance import DistanceBackend
from resolvent.ops.call import Options, as_operated, call_of
from resolvent.ops.inputs import Inputs, Scores, checked_inputs
from resolvent.ops.rows import Rows, rows_of
from resolvent.ops.tied import by_token
from resolvent.patterns import PatternLike, Stage

if TYPE_CHECKING:
    from resolvent.coefficients.layer import HeadGroup, Layer

LARGEST = 4096  # tokens up to which n × n matrices are written out


@dataclass(frozen=True)
class Weights:
    """Coefficients of some heads, laid out as for `solve`: alpha on the pattern `a`, beta on `b`."""

    alpha: Tensor
    beta: Tensor | None
    a: Stage
    b: Stage

    @property
    def n(self) -> int:
        return int(self.alpha.shape[-2])

    @property
    def heads(self) -> int:
        return int(self.alpha.shape[1])

    def apply_a(self, x: Tensor) -> Tensor:
        return solve(x, self.a.modified(self.a.direct, recurrent=False), self.alpha)

    def apply_b(self, x: Tensor) -> Tensor:
        """B x, at the cost of the pattern."""
        if self.beta is None:
            return torch.zeros_like(x)
        return solve(x, self.b.modified("all", recurrent=False), pad(self.beta, (1, 0)))

    def resolve(self, x: Tensor) -> Tensor:
        """(I - B)^-1 x."""
        if self.beta is None:
            return x
        return solve(x, self.b.with_diagonal_a(), self._ones(), self.beta)

    def row_sums(self) -> Tensor:
        """T 1, (B, H, N): ones where the coefficients are normalized."""
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

    def _matrix(self, p: Stage, alpha: Tensor | None, beta: Tensor | None = None) -> Tensor:
        matrix = self.alpha.new_zeros((*self.alpha.shape[:-1], self.n + 1))
        sources = torch.from_numpy(rows_of(p, (0, self.n)).table).to(matrix.device).long()
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


def write_out(
    u: Tensor, scores: Scores, group: HeadGroup, layer: Layer, tied: Tensor | None = None, scale: float | None = None
) -> Weights:
    """The coefficients that the operator uses for the heads of a group, on one sequence each."""
    values = u.new_zeros(u.shape[0], group.kv_count, u.shape[1], layer.head_dim)
    options = Options(scale, layer.rule.normalize, tied, layer.operator)
    pattern = group.run if tied is None else group.pattern
    return Weights(*_coefficients(values, pattern, scores, options))


def _coefficients(
    x: Tensor, pattern: PatternLike, scores: Scores, options: Options
) -> tuple[Tensor, Tensor | None, Stage, Stage]:
    """Alpha and beta on one sequence, and the stages that they live on: the same, unless the pattern is a pair."""
    call = call_of(pattern, options.normalize, options.tied is not None)
    inputs = checked_inputs(x, scores, call.needs, call.label).with_all_heads()
    scale = options.scale_of(inputs)
    stages = as_operated(pattern, options.tied is not None).stages
    a, b = stages[0], stages[-1]
    first, last = (rows_of(stage, (0, x.shape[2])) for stage in (a, b))
    gated_softmax = (
        options.backend.coefficients if isinstance(options.backend, DistanceBackend) else portable.coefficients
    )
    if len(stages) > 1 and not call.joint:
        alpha, _ = gated_softmax(inputs, first, scale)
        share, feedback = gated_softmax(inputs, last, scale)
        return share * alpha, feedback, a, b
    if len(stages) > 1:
        return *_of_joint_pair(inputs, (first, last), scale), a, b
    if call.joint:
        alpha, beta, _ = joint.coefficients(inputs, first, scale)
        return alpha, beta, a, b
    alpha, gated = gated_softmax(inputs, first, scale)
    if options.tied is None or gated is None:
        return alpha, gated, a, b
    d = by_token(options.tied, gated).to(gated.dtype)
    own = 1 - (1 + d) * gated.sum(-1, keepdim=True)
    if d.shape[2] > 1:
        read = d.expand(*gated.shape[:3], 1)[:, :, torch.from_numpy(first.table).to(d.device).long().clamp(min=0), 0]
        gated, d = gated * (1 + d) / (1 + read), read
    return torch.cat([own, d * gated], -1), gated, b.modified("all", recurrent=True), b


def _of_joint_pair(inputs: Inputs, rows: tuple[Rows, Rows], scale: float) -> tuple[Tensor, Tensor | None]:
    """A of the second stage is diagonal, and weighs the rows of the first one's."""
    inputs, scale = joint.scaled(inputs, scale), 1.0
    direct = joint.direct_scores(inputs, rows[0], scale)
    alpha = direct.softmax(-1)
    mass = direct.logsumexp(-1, keepdim=True)
    share, beta, _ = joint.coefficients(joint.with_direct_mass(inputs, inputs.x, mass), rows[1], scale)
    return share * alpha.to(share.dtype), beta
