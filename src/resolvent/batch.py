"""Batches of token sequences: what tasks and texts make, and models learn from. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Nats = npt.NDArray[np.float64]  # (B, N)
IGNORED = -100  # targets that do not count


@final
@dataclass(frozen=True)
class Batch:
    """Tokens (B, N), and at each position the token expected next to it or `IGNORED`.

    `slices` has for each scored position a number by which results are broken down, such as hops; `IGNORED` elsewhere.
    `readers` has the nats of each target for readers whose predictions are known exactly, by name.
    """

    tokens: Tokens
    targets: Tokens
    slices: Mapping[str, Tokens] = field(default_factory=dict)
    readers: Mapping[str, Nats] = field(default_factory=dict)

    def rows(self, rows: slice) -> Batch:
        """Some of the sequences."""
        return Batch(
            self.tokens[rows],
            self.targets[rows],
            {name: each[rows] for name, each in self.slices.items()},
            {name: each[rows] for name, each in self.readers.items()},
        )
