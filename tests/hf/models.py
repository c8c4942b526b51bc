"""Tiny models of transformers for the tests."""

import torch
from torch import Tensor

from resolvent.hf import ResolventConfig, ResolventForCausalLM

VOCABULARY = 97


def tiny(pattern: object = "exponential+cache", **settings: object) -> ResolventForCausalLM:
    """Weights so large that texts are not all alike."""
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "layers": 2, "dim": 32, "heads": 2, "init_std": 0.3, "pad_token_id": 0}
    return ResolventForCausalLM(ResolventConfig(**shape | {"pattern": pattern} | settings)).eval()


def prompts(padded: bool = False) -> dict[str, Tensor]:
    """Two of nine tokens; the first has three fewer, padded on the left, if asked for."""
    tokens = torch.randint(1, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    if padded:
        tokens[0, :3] = mask[0, :3] = 0
    return {"input_ids": tokens, "attention_mask": mask}
