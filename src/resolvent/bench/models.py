"""A whole model timed: one step of training, and a long text token by token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

import torch

from resolvent.bench.measure import frugal_allocator, peak_bytes, resident_bytes
from resolvent.bench.training import loss_of, random_tokens, training
from resolvent.model import LanguageModel, ModelConfig

PREFIX = 512  # tokens on which decoding is compared with the full forward pass


@dataclass(frozen=True)
class TrainingStep:
    """Forward, backward and an AdamW step on one sequence of n tokens. Memory is what the step holds at its peak,
    beyond model and optimizer; None where the system does not say.
    """

    pattern: str
    n: int
    seconds: float
    peak_bytes: int | None

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class LongText:
    """Tokens decoded one by one. Times per token are medians over the first and the last tenth of the positions.

    While the last tenth is decoded, a second cache takes turns with it over the first tenth, so that whatever else the
    machine does falls on both alike.

    difference   the largest between logits while decoding and those of the full forward pass, on a prefix
    """

    pattern: str
    tokens: int
    first_seconds: float
    last_seconds: float
    first_resident_bytes: int | None
    last_resident_bytes: int | None
    cache_bytes: int
    difference: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def training_step(config: ModelConfig, n: int, seed: int = 0) -> TrainingStep:
    """The second step is measured: the first compiles kernels and makes the optimizer's state."""
    with frugal_allocator():
        model = LanguageModel.seeded(config, seed)
        tokens = random_tokens(config.vocab_size, 1, n, seed)
        step = partial(training(model, partial(loss_of, model)), tokens)
        step()
        begin = time.perf_counter()
        peak = peak_bytes(step)
        return TrainingStep(config.pattern_label, n, time.perf_counter() - begin, peak)


@torch.no_grad()
def long_text(
    config: ModelConfig, tokens: int, seed: int = 0, after_each: Callable[[], None] = lambda: None
) -> LongText:
    """Decode so many tokens of a random text, teacher-forced, from an empty cache of fixed size."""
    if tokens < 20:
        raise ValueError(f"expected at least 20 tokens to compare first and last, got {tokens}.")
    model = LanguageModel.seeded(config, seed)
    text = torch.randint(config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(seed))
    model.extend(text[:, :2], model.make_cache(1, tokens))  # compiles
    model.extend(text[:, :1], model.make_cache(1, tokens))
    cache, early = model.make_cache(1, tokens), model.make_cache(1, tokens)
    tenth = tokens // 10
    first, last, kept, resident = [], [], [], []
    for t in range(tokens):
        begin = time.perf_counter()
        logits, _ = model.extend(text[:, t : t + 1], cache)
        middle = time.perf_counter()
        if t >= tokens - tenth:
            model.extend(text[:, t : t + 1], early)
            first.append(time.perf_counter() - middle)
            last.append(middle - begin)
        if t < PREFIX:
            kept.append(logits)
        if t in (max(tokens // 10, min(PREFIX, tokens)) - 1, tokens - 1):
            resident.append(resident_bytes())
        after_each()
    prefix = min(PREFIX, tokens)
    difference = float((torch.cat(kept, 1) - model(text[:, :prefix])).abs().max())
    return LongText(
        config.pattern_label, tokens, median(first), median(last), resident[0], resident[-1], cache.nbytes, difference
    )
