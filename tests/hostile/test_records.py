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
from tests.hostile.limits import check_refused

SETUP = "from resolvent.train.record import Record"
LOAD = "Record.read(path)"
RECORDS = Path(__file__).parents[2] / "docs" / "records"


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(record.to_dict())) for record in read_records(RECORDS / f"{name}.jsonl")]


def test_any_text_for_a_record(tmp_path: Path) -> None:
    cases = []
    for number, text in enumerate(NOT_JSON):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(text)
        cases.append((path, r"is damaged, or not a record: .*Move it away to run again"))
        with pytest.raises(RecordError, match=rf"{number}.jsonl"):
            read_records(path)
    check_refused(SETUP, LOAD, cases)


@pytest.mark.parametrize(("study", "name"), [("table1", "table1-small"), ("length", "length-quick")])
def test_every_record_is_refused_or_reported(study: str, name: str) -> None:
    lines = lines_of(name)
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


def test_a_config_that_claims_much(tmp_path: Path) -> None:
    different = [[f"offsets:1,{2 + 8 * layer + head}" for head in range(4)] for layer in range(10**4)]
    cases = []
    for settings, message in (
        ({"layers": 10**5}, "expected layers to be an integer ≥ 1, at most 10,000"),
        ({"layers": 10**4, "pattern": different, "rule": "softmax", "heads": 4}, "at most 10,000 different patterns"),
    ):
        line = lines_of("table1-small")[0]
        line["config"]["model"] |= settings
        path = tmp_path / f"{len(cases)}.json"
        path.write_text(json.dumps(line))
        cases.append((path, message))
    check_refused(SETUP, LOAD, cases)


METRICS = StepMetrics(1, 2.0, 0.1, 1.0, 0.5, 9.0)


@pytest.mark.parametrize(("line", "message"), [
    ('{"loss": 1.0}', "a line of metrics is incomplete: expected step"),
    ("3", "expected a line of metrics to be an object of named values, got 3"),
    ("[" * 10**5, "nested at most"),
    (json.dumps(METRICS.to_dict() | {"step": "x"}), "expected step to be int ≥ 0, got 'x'"),
    (json.dumps(METRICS.to_dict() | {"more": 1}), "unknown setting 'more' of a line of metrics"),
])  # fmt: skip
def test_a_damaged_line_of_a_log_is_named(tmp_path: Path, line: str, message: str) -> None:
    """It hides no later lines, as half a line at the end may."""
    path, good = tmp_path / "metrics.jsonl", json.dumps(METRICS.to_dict()) + "\n"
    path.write_text(good + line + "\n" + good)
    with pytest.raises(SettingError, match=rf"metrics.jsonl is damaged in line 2: .*{message}"):
        read_metrics(path)
    path.write_text(good + line)
    assert read_metrics(path) == [METRICS]


def test_losses_that_are_not_finite_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(METRICS.to_dict() | {"loss": float("nan"), "gradient_norm": float("inf")}) + "\n")
    assert read_metrics(path)[0].gradient_norm == float("inf")
    line = lines_of("table1-small")[0]
    line["curve"][0][1] = float("nan")
    assert Record.from_dict(line).curve[0].loss != 0


@pytest.mark.parametrize("text", NOT_JSON, ids=lambda text: f"{text[:6]!r} × {len(text)}")
def test_any_text_for_a_corpus(tmp_path: Path, text: str) -> None:
    (tmp_path / "corpus.json").write_text(text)
    with pytest.raises(TextError, match=r"corpus.json is damaged|corpus.json is not a corpus"):
        Corpus.open(tmp_path)
