"""A language model in GPT-2's shape, with any mixer in each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear
from torch.utils.checkpoint import checkpoint

from resolvent.coefficients import Place, place
from resolvent.coefficients.gates import TokenGate, at_least_float32
from resolvent.coefficients.mamba import MambaCoefficients
from resolvent.mixer import Mixer, check_cache
from resolvent.model.config import ModelConfig
from resolvent.ops import Cache, Caches
from resolvent.ops.sequences import Integers

if TYPE_CHECKING:
    from resolvent.model.generate import How
    from resolvent.model.profile import StackProfile

_MANY = 1 << 24  # logits beyond this many are worked out in parts, and again for their gradient


class Block(nn.Module):
    """X + mixer(norm(x)), then + MLP(norm(·))."""

    def __init__(self, config: ModelConfig, index: int, backend: str) -> None:
        super().__init__()
        dim, bias, specs = config.dim, config.bias, config.patterns_of(index)
        self.norm_mixer = nn.LayerNorm(dim, bias=bias)
        self.mixer = Mixer(
            dim,
            config.heads,
            specs[0] if len(specs) == 1 else specs,
            coefficients=config.coefficients_of(index),
            kv_heads=config.kv_heads,
            rope=config.rope,
            bias=bias,
            backend=backend,
        )
        self.norm_mlp = nn.LayerNorm(dim, bias=bias)
        self.start_of_mlp = nn.Linear(dim, config.inner_dim, bias)
        self.end_of_mlp = nn.Linear(config.inner_dim, dim, bias)

    def forward(self, x: Tensor, where: Place, cache: Cache | None = None) -> Tensor:
        x = x + self.mixer.at(self.norm_mixer(x), where, cache)
        inner = gelu(self.start_of_mlp(self.norm_mlp(x)))  # by erf: by tanh it is several times slower on a CPU
        result: Tensor = x + self.end_of_mlp(inner)
        return result


class LanguageModel(nn.Module):
    """Tokens → logits of the next token.

    Start: weights and embeddings normal with `config.std`, those of the projections that end a branch divided by
    √(2·layers), biases zero, norms one; gates and decays as their modules say.
    """

    def __init__(self, config: ModelConfig, *, backend: str = "auto") -> None:
        super().__init__()
        self.config = config
        self.recompute = False  # in training: keep what enters each block alone, and compute the rest again
        self.embedding = nn.Embedding(config.rows, config.dim)
        self.blocks = nn.ModuleList(Block(config, i, backend) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.dim, bias=config.bias)
        self.reset_parameters()

    @classmethod
    def seeded(cls, config: ModelConfig, seed: int, *, backend: str = "auto") -> LanguageModel:
        """A new model whose start depends on the seed alone, and that leaves torch's own generator as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(config, backend=backend)

    @classmethod
    def shape_only(cls, config: ModelConfig) -> LanguageModel:
        """A model without numbers, for counting: any size takes no memory."""
        with torch.device("meta"):
            return cls(config)

    def reset_parameters(self) -> None:
        """Begin anew."""
        std, ends = self.config.std, self.config.std / (2 * self.config.layers) ** 0.5
        for module in self.modules():
            reset = getattr(module, "reset_parameters", None)
            if module is not self and callable(reset):
                reset()
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, TokenGate | MambaCoefficients):
                module.reset_parameters(std)
        for block in self._blocks():
            nn.init.normal_(block.mixer.output.weight, std=ends)
            nn.init.normal_(block.end_of_mlp.weight, std=ends)

    def forward(self, tokens: Tensor, *, cu_seqlens: Integers | None = None, start: Integers | None = None) -> Tensor:
        """(B, N) tokens → (B, N, vocab_size) logits. Packed and padded sequences as in `Mixer.forward`."""
        return self.logits(self._hidden(tokens, cu_seqlens, start))

    def hidden(self, tokens: Tensor, *, cu_seqlens: Integers | None = None, start: Integers | None = None) -> Tensor:
        """What the head reads: (B, N, dim)."""
        return self._hidden(tokens, cu_seqlens, start)

    def extend(
        self, tokens: Tensor, cache: Cache | None = None, *, start: Integers | None = None, room: int | None = None,
        last_only: bool = False,
    ) -> tuple[Tensor, Cache]:  # fmt: skip
        """Logits of the next tokens of sequences whose past is in the cache, which is brought up to date in place.

        `room` fixes the size of a new cache to so many tokens; `last_only` gives logits after the last token alone.
        """
        self._check(tokens)
        if cache is None:
            cache = self.make_cache(tokens.shape[0], room)
        else:
            expected = {str(i): mixer.kind_of_cache for i, mixer in enumerate(self.mixers)}
            check_cache(cache, expected, tokens.shape[0], room)
        where = place(tokens.shape[0], tokens.shape[1], tokens.device, None, start, cache.positions)
        cache.make_room(where.longest)  # or a refusal, before anything is written
        hidden = self._through(tokens, where, cache)
        return self.logits(hidden[:, -1:] if last_only else hidden), cache

    def loss(
        self, tokens: Tensor, targets: Tensor, *, cu_seqlens: Integers | None = None, start: Integers | None = None
    ) -> Tensor:
        """Mean cross entropy of the targets (B, N); those that are -100, and those in padding, do not count.

        Logits of a large vocabulary are worked out in parts, and again in the backward pass, so that they never exist
        at once.
        """
        hidden = self._hidden(tokens, cu_seqlens, start).flatten(0, 1)
        if targets.shape != tokens.shape:
            raise ValueError(
                f"expected targets of shape {tuple(tokens.shape)}, as the tokens, got {tuple(targets.shape)}."
            )
        if start is not None:
            begins = torch.as_tensor(start, device=targets.device)[:, None]
            targets = targets.masked_fill(torch.arange(targets.shape[1], device=targets.device) < begins, -100)
        wanted = targets.flatten().long()
        counted = wanted != -100
        if not counted.all():  # logits of the others are not needed
            hidden, wanted = hidden[counted], wanted[counted]
        if len(hidden) * self.config.vocab_size <= _MANY:
            return cross_entropy(at_least_float32(self.logits(hidden)), wanted)
        rows = max(_MANY // self.config.vocab_size, 1)
        parts = zip(hidden.split(rows), wanted.split(rows), strict=True)
        total: Tensor = sum(checkpoint(self._summed, part, goal, use_reentrant=False) for part, goal in parts)
        return total / len(wanted)

    def generate(self, prompts: Sequence[Sequence[int]] | Tensor, tokens: int, **how: Unpack[How]) -> list[list[int]]:
        """Continuations of prompts of any lengths; `how` they are drawn: see `resolvent.model.generate.How`."""
        from resolvent.model.generate import generate

        return generate(self, prompts, tokens, **how)

    def stream(
        self, prompts: Sequence[Sequence[int]] | Tensor, tokens: int, **how: Unpack[How]
    ) -> Iterator[list[int | None]]:
        """The same token by token: after each step, one token per sequence, None for those that have ended."""
        from resolvent.model.generate import stream

        return stream(self, prompts, tokens, **how)

    def make_cache(
        self, batch: int = 1, tokens: int | None = None, dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Caches:  # fmt: skip
        """An empty cache of all layers. With `tokens` given, `nbytes` is final before the first one comes."""
        return Caches({str(i): mixer.make_cache(batch, tokens, dtype, device) for i, mixer in enumerate(self.mixers)})

    @property
    def mixers(self) -> list[Mixer]:
        """The mixing layer of each block."""
        return [block.mixer for block in self._blocks()]

    def _blocks(self) -> list[Block]:
        return list(self.blocks)  # type: ignore[arg-type]

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def profile(self, n: int) -> StackProfile:
        """What the whole stack costs on n tokens: parameters, multiply-adds, cache bytes, hops."""
        from resolvent.model.profile import profile

        return profile(self, n)

    def save(self, folder: str | Path) -> Path:
        """Write `config.json` and `model.safetensors` into a folder; see `resolvent.model.saving`."""
        from resolvent.model.saving import save

        return save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, *, device: torch.device | str = "cpu", backend: str = "auto") -> LanguageModel:
        """The model that `save` wrote; anything missing, extra, mis-shaped or damaged is refused."""
        from resolvent.model.saving import load

        return load(folder, device=device, backend=backend)

    def _hidden(self, tokens: Tensor, cu_seqlens: Integers | None, start: Integers | None) -> Tensor:
        """For `loss` and `forward`, too: where weights are sharded, each is a pass, and no pass is inside another."""
        self._check(tokens)
        return self._through(tokens, place(tokens.shape[0], tokens.shape[1], tokens.device, cu_seqlens, start), None)

    def _through(self, tokens: Tensor, where: Place, cache: Cache | None) -> Tensor:
        x = self.embedding(tokens)
        again = self.recompute and self.training and cache is None and torch.is_grad_enabled()
        for i, block in enumerate(self.blocks):
            if again:
                x = checkpoint(block, x, where, use_reentrant=False)
            else:
                x = block(x, where, None if cache is None else cache[str(i)])  # type: ignore[index]
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """What the head makes of `hidden`: (…, dim) → (…, vocab_size)."""
        return linear(hidden, self.embedding.weight)[..., : self.config.vocab_size]

    def _summed(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(at_least_float32(self.logits(hidden)), targets, reduction="sum")

    def _check(self, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.shape[1] < 1 or tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"expected tokens as integers of shape (B, N) with N ≥ 1, got {tokens.dtype} of {tuple(tokens.shape)}."
            )
        if tokens.device.type == "cpu" and tokens.numel():  # elsewhere looking would make the device wait
            least, most = int(tokens.min()), int(tokens.max())
            if least < 0 or most >= self.config.vocab_size:
                raise ValueError(
                    f"expected tokens from 0 to {self.config.vocab_size - 1:,} (the vocabulary), got {least} … {most}."
                )
