"""The operator where near and far reads are scored by different products, as two kinds of rotary positions need it.

Scores turned by i - j are products of a query turned by i and a key turned by j. Where they are turned by
min(i - j, w), or by nothing beyond w, this is true of near and of far reads, each by themselves: far reads see q_i
turned by w, or as it is, and k_j as it is. No product of one vector for each token chooses between the two
(docs/log.md), so kernels that take one query and one key cannot. Here both scores are computed on the pattern's reads,
at twice their cost, and the coefficients, n × W, are written out and solved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from resolvent.ops import portable
from resolvent.ops.backend import Backend, Operation, Request, Token
from resolvent.ops.inputs import Inputs
from resolvent.ops.portable.scoring import ByDistance
from resolvent.ops.precision import compute_dtype
from resolvent.ops.registry import choose, find
from resolvent.ops.rows import Rows


@final
@dataclass(frozen=True)
class DistanceBackend:
    """A backend for queries and keys as `ByDistance` has them; `backend` solves with the coefficients."""

    NAME: ClassVar[str] = "by-distance"

    within: int
    backend: str | Backend = "auto"

    def refusal(self, request: Request) -> str | None:
        if request.normalize == "joint":
            return "scores by distance are normalized by the gate."
        return None if self.backend == "auto" else find(self.backend).refusal(request._replace(operation="solve"))

    def preference(self, request: Request) -> str | None:  # noqa: ARG002
        return None

    def mix(self, inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
        x, dtype = inputs.x, compute_dtype(inputs.x)
        alpha, beta = self.coefficients(inputs, rows, scale)
        known = None if y_known is None else y_known.to(dtype)
        return self.solve(x.to(dtype), alpha, beta, rows, known).to(x.dtype)

    def coefficients(self, inputs: Inputs, rows: Rows, scale: float) -> tuple[Tensor, Tensor | None]:
        """Alpha and beta, laid out as for `solve`."""
        return portable.coefficients(inputs, rows, scale, ByDistance(self.within))

    def solve(self, x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
        operation: Operation = "solve"
        pattern = rows.pattern
        request = Request(operation, str(pattern), pattern.is_dense, pattern.recurrent, x.device.type, x.shape[2])
        return choose(self.backend, request)[0].solve(x, alpha, beta, rows, y_known)

    def step(self, token: Token, scale: float) -> Tensor:
        return portable.step(token, scale, ByDistance(self.within))
