"""Congestion through heads and layers, and of long copies: how much each part of a cache has to carry.

A token of a layer with H heads is H equal parts, such as the channels of a state split by head. Each part takes a path
of its own to the token n positions on: through the layers in their order, in each along one head or not at all. It
visits a position of a head where it enters the head, and wherever it rests on its way. Congestion is the largest number
of parts at one position of one head, at best: of H equal heads in one layer it is at most that of their pattern, where
all parts of a token travel side by side.

Every part crosses the cut between positions t - 1 and t through a position that some head holds, hence

    C ≥ max_t ⌈ H · min(t, n, 2n - t) / (positions held at t, summed over heads and layers) ⌉.

docs/theory.md, section 12, has the proofs of this and of the upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resolvent.analysis.congestion import Congestion
from resolvent.analysis.hops import last_reachable
from resolvent.analysis.reach import Heads
from resolvent.analysis.routers import held_size, persistent_load
from resolvent.errors import PatternError
from resolvent.patterns import Pattern, Stage, as_pattern
from resolvent.patterns.checks import require_length

_CUT, _FLOW = "cut", "flow through what heads hold"


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
