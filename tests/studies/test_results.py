"""Documents whose numbers come from records."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from resolvent.model import ModelConfig
from resolvent.studies import render
from resolvent.studies.registry import STUDIES
from resolvent.studies.results import regenerate
from resolvent.tasks import MultiHop
from resolvent.train import Record, RunConfig, TrainConfig
from resolvent.train.evaluations import AccuracyEvaluation, Slice
from resolvent.train.record import CurvePoint, read_records, write_records
from tests.commands import command
from tests.small_runs import record_of

ROOT = Path(__file__).parents[2]


def record(structure: str, seed: int, accuracy: float) -> Record:
    hops = (Slice(1, 1, 30, 1.0), Slice(2, 2, 10, accuracy), Slice(5, 5, 1, 0.0), Slice(4, 4, 3, 1.0))
    model = ModelConfig(vocab_size=64, layers=2, dim=16, heads=2, pattern=["local:2", structure])
    task = MultiHop(vocab_size=64, pairs=12, length=48)
    return record_of(
        config=RunConfig(model, task, TrainConfig(seed=seed, learning_rate=0.001)),
        evaluation=AccuracyEvaluation(accuracy, 0.0, 44, {"size": (Slice(2, 4, 10, accuracy),), "hops": hops}),
        curve=(CurvePoint(1, 0.5, accuracy),),
    )


DOCUMENT = "# Results\n\nBy hand.\n\n<!-- records: table1-small -->\nold\n<!-- end -->\n\nMore by hand.\n"


def test_what_stands_between_marks_is_made_anew(tmp_path: Path) -> None:
    records = [record("dense", 1, 0.9), record("dense", 2, 0.8), record("attention", 1, 0.5)]
    write_records(records, tmp_path / "table1-small.jsonl")
    assert read_records(tmp_path / "table1-small.jsonl") == records
    made, figures = regenerate(DOCUMENT, tmp_path)
    assert made.startswith("# Results\n\nBy hand.\n\n<!-- records: table1-small -->\n| structure")
    assert made.endswith("<!-- end -->\n\nMore by hand.\n")
    assert "old" not in made
    assert "85.0 ± 5.0 (100)" in made
    assert "multihop: dense > attention | supported" in made
    assert regenerate(made, tmp_path) == (made, {})
    assert not figures


def test_hops_are_counted_over_seeds() -> None:
    records = [record("dense", 1, 0.9), record("dense", 2, 0.8)]
    lines = render.markdown(STUDIES["table1"].report(records)).splitlines()
    head = next(number for number, line in enumerate(lines) if "accuracy by hops" in line)
    assert [cell.strip() for cell in lines[head + 2].strip("|").split("|")] == ["dense", "100.0", "85.0", "", "75.0"]


@pytest.mark.parametrize("name", ["table1-small", "table1-longer", "pareto-laptop", "mamba-quick", "length-quick"])
def test_tables_fit_on_80_columns(name: str) -> None:
    report = STUDIES[name.partition("-")[0]].report(read_records(ROOT / "docs" / "records" / f"{name}.jsonl"))
    console = Console(width=80, file=io.StringIO())
    console.print(render.terminal(report.brief))
    assert isinstance(console.file, io.StringIO)
    assert "…" not in console.file.getvalue()


@pytest.mark.parametrize("name", ["table1-small", "pareto-laptop", "mamba-quick", "length-quick"])
def test_every_figure_says_what_to_see(name: str) -> None:
    report = STUDIES[name.partition("-")[0]].report(read_records(ROOT / "docs" / "records" / f"{name}.jsonl"))
    assert report.figures
    assert all(len(figure.caption) > 40 for figure in report.figures)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected marks"):
        regenerate("# no marks", tmp_path)
    with pytest.raises(FileNotFoundError, match="table1-small"):
        regenerate(DOCUMENT, tmp_path)
    (tmp_path / "table1-small.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="line 1: expected a run's record"):
        regenerate(DOCUMENT, tmp_path)
    (tmp_path / "table1-small.jsonl").write_text("")
    with pytest.raises(ValueError, match="is empty"):
        regenerate(DOCUMENT, tmp_path)


def test_published_results_are_what_the_records_give() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    assert re.search("<!-- records: table1-small -->", text)
    done = command("results", "--check", folder=ROOT)
    assert done.returncode == 0, done.stderr
