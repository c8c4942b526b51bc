"""Text generation: token by token, many sequences at once, each as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, TypedDict, Unpack

import torch
from torch import Tensor

from resolvent.errors import closest
from resolvent.ops import Cache
from resolvent.ops.sequences import Indices
from resolvent.patterns.checks import require_length

Prompts = Sequence[Sequence[int]] | Tensor


class SamplingOptions(TypedDict, total=False):
    """How tokens are sampled.

    temperature: 0 takes the likeliest token, higher values are more random [default: 1].
    top_k, top_p: sample among the k likeliest tokens, or among the fewest that together have probability p.
    seed: sequence b uses seed + b, or seed[b] if there are several [default: 0]. What a sequence samples depends on its
    own seed alone, not on its neighbors.
    stop: a token, or several, that end a sequence.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | Sequence[int]
    stop: int | Sequence[int]


@dataclass(frozen=True)
class Sampling:
    """`SamplingOptions`, checked."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | Sequence[int] = 0
    stop: int | Sequence[int] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"expected temperature ≥ 0, got {self.temperature}.")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"expected top_k ≥ 1, got {self.top_k}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"expected 0 < top_p ≤ 1, got {self.top_p}.")

    def generators(self, count: int, device: torch.device) -> list[torch.Generator]:
        """One for each sequence."""
        if device.type == "meta":
            raise ValueError("a model on the meta device has shapes and no weights: load it, or move it with to_empty.")
        if isinstance(self.seed, Sequence | Tensor):
            seeds = [int(each) for each in self.seed]
        else:
            seeds = [int(self.seed) + b for b in range(count)]
        if len(seeds) != count:
            raise ValueError(f"expected one seed, or one for each of the {count} prompts, got {len(seeds)}.")
        return [torch.Generator(device=device).manual_seed(seed) for seed in seeds]

    @property
    def stops(self) -> frozenset[int]:
        return frozenset(map(int, [self.stop] if isinstance(self.stop, int) else self.stop))


class Decoder(Protocol):
    """What generation needs of a model."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def make_cache(self, batch: int = 1, max_tokens: int | str | None = None) -> Cache: ...

    def extend(
        self, tokens: Tensor, cache: Cache | None = None, *, start: Indices | None = None, last_only: bool = False
    ) -> tuple[Tensor, Cache]: ...


def generate(
    model: Decoder, prompts: Prompts, tokens: int | str, **options: Unpack[SamplingOptions]
) -> list[list[int]]:
    """Up to `tokens` new tokens after each prompt; one list per prompt, without the stop token that ended it."""
    continuations: list[list[int]] = [[] for _ in range(len(prompts))]
    for step in stream(model, prompts, tokens, **options):
        for sequence, token in zip(continuations, step, strict=True):
            if token is not None:
                sequence.append(token)
    return continuations


def stream(
    model: Decoder, prompts: Prompts, tokens: int | str, **options: Unpack[SamplingOptions]
) -> Iterator[list[int | None]]:
    """`generate` step by step: each yields one token per prompt, None for those that have ended."""
    known = [field.name for field in fields(Sampling)]
    for name in options:
        if name not in known:
            raise TypeError(f"unknown option '{name}': expected {', '.join(known)}.{closest(name, known)}")
    sampling = Sampling(**options)
    if any(isinstance(prompt, int) for prompt in prompts) or (isinstance(prompts, Tensor) and prompts.ndim != 2):
        raise ValueError("expected a list of prompts, each a list of tokens, got a single one: put it into a list.")
    texts = [list(map(int, prompt)) for prompt in prompts]
    count = 0 if tokens == 0 else require_length(tokens)
    _check_prompts(texts, model.vocab_size)
    return _stream(model, texts, count, sampling, sampling.generators(len(texts), model.device))


@torch.no_grad()
def _stream(
    model: Decoder, texts: list[list[int]], tokens: int, sampling: Sampling, generators: list[torch.Generator]
) -> Iterator[list[int | None]]:
    longest, stops = max(map(len, texts)), sampling.stops
    starts = [longest - len(text) for text in texts]
    padded = [[0] * padding + text for padding, text in zip(starts, texts, strict=True)]
    cache = model.make_cache(len(texts), longest + tokens)
    active = list(range(len(texts)))
    new, start = torch.tensor(padded, device=model.device), starts if any(starts) else None
    for _ in range(tokens):
        logits, _ = model.extend(new, cache, start=start, last_only=True)
        chosen = sample(logits[:, -1], sampling, [generators[b] for b in active]).tolist()
        lasting = [row for row, token in enumerate(chosen) if token not in stops]
        step: list[int | None] = [None] * len(texts)
        for row in lasting:
            step[active[row]] = chosen[row]
        if not lasting:
            return
        yield step
        if len(lasting) < len(active):  # those that have ended cost nothing more
            cache = cache.select(lasting)
        active = [active[row] for row in lasting]
        new, start = torch.tensor([[chosen[row]] for row in lasting], device=model.device), None


def sample(logits: Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> Tensor:
    """A token for each row of logits (B, vocab_size)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scores, top_k, top_p = logits.double() / sampling.temperature, sampling.top_k, sampling.top_p
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p is not None and top_p < 1:
        ranked, order = scores.sort(descending=True)
        probabilities = ranked.softmax(-1)
        enough = probabilities.cumsum(-1) - probabilities >= top_p  # likelier ones have p already; the first stays
        scores = scores.masked_fill(torch.zeros_like(enough).scatter(-1, order, enough), -torch.inf)
    # The first token at which the sum of probabilities exceeds a random share of all of it. Rounding may leave none:
    # then the last that has any.
    sums = scores.softmax(-1).cumsum(-1)
    shares = torch.stack([torch.rand(1, dtype=sums.dtype, device=sums.device, generator=g) for g in generators])
    chosen = torch.searchsorted(sums, shares * sums[:, -1:], right=True)
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(chosen, last)[:, 0]


def _check_prompts(texts: list[list[int]], vocab_size: int) -> None:
    if not texts or any(not text for text in texts):
        raise ValueError("expected at least one prompt, each of at least one token.")
    wrong = next((token for text in texts for token in text if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise ValueError(f"expected tokens from 0 to {vocab_size - 1:,} (the vocabulary), got {wrong}.")
