"""A language model in GPT-2's shape, with any mixer in each layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, gelu, linear
from torch.utils.checkpoint import checkpoint

from resolvent.coefficients import Positions, positions_of
from resolvent.coefficients.gates import at_least_float32
from resolvent.mixer import Mixer, check_cache
from resolvent.model import saving
from resolvent.model.config import ModelConfig
from resolvent.model.fused import next_logits, prepare
from resolvent.model.generate import Prompts, SamplingOptions, generate, stream
from resolvent.model.profile import StackProfile, profile, without_numbers
from resolvent.ops import Cache, Caches
from resolvent.ops.backend import Backend
from resolvent.ops.sequences import Indices
from resolvent.patterns.checks import require_length
from resolvent.rules.rope import RopeSetting

MOST_LOGITS = 1 << 24  # logits beyond this many are computed in chunks, and again for their gradient


class Block(nn.Module):
    """One block: x + mixer(norm(x)), then + MLP(norm(·))."""

    def __init__(self, config: ModelConfig, index: int, backend: str | Backend) -> None:
        super().__init__()
        self.dropout = 0.0  # in training: of what the mixer and the MLP add
        dim, bias, specs = config.dim, config.bias, config.patterns_of(index)
        self.norm_mixer = nn.LayerNorm(dim, bias=bias)
        self.mixer = Mixer(
            dim,
            config.heads,
            specs[0] if len(specs) == 1 else specs,
            rule=config.rule_of(index),
            kv_heads=config.kv_heads,
            rope=config.rope,
            bias=bias,
            backend=backend,
        )
        self.norm_mlp = nn.LayerNorm(dim, bias=bias)
        self.mlp_in = nn.Linear(dim, config.inner_dim, bias)
        self.mlp_out = nn.Linear(config.inner_dim, dim, bias)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        x = x + self._dropped_out(self.mixer.at(self.norm_mixer(x), positions, cache))
        inner = gelu(self.mlp_in(self.norm_mlp(x)))  # by erf: by tanh it is several times slower on a CPU
        return x + self._dropped_out(self.mlp_out(inner))

    def _dropped_out(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout) if self.dropout and self.training else x


class LanguageModel(nn.Module):
    """Tokens → logits of the next token.

    Initially weights and embeddings are normal with `config.std`, those of the projections that end a branch divided by
    √(2·layers), biases zero, norms one; gates and decays as their modules say.

    Args:
        config: its shape, patterns and rules, as `preset` or `ModelConfig` make it.
        backend: of the operator; see `resolvent.choose_backend`.

    >>> model = LanguageModel(ModelConfig(vocab_size=100, layers=2, pattern="quadratic+cache"))
    >>> model(torch.zeros(3, 20, dtype=torch.long)).shape
    torch.Size([3, 20, 100])
    """

    def __init__(self, config: ModelConfig, *, backend: str | Backend = "auto") -> None:
        super().__init__()
        self.config = config
        self.recompute = False  # in training: keep the inputs of blocks alone, and compute the rest again
        self.embedding = nn.Embedding(config.embedding_rows, config.dim)
        self.blocks = nn.ModuleList(Block(config, i, backend) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.dim, bias=config.bias)
        self.reset_parameters()

    @classmethod
    def seeded(cls, config: ModelConfig, seed: int, *, backend: str | Backend = "auto") -> LanguageModel:
        """A new model whose initial weights depend on the seed alone; torch's own generator stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(config, backend=backend)

    @classmethod
    def shape_only(cls, config: ModelConfig) -> LanguageModel:
        """A model without numbers, for counting: any size takes no memory."""
        with without_numbers():
            return cls(config)

    def reset_parameters(self) -> None:
        """Draw the initial weights again."""
        std, last_std = self.config.std, self.config.std / (2 * self.config.layers) ** 0.5
        for module in self.modules():
            reset = getattr(module, "reset_parameters", None)
            if module is not self and callable(reset):
                reset()
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            init_weights = getattr(module, "init_weights", None)  # modules whose weights follow the model's scale
            if init_weights is not None:
                init_weights(std)
        for block in self._blocks():
            nn.init.normal_(block.mixer.output.weight, std=last_std)
            nn.init.normal_(block.mlp_out.weight, std=last_std)

    def forward(self, tokens: Tensor, *, cu_seqlens: Indices | None = None, start: Indices | None = None) -> Tensor:
        """(B, N) tokens → (B, N, vocab_size) logits. Packed and padded sequences as in `Mixer.forward`."""
        return self.logits(self._hidden(tokens, cu_seqlens, start))

    def hidden(self, tokens: Tensor, *, cu_seqlens: Indices | None = None, start: Indices | None = None) -> Tensor:
        """What the head reads: (B, N, dim)."""
        return self._hidden(tokens, cu_seqlens, start)

    def extend(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        *,
        start: Indices | None = None,
        max_tokens: int | str | None = None,
        last_only: bool = False,
    ) -> tuple[Tensor, Cache]:
        """Logits of the next tokens of sequences whose past is in the cache, which is updated in place.

        `max_tokens` fixes the size of a new cache; `last_only` gives logits after the last token alone.
        """
        self.check_tokens(tokens)
        if cache is None:
            cache = self.make_cache(tokens.shape[0], max_tokens)
        else:
            expected = {str(i): mixer.cache_signature for i, mixer in enumerate(self.mixers)}
            check_cache(cache, expected, tokens.shape[0], max_tokens)
        if start is None and tokens.shape == (cache.batch, 1) and cache.batch:
            cache.reserve(int(cache.positions.max()) + 1)
            logits = next_logits(self, tokens, cache)  # type: ignore[arg-type]
            if logits is not None:
                return logits, cache
        positions = positions_of(tokens.shape[0], tokens.shape[1], tokens.device, None, start, cache.positions)
        cache.reserve(positions.longest)  # in all layers, or an error before anything is written
        hidden = self._through(tokens, positions, cache)
        return self.logits(hidden[:, -1:] if last_only else hidden), cache

    def loss(
        self, tokens: Tensor, targets: Tensor, *, cu_seqlens: Indices | None = None, start: Indices | None = None
    ) -> Tensor:
        """Mean cross entropy of the targets (B, N); those that are -100, and those in padding, do not count.

        Logits of a large vocabulary are computed in chunks, and again in the backward pass, so that they never exist
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
        if len(hidden) * self.config.vocab_size <= MOST_LOGITS:
            return cross_entropy(at_least_float32(self.logits(hidden)), wanted)
        rows = max(MOST_LOGITS // self.config.vocab_size, 1)
        chunks = zip(hidden.split(rows), wanted.split(rows), strict=True)
        total: Tensor = sum(checkpoint(self._summed_loss, chunk, goal, use_reentrant=False) for chunk, goal in chunks)
        return total / len(wanted)

    def generate(self, prompts: Prompts, tokens: int | str, **options: Unpack[SamplingOptions]) -> list[list[int]]:
        """Continue prompts of any lengths by up to `tokens` tokens each.

        Options: temperature, top_k, top_p, seed, stop; see `resolvent.model.generate.SamplingOptions`.

        Returns:
            One list of new tokens per prompt, without the stop token that ended it.

        >>> LanguageModel(ModelConfig()).generate([[1, 2, 3]], 2, temperature=0) is not None
        True
        """
        return generate(self, prompts, tokens, **options)

    def stream(
        self, prompts: Prompts, tokens: int | str, **options: Unpack[SamplingOptions]
    ) -> Iterator[list[int | None]]:
        """`generate` token by token: after each step, one token per sequence, None for those that have ended."""
        return stream(self, prompts, tokens, **options)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def make_cache(
        self,
        batch: int = 1,
        max_tokens: int | str | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Caches:
        """An empty cache of all layers. With `max_tokens` given, `nbytes` is final before the first one comes."""
        prepare(self, device)
        return Caches(
            {str(i): mixer.make_cache(batch, max_tokens, dtype, device) for i, mixer in enumerate(self.mixers)}
        )

    @property
    def mixers(self) -> list[Mixer]:
        """The mixing layer of each block."""
        return [block.mixer for block in self._blocks()]

    def _blocks(self) -> list[Block]:
        return list(self.blocks)  # type: ignore[arg-type]

    def parameter_groups(self, weight_decay: float) -> list[dict[str, object]]:
        """For an optimizer: the matrices of layers, which decay, and all else, which does not.

        Embeddings, norms and biases are spared, and what a module names in `no_weight_decay`.
        """
        spared = {id(self.embedding.weight)}
        for module in self.modules():
            for name in getattr(module, "no_weight_decay", ()):
                spared |= {id(p) for full, p in module.named_parameters() if full.partition(".")[0] == name}
        decayed = [p for p in self.parameters() if p.ndim == 2 and id(p) not in spared]
        others = [p for p in self.parameters() if p.ndim != 2 or id(p) in spared]
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def profile(self, n: int | str) -> StackProfile:
        """What the whole stack costs on n tokens: parameters, multiply-adds, cache bytes, hops."""
        return profile(self, require_length(n))

    def save(self, folder: str | Path) -> Path:
        """Write `config.json` and the weights, as safetensors, into a folder; returns it."""
        saving.write(Path(folder), self.config, self.state_dict())
        return Path(folder)

    @classmethod
    def load(
        cls, folder: str | Path, *, device: torch.device | str = "cpu", backend: str | Backend = "auto"
    ) -> LanguageModel:
        """The model that `save` wrote; anything missing, extra, mis-shaped or damaged raises an error."""
        saved = saving.read(Path(folder))
        weights = saved.read_weights(cls.shape_only(saved.config).state_dict())
        with torch.device("meta"):
            model = cls(saved.config, backend=backend)
        model.load_state_dict(weights, assign=True)
        return model.to(device)

    def with_rope(self, rope: RopeSetting) -> LanguageModel:
        """The model with other rotary positions, such as "ntk:factor=8" in longer contexts; both share their weights.

        >>> LanguageModel(ModelConfig()).with_rope("capped:within=255").config.rope
        'capped:within=255'
        """
        with torch.device("meta"):
            model = LanguageModel(replace(self.config, rope=rope), backend=self.mixers[0].layer.backend)
        model.load_state_dict(self.state_dict(keep_vars=True), assign=True)
        return model.train(self.training)

    def _hidden(self, tokens: Tensor, cu_seqlens: Indices | None, start: Indices | None) -> Tensor:
        """For `loss` and `forward`, too: where weights are sharded, each is a pass, and no pass is inside another."""
        self.check_tokens(tokens)
        return self._through(
            tokens, positions_of(tokens.shape[0], tokens.shape[1], tokens.device, cu_seqlens, start), None
        )

    def _through(self, tokens: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        return self.at(self.embedding(tokens), positions, cache)

    def at(self, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        """What `hidden` and `extend` do with embedded tokens (B, N, dim), at positions that the cache has room for."""
        recompute = self.recompute and self.training and cache is None and torch.is_grad_enabled()
        for i, block in enumerate(self.blocks):
            if recompute:
                x = checkpoint(block, x, positions, use_reentrant=False)
            else:
                x = block(x, positions, None if cache is None else cache[str(i)])  # type: ignore[index]
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """What the head makes of `hidden`: (…, dim) → (…, vocab_size)."""
        return linear(hidden, self.embedding.weight)[..., : self.config.vocab_size]

    def _summed_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(at_least_float32(self.logits(hidden)), targets, reduction="sum")

    def check_tokens(self, tokens: Tensor) -> None:
        """Raise an error unless these are (B, N) integers of the vocabulary."""
        if tokens.ndim != 2 or tokens.shape[1] < 1 or tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                "expected tokens as int64 or int32 of shape (B, N) with N ≥ 1, "
                f"got {tokens.dtype} of {tuple(tokens.shape)}."
            )
        if tokens.device.type == "cpu" and tokens.numel():  # elsewhere looking would make the device wait
            least, most = int(tokens.min()), int(tokens.max())
            if least < 0 or most >= self.config.vocab_size:
                raise ValueError(
                    f"expected tokens from 0 to {self.config.vocab_size - 1:,} (the vocabulary), got {least} … {most}."
                )
