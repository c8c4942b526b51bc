"""Batches of token sequences: what tasks and texts make, and models learn from. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
IGNORED = -100  # targets that do not count


@final
@dataclass(frozen=True)
class Batch:
    """Tokens (B, N), and at each position the token expected next to it or `IGNORED`.

    `slices` has for each scored position a number by which results are broken down, such as hops; `IGNORED` elsewhere.
    """

    tokens: Tokens
    targets: Tokens
    slices: Mapping[str, Tokens] = field(default_factory=dict)

    def rows(self, rows: slice) -> Batch:
        """Some of the sequences."""
        return Batch(self.tokens[rows], self.targets[rows], {name: s[rows] for name, s in self.slices.items()})
