"""Text out of a model: token by token, many sequences at once, each as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch
from torch import Tensor

from resolvent.patterns.errors import closest

if TYPE_CHECKING:
    from resolvent.model.language_model import LanguageModel

Prompts = Sequence[Sequence[int]] | Tensor


class How(TypedDict, total=False):
    """How tokens are drawn.

    temperature: 0 takes the likeliest token, 1 (unless given) draws as the model says, more is wilder.
    top_k, top_p: draw among the k likeliest tokens, or among the fewest that together have probability p.
    seed: of the draws, 0 unless given; sequence b uses seed + b, or seed[b] if there are several. What a sequence draws
    depends on its own seed alone, not on its neighbours.
    stop: a token, or several, that end a sequence.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | Sequence[int]
    stop: int | Sequence[int]


def generate(model: LanguageModel, prompts: Prompts, tokens: int, **how: Unpack[How]) -> list[list[int]]:
    """Up to `tokens` new tokens after each prompt; one list per prompt, without the stop token that ended it."""
    found: list[list[int]] = [[] for _ in range(len(prompts))]
    for step in stream(model, prompts, tokens, **how):
        for sequence, token in zip(found, step, strict=True):
            if token is not None:
                sequence.append(token)
    return found


def stream(model: LanguageModel, prompts: Prompts, tokens: int, **how: Unpack[How]) -> Iterator[list[int | None]]:
    """`generate` step by step: each yields one token per prompt, None for those that have ended."""
    unknown = [name for name in how if name not in How.__annotations__]
    if unknown:
        known = list(How.__annotations__)
        raise TypeError(f"unknown option '{unknown[0]}': expected {', '.join(known)}.{closest(unknown[0], known)}")
    temperature, top_k, top_p = how.get("temperature", 1.0), how.get("top_k"), how.get("top_p")
    seed, stop = how.get("seed", 0), how.get("stop", ())
    if any(isinstance(prompt, int) for prompt in prompts) or (isinstance(prompts, Tensor) and prompts.ndim != 2):
        raise ValueError("expected a list of prompts, each a list of tokens, got a single one: put it into a list.")
    texts = [list(map(int, prompt)) for prompt in prompts]
    _check(texts, model.config.vocab_size, tokens, temperature, top_k, top_p)
    if isinstance(seed, Sequence | Tensor):
        seeds = [int(each) for each in seed]
    else:
        seeds = [int(seed) + b for b in range(len(texts))]
    if len(seeds) != len(texts):
        raise ValueError(f"expected one seed, or one for each of the {len(texts)} prompts, got {len(seeds)}.")
    return _stream(
        model,
        texts,
        tokens,
        temperature,
        top_k,
        top_p,
        seeds,
        frozenset(map(int, [stop] if isinstance(stop, int) else stop)),
    )


@torch.no_grad()
def _stream(
    model: LanguageModel, texts: list[list[int]], tokens: int, temperature: float, top_k: int | None,
    top_p: float | None, seeds: list[int], stop: frozenset[int],
) -> Iterator[list[int | None]]:  # fmt: skip
    device = model.embedding.weight.device
    longest = max(map(len, texts))
    starts = [longest - len(text) for text in texts]
    padded = torch.tensor([[0] * gap + text for gap, text in zip(starts, texts, strict=True)], device=device)
    draws = [torch.Generator(device=device).manual_seed(seed) for seed in seeds]
    cache = model.make_cache(len(texts), longest + tokens)
    going = list(range(len(texts)))
    new, start = padded, starts if any(starts) else None
    for _ in range(tokens):
        logits, _ = model.extend(new, cache, start=start, last_only=True)
        chosen = choose(logits[:, -1], temperature, top_k, top_p, [draws[b] for b in going]).tolist()
        lasting = [row for row, token in enumerate(chosen) if token not in stop]
        step: list[int | None] = [None] * len(texts)
        for row in lasting:
            step[going[row]] = chosen[row]
        if not lasting:
            return
        yield step
        if len(lasting) < len(going):  # those that have ended cost nothing more
            cache = cache.select(lasting)
        going = [going[row] for row in lasting]
        new, start = torch.tensor([[chosen[row]] for row in lasting], device=device), None


def choose(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, draws: Sequence[torch.Generator]
) -> Tensor:
    """A token for each row of logits (B, vocab_size)."""
    if temperature == 0:
        return logits.argmax(-1)
    scores = logits.double() / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p is not None and top_p < 1:
        ranked, order = scores.sort(descending=True)
        shares = ranked.softmax(-1)
        enough = shares.cumsum(-1) - shares >= top_p  # the likelier ones have p already; the first always stays
        scores = scores.masked_fill(torch.zeros_like(enough).scatter(-1, order, enough), -torch.inf)
    shares = scores.softmax(-1)
    rows = [torch.multinomial(row, 1, generator=draw) for row, draw in zip(shares, draws, strict=True)]
    return torch.cat(rows)


def _check(
    texts: list[list[int]], vocabulary: int, tokens: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if not texts or any(not text for text in texts):
        raise ValueError("expected at least one prompt, each of at least one token.")
    wrong = next((token for text in texts for token in text if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise ValueError(f"expected tokens from 0 to {vocabulary - 1:,} (the vocabulary), got {wrong}.")
    if tokens < 0:
        raise ValueError(f"expected a number of tokens ≥ 0, got {tokens}.")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"expected temperature ≥ 0, got {temperature}.")
    if top_k is not None and top_k < 1:
        raise ValueError(f"expected top_k ≥ 1, got {top_k}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"expected top_p within 0 … 1, above 0, got {top_p}.")
