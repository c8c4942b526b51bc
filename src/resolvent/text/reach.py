"""What a text offers to those who read far: the gain of an n-gram cache as its window grows. Nothing is trained.

A trigram model of the training split predicts each token of the validation split, mixed with what followed the same
tokens earlier: for contexts of 0 to 2 tokens, the share of the target among the tokens that followed the context within
the last `window` tokens. The cache has no longer contexts than the model, so that a longer window gains by what it
reaches alone, and not because the model is too short for the text.

The weights of the mixture depend on the longest context that occurred in the window. They are fitted by EM on one half
of the validation split and used on the other, and the other way round, so that no target has a part in the weights that
it is measured with. All windows are measured on the same targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import final

import numpy as np

from resolvent.errors import SettingError
from resolvent.fields import Amount, Count, Positive, as_list, as_mapping, check_names, check_types, field_names
from resolvent.text.corpus import Corpus
from resolvent.text.files import TextError
from resolvent.text.ngrams import CacheCounts, Floats, Ints, trigram_probabilities, windows_up_to

LONGEST = 2  # tokens of a context, as in the trigram model
NEAR = 32  # tokens that every structure reaches easily
_MOST = {"train": 20_000_000, "validation": 1_000_000}  # tokens that are read of each split
_ROUNDS = 30  # of EM
_MUCH, _SOME = 0.4, 0.2  # nats per token beyond `NEAR`: a rule of thumb


@final
@dataclass(frozen=True)
class WindowLoss:
    """The loss, in nats per token, with a cache of the last `window` tokens."""

    window: Positive
    loss: Amount

    def __post_init__(self) -> None:
        check_types(self)


@final
@dataclass(frozen=True)
class Reach:
    """What a text offers: losses by window.

    trigram          the loss without a cache
    targets          tokens that it was measured on
    trained          tokens that the trigram model was made from
    bytes_per_token  of the validation split
    """

    trigram: Amount
    windows: tuple[WindowLoss, ...]
    targets: Count
    trained: Count
    bytes_per_token: Amount

    def __post_init__(self) -> None:
        check_types(self)
        if not self.windows or not self.bytes_per_token:
            raise SettingError("expected at least one window, and bytes per token > 0.")

    def gain(self, near: int, far: int) -> float:
        """Nats per token, from a window of `near` tokens to one of `far`."""
        losses = {each.window: each.loss for each in self.windows}
        for window in (near, far):
            if window not in losses:
                raise SettingError(f"expected a window that was measured, {', '.join(map(str, losses))}, got {window}.")
        return losses[near] - losses[far]

    def bits_per_byte(self, nats: float) -> float:
        return nats / math.log(2) / self.bytes_per_token

    @cached_property
    def near(self) -> int:
        """The window that gains begin from: 32 tokens, or the shortest if it is longer, or the context is shorter."""
        measured = [each.window for each in self.windows]
        return max((window for window in measured if window <= NEAR), default=measured[0])

    @property
    def far(self) -> int:
        return self.windows[-1].window

    @property
    def reading(self) -> str:
        """One sentence."""
        nats = self.gain(self.near, self.far)
        bits = self.bits_per_byte(nats)
        verdict = (
            "rewards long reach" if nats >= _MUCH else "rewards long reach a little" if nats >= _SOME
            else "hardly rewards long reach"
        )  # fmt: skip
        return (
            f"This text {verdict}: from {self.near:,} to {self.far:,} tokens of context an n-gram cache gains "
            f"{nats:.2f} nats per token ({bits:.2f} bits per byte)."
        )

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: object) -> Reach:
        values = as_mapping(content, "the reach of a text")
        check_names(values, field_names(cls), "the reach of a text", optional=())
        windows = tuple(_window(as_mapping(each, "a window")) for each in as_list(values["windows"], "windows"))
        make: Callable[..., Reach] = cls  # which checks its values
        return make(**{**values, "windows": windows})


def _window(values: Mapping[str, object]) -> WindowLoss:
    check_names(values, field_names(WindowLoss), "a window", optional=())
    make: Callable[..., WindowLoss] = WindowLoss  # which checks its values
    return make(**values)


def reach(corpus: Corpus, context: int = 1024, on_progress: Callable[[str, float], None] = lambda *_: None) -> Reach:
    """Measure a corpus in windows of 8, 16, 32, … tokens up to the context.

    Of a large corpus, the first 20 million tokens of the training split and the first million of validation are read.
    """
    if context < 2:
        raise TextError(f"expected a context of at least 2 tokens, got {context}.")
    train, tokens = (corpus.split(split)[:most] for split, most in _MOST.items())
    if len(tokens) <= context:
        raise TextError(
            f"{corpus.folder} is too short for windows of {context:,} tokens: expected more tokens of validation, got "
            f"{len(tokens):,}. Use a smaller --context, or a larger --held-out."
        )
    on_progress("counting", 0.0)
    trigram, windows = trigram_probabilities(train, tokens, corpus.vocab_size), windows_up_to(context)
    counts = CacheCounts(tokens, LONGEST)
    losses = []
    for number, window in enumerate(windows):
        on_progress("windows", number / len(windows))
        losses.append(WindowLoss(window, -float(np.log(mixed(trigram, *counts.within(window))).mean())))
    size = corpus.counts["validation"]
    on_progress("windows", 1.0)
    return Reach(
        trigram=-float(np.log(trigram).mean()),
        windows=tuple(losses),
        targets=len(tokens) - 1,
        trained=len(train),
        bytes_per_token=size.bytes / max(size.tokens - 1, 1),
    )


def mixed(base: Floats, totals: Ints, hits: Ints) -> Floats:
    """The probability of each target, of a mixture of a model and a cache, with weights fitted on the other half.

    Args:
        base: Probabilities of the model, (targets,).
        totals: How often contexts of 0, 1, … tokens occurred, (contexts, targets).
        hits: How often the target followed them, of the same shape.
    """
    shares = np.divide(hits, totals, out=np.zeros(hits.shape), where=totals > 0)
    longest = (totals > 0).sum(0)  # contexts that occurred: all those shorter than the longest did
    second = np.arange(len(base)) >= len(base) // 2
    probability = base.copy()
    for count in range(1, len(totals) + 1):
        for half in (second, ~second):
            fitted, measured = (longest == count) & ~half, (longest == count) & half
            if measured.any():
                weights = _weights(np.vstack([base[fitted], shares[:count, fitted]]))
                probability[measured] = weights @ np.vstack([base[measured], shares[:count, measured]])
    return probability


def _weights(rows: Floats) -> Floats:
    """Weights of a mixture of the rows, by EM from equal ones; one target's worth is added to each, so that a model
    that may be right is never ruled out.
    """
    weights = np.full(len(rows), 1 / len(rows))
    for _ in range(_ROUNDS):
        joint = weights[:, None] * rows
        joint /= joint.sum(0)
        weights = (joint.sum(1) + 1) / (rows.shape[1] + len(rows))
    return weights
