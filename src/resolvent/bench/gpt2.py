"""GPT-2 of transformers in the shape of one of our models: the peer of whole models. Its weights are random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from types import ModuleType
from typing import final

import torch
from torch import Tensor

from resolvent.errors import SettingError
from resolvent.model import ModelConfig

NAME = "HF GPT-2"
_LEAST = 5  # the release whose caches are called as here


def require_transformers() -> ModuleType:
    """The package, or an error that says how to install it."""
    install = "pip install 'transformers>=5.22,<6', or choose --against none."
    try:
        package = import_module("transformers")
    except ImportError as error:
        raise ImportError(f"models are compared with GPT-2 of transformers, which is missing: {install}") from error
    version = metadata.version("transformers")
    if int(version.partition(".")[0]) < _LEAST:
        raise ImportError(f"expected transformers ≥ {_LEAST} to compare with, got {version}: {install}")
    return package


@final
class Gpt2:
    """`GPT2LMHeadModel` with the layers, heads and vocabulary of a config, and learned positions, as many as asked for.

    As our models have it, GELU is by erf (GPT-2's own, by tanh, is slower on a CPU) and nothing is dropped out.
    """

    def __init__(self, config: ModelConfig, positions: int, seed: int = 0) -> None:
        if config.kv_heads not in (None, config.heads):
            raise SettingError(f"GPT-2 shares no keys between heads: expected no kv_heads, got {config.kv_heads}.")
        self.package = require_transformers()
        self.package.logging.set_verbosity_error()
        self.config = self.package.GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=positions,
            n_embd=config.dim,
            n_layer=config.layers,
            n_head=config.heads,
            n_inner=config.inner_dim,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.heads, self.head_dim, self.layers = config.heads, config.dim // config.heads, config.layers
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = self.package.GPT2LMHeadModel(self.config).eval()

    @property
    def parameters(self) -> int:
        """Without its positions, of which a token reads one row, however many there are."""
        return int(sum(p.numel() for p in self.model.parameters()) - self.model.transformer.wpe.weight.numel())

    def cache_bytes(self, batch: int, tokens: int) -> int:
        """Of keys and values: what a dynamic cache has grown to by then, and a static one is made with."""
        return 2 * 4 * batch * tokens * self.layers * self.heads * self.head_dim

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross entropy of predicting all but the first of the tokens (B, n + 1)."""
        result: Tensor = self.model(tokens[:, :-1], labels=tokens[:, :-1], use_cache=False).loss
        return result

    def generate(self, prompt: Tensor, tokens: int, *, static: bool) -> list[list[int]]:
        """The new tokens that its own `generate` gives, greedily."""
        cache = {"cache_implementation": "static"} if static else {}
        output = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens,
                                     do_sample=False, pad_token_id=0, **cache)  # fmt: skip
        result: list[list[int]] = output[:, prompt.shape[1] :].tolist()
        return result

    def decoder(self, lengths: Sequence[int], most: int, *, static: bool) -> Gpt2Decoder:
        """Sequences of these lengths whose keys and values are random, with a static cache for `most` tokens."""
        n, batch = max(lengths), len(lengths)
        options = {"max_cache_len": most} if static else {}
        kind = self.package.StaticCache if static else self.package.DynamicCache
        cache, shape = kind(config=self.config, **options), (batch, self.heads, n, self.head_dim)
        for layer in range(self.layers):
            cache.update(torch.randn(shape), torch.randn(shape), layer)
        starts = torch.tensor([n - length for length in lengths])[:, None]
        mask = (torch.arange(n) >= starts).long() if starts.any() else None
        return Gpt2Decoder(self.model, cache, mask, torch.zeros(batch, 1, dtype=torch.long))


@final
class Gpt2Decoder:
    """Greedy decoding, one token of each sequence at a time: the loop of `generate` without what it does beside.

    Sequences of one length have no mask, for which torch's attention is quickest; others are padded on the left.
    """

    def __init__(self, model: Callable[..., object], cache: object, mask: Tensor | None, tokens: Tensor) -> None:
        self.model, self.cache, self.mask, self.tokens = model, cache, mask, tokens
        self.logits = torch.empty(0)

    def step(self) -> Tensor:
        """The next token of each sequence."""
        options: dict[str, Tensor] = {}
        if self.mask is not None:
            self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)
            options = {"attention_mask": self.mask, "position_ids": self.mask.sum(1, keepdim=True) - 1}
        output = self.model(self.tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1, **options)
        self.logits = output.logits[:, -1]  # type: ignore[attr-defined]
        self.tokens = self.logits.argmax(-1, keepdim=True)
        return self.tokens
