"""Documents whose numbers come from records."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resolvent.report import results, table1

ROOT = Path(__file__).parents[2]


def record(structure: str, seed: int, accuracy: float, task: str = "multihop") -> dict[str, Any]:
    evaluation = {"accuracy": accuracy, "by_size": [[2, 4, 10, accuracy]],
                  "by_hops": [[1, 1, 30, 1.0], [2, 2, 10, accuracy], [5, 5, 1, 0.0], [4, 4, 3, 1.0]]}  # fmt: skip
    return {
        "config": {
            "model": {"pattern": ["local:2", structure]},
            "task": {"name": task, "length": 48},
            "train": {"seed": seed, "learning_rate": 0.001},
        },
        "surroundings": {"torch": "2", "machine": "m", "commit": "c"},
        "seconds": 36.0,
        "tokens": 1000,
        "evaluation": evaluation,
        "curve": [[1, 0.5, accuracy]],
    }


DOCUMENT = "# Results\n\nBy hand.\n\n<!-- records: table1-small -->\nold\n<!-- end -->\n\nMore by hand.\n"


def test_what_stands_between_marks_is_made_anew(tmp_path: Path) -> None:
    records = [record("dense", 1, 0.9), record("dense", 2, 0.8), record("attention", 1, 0.5)]
    results.write_records(records, tmp_path / "table1-small.jsonl")
    assert results.read_records(tmp_path / "table1-small.jsonl") == records
    made = results.renewed(DOCUMENT, tmp_path)
    assert made.startswith("# Results\n\nBy hand.\n\n<!-- records: table1-small -->\n| structure")
    assert made.endswith("<!-- end -->\n\nMore by hand.\n")
    assert "old" not in made
    assert "85.0 ± 5.0 (100)" in made
    assert "multihop: dense > attention | supported" in made
    assert results.renewed(made, tmp_path) == made


def test_hops_are_counted_over_seeds() -> None:
    records = [record("dense", 1, 0.9), record("dense", 2, 0.8)]
    lines = table1.markdown(table1.rows(records), records).splitlines()
    head = next(number for number, line in enumerate(lines) if "accuracy by hops" in line)
    assert [cell.strip() for cell in lines[head + 2].strip("|").split("|")] == ["dense", "100.0", "85.0", "", "75.0"]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected marks"):
        results.renewed("# no marks", tmp_path)
    with pytest.raises(FileNotFoundError, match="table1-small"):
        results.renewed(DOCUMENT, tmp_path)
    (tmp_path / "table1-small.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="line 1: expected a run's record"):
        results.renewed(DOCUMENT, tmp_path)
    (tmp_path / "table1-small.jsonl").write_text("")
    with pytest.raises(ValueError, match="is empty"):
        results.renewed(DOCUMENT, tmp_path)


def test_published_results_are_what_the_records_give() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    assert re.search("<!-- records: table1-small -->", text)
    done = subprocess.run(
        [sys.executable, "-m", "resolvent", "results", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
