"""Compare what two trees computed: every tensor and figure, to the bit or within the tolerances of other designs."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.operator_cases import DEEP, TOLERANCE

DEEP_SURFACES = ("layer", "model")
INTENDED = Path(__file__).with_name("intended.toml")


@dataclass
class Surface:
    """What came of its cases. `differences` says what differs, by the value's name, "case#value"."""

    cases: int = 0
    values: int = 0
    equal: int = 0  # to the bit
    largest: float = 0.0  # relative to a tensor's largest entry
    differences: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    surfaces: Mapping[str, Surface]
    intended: Mapping[str, str]  # reasons by the value's name
    stale: tuple[str, ...]  # globs that match no difference

    @property
    def unintended(self) -> dict[str, str]:
        found = {name: what for surface in self.surfaces.values() for name, what in surface.differences.items()}
        return {name: what for name, what in found.items() if name not in self.intended}

    def text(self, most: int = 1 << 30) -> str:
        """A table, and at most so many lines of each kind."""
        rows = [("surface", "cases", "values", "equal bits", "different", "largest difference")]
        for name, s in self.surfaces.items():
            counts = (s.cases, s.values, s.equal, len(s.differences))
            rows.append((name, *(f"{count:,}" for count in counts), f"{s.largest:.1e}" if s.largest else "0"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        stale = dict.fromkeys(self.stale, f"{INTENDED.name} names it, and nothing like it differs")
        for kind, names in {"intended": self.intended, "stale": stale, "different": self.unintended}.items():
            lines += [f"{kind}: {name}: {what}" for name, what in [*names.items()][:most]]
            lines += [f"… and {len(names) - most:,} more"] * (len(names) > most)
        return "\n".join(lines)


def read(folder: Path, surface: str, only: str = "*") -> dict[str, object]:
    """Tensors and figures of the cases that match, by name."""
    if not (folder / f"{surface}.json").exists():  # the other tree alone has such cases
        return {}
    values = json.loads((folder / f"{surface}.json").read_text()) | load_file(folder / f"{surface}.safetensors")
    return {name: value for name, value in values.items() if fnmatchcase(_case(name), only)}


def _case(name: str) -> str:
    return name.split("#")[0]


def compare(mine: Path, theirs: Path, only: str = "*", *, tolerance: bool = False, intended: Path = INTENDED) -> Report:
    """`tolerance`: what differs by rounding alone is equal enough. Otherwise bits are compared."""
    surfaces: dict[str, Surface] = {}
    for name in sorted({path.stem for folder in (mine, theirs) for path in folder.glob("*.json")}):
        my_values, their_values = (read(folder, name, only) for folder in (mine, theirs))
        both = {**their_values, **my_values}
        failed = {_case(value) for value in both if value.endswith("#error")}
        surface = surfaces[name] = Surface(cases=len(set(map(_case, both))))
        for value in both:
            if _case(value) not in failed or value.endswith("#error"):
                what, size = _difference(value, my_values, their_values)
                surface.values, surface.equal = surface.values + 1, surface.equal + (not what)
                surface.largest = max(surface.largest, size)
                if what and not (tolerance and size <= _allowed(value, my_values.get(value))):
                    surface.differences[value] = what
    entries = tomllib.loads(intended.read_text()).get("intended", [])
    different = [name for surface in surfaces.values() for name in surface.differences]
    reasons = {name: e["reason"] for e in entries for name in different if fnmatchcase(name, e["names"])}
    stale = [e["names"] for e in entries if not any(fnmatchcase(name, e["names"]) for name in different)]
    return Report(surfaces, reasons, tuple(stale) if only == "*" else ())  # other cases may differ as intended


def _difference(name: str, mine: Mapping[str, object], theirs: Mapping[str, object]) -> tuple[str, float]:
    """What is different, nothing if all bits are equal; and by how much, relative to the largest entry of theirs."""
    a, b = mine.get(name, "nothing"), theirs.get(name, "nothing")
    what = " instead of ".join(f"{v.dtype} {tuple(v.shape)}" if isinstance(v, Tensor) else f"{v}" for v in (a, b))
    if name not in mine or name not in theirs or name.endswith("#error"):
        return what, math.inf
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        if json.dumps(a) == json.dumps(b):  # 1 is not 1.0, and NaN is NaN
            return "", 0.0
        numbers = isinstance(a, float) and isinstance(b, float) and math.isfinite(a) and math.isfinite(b)
        return what, abs(a - b) / max(abs(b), 1e-300) if numbers else math.inf  # type: ignore[operator]
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return what, math.inf
    if torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
        return "", 0.0
    size = _relative(a.double(), b.double()) if a.is_floating_point() else math.inf
    return f"{int((a != b).sum()):,} of {a.numel():,} entries, {size:.1e} of the largest", size


def _relative(a: Tensor, b: Tensor) -> float:
    if not torch.equal(a.isfinite(), b.isfinite()):
        return math.inf
    a, b = a.nan_to_num(), b.nan_to_num()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-300))


def _allowed(name: str, value: object) -> float:
    dtype = value.dtype if isinstance(value, Tensor) else torch.float64
    deep = dtype != torch.float64 and name.split("/")[0] in DEEP_SURFACES
    return TOLERANCE.get(dtype, 0.0) * (DEEP if deep else 1)
