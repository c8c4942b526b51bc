"""Counts of n-grams in arrays: a smoothed trigram model, and how often a continuation occurred within a window.

Both are counts of equal keys in sorted arrays: nothing is looped over in Python but orders and windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from resolvent.text.batches import TokenSequence

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_MOST_TOKENS = 1 << 20  # of a vocabulary: three tokens fit into 63 bits


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
    """The value of each key; 0 for those not known."""
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
