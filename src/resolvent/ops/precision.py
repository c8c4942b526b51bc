"""In which precision the operator computes: decided at the entrance, and kept whatever autocast says inside."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def compute_dtype(x: Tensor) -> torch.dtype:
    """float64 stays; anything else is computed in float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def autocast_enabled(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def without_autocast(device: str) -> AbstractContextManager[object]:
    """A block in which tensors keep the dtype they have."""
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else nullcontext()
