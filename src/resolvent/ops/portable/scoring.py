"""How a query and a key make a score: their product, or one of two products by how far apart they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops.portable.edges import dots
from resolvent.ops.portable.plan import EdgePlan
from resolvent.rules.rope import DIGITS


class Scoring(Protocol):
    """Scores of queries and keys, before they are scaled."""

    def of_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        """Of tensors (…, D') that broadcast: (…)."""

    def of_edges(self, q: Tensor, k: Tensor, plan: EdgePlan) -> Tensor:
        """Of the new rows q and all rows k, on the reads of a pattern: (…, new, width), 0 beyond a row's sources."""


@final
class Products:
    """What attention has."""

    def of_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * k).sum(-1)

    def of_edges(self, q: Tensor, k: Tensor, plan: EdgePlan) -> Tensor:
        return dots(q, k, plan)


PRODUCTS = Products()


@final
@dataclass(frozen=True)
class ByDistance:
    """Queries and keys have D numbers for near reads, D for those farther than `within`, and their position.

    It is spelled in digits of base 256, each exact in half precision, and so a cache of keys holds it, too.
    """

    within: int

    def of_pairs(self, q: Tensor, k: Tensor) -> Tensor:
        (near_q, far_q, at_q), (near_k, far_k, at_k) = _parts(q), _parts(k)
        near, far = (near_q * near_k).sum(-1), (far_q * far_k).sum(-1)
        return torch.where(at_q - at_k <= self.within, near, far)

    def of_edges(self, q: Tensor, k: Tensor, plan: EdgePlan) -> Tensor:
        (near_q, far_q, at_q), (near_k, far_k, at_k) = _parts(q), _parts(k)
        distances = at_q[..., None] - pad(at_k, (0, 1))[..., plan.sources]
        return torch.where(distances <= self.within, dots(near_q, near_k, plan), dots(far_q, far_k, plan))


def _parts(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For near reads, for far ones, and the position, which float32 holds exactly."""
    d = (t.shape[-1] - DIGITS) // 2
    near, far, digits = t.split([d, d, DIGITS], -1)
    worth = torch.tensor([256.0**m for m in range(DIGITS)], dtype=t.dtype, device=t.device)
    return near, far, (digits.detach() * worth).sum(-1)
