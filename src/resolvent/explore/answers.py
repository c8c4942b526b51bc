"""What the page asks the library, as plain values for JSON. All that it shows is computed here."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from resolvent.analysis.congestion import Effort, congestion
from resolvent.analysis.figures.palette import palette
from resolvent.analysis.frontier import fewest_hops, least_congestion
from resolvent.analysis.growth import growth
from resolvent.analysis.hops import as_intervals, hops, paths_to, reads_at_fixed_distances
from resolvent.analysis.lower_bounds import lower_bound
from resolvent.analysis.profile import analyze, describe
from resolvent.errors import PatternError, SettingError, closest, shortened
from resolvent.patterns import FAMILIES, MODIFIERS, PAPER_STRUCTURES, Pattern, Stage, pattern
from resolvent.patterns.checks import require_length
from resolvent.patterns.lifetimes import Lifetimes

Question = Mapping[str, str]
Answer = dict[str, object]

MOST_TOKENS = 4096  # that are drawn one by one
_LONGEST_FIGURES = 1 << 20
_LONGEST_DESIGN = 1 << 17
_MOST_HEADS = 16
_EXPONENTS = range(4, 18)  # of two: the lengths of curves
_LISTED_EXPONENTS = range(4, 12)  # of patterns without a closed form
_OFFERED = 24  # characters of a sample


def answer(name: str, question: Question) -> Answer:
    """Answer one question of the page.

    Args:
        name: What is asked: a key of `ANSWERS`.
        question: Its parameters, as text.
    """
    if name not in ANSWERS:
        raise SettingError(
            f"unknown question {shortened(name)}: expected {', '.join(ANSWERS)}.{closest(name, ANSWERS)}"
        )
    return ANSWERS[name](question)


def catalogue(_: Question) -> Answer:
    """What can be typed, and the colors of the structures."""
    families = [
        {"sample": family.sample, "meaning": family.meaning}
        for family in FAMILIES.values()
        if len(family.sample) < _OFFERED
    ]
    return {
        "families": families,
        "modifiers": MODIFIERS,
        "paper": PAPER_STRUCTURES,
        "palette": palette(),
        "most_tokens": MOST_TOKENS,
    }


def scene(question: Question) -> Answer:
    """Who reads whom, and which slot holds which position until when."""
    p, n = _pattern(question), _length(question, MOST_TOKENS)
    p.require_within(n)
    entries = _entries(p, n)
    reads = sum(mask.sum(axis=1) for mask in entries.values())
    return {
        "pattern": str(p),
        "spelling": p.spelling,
        "n": n,
        "entries": {name: packed_bits(mask) for name, mask in entries.items() if mask.any()},
        "reads": packed(np.asarray(reads)),
        "stages": [_cache(stage, n, name) for stage, name in zip(p.stages, _names(p), strict=True)],
    }


def _entries(p: Pattern, n: int) -> dict[str, npt.NDArray[np.bool_]]:
    """The positions that each token reads, by what reads them."""
    if len(p.stages) > 1:
        a, b = (reads_of(stage, n) for stage in p.stages)
        return {"A and B": a & b, "A only": a & ~b, "B only": b & ~a}
    return {("A only" if not p.recurrent else "A and B" if p.direct == "all" else "B only"): reads_of(p.stages[0], n)}


def reads_of(stage: Stage, n: int) -> npt.NDArray[np.bool_]:
    """`stage.mask(n)`, which lists row after row: at once, where columns are runs or distances are fixed."""
    tokens = np.arange(n, dtype=np.int32)
    if stage.contiguous_columns:
        last = (tokens + np.minimum(stage.lives(n), n)).astype(np.int32)
        return (tokens < tokens[:, None]) & (tokens[:, None] <= last)
    if stage.is_shifted(n):
        far = np.zeros(2 * n - 1, dtype=np.bool_)  # by distance, the longest first; then those ahead, which none reads
        far[n - 1 - stage.offsets(n)] = True
        return np.lib.stride_tricks.sliding_window_view(far, n)[::-1].copy()
    return stage.mask(n)


def _names(p: Pattern) -> list[str]:
    return ["inputs, for A", "outputs, for B"] if len(p.stages) > 1 else [""]


def _cache(stage: Stage, n: int, name: str) -> Answer:
    positions = np.arange(n)
    return {
        "name": name,
        "slots": stage.slots(n),
        "slot": packed(stage.slots_of(positions)),
        "last": packed(np.minimum(_last_readers(stage, n), n)),
        "held": packed(stage.occupancy(n)),
    }


def _last_readers(stage: Stage, n: int) -> npt.NDArray[np.int64]:
    """Of each position, at least n if it is still held then."""
    positions = np.arange(n)
    return positions + stage.lives(n) if isinstance(stage, Lifetimes) else stage.last_readers(positions)


def paths(question: Question) -> Answer:
    """From every token, the way to a chosen one."""
    p, n = _pattern(question), _length(question, MOST_TOKENS)
    to = _integer(question, "to", 0, n - 1)
    tree = paths_to(p, to)
    return {"to": to, "hops": packed(tree.hops), "first": packed(tree.first), "later": packed(tree.later)}


def load(question: Question) -> Answer:
    """The number of paths through each node when n tokens are copied, and its proven bounds."""
    p, n = _pattern(question), _length(question, MOST_TOKENS)
    if p.limit is not None and 2 * n > p.limit:
        return {"loads": None, "text": "–", "note": f"Copying takes {2 * n:,} positions, and {p} has {p.limit:,}."}
    result = congestion(p, n, _effort(question))
    note = f"≥ by {result.lower_by}, ≤ by {result.upper_by}"
    if math.isinf(result.lower):
        note = f"No copy is possible: {result.lower_by}."
    elif result.routing is None:
        note += "; the routing is too long to list"
    loads = None if result.routing is None else packed(result.routing.loads())
    return {
        "loads": loads,
        "lower": finite(result.lower),
        "upper": finite(result.upper),
        "text": describe(result),
        "note": note,
    }


def figures(question: Question) -> Answer:
    """The profile at any length up to a million."""
    p, n = _pattern(question), _length(question, _LONGEST_FIGURES)
    profile = analyze(p, n, effort=_effort(question))
    return profile.to_dict() | {"spelling": p.spelling, "congestion_text": describe(profile.congestion)}


def curves(question: Question) -> Answer:
    """Reads, cache, hops and congestion at growing lengths, each with its law; as far as each is cheap."""
    p = _pattern(question)
    sizes = [2**t for t in (_EXPONENTS if _has_closed_form(p) else _LISTED_EXPONENTS)]
    sizes = [n for n in sizes if p.limit is None or 2 * n <= p.limit]
    law = growth(p)
    distances = [hops(p, n) for n in sizes]
    # At fixed distances the length of paths is the better bound, and intervals take as many steps as there are reads.
    intervals = not reads_at_fixed_distances(p, 2 * sizes[-1])
    return {
        "n": sizes,
        "reads": {"law": law.reads_per_token, "values": [p.widest_row(n) for n in sizes]},
        "slots": {"law": law.cache_slots, "values": [p.slots(n) for n in sizes]},
        "hops": {"law": law.max_hops, "values": [None if d.unreachable_pairs else d.max for d in distances]},
        "congestion": {
            "law": law.congestion,
            "values": [finite(lower_bound(p, n, intervals=intervals)[0]) for n in sizes],
        },
        "basis": law.basis,
    }


def _has_closed_form(p: Pattern) -> bool:
    return as_intervals(p) is not None or reads_at_fixed_distances(p, 2 ** _EXPONENTS[-1])


def bounds(question: Question) -> Answer:
    """The fewest hops and the least congestion of any single pattern, by the cache that it has."""
    n = _length(question, _LONGEST_DESIGN)
    slots = _integer(question, "slots", 1, n)
    sizes = np.unique(np.round(np.geomspace(1, min(max(4 * slots, 4), max(n - 1, 2)), 60)).astype(int)).tolist()
    return {
        "slots": sizes,
        "max_hops": [finite(fewest_hops(s, n)) for s in sizes],
        "congestion": [finite(least_congestion(s, n)) for s in sizes],
    }


def designs(question: Question) -> Answer:
    """The designer's results for a budget of cache slots."""
    from resolvent.designer import design

    n, heads = _length(question, _LONGEST_DESIGN), _integer(question, "heads", 1, _MOST_HEADS)
    result = design(n, slots=_integer(question, "slots", 1, n), heads=heads)
    plain = _without_infinity(result.to_dict())
    return plain | {"title": result.title, "least_text": result.least_text, "sampled_text": result.sampled_text}


ANSWERS: dict[str, Callable[[Question], Answer]] = {
    "catalogue": catalogue,
    "scene": scene,
    "paths": paths,
    "load": load,
    "figures": figures,
    "curves": curves,
    "bounds": bounds,
    "designs": designs,
}


def packed(values: npt.NDArray[np.int64]) -> str:
    """Integers as 32-bit ones, compressed, in base64."""
    return _compressed(values.astype("<i4").tobytes())


def packed_bits(mask: npt.NDArray[np.bool_]) -> str:
    """Rows of bits, the first in the highest bit of a byte; each row starts a byte."""
    return _compressed(np.packbits(mask, axis=1).tobytes())


def _compressed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 1)).decode()


def finite(value: float) -> int | None:
    """A count; None if it is infinite."""
    return None if math.isinf(value) else int(value)


def _without_infinity(values: dict[str, object]) -> dict[str, object]:
    """JSON has no infinity: such figures are the string "inf"."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return "inf" if isinstance(value, float) and math.isinf(value) else value

    return {key: plain(each) for key, each in values.items()}


def _effort(question: Question) -> Effort:
    """The page asks for quick bounds first, and then for those of a search."""
    return "quick" if _text(question, "effort") == "quick" else "search"


def _pattern(question: Question) -> Pattern:
    return pattern(_text(question, "p"))


def _length(question: Question, most: int) -> int:
    return require_length(_text(question, "n"), most)


def _integer(question: Question, name: str, least: int, most: int) -> int:
    text = _text(question, name)
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most):
        raise SettingError(f"expected {name} to be an integer from {least:,} to {most:,}, got {shortened(text)}.")
    return int(text)


def _text(question: Question, name: str) -> str:
    if name not in question:
        raise PatternError(f"expected the parameter '{name}', got {', '.join(question) or 'none'}.")
    return question[name]
