"""What two trees computed is compared value by value: whatever differs is noticed, and named."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fuzz.against.compare import Report, compare
from fuzz.against.driver import write

Y = torch.tensor([1.0, -2.0, torch.nan], dtype=torch.float64)
USUAL = {"y": Y, "half": Y.bfloat16(), "rows": [{"hops": 3, "mean": 0.1, "why": "prose"}], "nodes": np.arange(3)}
NEXT = torch.tensor(torch.nextafter(Y[1], Y[0]).item(), dtype=torch.float64)  # another last bit


def _report(folder: Path, here: dict[str, object], intended: str = "", *, tolerance: bool = False) -> Report:
    for name, values in (("here", USUAL | here), ("there", USUAL)):
        (folder / name).mkdir(exist_ok=True)
        write(folder / name, "layer", {"layer/dense": values})
    (folder / "intended.toml").write_text(intended)
    return compare(folder / "here", folder / "there", intended=folder / "intended.toml", tolerance=tolerance)


def test_equal_bits_are_equal(tmp_path: Path) -> None:
    report = _report(tmp_path, {"rows": [{"hops": 3, "mean": 0.1, "why": "other words"}]})
    surface = report.surfaces["layer"]
    assert (surface.cases, surface.values, surface.equal, surface.largest) == (1, 5, 5, 0)
    assert not report.unintended


@pytest.mark.parametrize(
    ("here", "name", "what"),
    [
        ({"y": torch.stack([Y[0], NEXT, Y[2]])}, "y", "1.1e-16 of the largest"),
        ({"y": torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)}, "y", "inf of the largest"),
        ({"half": Y.half()}, "half", "torch.float16 (3,) instead of torch.bfloat16 (3,)"),
        ({"y": Y[None]}, "y", "(1, 3) instead of torch.float64 (3,)"),
        ({"nodes": np.array([0, 1, 3])}, "nodes", "1 of 3 entries"),
        ({"rows": [{"hops": 3.0, "mean": 0.1}]}, "rows.0.hops", "3.0 instead of 3"),
        ({"rows": [{"hops": 3, "mean": 0.1, "least": 2}]}, "rows.0.least", "2 instead of nothing"),
        ({"rows": []}, "rows.0.mean", "nothing instead of 0.1"),
        ({"error": "ValueError: no"}, "error", "ValueError: no instead of nothing"),
    ],
)
def test_a_difference_is_named(tmp_path: Path, here: dict[str, object], name: str, what: str) -> None:
    report = _report(tmp_path, here)
    assert what in report.unintended[f"layer/dense#{name}"]
    assert f"different: layer/dense#{name}: " in report.text()


def test_rounding_is_allowed_between_designs_only(tmp_path: Path) -> None:
    here = {"y": torch.stack([Y[0], NEXT, Y[2]])}
    assert not _report(tmp_path, here, tolerance=True).unintended
    assert _report(tmp_path, {"y": Y * (1 + 1e-11)}, tolerance=True).unintended
    assert _report(tmp_path, {"nodes": np.array([0, 1, 3])}, tolerance=True).unintended


def test_intended_differences_have_a_reason_and_stale_ones_are_reported(tmp_path: Path) -> None:
    entry = '[[intended]]\nnames = "layer/*#rows.*.hops"\nreason = "counted from one"\n'
    report = _report(tmp_path, {"rows": [{"hops": 4, "mean": 0.1}]}, entry)
    assert (report.unintended, report.stale) == ({}, ())
    assert "intended: layer/dense#rows.0.hops: counted from one" in report.text()
    assert _report(tmp_path, {}, entry).stale == ("layer/*#rows.*.hops",)
