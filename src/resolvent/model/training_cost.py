"""What training takes: memory, operations, and time on named GPUs. A model of it: arithmetic, not a measurement."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from resolvent.model.config import ModelConfig
from resolvent.model.language_model import MOST_LOGITS
from resolvent.model.profile import StackProfile

STATE_BYTES = 16  # for each parameter, in float32: weight, gradient, two moments of AdamW
UTILIZATION = 0.3  # of a GPU's peak, assumed
_RESIDUALS = 2  # inputs of a block's two branches, in float32 whatever the precision
_COPIES = 4  # outputs of the two norms, and what rotations and projections keep beside: fits what was measured on CPUs
_LOGITS = 3  # logits, their softmax and its gradient exist at once


@dataclass(frozen=True)
class Gpu:
    """Peak of dense bfloat16 products in FLOP/s, and bytes of memory, from the data sheet."""

    peak: float
    memory: float


GPUS = {"A100 80 GB": Gpu(312e12, 80e9), "H100 80 GB": Gpu(989e12, 80e9)}


@dataclass(frozen=True)
class TrainingCost:
    """Of steps with `sequences` sequences of n tokens at once.

    flops_per_token   two for each multiply-add, forward and twice that backward; once more forward with `recompute`
    state_bytes       weights, gradients and the moments of AdamW
    activation_bytes  what the forward pass keeps for the backward pass, at its peak
    """

    n: int
    sequences: int
    parameters: int
    flops_per_token: float
    state_bytes: int
    activation_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"peak_bytes": self.peak_bytes}


def training_cost(
    config: ModelConfig, profile: StackProfile, sequences: int = 1, *, precision: str = "float32",
    recompute: bool = False,
) -> TrainingCost:  # fmt: skip
    """See `TrainingCost`; the profile is that of the model on n tokens."""
    item, tokens = 4 if precision == "float32" else 2, profile.n * sequences
    blocks = [
        4 * _RESIDUALS * config.dim
        + item * (_COPIES * config.dim + 2 * config.inner_dim + layer.training_bytes_per_token / 4)
        for layer in profile.layers
    ]
    logits = 4 * _LOGITS * min(tokens * config.vocab_size, MOST_LOGITS)
    if recompute:  # the inputs of blocks, and one block at a time, when the logits are gone
        activations = tokens * 4 * config.dim * config.layers + max(tokens * max(blocks), logits)
    else:
        activations = tokens * sum(blocks) + logits
    return TrainingCost(
        n=profile.n,
        sequences=sequences,
        parameters=profile.parameters,
        flops_per_token=(8 if recompute else 6) * profile.madds_per_token,
        state_bytes=STATE_BYTES * profile.parameters,
        activation_bytes=round(activations),
    )


def gpu_seconds(flops: float) -> dict[str, float]:
    """Seconds that so many operations take on each GPU, at the assumed utilization."""
    return {name: flops / (UTILIZATION * gpu.peak) for name, gpu in GPUS.items()}
