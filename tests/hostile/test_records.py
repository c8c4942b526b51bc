"""Records, metrics and corpora by a stranger: refused by name and line, or reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from resolvent.errors import SettingError
from resolvent.studies.registry import STUDIES
from resolvent.studies.render import markdown
from resolvent.text import Corpus, TextError
from resolvent.train.metrics import StepMetrics, read_metrics
from resolvent.train.record import Record, RecordError, read_records
from tests.hostile.files import NOT_JSON, WRONG, leaves, replaced

RECORDS = Path(__file__).parents[2] / "docs" / "records"


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(record.to_dict())) for record in read_records(RECORDS / f"{name}.jsonl")]


def test_any_text_for_a_record_or_a_corpus(tmp_path: Path) -> None:
    for text in NOT_JSON:
        (tmp_path / "corpus.json").write_text(text)
        with pytest.raises(TextError, match=r"corpus.json is damaged|corpus.json is not a corpus"):
            Corpus.open(tmp_path)
        with pytest.raises(RecordError, match=r"corpus.json is damaged, or not a record: .*Move it away to run again"):
            Record.read(tmp_path / "corpus.json")
        with pytest.raises(RecordError, match=r"corpus.json"):
            read_records(tmp_path / "corpus.json")


def test_every_record_is_refused_or_reported() -> None:
    """Of answers; the same reader reads evaluations of texts and documents."""
    study, lines = "table1", lines_of("table1-small")
    others = [Record.from_dict(line) for line in lines[1:]]
    refusals = 0
    for path in leaves(lines[0]):
        for wrong in WRONG:
            try:
                record = Record.from_dict(replaced(lines[0], path, wrong))
            except ValueError as error:
                assert len(str(error)) < 1000  # noqa: PT017
                refusals += 1
                continue
            try:
                assert markdown(STUDIES[study].report([record, *others]))
            except SettingError:
                refusals += 1
    assert refusals > 500


METRICS = StepMetrics(1, 2.0, 0.1, 1.0, 0.5, 9.0)


LINES = [
    ('{"loss": 1.0}', "a line of metrics is incomplete: expected step"),
    ("3", "expected a line of metrics to be an object of named values, got 3"),
    ("[" * 10**5, "nested so deep"),
    (json.dumps(METRICS.to_dict() | {"step": "x"}), "expected step to be int ≥ 0, got 'x'"),
    (json.dumps(METRICS.to_dict() | {"more": 1}), "unknown setting 'more' of a line of metrics"),
]


def test_a_damaged_line_of_a_log_is_named(tmp_path: Path) -> None:
    """It hides no later lines, as half a line at the end may."""
    path, good = tmp_path / "metrics.jsonl", json.dumps(METRICS.to_dict()) + "\n"
    for line, message in LINES:
        path.write_text(good + line + "\n" + good)
        with pytest.raises(SettingError, match=rf"metrics.jsonl is damaged in line 2: .*{message}"):
            read_metrics(path)
        path.write_text(good + line)
        assert read_metrics(path) == [METRICS]
    path.write_text(json.dumps(METRICS.to_dict() | {"loss": float("nan"), "gradient_norm": float("inf")}) + "\n")
    assert read_metrics(path)[0].gradient_norm == float("inf")
