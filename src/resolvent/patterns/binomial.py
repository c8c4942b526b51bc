"""Arithmetic of the binomial pattern: with s positions held, the fewest hops of any pattern, at every length.

P(s, h) is P(s, h-1), whose last token then keeps a slot for itself, followed by P(s-1, h) in the other slots; P(0, h)
and P(s, 0) are single tokens. Its length is C(s+h, s), and P(s, h-1) is a prefix of P(s, h): one endless pattern.
Token t is found in it by writing t as a sum of binomial coefficients with falling sizes (the combinatorial number
system),

    t = C(s+h_s-1, s) + C(s-1+h_{s-1}-1, s-1) + …,    h_s ≥ h_{s-1} ≥ …,    h_k = fewest_hops(k, what is left + 1),

and the partial sums, less one, are the positions that it reads. They form a stack: position j lies in slot number
len(live(s, j + 1)) - 1, at the same place for every length. *Lazy* versions keep a position until its slot is needed.
docs/theory.md has the proofs. Positions are 0-based; integers are Python's, so nothing overflows, and each function
evaluates O(s log h) binomial coefficients.
"""

from __future__ import annotations

from math import comb

import numpy as np

from resolvent.patterns.strides import Integers


def fewest_hops(s: int, n: int) -> int:
    """The least h with C(s+h, s) ≥ n: the fewest hops over n tokens if at most s ≥ 1 positions are held.

    >>> fewest_hops(10, 1024), fewest_hops(27, 1024), fewest_hops(1, 1024)
    (5, 3, 1023)
    """
    too_few, enough = -1, 1
    while comb(s + enough, s) < n:
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if comb(s + middle, s) < n:
            too_few = middle
        else:
            enough = middle
    return enough


def live(s: int, t: int) -> list[int]:
    """The positions that token t reads, ascending; each is dropped as soon as the construction has no use for it.

    >>> live(3, 9), live(3, 10), live(3, 13)
    ([3, 6, 8], [9], [9, 12])
    """
    positions, start = [], 0
    for k, h in _digits(s, t):
        start += comb(k + h - 1, k)
        positions.append(start - 1)
    return positions


def live_lazy(s: int, t: int) -> list[int]:
    """The positions that token t reads if each is kept until its slot is needed: min(s, t) of them, ascending.

    >>> live_lazy(3, 9), live_lazy(3, 10), live_lazy(3, 13)
    ([3, 6, 8], [6, 8, 9], [9, 11, 12])
    """
    digits = _digits(s, t)
    last = max((index for index, (_, h) in enumerate(digits) if h > 1), default=-1)
    if last < 0:  # among the first s + 1 tokens nothing has been dropped yet
        return list(range(t))
    # Below the last digit, slots hold the end of the part before: one hop less in that digit, and as many below.
    top, h = digits[last]
    start = sum(comb(k + hops - 1, k) for k, hops in digits[:last])
    leftover = []
    for k in range(top, 0, -1):
        start += comb(k + h - 2, k)
        if k <= s - len(digits):
            leftover.append(start - 1)
    return sorted(leftover + live(s, t))


def slot(s: int, j: int) -> int:
    """The cache slot of position j, below s and the same for every length; slots are first used in order.

    >>> [slot(3, j) for j in range(11)]
    [0, 1, 2, 0, 1, 2, 1, 2, 2, 0, 1]
    """
    return len(_digits(s, j + 1)) - 1


def life(s: int, j: int) -> int:
    """The number of tokens that read position j, those right after it: j + life is the last one.

    >>> [life(3, j) for j in range(11)]
    [3, 2, 1, 6, 2, 1, 3, 1, 1, 10, 2]
    """
    k, h = _digits(s, j + 1)[-1]
    return comb(k + h - 1, k - 1)


def life_lazy(s: int, j: int) -> int:
    """The number of tokens that read position j if it is kept until its slot is needed.

    >>> [life_lazy(3, j) for j in range(11)]
    [3, 3, 3, 6, 2, 2, 4, 1, 3, 10, 2]
    """
    eager = life(s, j)
    # j + eager is in the same slot, or opens a part whose next tokens take the slots in order up to this one
    return eager + slot(s, j) - slot(s, j + eager)


def lives(s: int, n: int) -> Integers:
    """`life(s, j)` for all j < n, capped at n, shape (n,)."""
    return _profile(s, n)[0]


def lives_lazy(s: int, n: int) -> Integers:
    """`life_lazy(s, j)` for all j < n, capped at n, shape (n,)."""
    eager, size = _profile(s, 2 * n)  # where a life of n ends
    eager, positions = np.minimum(eager[:n], n), np.arange(n)
    # slots are s - size; who is kept for n tokens anyway is kept no shorter lazily
    return np.where(eager < n, np.minimum(eager + size[positions + eager] - size[:n], n), n)


def slots(s: int, n: int) -> Integers:
    """`slot(s, j)` for all j < n, shape (n,)."""
    return s - _profile(s, n)[1]


def _digits(s: int, t: int) -> list[tuple[int, int]]:
    """The sizes k = s, s-1, … and hops h_k ≥ 1 with t = Σ C(k+h_k-1, k); there are none for t = 0."""
    digits, k = [], s
    while t:
        h = fewest_hops(k, t + 1)
        t -= comb(k + h - 1, k)
        digits.append((k, h))
        k -= 1
    return digits


def _profile(s: int, n: int) -> tuple[Integers, Integers]:
    """Lives, capped at n, and the size k of the last digit of j + 1, for all j < n; each is written once.

    P(s, h+1) is P(s, h), P(s-1, h), …, P(1, h) and one token more. Each of these parts is a suffix of the first, but
    for the last token of P(k, h), which takes the slot of size k while P(k-1, h+1) follows.
    """
    if s == 1:  # as many parts as tokens
        return np.ones(n, dtype=np.int64), np.ones(n, dtype=np.int64)
    life_of, size_of = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    end, h = 1, 0  # P(s, h) is written, its last token aside
    while end <= n:
        first = end
        for k in range(s, 0, -1):
            if k < s:
                length = comb(k + h, k)
                written = min(length, n - end)
                for array in (life_of, size_of):
                    array[end : end + written] = array[first - length : first - length + written]
                end += length
            if end > n:
                break
            life_of[end - 1], size_of[end - 1] = min(comb(k + h, k - 1), n), k
        end, h = end + 1, h + 1
    return life_of, size_of
