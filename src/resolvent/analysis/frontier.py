"""How good a pattern can be at all: cache against hops, cache against congestion, and the three together.

A pattern that holds at most s positions over n tokens needs the least h hops with C(s+h, s) ≥ n between them, and a
congestion of at least (n-1)/s to copy them. Neither costs the other anything: one pattern, the lazy binomial one, has
the fewest hops at every length, and a congestion of ⌈n/s⌉ or one more. docs/theory.md has the proofs.
"""

from __future__ import annotations

import math

import numpy as np

from resolvent.patterns import binomial
from resolvent.patterns.strides import Integers


def fewest_hops(slots: int, n: int) -> int | float:
    """The fewest hops, at most over all pairs of n tokens, of any pattern that holds at most `slots` positions.

    >>> fewest_hops(10, 1024), fewest_hops(27, 1024), fewest_hops(0, 2)
    (5, 3, inf)
    """
    if slots == 0:
        return 0 if n <= 1 else math.inf
    return binomial.fewest_hops(slots, n)


def least_congestion(slots: int, n: int, heads: int = 1) -> int | float:
    """The least congestion of copying n tokens, of any pattern that holds at most `slots` positions over n tokens.

    When token n - 1 is decoded, the n - 1 tokens before it are on their way beyond it, through positions that are
    held: slots × congestion ≥ n - 1. Each of several heads has its share of every token, and the slots of all count.

    >>> least_congestion(10, 1024), least_congestion(1023, 1024), least_congestion(0, 1024)
    (103, 1, inf)
    """
    if n == 1:
        return 1
    return max(-(-heads * (n - 1) // slots), 1) if slots else math.inf


def least_cache(hops: int, congestion: int, n: int) -> int:
    """The fewest positions held by any pattern that copies n tokens with so many hops and such a congestion.

    Hops and positions are counted over all 2n tokens, so that n tokens cross the cut in the middle. The lazy binomial
    pattern with a cache of this size has no more hops than asked for, and a congestion of at most one more.

    >>> least_cache(hops=6, congestion=47, n=1024)
    22
    """
    return max(binomial.fewest_hops(hops, 2 * n), -(-n // congestion))  # C(s+h, s) = C(s+h, h)


def least_mean_hops(slots: int, n: int) -> float:
    """A lower bound on the mean hops over all pairs of n tokens, if at most `slots` positions are held.

    No token has more than C(s+h, s) - 1 earlier ones within h hops.

    >>> round(least_mean_hops(10, 1024), 2)
    3.38
    """
    if slots == 0 or n < 2:
        return 0.0 if n < 2 else math.inf
    if slots == 1:
        return (n + 1) / 3  # the sum below, of as many terms as tokens
    total, h = 0, 0  # of the pairs that are more than h hops apart, over all h
    while (beyond := n - math.comb(slots + h, slots)) > 0:
        total += beyond * (beyond + 1) // 2  # for each token, the earlier ones that h hops cannot reach
        h += 1
    return total / (n * (n - 1) // 2)


def recency_bound(lives: Integers, n: int) -> int | float:
    """The least congestion of copying n tokens that tokens on their way to the cut in the middle allow.

    The tokens of an interval leave it through those of its positions that are read after it, so C is at least their
    quotient, for every interval of the first n tokens. The interval from 0 is the cut bound; shorter ones tell that
    a position which is held for ever carries few tokens.

    Args:
        lives: `Pattern.lives(2 * n)` of a pattern with contiguous columns: position j is read by so many tokens
            after it.
        n: Number of tokens to copy.

    Returns:
        The bound; infinite if some token is not read at all.

    >>> from resolvent.patterns import pattern
    >>> recency_bound(pattern("exponential+cache").lives(2048), 1024)
    103
    """
    past, bound = np.arange(n), 1
    for t in range(1, n + 1):
        live = past[:t][t - past[:t] <= lives[:t]][::-1]  # newest first
        if len(live) == 0 or live[0] < t - 1:
            return math.inf  # token t - 1 has no reader
        length = np.append(t - 1 - live[1:], t)  # of the longest interval that ends here and has 1, 2, … of them
        bound = max(bound, int(np.max(-(-length // np.arange(1, len(live) + 1)))))
    return bound


def copying_bounds(lives: Integers, n: int) -> tuple[int | float, int | float]:
    """Proven bounds on the congestion of copying n tokens, one apart if no token is the last to read two positions.

    Then each token takes over what the position that is dropped with it still holds, and at most one token more.

    Args:
        lives: As for `recency_bound`.
        n: Number of tokens to copy.

    Returns:
        The lower and the upper bound; the latter is n where this argument says nothing.

    >>> from resolvent.patterns import pattern
    >>> copying_bounds(pattern("exponential+cache").lives(2048), 1024)
    (103, 104)
    """
    lower = recency_bound(lives, n)
    if math.isinf(lower):
        return lower, lower
    last_readers = np.arange(len(lives)) + lives
    dropped = np.bincount(last_readers[last_readers < 2 * n], minlength=2 * n)[n:]
    return lower, min(lower + 1, n) if dropped.max() <= 1 else n
