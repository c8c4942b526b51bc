"""A short causal convolution before a rule, as Mamba's block has one: v_i[c] = Σ_k w[c, k] u_{i-k}[c]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resolvent.coefficients.layer import CacheMemory
from resolvent.coefficients.positions import Positions
from resolvent.coefficients.states import advance, scan_state
from resolvent.ops import Cache, ScanState
from resolvent.ops.sequences import from_front, to_front


class Convolution(nn.Module):
    """Each channel of the layer's input, (B, N, dim), is convolved along its sequence; column k weighs k tokens back.

    It starts as the identity, so that a layer begins as one without it does. No activation: what follows is linear.
    """

    no_weight_decay = ("weight",)

    def __init__(self, dim: int, span: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, span))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        with torch.no_grad():
            self.weight[:, 0] = 1

    def forward(self, u: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        (dim, span), n = self.weight.shape, u.shape[1]
        starts = None if positions.mask is None else torch.tensor(positions.sequences.starts, device=u.device)
        moved = u if starts is None else to_front((u[:, None],), starts)[0][:, 0]  # past the padding, the past goes on
        recent = u.new_zeros(u.shape[0], span - 1, dim) if cache is None else scan_state(cache).tensors["recent"]
        seen = torch.cat([recent.to(u.dtype), moved], 1)
        v = torch.zeros_like(moved)
        for back, weight in enumerate(self.weight.to(u.dtype).unbind(1)):
            read = seen[:, span - 1 - back : span - 1 - back + n]
            if positions.sequences.packed:
                read = read.masked_fill((positions.ids < back)[:, None], 0)
            v = v + weight * read
        if cache is not None:
            last = torch.arange(n, n + span - 1, device=u.device).expand(u.shape[0], -1)
            last = last if starts is None else last - starts[:, None]
            kept = seen.gather(1, last[..., None].expand(-1, -1, dim))
            advance(scan_state(cache), positions, n, recent=kept.to(recent.dtype))
        return v if starts is None else from_front(v[:, None], starts)[:, 0]

    def make_cache(self, memory: CacheMemory) -> ScanState:
        """An empty cache of the inputs that the next ones still read."""
        dim, span = self.weight.shape
        shape = (memory.batch, span - 1, dim)
        return ScanState({"recent": torch.zeros(shape, dtype=memory.dtype, device=memory.device)})
