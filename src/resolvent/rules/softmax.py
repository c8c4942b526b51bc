"""The paper's rule: softmax scores for A and for B, and a gate between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from resolvent.rules.gated import GatedRule


@final
@dataclass(frozen=True)
class Softmax(GatedRule):
    name = "softmax"
    summary = "attention-like: a softmax over scores of queries and keys, for A and for B, and a gate between them"
    module = "softmax.SoftmaxCoefficients"
    reads_by_distance = True
