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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.errors import SettingError
from resolvent.fields import Amount, Count, Positive, as_list, as_mapping, check_names, check_types, field_names
from resolvent.text.batches import TokenSequence
from resolvent.text.corpus import Corpus
from resolvent.text.files import TextError

LONGEST = 2  # tokens of a context, as in the trigram model
NEAR = 32  # tokens that every structure reaches easily
_MOST = {"train": 20_000_000, "validation": 1_000_000}  # tokens that are read of each split
_ROUNDS = 30  # of EM
_MOST_TOKENS = 1 << 20  # of a vocabulary: three tokens fit into 63 bits
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
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


def trigram_probabilities(train: TokenSequence, tokens: TokenSequence, vocab_size: int) -> Floats:
    """The probability of each token but the first, given the two before it (the second has one): (tokens - 1,).

    A trigram model with Witten-Bell smoothing, which has no parameter to fit: after a context h that occurred c(h)
    times, followed by t(h) different tokens, p(x | h) = (c(hx) + t(h) p(x | h')) / (c(h) + t(h)), where h' is h without
    its first token. Without any context, h' gives all tokens of the vocabulary the same.
    """
    if vocab_size > _MOST_TOKENS:
        raise ValueError(f"expected a vocabulary of at most {_MOST_TOKENS:,} tokens, got {vocab_size:,}.")
    probability = np.full(len(tokens) - 1, 1 / vocab_size)
    for order in (1, 2, 3):
        if len(train) < order:
            break
        counts = _Counts.of(_grams(train, order, vocab_size), vocab_size)
        first = max(order - 2, 0)  # the first target that has so many tokens before it
        grams = _grams(tokens, order, vocab_size)[1 if order == 1 else 0 :]
        probability[first:] = counts.smoothed(grams, probability[first:])
    return probability


def _grams(tokens: TokenSequence, order: int, vocab_size: int) -> Ints:
    """Each `order` tokens in a row as a number."""
    count = len(tokens) - order + 1
    keys = np.zeros(count, dtype=np.int64)
    for i in range(order):
        keys *= vocab_size
        keys += tokens[i : i + count]
    return keys


@final
@dataclass(frozen=True)
class _Counts:
    """Different n-grams in order, and their counts; different contexts, their counts and different continuations."""

    grams: Ints
    gram_counts: Ints
    contexts: Ints
    context_counts: Ints
    followers: Ints
    vocab_size: int

    @classmethod
    def of(cls, keys: Ints, vocab_size: int) -> _Counts:
        grams, gram_counts = np.unique(keys, return_counts=True)
        contexts, first, followers = np.unique(grams // vocab_size, return_index=True, return_counts=True)
        return cls(grams, gram_counts, contexts, np.add.reduceat(gram_counts, first), followers, vocab_size)

    def smoothed(self, keys: Ints, lower: Floats) -> Floats:
        """p(x | h) of n-grams hx, from p(x | h')."""
        own = _looked_up(keys, self.grams, self.gram_counts)
        total = _looked_up(keys // self.vocab_size, self.contexts, self.context_counts)
        followers = _looked_up(keys // self.vocab_size, self.contexts, self.followers)
        return np.where(total > 0, (own + followers * lower) / np.maximum(total + followers, 1), lower)


def _looked_up(keys: Ints, known: Ints, values: Ints) -> Ints:
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[at] == keys, values[at], 0)


@final
class CacheCounts:
    """How often each token followed its context within the last tokens, for contexts of 0 to `longest` tokens."""

    def __init__(self, tokens: TokenSequence, longest: int) -> None:
        self._length = len(tokens)
        self._contexts, self._grams = [], []
        context: Ints = np.zeros(len(tokens), dtype=np.int64)  # what precedes each token, as a number; of `m` tokens
        row = tokens.astype(np.int64)
        for m in range(longest + 1):
            if m:
                context = _numbered(context[1:] * (int(row.max()) + 1) + row[: len(row) - m])
            self._contexts.append(_Positions(context, m))
            self._grams.append(_Positions(_numbered(context * (int(row.max()) + 1) + row[m:]), m))

    def within(self, window: int) -> tuple[Ints, Ints]:
        """(contexts, tokens - 1) each: how often the context of a target occurred in the `window` tokens before it,
        with a token after it, and how often that token was the target. An occurrence is in the window as a whole.
        """
        pairs = [
            (contexts.before(window, self._length), grams.before(window, self._length))
            for contexts, grams in zip(self._contexts, self._grams, strict=True)
        ]
        totals, hits = (np.stack(each)[:, 1:] for each in zip(*pairs, strict=True))
        return totals, hits


def _numbered(keys: Ints) -> Ints:
    """Equal keys have equal numbers, from 0 on."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


@final
class _Positions:
    """The positions of each number in a row that begins at token `m`: by number, then by position."""

    def __init__(self, numbers: Ints, m: int) -> None:
        self._m = m
        self._order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self._order]
        self._stride = len(numbers) + 1
        self._keys = self._numbers * self._stride + self._order

    def before(self, window: int, length: int) -> Ints:
        """For each of `length` tokens: equal numbers before it whose `m` tokens are at most `window` before it, too."""
        reach = window - self._m
        counts = np.zeros(length, dtype=np.int64)
        if reach > 0 and len(self._keys):
            least = np.maximum(self._order - reach, 0)
            first = np.searchsorted(self._keys, self._numbers * self._stride + least)
            counts[self._m + self._order] = np.arange(len(self._keys)) - first
        return counts


def windows_up_to(context: int, shortest: int = 8) -> Sequence[int]:
    """Powers of two times the shortest, below the context, and the context."""
    windows = []
    while shortest < context:
        windows.append(shortest)
        shortest *= 2
    return [*windows, context]
