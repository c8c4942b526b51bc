"""A result of the designer: a structure with its figures, and what there is to say about it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from resolvent.analysis.profile import describe
from resolvent.designer.budget import LeastFigures, number
from resolvent.designer.measure import Figures
from resolvent.designer.structure import Setting, Structure


@dataclass(frozen=True)
class Better:
    """The nearest structure that is better in one figure (by a tenth, unless it counts hops), and what is worse in it.

    proved  whether by a bound no single pattern with a smaller cache has so few hops; otherwise it is the one on the
            frontier that gives up the least, or the smallest binomial pattern of less congestion
    """

    figure: str
    value: float
    structure: str
    costs: dict[str, float]
    proved: bool = False

    def __str__(self) -> str:
        spent = ", ".join(f"{_NAMES[name]} {number(value)}" for name, value in self.costs.items())
        return f"{_NAMES[self.figure]} {number(self.value)}: {self.structure}, {f'at {spent}' if spent else _NO_COST}"


_NO_COST = "at no proven cost"
_NAMES = {
    "max_hops": "hops",
    "mean_hops": "mean hops",
    "congestion": "congestion",
    "reads": "reads",
    "slots": "slots",
    "kib": "KiB",
    "madds": "multiply-adds",
}


@dataclass(frozen=True)
class Candidate:
    """A structure within the budget, on the frontier of all that were searched.

    Attributes:
        kind: What kind of structure it is.
        structure: The pattern of every head and layer; `structure.setting` is what `Mixer` and `ModelConfig` take.
        figures: Exact, but for congestion, which lies between proven bounds.
        least: The least of any structure whose heads have as many slots (and, at fixed distances, reads).
        why: What it is the best at, in a sentence; empty where it is not the best of its kind.
        better: For each figure the nearest structure that is better in it, and what that costs.
    """

    kind: str
    structure: Structure
    figures: Figures
    least: LeastFigures
    why: str = ""
    better: tuple[Better, ...] = ()

    @property
    def pattern(self) -> Setting:
        """What `Mixer` (one layer) and `ModelConfig` take as `pattern`."""
        return self.structure.setting

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of a table."""
        f, least = self.figures, self.least
        return (
            self.structure.label,
            number(f.reads),
            number(f.slots),
            f"{f.max_hops:,} ({number(least.max_hops)})",
            f"{f.mean_hops:,.2f}",
            f"{describe(f.congestion).replace(' … ', '…')} ({number(least.congestion)})",
        )

    def point(self) -> dict[str, object]:
        """Name and figures for JSON."""
        f, bounds = self.figures, self.figures.congestion
        figures = {name: f.value(name) for name in ("slots", "kib", "reads", "madds", "mean_hops")}
        load = {
            "lower": bounds.lower,
            "upper": bounds.upper,
            "exact": bounds.exact,
            "lower_by": bounds.lower_by,
            "upper_by": bounds.upper_by,
        }
        return {
            "kind": self.kind,
            "label": self.structure.label,
            "pattern": self.pattern,
            "figures": figures | {"max_hops": f.max_hops, "congestion": load},
        }

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: its point, its layers, and what there is to say."""
        return self.point() | {
            "layers": [[{"heads": count, "pattern": str(p)} for count, p in layer] for layer in self.structure.layers],
            "least": {name: None if math.isinf(value) else value for name, value in asdict(self.least).items()},
            "why": self.why,
            "better": [asdict(each) | {"text": str(each)} for each in self.better],
        }

    def __repr__(self) -> str:
        f = self.figures
        return (
            f"Candidate({self.structure.label}: {number(f.reads)} reads, {number(f.slots)} slots, {f.max_hops:,} hops, "
            f"congestion {describe(f.congestion)})"
        )
