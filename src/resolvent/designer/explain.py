"""Why a structure is on the frontier, and what the nearest better ones cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resolvent.analysis.frontier import fewest_hops
from resolvent.designer.candidate import Better, Candidate
from resolvent.designer.search import Search
from resolvent.patterns import binomial

_LESS = {"max_hops": "fewer hops", "mean_hops": "fewer hops on average", "congestion": "less congestion",
         "reads": "fewer reads", "madds": "fewer multiply-adds", "slots": "a smaller cache",
         "kib": "a smaller cache"}  # fmt: skip
_MARGIN = 0.9  # of what is better in figures that hardly differ from one to the next


def why(each: Candidate, above: Sequence[Candidate], compared: Sequence[str]) -> str:
    """One sentence: the proven bounds that it meets, and what is better in it than in all that are ranked above it."""
    reasons, met = [], _bounds_met(each)
    if met:
        reasons.append(f"{_join(met)} ({'both proved' if len(met) > 1 else 'proved'})")
    less = [name for name in compared if all(_value(each, name) < _value(other, name) for other in above)]
    if not above:
        reasons.append("ranks first of all that fit")
    elif less:
        reasons.append(f"{_join([_LESS[name] for name in less])} than all ranked above")
    text = "; ".join(reasons or ["no other structure is as good in every figure"])
    return f"{text[0].upper()}{text[1:]}."


def _bounds_met(each: Candidate) -> list[str]:
    """The proven bounds that it meets, or misses by at most one."""
    figures, least, met = each.figures, each.least, []
    cache = "with this cache" if each.structure.is_uniform else "with caches of these sizes"
    if figures.max_hops == least.max_hops:
        met.append(f"the fewest hops possible {cache}")
    if figures.congestion.upper <= least.congestion + 1:
        least_load = (
            "the least congestion"
            if figures.congestion.upper == least.congestion
            else "congestion within 1 of the least"
        )
        met.append(f"{least_load} possible{'' if met else f' {cache}'}")
    return met


def better_than(each: Candidate, frontier: Sequence[Candidate], search: Search) -> tuple[Better, ...]:
    """For every figure that is compared: by a proof where there is one, otherwise the nearest on the frontier."""
    answers = [
        _proved(each, name, search) or _nearest(each, name, frontier, search.compared) for name in search.compared
    ]
    return tuple(answer for answer in answers if answer is not None)


def _proved(each: Candidate, name: str, search: Search) -> Better | None:
    """Fewer hops, or less congestion: the smallest cache that has it, in one pattern for all heads."""
    n, figures = search.n, each.figures
    if name == "max_hops" and each.structure.is_uniform and figures.max_hops == each.least.max_hops > 1:
        size = binomial.fewest_hops(figures.max_hops - 1, n)
        hops: float = figures.max_hops - 1
    elif name == "congestion" and figures.congestion.lower > 2:
        size = math.ceil(n / (figures.congestion.lower - 2))
        hops = fewest_hops(size, n)
    else:
        return None
    if size > 1024 or size >= n or size <= figures.slots:
        return None
    load = float(-(-n // size) + 1)  # of the lazy binomial pattern, at most
    value = hops if name == "max_hops" else load
    after = {"slots": float(size), "reads": float(size), "max_hops": float(hops), "congestion": load}
    costs = {key: amount for key, amount in after.items() if key != name and amount > figures.value(key)}
    return Better(name, value, f"binomial:{size},lazy", costs, proved=name == "max_hops")


def _nearest(each: Candidate, name: str, frontier: Sequence[Candidate], compared: Sequence[str]) -> Better | None:
    """The one with the next smaller value that gives up the least: the sum of doublings in all that is worse."""
    own = each.figures.congestion.lower if name == "congestion" else _value(each, name)
    own -= 0 if name == "max_hops" else (1 - _MARGIN) * own
    smaller = [other for other in frontier if other is not each and _value(other, name) < own]
    if not smaller:
        return None
    best = min(smaller, key=lambda other: _given_up(each, other, compared))
    costs = {key: _value(best, key) for key in compared if key != name and _value(best, key) > _value(each, key)}
    return Better(name, _value(best, name), best.structure.label, costs)


def _given_up(each: Candidate, other: Candidate, compared: Sequence[str]) -> float:
    ratios = (max(_value(other, key), 1e-9) / max(_value(each, key), 1e-9) for key in compared)
    return sum(math.log2(ratio) for ratio in ratios if ratio > 1)


def _value(each: Candidate, name: str) -> float:
    return each.figures.value(name)


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
