"""The growth classes of the nine structures that docs/theory.md proves: each bound, from below and above, at many n."""

import math

import resolvent as rv
from resolvent.analysis import hops
from resolvent.analysis.lower_bounds import cut_bound
from resolvent.analysis.routing import Routing, verify
from tests.oracles import cache_efficient_sets, strides_below

EXPONENTIAL, QUADRATIC = rv.pattern("exponential+cache"), rv.pattern("quadratic+cache")
LENGTHS = [*range(2, 300), 511, 512, 513, 1000, 4096]


def levels(n: int) -> int:
    """The number of k with k²+1 < n."""
    return math.isqrt(n - 2) + 1 if n >= 2 else 0


def test_quadratic_lattice_in_closed_form() -> None:
    """The distinct steps are 1, 3, 6, 12, 24, …; a position of step c lives for 2, 5, and then c²/4 + 1 tokens."""
    steps, step = {1: 2}, 1
    for k in range(1, 2000):
        step *= -(-(2 * k - 1) // step)
        steps[step] = k**2 + 1
    expected = {1: 2, 3: 5} | {3 * 2**u: (3 * 2**u // 2) ** 2 + 1 for u in range(1, 11)}
    last = max(steps)
    assert {c: life for c, life in steps.items() if c < last} == {c: life for c, life in expected.items() if c < last}
    for j in range(1, 400):  # 1-based
        assert QUADRATIC.life(j - 1) == max(life for c, life in expected.items() if j % c == 0)


def test_quadratic_reads_grow_like_the_root() -> None:
    """At least a third of the levels are distinct positions."""
    sets = cache_efficient_sets(strides_below(lambda k: k**2 + 1, 3000), 3000)
    for i in range(2, 3001):  # 1-based
        assert math.ceil(levels(i) / 3) <= len(sets[i - 1]) <= levels(i) == math.ceil(math.sqrt(i - 1))


def test_quadratic_hops_are_doubly_logarithmic() -> None:
    for n in [*LENGTHS, 2**16, 2**20]:
        found = hops(QUADRATIC, n).max
        assert found >= 1 + (math.ceil(math.log2(math.log(n, 3)) - 1e-9) if n > 3 else 0)
        squarings = math.log2(math.log(n / 16) / math.log(145 / 16)) if n > 145 else 0
        assert found <= 5 + max(0, math.ceil(squarings)), n


def test_exponential_hops_are_exact() -> None:
    for n in [*LENGTHS, 65_536]:
        assert hops(EXPONENTIAL, n).max == 1 + max(0, math.ceil(math.log2(n / 3))), n


def relay(start: int, n: int, first: int, hop: int) -> list[int]:
    """Walk to `first`, then go on in hops of one class while they do not pass start + n, which reads the last."""
    path = [*range(start, first), *range(first, start + n + 1, hop)]
    return path if path[-1] == start + n else [*path, start + n]


def test_exponential_relays_bound_congestion() -> None:
    """Tokens take turns among the classes; a position of class t hands over to the next of its class, 2^(t+1) on."""
    for n in [2, 3, 4, 5, 31, 32, 33, 100, 512, 1000]:
        classes = n.bit_length() - 1
        paths = []
        for i in range(1, n + 1):  # 1-based
            spacing = 2 ** (i % classes + 1)
            first = i + (spacing // 2 - i) % spacing  # the next odd multiple of 2^t
            paths.append([node - 1 for node in relay(i, n, first, spacing)])
        load = verify(EXPONENTIAL, Routing.from_paths(paths))
        assert cut_bound(EXPONENTIAL, n) <= load <= 3 * n / classes + classes + 2


def test_quadratic_relays_bound_congestion() -> None:
    """All tokens in one class: odd multiples of c live for c²/4 tokens, so c/8 of them relay side by side."""
    for n in [48, 49, 100, 288, 500, 1000, 1500]:
        c = 24
        while (2 * c) ** 2 <= 4 * n:
            c *= 2
        paths = []
        for i in range(1, n + 1):  # 1-based
            first = i + (c - i) % (2 * c)
            paths.append([node - 1 for node in relay(i, n, first, c * c // 4)])
        load = verify(QUADRATIC, Routing.from_paths(paths))
        assert cut_bound(QUADRATIC, n) <= load <= 8 * n / c + 4 * c + 1
        if n >= 144:  # where √n ≤ c ≤ 2√n
            assert load <= 12 * math.sqrt(n) + 1


def test_cuts_bound_congestion_from_below() -> None:
    for n in LENGTHS:
        assert cut_bound(EXPONENTIAL, n) >= n / math.ceil(math.log2(n + 1))
        assert cut_bound(QUADRATIC, n) >= n / math.ceil(math.sqrt(n))
