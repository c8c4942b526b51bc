"""Documents whose numbers come from records."""

import re
import shutil
from pathlib import Path

import pytest

from docs import make
from docs.make import regenerate
from resolvent.bench.record import KINDS, PASSIVE, PLAIN, add_record, read_bench_records
from resolvent.errors import SettingError
from resolvent.train.record import Record, read_records, write_records
from tests.bench import samples

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "records"
DOCUMENT = "# Results\n\nBy hand.\n\n<!-- records: {} -->\nold\n<!-- end -->\n\nMore by hand.\n"


def committed(name: str, *structures: str) -> list[Record]:
    records = read_records(RECORDS / f"{name}.jsonl")
    return [record for record in records if str(record.config.model.pattern) in structures]


def test_what_stands_between_marks_is_made_anew(tmp_path: Path) -> None:
    records = committed("table1-small", "dense", "attention")
    write_records(records, tmp_path / "table1-small.jsonl")
    made, figures = regenerate(DOCUMENT.format("table1-small"), tmp_path)
    assert made.startswith("# Results\n\nBy hand.\n\n<!-- records: table1-small -->\n| structure")
    assert made.endswith("<!-- end -->\n\nMore by hand.\n")
    assert "old" not in made
    assert "copy: attention = dense" in made
    assert regenerate(made, tmp_path) == (made, {})
    assert not figures


def test_a_document_shows_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has the name of the records; a document matches while its figures are there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "records").mkdir(parents=True)
    write_records(committed("pareto-quick", "dense", "first-order"), Path("docs/records/pareto-toy.jsonl"))
    add_record(samples.training(), Path("docs/records/bench-here.jsonl"))
    Path("docs/results.md").write_text(DOCUMENT.format("pareto-toy"))
    Path("docs/bench.md").write_text(DOCUMENT.format("bench-here figure"))
    Path("README.md").write_text(DOCUMENT.format("bench-here training"))
    assert make.main(["--check"]) == 1
    assert make.main([]) == 0
    assert "![perplexity against complexity](figures/pareto-toy.png)\n\n*Lower" in Path("docs/results.md").read_text()
    assert "| 256 | quadratic+cache |" in Path("README.md").read_text()
    shown = Path("docs/figures/pareto-toy.png")
    assert shown.read_bytes().startswith(b"\x89PNG")
    assert Path("docs/figures/bench-here.png").exists()
    assert make.main(["--check"]) == 0
    shown.unlink()
    assert make.main(["docs/bench.md", "--check"]) == 0
    assert make.main(["docs/results.md", "--check"]) == 1


def test_studies_include_the_records_they_name(tmp_path: Path) -> None:
    shutil.copy(RECORDS / "design-small.jsonl", tmp_path)
    alone, _ = regenerate(DOCUMENT.format("design-small"), tmp_path)
    shutil.copy(RECORDS / "table1-orders.jsonl", tmp_path)
    text, figures = regenerate(DOCUMENT.format("design-small"), tmp_path)
    assert "| copy | congestion / channels | – | – |" in alone  # three structures: too few for a line
    assert "| copy | congestion / channels | 13 | 5 |" in text
    assert list(figures) == ["design-small"]


@pytest.mark.parametrize(("mark", "message"), [
    ("bench-here generates", "unknown section 'generates' of benchmarks: expected setup, .* Did you mean 'generate'"),
    ("bench-here", "unknown section '' of benchmarks"),
    ("table1-small generate", "records of studies have no sections: expected 'table1-small' alone"),
    ("benhc-here setup", "unknown records 'benhc-here': expected table1-…, .*bench-…. Did you mean 'bench'"),
])  # fmt: skip
def test_marks_that_name_nothing(tmp_path: Path, mark: str, message: str) -> None:
    add_record(samples.decoding(), tmp_path / "bench-here.jsonl")
    with pytest.raises(SettingError, match=message):
        regenerate(f"<!-- records: {mark} -->\n<!-- end -->", tmp_path)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected marks"):
        regenerate("# no marks", tmp_path)
    with pytest.raises(FileNotFoundError, match="table1-small"):
        regenerate(DOCUMENT.format("table1-small"), tmp_path)


def test_published_numbers_are_what_the_records_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert make.main(["--check"]) == 0


def test_published_speed_has_every_section_in_both_policies() -> None:
    marks = re.findall(r"<!-- records: (bench-\S+) (\S+) -->", (ROOT / "docs" / "bench.md").read_text())
    assert {section for _, section in marks} == {"setup", *KINDS, "wait-policy", "figure"}
    records = read_bench_records(RECORDS / f"{marks[0][0]}.jsonl")
    assert {(record.kind, record.host.wait_policy) for record in records} >= {
        (kind, policy) for kind in KINDS for policy in (PLAIN, PASSIVE)
    }
