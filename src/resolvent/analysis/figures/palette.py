"""One palette for every figure, and one order of structures: those of the paper first, others as they come.

Each color has a version for light pages and one for dark ones. A cache-efficient structure has a paler version of its
family's color and is drawn dashed. Needs no matplotlib, so that pages in HTML use it, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from resolvent.patterns import PAPER_STRUCTURES

INK, PALE, RULE, EMPTY = "#1b1f24", "#6b7280", "#d5d9df", "#f1f3f5"
GRID = "#e8eaee"
NAVY, ORANGE = "#3d5a80", "#d9905b"
A_ONLY, B_ONLY, A_AND_B = "#7aaae4", "#c9550a", "#22314d"  # apart by lightness, too: for all eyes

# On light pages and on dark ones, in the order of `PAPER_STRUCTURES`, and then for others.
_COLORS = (
    ("#3d5a80", "#8fb3e0"),
    ("#98a9c2", "#c3cfdf"),
    ("#c8553d", "#f08870"),
    ("#e0a458", "#edc083"),
    ("#2a9d8f", "#4cc7b8"),
    ("#7b2d8b", "#c985da"),
    ("#b58bc4", "#e0c6e9"),
    ("#588157", "#86bd84"),
    ("#a3b18a", "#c9d8ae"),
    ("#d81b60", "#ff7aa6"),
    ("#f48fb1", "#f9bed2"),
    ("#00838f", "#35b6c4"),
    ("#4dd0e1", "#9aeaf3"),
    ("#6d4c41", "#b99a8e"),
    ("#a1887f", "#d6c3bb"),
)
COLORS = tuple(light for light, _ in _COLORS)
_ON_DARK = {INK: "#e8eaee", PALE: "#a3acb9", A_ONLY: "#6ea8ee", B_ONLY: "#f0873f", A_AND_B: "#d7e0ee"}


def in_order(structures: Iterable[str]) -> list[str]:
    """Each once: the paper's structures in its order, then others as they come."""
    names = list(dict.fromkeys(structures))
    return [name for name in PAPER_STRUCTURES if name in names] + [n for n in names if n not in PAPER_STRUCTURES]


def color_of_structure(name: str, among: Iterable[str] = ()) -> str:
    """The color of a structure, the same in all figures for the paper's; of others by their order in `among`."""
    known = [*PAPER_STRUCTURES, *(each for each in in_order([*among, name]) if each not in PAPER_STRUCTURES)]
    return COLORS[known.index(name) % len(COLORS)]


def palette() -> dict[str, object]:
    """All of it as plain values: [light, dark] for each."""
    entries = {"A only": A_ONLY, "B only": B_ONLY, "A and B": A_AND_B}
    return {
        "structures": dict(zip(PAPER_STRUCTURES, _COLORS, strict=False)),
        "others": _COLORS[len(PAPER_STRUCTURES) :],
        "entries": {name: (color, _ON_DARK[color]) for name, color in entries.items()},
    }
