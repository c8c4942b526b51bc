"""Cache, hops and congestion together: the fewest hops and the least congestion do not exclude each other."""

import itertools
import random
from collections.abc import Iterator
from math import comb

import numpy as np
import pytest

import resolvent as rv
from resolvent.analysis.frontier import copying_bounds, fewest_hops, least_cache, least_congestion, recency_bound
from resolvent.analysis.lower_bounds import cut_bound
from resolvent.analysis.routing import Routing
from resolvent.patterns import binomial
from resolvent.patterns.strides import Integers
from tests.oracles import least_congestion as least_by_search
from tests.theory.test_cache_and_hops import State, hardest


def test_gaps_of_the_lazy_binomial_pattern_grow_towards_the_past() -> None:
    for s in [*range(1, 10), 16, 27]:
        for t in [*range(1, 1500), *range(10**9, 10**9 + 50)]:
            positions = [*reversed(binomial.live_lazy(s, t)), -1]
            gaps = [newer - older for newer, older in itertools.pairwise(positions)]
            assert gaps == sorted(gaps)
            assert sum(gaps) == t


def one_in_one_out(n: int, s: int, seed: int) -> Integers:
    """Random lifetimes such that s positions are held, and one of them is dropped with each token."""
    rng = random.Random(seed)
    lives, held = [2 * n] * (2 * n), list[int]()
    for t in range(2 * n):
        if len(held) == s:
            oldest_first = held[: rng.randrange(1, s + 1)]
            dropped = rng.choice(oldest_first)
            held.remove(dropped)
            lives[dropped] = t - dropped
        held.append(t)
    return np.array(lives)


def rows_of(lives: Integers) -> list[set[int]]:
    return [{j for j in range(i) if i - j <= lives[j]} for i in range(len(lives))]


def test_one_in_one_out_is_settled_within_one() -> None:
    for seed in range(60):
        n, s = 1 + seed % 5, 1 + seed % 3
        lives = one_in_one_out(n, s, seed)
        lower, upper = copying_bounds(lives, n)
        exact = least_by_search(rows_of(lives), n)
        assert exact is not None
        assert lower <= exact <= upper <= lower + 1


@pytest.mark.parametrize("seed", range(60))
def test_recency_bounds_congestion_from_below(seed: int) -> None:
    """For any lifetimes; the interval of all tokens so far is the cut, so no bound is lost in the first half."""
    rng = random.Random(seed)
    n = rng.randrange(1, 6)
    lives = np.array([rng.choice([1, 1, 2, 3, 10]) for _ in range(2 * n)])
    exact = least_by_search(rows_of(lives), n)
    assert exact is not None
    lower, upper = copying_bounds(lives, n)
    assert lower <= exact <= upper


def test_positions_held_for_ever_carry_little() -> None:
    """Eight first tokens that all others read, and a window of 8: the cut counts 16 carriers, but only 8 are new."""
    n = 64
    lives = np.where(np.arange(2 * n) < 8, 2 * n, 8)
    assert recency_bound(lives, n) == (n - 8) // 8 > n // 16


def route(lives: Integers, n: int, capacity: int) -> list[list[int]]:
    """The routing of the proof. First half: each node takes the tokens that would be dropped soonest. Second half:
    each takes over what the position that is dropped with it still holds.
    """
    last = (np.arange(2 * n) + lives).tolist()
    paths: list[list[int]] = [[] for _ in range(n)]
    for t in range(2 * n):
        on_the_way = [path for i, path in enumerate(paths[:t]) if i + n >= t]
        assert all(last[path[-1]] >= t for path in on_the_way), "a token was lost"
        if t < n:
            waiting = sorted((path for path in on_the_way if last[path[-1]] < last[t]), key=lambda path: last[path[-1]])
            moving = [paths[t], *waiting[: capacity - 1]]
        else:
            moving = [path for i, path in enumerate(paths) if i + n == t or (i + n > t and last[path[-1]] == t)]
        for path in moving:
            path.append(t)
    return paths


def test_lazy_binomial_copies_within_one_of_the_least() -> None:
    for n in [1, 2, 9, 40, 64, 135, 256]:
        for s in [*range(1, 10), 16, 27]:
            least, lives = -(-n // s), binomial.lives_lazy(s, 2 * n)
            paths = route(lives, n, least)
            loads = np.zeros(2 * n, dtype=int)
            for i, path in enumerate(paths):
                assert path[0] == i
                assert path[-1] == i + n
                assert all(0 < reader - source <= lives[source] for source, reader in itertools.pairwise(path))
                loads[path] += 1
            assert loads[:n].max() <= least
            assert loads.max() <= least + 1
            assert copying_bounds(lives, n) == (least, min(least + 1, n))


def test_exponential_congestion_is_known_within_one() -> None:
    """The cache of 2^k takes one in and at most one out, and no interval is worse than a cut before it."""
    p = rv.pattern("exponential+cache")
    for n in [*range(1, 80), 255, 256, 257, 1000]:
        cuts = max(-(-t // t.bit_length()) for t in range(1, n + 1))
        assert copying_bounds(p.lives(2 * n), n) == (cuts, min(cuts + 1, n)), n
        assert cut_bound(p, n) == cuts, n


class Search:
    """All caching policies with at most s positions and h hops on 2n tokens, and all routings of load ≤ C through them.

    A token on its way is at the last node of its path, which is held. Node t takes its own token (or the one that ends
    there), all tokens of the position that is dropped with it, and any others, C in all. Then a state is which tokens
    each position held has, and the hops to it, as in the search for hops alone; states without a way on are remembered.
    With `drops`, one policy: which position, oldest first, token t drops.
    """

    def __init__(self, s: int, h: int, n: int, capacity: int, drops: list[int] | None = None) -> None:
        self.s, self.h, self.n, self.capacity, self.drops = s, h, n, capacity, drops
        self.hopeless: set[tuple[int, State, tuple[frozenset[int], ...]]] = set()

    def possible(self, t: int = 0, hops: State = frozenset(), held: tuple[frozenset[int], ...] = ()) -> bool:
        if t == 2 * self.n:
            return True
        if any(min(to) >= self.h for to in hops) or (t, hops, held) in self.hopeless:
            return False
        if any(self.possible(t + 1, *after) for after in self.steps(t, hops, held)):
            return True
        self.hopeless.add((t, hops, held))
        return False

    def steps(
        self, t: int, hops: State, held: tuple[frozenset[int], ...]
    ) -> Iterator[tuple[State, tuple[frozenset[int], ...]]]:
        width, own = len(held), frozenset([t] if t < self.n else [])
        held = tuple(tokens - {t - self.n} for tokens in held)
        following = [(*to, min(min(to) + 1, self.h)) for to in hops] + [(self.h,) * width + (0,)]
        full = width == self.s
        choices = range(width + 1) if self.drops is None else [self.drops[t]]
        for dropped in choices if full else [width + 1]:
            if dropped == width and own:
                continue  # a new token would be lost
            kept = [tokens for slot, tokens in enumerate((*held, own)) if slot != dropped]
            after = hardest([to[:dropped] + to[dropped + 1 :] for to in following])
            if dropped == width:
                yield after, tuple(kept)
                continue
            taken = held[dropped] if full else frozenset()
            room = self.capacity - 1 - len(taken)
            others = sorted(frozenset().union(*kept[:-1]))
            for count in range(min(room, len(others)) + 1):
                for more in itertools.combinations(others, count):
                    moved = frozenset(more)
                    yield after, (*(tokens - moved for tokens in kept[:-1]), own | taken | moved)


@pytest.mark.parametrize("n", range(1, 9))
def test_exhaustive_search_meets_both_bounds_at_once(n: int) -> None:
    """For every cache, some pattern has the fewest hops over 2n tokens and the least congestion of copying n."""
    for s in range(1, n + 1):
        h, least = int(fewest_hops(s, 2 * n)), -(-n // s)
        assert comb(s + h, s) >= 2 * n
        assert Search(s, h, n, least).possible()
        if n <= 4:  # that neither can be less is proved; without a solution the search takes long
            assert least == 1 or not Search(s, 2 * n, n, least - 1).possible()
            assert h == 1 or not Search(s, h - 1, n, n).possible()


def test_lazy_binomial_itself_sometimes_needs_one_more() -> None:
    """Three positions held and nine tokens: another pattern of as few hops copies with a load of 3, this one with 4."""
    s, n, h = 3, 9, 3
    drops = [0] * s
    for t in range(s, 2 * n):
        before, after = binomial.live_lazy(s, t), binomial.live_lazy(s, t + 1)
        drops.append(next(index for index, j in enumerate(before) if j not in after))
    assert fewest_hops(s, 2 * n) == h
    assert Search(s, h, n, 3).possible()
    assert not Search(s, h, n, 3, drops).possible()
    assert Search(s, h, n, 4, drops).possible()


def test_least_cache_is_the_least() -> None:
    for n, h, c in itertools.product((5, 100, 1024), (1, 2, 3, 7), (1, 3, 50)):
        s = least_cache(h, c, n)
        assert fewest_hops(s, 2 * n) <= h
        assert s * c >= n
        assert s == 1 or fewest_hops(s - 1, 2 * n) > h or (s - 1) * c < n


def subsets(edges: list[tuple[int, int]], n: int) -> Iterator[list[set[int]]]:
    """The rows of all patterns on 2n positions with some of these edges (j, i), j read by i."""
    for chosen in itertools.product((False, True), repeat=len(edges)):
        rows = [set[int]() for _ in range(2 * n)]
        for (j, i), used in zip(edges, chosen, strict=True):
            if used:
                rows[i].add(j)
        yield rows


def held_over(rows: list[set[int]], n: int) -> int:
    """The most positions that token t < n or a later one of the 2n reads, before it."""
    return max(len({j for row in rows[t:] for j in row if j < t}) for t in range(n))


def steps_of_paths(n: int) -> list[tuple[int, int]]:
    """What paths from p to p + n can use; other reads only take room."""
    return [(j, i) for i in range(2 * n) for j in range(max(i - n, 0), i)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_slots_times_congestion(n: int) -> None:
    """Of every pattern on so few tokens; and for every cache one that connects all pairs attains it."""
    best: dict[int, int] = {}
    for rows in subsets(steps_of_paths(n), n):
        load, held = least_by_search(rows, n), held_over(rows, n)
        if load is not None:
            assert held * load >= n - 1
            assert load >= least_congestion(held, n)
            assert rv.explicit(lambda i, rows=rows: rows[i], 2 * n).slots(n) == held
            if all(i - 1 in row for i, row in enumerate(rows) if i):  # the steps without which a pair has no path
                best[held] = min(best.get(held, n), load)
    assert best == {s: least_congestion(s, n) for s in range(n > 1, n)}


def test_slots_times_congestion_of_pairs() -> None:
    """All pairs A/B on four positions: the slots of A and of B count, and never less than what is held."""
    patterns = list(subsets(steps_of_paths(2), 2))
    for first, later in itertools.product(patterns, repeat=2):
        load = least_by_search(later, 2, first)
        if load is not None:
            union = [a | b for a, b in zip(first, later, strict=True)]
            assert held_over(first, 2) + held_over(later, 2) >= held_over(union, 2)
            assert held_over(union, 2) * load >= 1


def test_slots_times_congestion_is_attained() -> None:
    """A window over the first n tokens, whose last positions all later tokens read beside each other."""
    for n, s in itertools.product((2, 3, 7, 20), range(1, 20)):
        if s >= n:
            continue

        def reads(i: int, n: int = n, s: int = s) -> set[int]:
            return set(range(max(i - s, 0), i)) if i < n else {*range(n - 1 - s, i)}

        p = rv.explicit(reads, 2 * n)
        paths = [[*range(i, n - 1, s), i + n] if i < n - 1 else [i, i + n] for i in range(n)]
        assert p.slots(n) == s
        assert rv.hops(p, 2 * n).unreachable_pairs == 0
        assert rv.verify(p, Routing.from_paths(paths)) == least_congestion(s, n)
