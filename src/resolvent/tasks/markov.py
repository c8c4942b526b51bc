"""In-context Markov language: documents with a Markov chain each, and exact losses of readers that count.

Nothing can be learnt across documents but how to learn a chain from its walk, so a model's loss falls with how much of
the past it gathers. The best possible loss is known, by position, and so is that of readers with a limited view.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self, final

import numpy as np
import numpy.typing as npt

from resolvent.batch import Batch, Nats, Tokens
from resolvent.tasks.synthetic import HELD_OUT, stream
from resolvent.tasks.task import Task, require

Table = npt.NDArray[np.float64]

ORACLE, PAST = "oracle", "past"
WINDOWS = (8, 64, 256)  # tokens that the readers with a limited view see; those shorter than the context are reported
_LARGEST_TABLE = 1 << 20  # entries for one document
_LONGEST = 1 << 20  # tokens of a document
_ALPHAS = (1e-3, 1e3)
_SHOWN = 24  # tokens of a sample


def last(window: int) -> str:
    """The name of the reader that sees so many tokens."""
    return f"last {window}"


@final
@dataclass(frozen=True)
class Markov(Task):
    """Predict the next token of a walk. Every document has a chain of its own, drawn with it.

        chain     a: b 0.9, c 0.1     b: a 0.6, c 0.4     c: a 1.0

        tokens    a  b  a  b  c  a  b  a
        targets   b  a  b  c  a  b  a  b
        counted         1/1 0       1/1 1/2   (of the earlier pairs that begin alike, those that end so, too)

    k        tokens
    alpha    rows of the chain are drawn from a symmetric Dirichlet distribution with this parameter; small is spiky
    context  tokens of a document that are read
    order    tokens that the next one depends on: 1, or 2 for a chain on pairs of tokens
    hidden   0, or so many hidden states that the chain is on; each emits tokens by a row of its own, drawn likewise

    The first `order` tokens, or the first hidden state, are uniform.
    """

    name = "markov"
    measure = "perplexity"
    evaluated_on = "documents"

    k: int = 16
    alpha: float = 0.1
    context: int = 256
    order: int = 1
    hidden: int = 0
    vocab_size: int = field(default=0, kw_only=True)  # k

    def __post_init__(self) -> None:
        require(self.k >= 2, f"expected at least 2 tokens, got k={self.k}.")
        low, high = _ALPHAS
        require(low <= self.alpha <= high, f"expected alpha from {low} to {high:g}, got {self.alpha}.")
        require(1 <= self.context <= _LONGEST, f"expected a context of 1 to {_LONGEST:,} tokens, got {self.context}.")
        require(self.order in (1, 2), f"expected order 1 or 2, got {self.order}.")
        require(self.hidden >= 0, f"expected hidden 0, for none, or a number of hidden states, got {self.hidden}.")
        require(self.order == 1 or not self.hidden, "a hidden chain has order 1: expected order=1 or hidden=0, "
                f"got order={self.order} and hidden={self.hidden}.")  # fmt: skip
        entries = max(self.hidden**2, self.hidden * self.k) if self.hidden else self.k ** (self.order + 1)
        require(entries <= _LARGEST_TABLE, f"the table of a document has {entries:,} entries: expected at most "
                f"{_LARGEST_TABLE:,}; use a smaller k, order or hidden.")  # fmt: skip
        require(
            self.vocab_size in (0, self.k),
            f"the vocabulary is the chain's: expected vocab_size {self.k}, got {self.vocab_size}.",
        )
        object.__setattr__(self, "vocab_size", self.k)

    @property
    def longest(self) -> int:
        return self.context

    @property
    def floor(self) -> str:
        """The reader that no model can be better than, in expectation; of hidden chains the best one is not known."""
        return ORACLE if self.hidden else PAST

    def changed(self, settings: Mapping[str, object]) -> Self:
        return super().changed({"vocab_size": 0} | dict(settings) if "k" in settings else settings)

    def batch(self, seed: int, index: int, count: int, *, divisor: int = 1) -> Batch:
        return self.draw(stream(seed, index), count, max(self.context // divisor, 1)).batch()

    def held_out(self, seed: int, count: int, batches: int | None = None) -> Iterator[Batch]:
        """With the nats of every reader."""
        for index in range(1 if batches is None else batches):
            documents = self.draw(stream(seed + HELD_OUT, index), count, self.context)
            yield dataclasses.replace(documents.batch(), readers=self.readers(documents))

    def draw(self, rng: np.random.Generator, count: int, n: int) -> Documents:
        """So many documents with n tokens and a last one that is predicted only."""
        states = self.hidden or self.k
        rows = states if self.hidden else self.k**self.order
        chains = rng.dirichlet(np.full(states, self.alpha), (count, rows))
        walk = np.empty((count, n + 1), dtype=np.int64)
        walk[:, : self.order] = rng.integers(0, states, (count, self.order))[:, : n + 1]
        chances, cumulative, each = rng.random((count, n + 1)), chains.cumsum(-1), np.arange(count)
        for t in range(self.order, n + 1):
            row = walk[:, t - 1] if self.order == 1 else walk[:, t - 2] * self.k + walk[:, t - 1]
            walk[:, t] = _drawn(cumulative[each, row], chances[:, t])
        if not self.hidden:
            return Documents(walk, chains, None)
        emissions = rng.dirichlet(np.full(self.k, self.alpha), (count, states))
        tokens = _drawn(emissions.cumsum(-1)[each[:, None], walk], rng.random((count, n + 1)))
        return Documents(tokens, chains, emissions)

    def readers(self, documents: Documents) -> dict[str, Nats]:
        """The nats of each target, (B, N), for readers by name.

        oracle  knows the document's chain, and of a hidden one the chance of each state: no reader of tokens is better
        past    counts in all of the past: the posterior mean, which is the best that can be done without the chain
        last w  counts in the last w tokens, as if the document began with them
        """
        if documents.emissions is not None:
            return {ORACLE: documents.nats_of_forward_algorithm(documents.emissions)}
        readers = {ORACLE: self._nats_of_chain(documents), PAST: self.counting(documents.tokens)}
        windows = [window for window in WINDOWS if window < documents.tokens.shape[1] - 1]
        return readers | {last(window): self.counting(documents.tokens, window) for window in windows}

    def counting(self, tokens: Tokens, window: int | None = None) -> Nats:
        """The nats of tokens 1 … n of each row, (B, n), for one who counts in what was before, or its last tokens.

        Rows of the chain are independent given the walk, and Dirichlet again: P(next) = (pairs + α) / (begun + k α),
        with the pairs (context, next) seen before, and all that begin with this context. Given the walk from its first
        token on, this is exact, since that token is uniform whatever the chain. A reader of the last tokens alone might
        also reckon with how likely the chain came to the first of them; this one does not, which costs 0.03 nats at
        k = 2 with two tokens in view, and less than 0.01 at k = 16 with eight (tests/tasks/test_markov.py).
        """
        begins, ends = self._contexts(tokens), tokens[:, 1:]
        n = ends.shape[1]
        first = np.zeros(n, dtype=np.int64)  # the first pair that is counted at each position
        if window is not None:
            require(window >= self.order, f"expected a window of at least {self.order} tokens, got {window}.")
            first = np.maximum(np.arange(n) - window + self.order, 0)
        pairs, begun = counts((begins + 1) * self.k + ends, first), counts(begins + 1, first)
        nats: Nats = np.log(begun + self.k * self.alpha) - np.log(pairs + self.alpha)
        nats[:, : self.order - 1] = math.log(self.k)
        return nats

    def _contexts(self, tokens: Tokens) -> Tokens:
        """What each of tokens 1 … n follows, as a row of the chain; -1 where there is no such row yet."""
        before = tokens[:, :-1]
        if self.order == 1:
            return before
        rows = np.full_like(before, -1)
        rows[:, 1:] = before[:, :-1] * self.k + before[:, 1:]
        return rows

    def _nats_of_chain(self, documents: Documents) -> Nats:
        begins, ends = self._contexts(documents.tokens), documents.tokens[:, 1:]
        each = np.arange(len(begins))[:, None]
        nats: Nats = -np.log(documents.chains[each, begins, ends])
        nats[:, : self.order - 1] = math.log(self.k)
        return nats

    def sample(self, seed: int = 0) -> str:
        """A document's first tokens, and below each how likely it was, in %, to a reader of all before it."""
        documents = self.draw(stream(seed, 0), 1, min(self.context, _SHOWN))
        nats = self.readers(documents)[self.floor][0]
        words = [_word(token, self.k) for token in documents.tokens[0].tolist()]
        chances = ["", *(f"{100 * math.exp(-each):.0f}" for each in nats.tolist())]
        return "\n".join("".join(cell.rjust(4) for cell in row).rstrip() for row in (words, chances))


@final
@dataclass(frozen=True)
class Documents:
    """Walks with their chains: tokens (B, n + 1), chains (B, rows, states), of hidden ones emissions (B, states, k)."""

    tokens: Tokens
    chains: Table
    emissions: Table | None

    def batch(self) -> Batch:
        return Batch(self.tokens[:, :-1], self.tokens[:, 1:])

    def nats_of_forward_algorithm(self, emissions: Table) -> Nats:
        """The nats of tokens 1 … n of each row, (B, n), for one who knows both tables and sees the tokens before."""
        count, length = self.tokens.shape
        each = np.arange(count)
        belief = np.full(emissions.shape[:2], 1 / emissions.shape[1])  # of the state before its token is seen
        nats = np.empty((count, length))
        for t in range(length):
            seen = belief * emissions[each, :, self.tokens[:, t]]
            chance = seen.sum(1)
            nats[:, t] = -np.log(chance)
            belief = np.einsum("bs,bst->bt", seen / chance[:, None], self.chains)
        return nats[:, 1:]


def counts(ids: Tokens, first: Tokens) -> Tokens:
    """How often the id ≥ 0 at each position of a row (B, n) stood at an earlier one, from position first[t] on.

    Sorted, equal ids of a row stand beside each other in the order of their positions: two bisections count them.
    """
    count, n = ids.shape
    keys = (np.arange(count)[:, None] * (ids.max(initial=0) + 1) + ids) * n
    ranked = np.sort((keys + np.arange(n)).ravel())
    since = np.searchsorted(ranked, keys + np.minimum(first, np.arange(n)))
    counted: Tokens = np.searchsorted(ranked, keys + np.arange(n)) - since
    return counted


def _drawn(cumulative: Table, chances: Table) -> Tokens:
    """The first entry of each row whose cumulative probability exceeds the chance; rounding never adds another."""
    entries: Tokens = (cumulative[..., :-1] <= chances[..., None]).sum(-1)
    return entries


def _word(token: int, k: int) -> str:
    return chr(ord("a") + token) if k <= 26 else str(token)
