"""Mixed precision: which matrix products run in fewer bits."""

from __future__ import annotations

import torch

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context for a forward pass; weights, gradients and sums stay in float32."""
    return torch.autocast(device.type, _DTYPES.get(precision, torch.bfloat16), enabled=precision in _DTYPES)
