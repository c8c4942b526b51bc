"""Hops and congestion through heads and layers: how far a token can look back, and how much a cache has to carry.

*Hops.* Heads of a layer do not see each other: each feeds back its own outputs. So a path through a layer stays in one
head, and the hops of a layer are the least of any of its heads. Between layers all heads are mixed, position by
position, and the residual stream passes every position on: a path goes through the layers in their order, in each along
one head or not at all, and its hops add up. If each position is read by a contiguous run of later ones, in every head,
all that k hops reach from j is an interval, and greedy reach is exact here, too: the layers from l on reach

    F_l,k(j) = max over a ≤ k of  max { F_l+1,k-a(p) : j ≤ p ≤ R_l,a(j) },        R_l,a the reach of layer l in a hops.

*Congestion.* A token of a layer with H heads is H equal parts, such as the channels of a state split by head. Each part
takes a path of its own to the token n positions on, as above, and visits a position of a head where it enters the head,
and wherever it rests on its way. Congestion is the largest number of parts at one position of one head, at best: of H
equal heads in one layer it is at most that of their pattern, where all parts of a token travel side by side. Every part
crosses the cut between positions t - 1 and t through a position that some head holds, hence

    C ≥ max_t ⌈ H · min(t, n, 2n - t) / (positions held at t, summed over heads and layers) ⌉.

docs/theory.md, section 12, has the proofs of this and of the upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, groupby

import numpy as np

from resolvent.analysis.congestion import Congestion
from resolvent.analysis.hops import Hops, hop_matrix, hops, last_reachable
from resolvent.analysis.routers import held_size, persistent_load
from resolvent.errors import PatternError
from resolvent.patterns import Pattern, PatternLike, Stage, as_pattern
from resolvent.patterns.checks import require_length
from resolvent.patterns.strides import Integers, frozen

_MOST_HOPS = 512  # followed one by one
_LARGEST_MATRIX = 512  # positions up to which any patterns are composed, as matrices
_FAR = 1 << 40
_CUT, _FLOW = "cut", "flow through what heads hold"

Heads = Sequence[PatternLike]  # the patterns of a layer: one for each head, or each once


def stack_hops(layers: Sequence[Heads], n: int | str) -> Hops:
    """Hops over all pairs through a stack of layers, each of several heads, exactly and without sampling.

    Args:
        layers: For each layer, from the first, the patterns of its heads. How many heads share one does not matter.
        n: Number of tokens; at most 512 if some pattern has columns that are not contiguous.

    Returns:
        Maximum and mean over the connected pairs, and the number of pairs without a path.

    >>> stack_hops([["order:8", "binomial:4,lazy"]], 1024).max, stack_hops([["local:9"], ["local:9"]], 17).max
    (11, 2)
    """
    n = require_length(n)
    stack = [tuple(dict.fromkeys(map(as_pattern, heads))) for heads in layers]
    if not stack or not all(stack):
        raise PatternError("expected at least one layer, and at least one pattern in each, got none.")
    stack = [heads for heads, run in groupby(stack) for heads in _needed(heads, len(list(run)))]
    if len(stack) == 1 and len(stack[0]) == 1:
        return hops(stack[0][0], n)
    if all(stage.contiguous_columns for heads in stack for p in heads for stage in p.stages):
        return _by_reach(stack, n)
    if n > _LARGEST_MATRIX:
        names = ", ".join(str(p) for heads in stack for p in heads if not all(s.contiguous_columns for s in p.stages))
        raise PatternError(
            f"{names}: not every position is read by a run of later ones, so mixes of it are composed as matrices: "
            f"expected n ≤ {_LARGEST_MATRIX}, got {n:,}."
        )
    return _by_matrices(stack, n)


def _needed(heads: tuple[Pattern, ...], count: int) -> list[tuple[Pattern, ...]]:
    """Equal layers in a row: one is as good as all, if it has a single pattern that feeds back what A reads."""
    one = len(heads) == 1 and heads[0].recurrent and isinstance(heads[0], Stage)
    return [heads] if one else [heads] * count


class _Reach:
    """What a layer reaches in 0, 1, 2, … hops from every position: computed as far as it is asked for."""

    def __init__(self, heads: Sequence[Pattern], n: int) -> None:
        self._heads = [_head_reach(p, n) for p in heads]
        self._last = [next(head) for head in self._heads]
        self._steps = [self._last[0]]
        self.settled: int | None = None  # hops from which on it grows no more

    def within(self, k: int) -> Integers:
        """The last position that k hops reach, for each position; it reaches all before, too."""
        while len(self._steps) <= k and self.settled is None:
            following = [next(head) for head in self._heads]
            if all(np.array_equal(*pair) for pair in zip(self._last, following, strict=True)):
                self.settled = len(self._steps) - 1
            else:
                self._last = following
                self._steps.append(np.maximum.reduce(following))
        return self._steps[min(k, len(self._steps) - 1)]


def _head_reach(p: Pattern, n: int) -> Iterator[Integers]:
    """R_0, R_1, R_2, … of one head.

    The first hop is one of A or of B. After it, what counts is the best relay among j and what the first hop reached:
    all that others reach later, it reaches as soon.
    """
    positions = np.arange(n)
    yield positions
    if isinstance(p, Stage) and p.recurrent:
        yield from _stage_reach(p, n)
    from resolvent.analysis import reach_kernels

    nothing = np.zeros(n, dtype=np.int64)
    first_stage, last_stage = p.stages[0], p.stages[-1]
    a = first_stage.lives(n) if first_stage.direct == "all" else nothing
    b = last_stage.lives(n) if last_stage.recurrent else nothing
    first, later = (np.minimum(positions + lives, n - 1) for lives in (np.maximum(a, b), b))
    yield first
    relay = reach_kernels.farthest_within(later, first)
    onward = reach_kernels.farthest_within(later, later)
    while True:
        yield np.maximum(first, later[relay])
        later = later[onward]


def _stage_reach(stage: Stage, n: int) -> Iterator[Integers]:
    """R_1, R_2, … where every hop is one of B, since A reads the same or nothing: R_k+1 of j is R_k of its relay."""
    if stage.is_shifted(n) and len(offsets := stage.offsets(n)):
        for k in count(1):
            yield np.minimum(np.arange(n) + k * int(offsets[-1]), n - 1)
    reached, relay = _relays(stage, n)
    while True:
        yield reached
        reached = reached[relay]


@lru_cache(maxsize=2)  # the same far heads are mixed with several near ones
def _relays(stage: Stage, n: int) -> tuple[Integers, Integers]:
    """R_1, and the position within it that reads on the farthest."""
    from resolvent.analysis import reach_kernels

    reached = np.minimum(np.arange(n) + stage.lives(n), n - 1)
    relay = reach_kernels.farthest_within(reached, reached)  # before it is frozen: that would compile it again
    return frozen(reached), frozen(relay)


def _by_reach(stack: Sequence[Sequence[Pattern]], n: int) -> Hops:
    from resolvent.analysis import reach_kernels

    layers = [_Reach(heads, n) for heads in stack]
    tables: list[list[Integers]] = [[] for _ in layers]  # F_l,0, F_l,1, …
    sums: list[int] = []
    for k in range(_MOST_HOPS + 1):
        for index in range(len(layers) - 1, -1, -1):
            if index == len(layers) - 1:
                reached = layers[index].within(k)
            else:
                reached = tables[index + 1][k]
                for a in range(1, k + 1):
                    onward = tables[index + 1][k - a]
                    best = onward[reach_kernels.farthest_within(onward, layers[index].within(a))]
                    reached = np.maximum(reached, best)
            tables[index].append(reached)
        sums.append(int(tables[0][k].sum()))
        settled = all(layer.settled is not None for layer in layers)
        if tables[0][k].min() == n - 1 or (settled and k >= sum(int(layer.settled or 0) for layer in layers)):
            break
    else:
        raise PatternError(f"expected at most {_MOST_HOPS} hops through heads and layers, got more: use fewer tokens.")
    connected = sums[-1] - n * (n - 1) // 2
    total = sum(sums[-1] - each for each in sums)
    most = next(k for k, each in enumerate(sums) if each == sums[-1])
    return Hops(most, total / connected if connected else 0.0, n * (n - 1) // 2 - connected)


def _by_matrices(stack: Sequence[Sequence[Pattern]], n: int) -> Hops:
    """Least sums: of a layer the least of its heads, of layers one after the other the least over what lies between."""
    through = np.where(np.eye(n, dtype=np.bool_), 0, _FAR)
    for heads in stack:
        matrices = [hop_matrix(p, n).astype(np.int64) for p in heads]
        layer = np.minimum.reduce([np.where(matrix < 0, _FAR, matrix) for matrix in matrices])
        through = np.stack([(row[:, None] + through).min(axis=0) for row in layer])
    pairs = through[np.tril_indices(n, -1)]
    near = pairs[pairs < _FAR]
    return Hops(int(near.max(initial=0)), float(near.mean()) if len(near) else 0.0, len(pairs) - len(near))


@dataclass(frozen=True)
class _Carrier:
    """A head through which every token can reach its end; the positions that it holds at the cut in the middle."""

    stage: Stage
    held: int
    count: int


def stack_congestion(layers: Sequence[Heads], n: int | str) -> Congestion:
    """Bound the congestion of copying n tokens by n positions through layers of several heads.

    Args:
        layers: For each layer, from the first, one pattern for each of its heads; as many heads in every layer.
        n: Number of tokens.

    Returns:
        Proven bounds, in tokens per state: a part of a token counts at its share of a state. The upper one is infinite
        if no head alone leads every token to its end.

    >>> stack_congestion([["binomial:15,lazy", "first-order"]], 1024)
    Congestion(128 ≤ C ≤ 133: ≥ by cut, ≤ by flow through what heads hold)
    """
    n, stack = require_length(n), [tuple(map(as_pattern, heads)) for heads in layers]
    counts = {len(heads) for heads in stack}
    if len(counts) != 1 or not min(counts):
        raise PatternError(f"expected as many heads in every layer, at least one, got {[len(h) for h in stack]}.")
    heads = counts.pop()
    lower = _cut([p for layer in stack for p in layer], heads, n)
    carriers = _carriers([p for layer in stack for p in layer], n)
    if not carriers:
        return Congestion(lower, math.inf, _CUT, "no head alone leads every token to its end")
    return Congestion(lower, max(_load(carriers, heads, len(stack), n), lower), _CUT, _FLOW)


def _cut(patterns: Sequence[Pattern], heads: int, n: int) -> int | float:
    sizes = [held_size(p) if isinstance(p, Stage) else None for p in patterns]
    if all(size is not None for size in sizes):  # from the start they fill up: the middle is the best cut
        return max(-(-heads * n // sum(min(size or 0, n) for size in sizes)), 1)
    held = np.zeros(2 * n, dtype=np.int64)
    for p in dict.fromkeys(patterns):
        size = held_size(p) if isinstance(p, Stage) else None
        held += patterns.count(p) * (p.occupancy(2 * n) if size is None else np.minimum(np.arange(2 * n), size))
    cuts = np.arange(1, 2 * n)
    crossing = heads * np.minimum(cuts, 2 * n - cuts)
    if not held[1:].all():
        return math.inf
    return max(int(np.max(-(-crossing // held[1:]), initial=1)), 1)


def _carriers(patterns: Sequence[Pattern], n: int) -> list[_Carrier]:
    carriers = []
    for p in dict.fromkeys(patterns):
        stage = p.stages[-1]  # paths can follow B alone
        if not (stage.recurrent and stage.contiguous_columns):
            continue
        if (size := held_size(stage)) is not None:
            carriers.append(_Carrier(stage, min(size, n), patterns.count(p)))
        elif np.all(last_reachable(stage, 2 * n)[:n] >= np.arange(n) + n):
            carriers.append(_Carrier(stage, stage.reads(n), patterns.count(p)))
    return carriers


def _load(carriers: Sequence[_Carrier], heads: int, layers: int, n: int) -> int:
    """The load if each head takes parts in proportion to what it holds, spread evenly over the tokens.

    Evenly: of the first q parts a head with share σ has less than one more or less than σ q, which a schedule exists
    for (Tijdeman 1980). So it has less than H σ l + 2 of the parts of any l tokens in a row.
    """
    total = sum(each.held * each.count for each in carriers)
    if len(carriers) == 1 and carriers[0].count == heads and layers == 1:
        load = persistent_load(carriers[0].stage, n)
        return heads * n if load is None else load + 1
    loads = []
    for each in carriers:
        share = heads * each.held
        load = persistent_load(each.stage, n, share, total, surplus=2)
        ends = -(-share // total) + 1  # parts of one token, which end where the head rests
        loads.append(heads * n if load is None else load + ends)
    return min(max(loads), heads * n)
