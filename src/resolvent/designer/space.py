"""What is searched: lines of structures that grow with a size, from which the search takes those that fit a budget.

A stride of 1 is in all of them: distances are sums of strides ≥ 1, so without it no token reaches the next, and
a·k^p + b connects every pair only for b = 1. Sizes are chosen so that cache and reads grow with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from resolvent.designer.structure import Shape, Structure
from resolvent.patterns import Pattern, pair, pattern

Make = Callable[[int], Structure]

_MOST_HELD = 1024  # by a binomial pattern
_MEDIUM, _LONG = 1 << 12, 1 << 16  # tokens, beyond which fewer sizes are tried: of pairs, and of binomial patterns
_BASES = (2, 3, 4, 5, 6, 8, 10, 16)
_POWERS = (1, 2, 3, 4)
_RATIOS = (2, 3, 4, 8, 16)
_LINEAR = "strides a·k^1+1"


@dataclass(frozen=True)
class Line:
    """Structures of one kind, of all sizes from `least` to `most`.

    The largest that fits is tried, and
    corners  ascending sizes at which a figure jumps; the largest of them that fits, or all if there are steps
    steps    so many sizes for each halving of the largest; if there are several, or few tokens, all small ones, too
    closed   whether all figures have closed forms, so that many sizes are measured in no time
    """

    kind: str
    make: Make
    most: int = 1
    least: int = 1
    corners: tuple[int, ...] = ()
    steps: int = 0
    closed: bool = False


def lines(
    n: int, shape: Shape, corners: tuple[int, ...], widest: int | None = None, *, diagonal: bool = False
) -> Iterator[Line]:
    """All that is searched for n tokens.

    Args:
        n: Number of tokens.
        shape: Layers and heads.
        corners: Sizes of a cache at which hops or congestion jump.
        widest: The most slots, or reads, of a head if all have as many. Of cache-efficient strides whose gaps grow
            at least a third of the levels have a position of their own (docs/theory.md, section 3), so more than
            three times as many levels need not be tried.
        diagonal: Whether far heads of mixes are also tried with A on the diagonal: as many slots, but fewer KiB and
            multiply-adds.
    """

    def uniform(kind: str, spell: Callable[[int], str], most: int, least: int = 1) -> Line:
        return Line(kind, lambda size: Structure.uniform(pattern(spell(size)), shape), most, least, steps=1)

    held, past = min(_MOST_HELD, max(n - 1, 1)), max(n - 1, 1)
    lazy = uniform("binomial", lambda s: f"binomial:{s},lazy", held)
    yield replace(lazy, corners=corners, steps=8 if n <= _LONG else 1)
    yield replace(uniform("window", lambda s: f"order:{s}", past), closed=True)
    if shape.heads > 1 or shape.layers > 1:
        yield from _mixes(n, shape, corners, lambda s: pattern(f"binomial:{s},lazy"))
        if diagonal:
            yield from _mixes(n, shape, corners, lambda s: pair("first-order", f"binomial:{s},lazy"))
    yield uniform("binomial, eager", lambda s: f"binomial:{s}", held)
    yield uniform("first order", lambda _: "first-order", 1)
    yield uniform("attention", lambda _: "attention", 1)
    yield uniform("dense", lambda _: "dense", 1)
    yield from _pairs(n, shape, corners)
    for kind, spell, most in _strides(n):
        if kind != _LINEAR:  # whose multiples of a step are never dropped: a table of all but the last ones
            levels = most if widest is None else min(most, 3 * widest + 3)
            yield uniform(f"{kind}, cache-efficient", lambda s, spell=spell: f"stride:{spell(s)}+cache", levels)  # type: ignore[misc]
    yield uniform("Fenwick tree", lambda _: "fenwick", 1)
    for fixed in (1, 4):
        yield uniform("window and first tokens", lambda s, fixed=fixed: f"longformer:{s},{fixed}", past)  # type: ignore[misc]
    for ratio in _RATIOS:
        yield uniform("distances in a window", lambda s, ratio=ratio: _offsets(ratio, s), past, 2)  # type: ignore[misc]
    yield uniform("distances in a window", lambda s: "offsets:1," + str(s), past, 2)
    for kind, spell, most in _strides(n):
        yield uniform(kind, lambda s, spell=spell: f"stride:{spell(s)}", most)  # type: ignore[misc]
    yield uniform("window and its multiples", lambda s: f"sparse-transformer:{max(past // s, 1)}", past)
    if n <= 2048:
        yield uniform("medians of intervals", lambda _: "two-hop", 1)


def _strides(n: int) -> Iterator[tuple[str, Callable[[int], str], int]]:
    """Expressions in k by a size, which is about the number of strides below n; and the largest size."""
    past = max(n - 1, 1)

    def coefficient(size: int, power: int) -> int:
        return max(-(-past // int(size**power)), 1)

    for p in _POWERS:
        most = 2 * round(past ** (1 / p)) + 1
        yield f"strides a·k^{p}+1", lambda s, p=p: f"{coefficient(s, p)}*k**{p}+1", most  # type: ignore[misc]
    for base in _BASES:
        yield "strides b^k", lambda _, base=base: f"{base}**k", 1  # type: ignore[misc]
        yield "sums of two strides", lambda _, base=base: f"{base}**k+k", 1  # type: ignore[misc]
        if base <= 4:
            yield "sums of two strides", lambda s, base=base: f"{base}**k+{coefficient(s, 2)}*k**2", round(past**0.5)  # type: ignore[misc]
    for p in (2, 3):
        yield "sums of two strides", lambda s, p=p: f"{coefficient(s, p)}*k**{p}+k+1", round(past ** (1 / p)) + 1  # type: ignore[misc]


def _offsets(ratio: int, last: int) -> str:
    """1, ratio, ratio², … and the last."""
    values, value = [], 1
    while value < last:
        values.append(value)
        value *= ratio
    return "offsets:" + ",".join(map(str, [*values, last]))


def _near(n: int) -> list[Pattern]:
    """What heads or layers read that look at neighbors only."""
    sizes = [size for size in (4, 16, 64) if size < n]
    return [pattern("first-order"), *(pattern(f"order:{size}") for size in sizes)]


def _pairs(n: int, shape: Shape, corners: tuple[int, ...]) -> Iterator[Line]:
    """A on the diagonal, or on a window; B far. What A keeps of inputs and B of outputs takes slots of its own."""
    held, steps = min(_MOST_HELD, max(n - 1, 1)), 1 if n <= _MEDIUM else 0

    def joined(a: str, b: str) -> Make:
        return lambda size: Structure.uniform(pair(a, b.format(size)), shape)

    for a in ("first-order", *(f"local:{w + 1}" for w in (1, 4, 16, 64) if w < n)):
        yield Line("pair A/B", joined(a, "binomial:{},lazy"), held, 1, corners, steps)
        yield Line("pair A/B", joined(a, "order:{}"), max(n - 1, 1), 1, corners, steps)


def _mixes(n: int, shape: Shape, corners: tuple[int, ...], far: Callable[[int], Pattern]) -> Iterator[Line]:
    """Some heads far, the others near; and some layers far, the others near, in either order."""
    held = min(_MOST_HELD, max(n - 1, 1))
    for near in _near(n):
        for count in _counts(shape.heads):

            def heads(size: int, near: Pattern = near, count: int = count) -> Structure:
                return Structure((((count, far(size)), (shape.heads - count, near)),) * shape.layers)

            yield Line("mixed heads", heads, held, 2, corners)
        for count in _counts(shape.layers):

            def layers(size: int, near: Pattern = near, count: int = count) -> Structure:
                return Structure(
                    (((shape.heads, near),),) * (shape.layers - count) + (((shape.heads, far(size)),),) * count
                )

            yield Line("mixed layers", layers, held, 2, corners)
            yield Line("mixed layers", _reversed(layers), held, 2, corners)
        if shape.heads > 1 and shape.layers > 1:

            def one(size: int, near: Pattern = near) -> Structure:
                mixed = ((1, far(size)), (shape.heads - 1, near))
                return Structure((((shape.heads, near),),) * (shape.layers - 1) + (mixed,))

            yield Line("one far head", one, held, 2, corners)


def _reversed(make: Make) -> Make:
    return lambda size: Structure(make(size).layers[::-1])


def _counts(heads: int) -> list[int]:
    """How many of the heads, or layers, are far."""
    return sorted({count for count in (1, 2, heads // 2) if 0 < count < heads})
