"""Cache against hops: with s positions held and h hops there are at most C(s+h, s) tokens."""

import random
from collections.abc import Iterator
from math import comb

import resolvent as rv
from resolvent.analysis.frontier import fewest_hops, least_mean_hops
from tests.oracles import breadth_first_hops

# What is held, seen by hops: for each earlier token, the hops from it to each of the positions held.
State = frozenset[tuple[int, ...]]
SMALL = [(s, h) for s in range(1, 35) for h in range(1, 35) if comb(s + h, s) <= 35]


def hardest(distances: list[tuple[int, ...]]) -> State:
    """Without the tokens that are at least as close as another to every position held."""
    different = set(distances)
    return frozenset(
        one
        for one in different
        if not any(one != other and all(a <= b for a, b in zip(one, other, strict=True)) for other in different)
    )


def policies(state: State, s: int, h: int) -> Iterator[State]:
    """One more token, which reads all that is held; then, if s + 1 positions are too many, drop any one of them.

    To read more or to hold more is never worse, so other policies need not be looked at. Hops count up to h.
    """
    held = len(next(iter(state)))
    following = [(*to, min(min(to) + 1, h)) for to in state] + [(h,) * held + (0,)]
    if held < s:
        yield hardest(following)
    else:
        for dropped in range(held + 1):
            yield hardest([to[:dropped] + to[dropped + 1 :] for to in following])


def most_tokens(s: int, h: int) -> int:
    """The longest sequence of which each token reaches every earlier one, over all caching policies."""
    tokens, states = 1, {hardest([(0,)])}
    while states := {state for state in states if all(min(to) < h for to in state)}:
        tokens, states = tokens + 1, {after for state in states for after in policies(state, s, h)}
    return tokens


def test_exhaustive_search_over_caching_policies() -> None:
    for s, h in [(s, h) for s, h in SMALL if s <= 6 or h == 1]:
        assert most_tokens(s, h) == comb(s + h, s)


def held_counts(sets: list[set[int]]) -> int:
    """The most positions that are held at once: read by the token that is decoded, or a later one."""
    last_reader: dict[int, int] = {}
    for i, sources in enumerate(sets):
        last_reader.update(dict.fromkeys(sources, i))
    return max(sum(j < t <= last for j, last in last_reader.items()) for t in range(len(sets)))


def check_bounds(sets: list[set[int]]) -> None:
    """Max and mean hops are at least what the positions held allow, and no token reaches more than it may."""
    n, s = len(sets), held_counts(sets)
    hops = [breadth_first_hops(sets, j) for j in range(n)]
    all_reached = all(len(hops[j]) == n - 1 - j for j in range(n))
    if all_reached:
        distances = [d for reached in hops for d in reached.values()]
        assert max(distances, default=0) >= fewest_hops(s, n)
        assert sum(distances) / max(len(distances), 1) >= least_mean_hops(s, n) - 1e-9
    for i in range(n):
        for h in range(1, 5):
            assert 1 + sum(hops[j].get(i, n) <= h for j in range(i)) <= comb(s + h, s)


def test_bound_holds_for_random_lifetimes() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        n = rng.randrange(2, 60)
        lives = [1 + int(rng.paretovariate(rng.choice([0.5, 1, 2]))) for _ in range(n)]
        check_bounds([{j for j in range(i) if i - j <= lives[j]} for i in range(n)])


def test_bound_holds_for_arbitrary_patterns() -> None:
    """Whatever a token reads, and however irregularly: what counts is what has to be held for it."""
    for seed in range(40):
        rng = random.Random(seed)
        n, near = rng.randrange(2, 50), rng.randrange(1, 50)
        sets = [
            {rng.randrange(max(0, i - near), i) for _ in range(rng.randrange(1, 5))} if i else set() for i in range(n)
        ]
        check_bounds([{*sources, i - 1} if i and seed % 2 else sources for i, sources in enumerate(sets)])


def test_what_the_bound_says_of_the_cache_efficient_structures() -> None:
    assert [fewest_hops(rv.pattern("exponential+cache").slots(n), n) for n in (1024, 65_536)] == [5, 6]
    assert fewest_hops(rv.pattern("quadratic+cache").slots(1024), 1024) == 3
