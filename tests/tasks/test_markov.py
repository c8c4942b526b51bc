"""The in-context Markov language: its readers against brute force and simulation, and what no reader can do."""

from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import pytest

from resolvent.tasks import Markov, TaskError, task
from resolvent.tasks.markov import ORACLE, PAST, counts, last
from resolvent.tasks.synthetic import stream

Floats = npt.NDArray[np.float64]
ALL = [Markov(k=4, context=40), Markov(), Markov(k=3, context=60, order=2), Markov(k=5, context=30, hidden=3)]
each = pytest.mark.parametrize("t", ALL, ids=lambda t: f"k{t.k}-order{t.order}-hidden{t.hidden}")


# Brute force: all tables of two tokens on a grid


def grid(alpha: float, points: int = 80) -> tuple[Floats, Floats]:
    """P(0 | row) for both rows, (P, 2), and its weight, of a Dirichlet(alpha) prior on rows of two tokens.

    In angles, p = sin²(a), the density is sin^(2α-1) cos^(2α-1), which is smooth for the alphas tested.
    """
    angles = (np.arange(points) + 0.5) * np.pi / 2 / points
    weight = (np.sin(angles) * np.cos(angles)) ** (2 * alpha - 1)
    p, q = np.meshgrid(np.sin(angles) ** 2, np.sin(angles) ** 2, indexing="ij")
    weights = np.outer(weight, weight)
    return np.stack([p.ravel(), q.ravel()], 1), (weights / weights.sum()).ravel()


def tables(rows: Floats) -> Floats:
    return np.stack([rows, 1 - rows], -1)  # (P, 2, 2)


def likelihood(table: Floats, walk: list[int]) -> Floats:
    """Of a walk given its first token, for each table."""
    chance = np.ones(len(table))
    for begin, end in pairwise(walk):
        chance = chance * table[:, begin, end]
    return chance


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_counting_is_the_posterior_mean_over_all_tables(alpha: float) -> None:
    """Integrated over every table of a grid, for every walk of 7 tokens, in all of the past and in windows."""
    rows, weights = grid(alpha)
    table, t = tables(rows), Markov(k=2, alpha=alpha, context=6)
    walks = list(product(range(2), repeat=7))
    for window in (None, 1, 2, 4):
        nats = t.counting(np.array(walks), window)
        for walk, own in zip(walks, nats, strict=True):
            for i in range(6):
                seen = list(walk[max(i + 1 - (window or 7), 0) : i + 1])
                posterior = weights * likelihood(table, seen)
                expected = (posterior @ table[:, walk[i], walk[i + 1]]) / posterior.sum()
                assert own[i] == pytest.approx(-np.log(expected), abs=2e-4), (walk, i, window)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_a_window_reader_could_gain_little_more(alpha: float) -> None:
    """Reckoning with how the chain came to the first token it sees, a reader of w tokens gains little.

    Every walk of 9 tokens with its probability: all of the past ≤ the best reader of the window ≤ the one that counts.
    """
    rows, weights = grid(alpha)
    table = tables(rows)
    t = Markov(k=2, alpha=alpha, context=8)
    for window, start in ((4, 4), (2, 6)):
        arrived = np.full((len(table), 2), 0.5)  # P(token | table) where the window begins
        for _ in range(start):
            arrived = np.einsum("pi,pij->pj", arrived, table)
        best = counted = past = 0.0
        for walk in product(range(2), repeat=9):
            chance = float(weights @ likelihood(table, list(walk))) / 2
            seen = weights * arrived[:, walk[start]] * likelihood(table, list(walk[start:8]))
            best -= chance * np.log((seen @ table[:, walk[7], walk[8]]) / seen.sum())
            tokens = np.array([walk])
            counted += chance * t.counting(tokens, window)[0, 7]
            past += chance * t.counting(tokens)[0, 7]
        assert past <= best + 1e-3
        assert best <= counted + 1e-3
        assert counted - best < 0.04


def test_counting_in_a_chain_on_pairs() -> None:
    """By hand: the third token on, after two that tell nothing."""
    t = Markov(k=2, alpha=0.5, context=7, order=2)
    walk = np.array([[0, 1, 0, 1, 0, 1, 1, 0]])
    # contexts 01 10 01 10 01 11; at position 5 (after 0 1), 01 → 0 was seen twice
    expected = [np.log(2), np.log(2), np.log(2), -np.log(1.5 / 2), -np.log(1.5 / 2), -np.log(0.5 / 3), np.log(2)]
    assert t.counting(walk)[0] == pytest.approx(expected)
    assert t.counting(walk, 4)[0, 5] == pytest.approx(-np.log(0.5 / 2))  # 0 1 0 1 has one such pair before the last
    assert t.counting(walk, 3)[0, 5] == pytest.approx(np.log(2))  # and 1 0 1 has none


def test_forward_algorithm_by_summing_over_all_paths() -> None:
    t = Markov(k=3, context=4, hidden=2)
    documents = t.draw(stream(5, 0), 3, 4)
    assert documents.emissions is not None
    nats = documents.nats_of_forward_algorithm(documents.emissions)
    for row in range(3):
        chain, emission, tokens = documents.chains[row], documents.emissions[row], documents.tokens[row]

        def chance(n: int, chain: Floats = chain, emission: Floats = emission, tokens: Floats = tokens) -> float:
            total = 0.0
            for path in product(range(2), repeat=n):
                own = 0.5 * np.prod([emission[s, x] for s, x in zip(path, tokens[:n], strict=True)])
                total += own * np.prod([chain[a, b] for a, b in pairwise(path)])
            return total

        assert nats[row] == pytest.approx([-np.log(chance(i + 2) / chance(i + 1)) for i in range(4)])


# Simulation at 16 tokens


def test_at_sixteen_tokens_a_window_reader_could_gain_next_to_nothing() -> None:
    """Chains drawn from the posterior of a window of 8, weighed by how likely they came to its first token."""
    t, rng, samples = Markov(), np.random.default_rng(0), 2000
    gains = []
    for tokens in t.draw(stream(77, 0), 20, 200).tokens:
        window = tokens[-9:-1]
        seen = np.full((16, 16), t.alpha)
        np.add.at(seen, (window[:-1], window[1:]), 1)
        chains = rng.standard_gamma(seen, (samples, 16, 16)) + 1e-30
        chains /= chains.sum(-1, keepdims=True)
        later = chains
        for _ in range(7):  # 128 steps
            later = later @ later
        weights = later.mean(1)[:, window[0]]
        best = weights @ chains[:, window[-1]] / weights.sum()
        counted = seen[window[-1]] / seen[window[-1]].sum()
        assert -np.log(counted[tokens[-1]]) == pytest.approx(t.counting(tokens[None], 8)[0, -1])
        gains.append(float((best * np.log(best / counted)).sum()))
    assert 0 < np.mean(gains) < 0.02  # of which about 0.004 are the error of so few samples


def test_losses_at_sixteen_tokens() -> None:
    """The losses of many documents; the language in which they were first seen had 1.596, 1.767 and 2.398."""
    batch = next(Markov().held_out(1, 2048, 1))
    losses = {name: float(nats.mean()) for name, nats in batch.readers.items()}
    assert losses == pytest.approx({ORACLE: 1.138, PAST: 1.59, last(64): 1.76, last(8): 2.40}, abs=0.03)


@each
def test_readers_that_know_more_lose_less(t: Markov) -> None:
    """In expectation: by more than the error of the mean over documents, or not at all."""
    batch = next(t.held_out(2, 600, 1))
    order = [ORACLE, PAST, last(64), last(8)]
    known = [batch.readers[name].mean(1) for name in order if name in batch.readers]
    for better, worse in pairwise(known):
        gain = worse - better
        assert gain.mean() > -3 * gain.std() / len(gain) ** 0.5
    if PAST in batch.readers:  # and the longer the past, the less
        nats = batch.readers[PAST]
        assert nats[:, :5].mean() > nats[:, 10:20].mean() > nats[:, 20:].mean()


def test_windows_count_what_is_in_them() -> None:
    """By a loop, on random ids."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 4, (5, 30))
    first = np.minimum(rng.integers(0, 30, 30), np.arange(30))
    expected = [[int((row[first[i] : i] == row[i]).sum()) for i in range(30)] for row in ids]
    assert counts(ids, first).tolist() == expected
    t = Markov(k=4, context=40)
    tokens = t.batch(0, 0, 3).tokens
    assert t.counting(tokens, 40) == pytest.approx(t.counting(tokens))  # a window as long as the document


# The task


@each
def test_same_numbers_same_documents(t: Markov) -> None:
    one, again, other = t.batch(7, 3, 4), t.batch(7, 3, 4), t.batch(7, 4, 4)
    assert np.array_equal(one.tokens, again.tokens)
    assert np.array_equal(one.tokens[:, 1:], one.targets[:, :-1])
    assert not np.array_equal(one.tokens, other.tokens)
    held_out = list(t.held_out(7, 4, 4))
    assert not any(np.array_equal(one.tokens, batch.tokens) for batch in held_out)
    assert one.tokens.shape == (4, t.context)
    assert 0 <= one.tokens.min() <= one.tokens.max() < t.vocab_size == t.k
    assert t.batch(0, 0, 2, divisor=4).tokens.shape == (2, t.context // 4)
    assert held_out[0].rows(slice(1, 3)).readers[t.floor].shape == (2, t.context)


def test_walks_follow_their_chains() -> None:
    """Frequencies of what follows each token in one long walk are the row of its chain."""
    documents = Markov(k=3, alpha=1.0).draw(stream(0, 0), 1, 40_000)
    tokens, chain = documents.tokens[0], documents.chains[0]
    for row in range(3):
        follows = tokens[1:][tokens[:-1] == row]
        shares = np.bincount(follows, minlength=3) / len(follows)
        assert shares == pytest.approx(chain[row], abs=4 * 0.5 / len(follows) ** 0.5)


def test_spelling_settings_and_sample() -> None:
    assert task("markov:k=8,alpha=0.5,context=32") == Markov(8, 0.5, 32)
    assert Markov().changed({"k": 5}).vocab_size == 5
    assert Markov(hidden=4).floor == ORACLE
    tokens, chances = Markov().sample().splitlines()
    assert len(tokens.split()) == len(chances.split()) + 1 == 25
    for t in ALL:
        settings = t.settings()
        assert task(str(settings.pop("name")), settings) == t


@pytest.mark.parametrize(("settings", "message"), [
    ({"k": 1}, "at least 2 tokens, got k=1"),
    ({"alpha": 0.0}, "alpha from 0.001 to 1000, got 0.0"),
    ({"order": 3}, "order 1 or 2, got 3"),
    ({"order": 2, "hidden": 4}, "expected order=1 or hidden=0, got order=2 and hidden=4"),
    ({"order": 2, "k": 200}, "8,000,000 entries: expected at most 1,048,576"),
    ({"context": 0}, "a context of 1 to 1,048,576 tokens, got 0"),
    ({"vocab_size": 20}, "expected vocab_size 16, got 20"),
    ({"k": "x"}, "missing a setting or has one of another type"),
])  # fmt: skip
def test_impossible_chains(settings: dict[str, object], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        task("markov", settings)
    with pytest.raises(TaskError, match="a window of at least 2 tokens, got 1"):
        Markov(k=3, order=2).counting(np.zeros((1, 5), dtype=np.int64), 1)
