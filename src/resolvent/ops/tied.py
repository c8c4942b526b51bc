"""A tied to B: A = B D + D' with D = diag(d), so that one recurrence does the work of two matrices.

Rows of A + B sum to one iff D' = 1 - B (1 + d). Then z = y + D x is (I - B)^-1 (D + D') x, and u_i = z_i / (1 + d_i)
has the recurrence of the gated layer, u_i = g_i Σ_j B~_ij u_j + (1 - g_i) x_i, with
g_i B~_ij = B_ij (1 + d_j) / (1 + d_i). Only u runs through the operator, and y = (1 + d) u - d x.
"""

from __future__ import annotations

import torch
from torch import Tensor


def untie(u: Tensor, x: Tensor, d: Tensor) -> Tensor:
    return (u + d * (u - x)).to(u.dtype)


def by_token(tied: Tensor | float, x: Tensor) -> Tensor:
    """What ties A to B, (B or 1, H or 1, N or 1, 1), for an x of (B, H, N, …)."""
    number = not isinstance(tied, Tensor)  # as exact as x, or float32
    d = torch.as_tensor(tied, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32) if number else None)
    if d.ndim == 3 and all(size in (1, full) for size, full in zip(d.shape, x.shape[:3], strict=True)):
        return d[..., None]
    if d.shape not in ((), (x.shape[1],)):
        raise ValueError(
            f"expected tied to be a number, one per head, ({x.shape[1]},), or one per token, {tuple(x.shape[:3])}, "
            f"got {tuple(d.shape)}."
        )
    return d.reshape(1, -1, 1, 1)
