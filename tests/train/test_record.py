"""Records are typed and versioned: what is written is read again, and anything else raises an error."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from resolvent.model.config import ModelConfig
from resolvent.tasks import Copy, Text
from resolvent.train import Record, RunConfig, TrainConfig
from resolvent.train.evaluations import AccuracyEvaluation, Slice, TextEvaluation
from resolvent.train.metrics import StepMetrics, read_metrics
from resolvent.train.record import CurvePoint, Environment, RecordError, read_records, write_records

RECORDS = Path(__file__).parents[2] / "docs" / "records"
COMMITTED = sorted(path for path in RECORDS.glob("*.jsonl") if not path.name.startswith("bench-"))
MODEL = ModelConfig(
    vocab_size=300, layers=2, dim=16, heads=2, pattern=("dense", "quadratic"), rule=("joint", "softmax")
)
ON_TASK = Record(
    config=RunConfig(MODEL, Copy(vocab_size=20, length=8), TrainConfig(seed=3)),
    environment=Environment("3.11", {"torch": "2.13"}, "Linux, 2 CPUs", None),
    parameters=1000,
    seconds=1.5,
    steps=10,
    tokens=200,
    skipped_steps=1,
    solved_at=10,
    evaluation=AccuracyEvaluation(
        0.75, 0.5, 40, {"size": (Slice(4, 8, 40, 0.75),), "position": (Slice(0, 7, 40, 0.75),)}
    ),
    curve=(CurvePoint(5, 1.25, 0.5), CurvePoint(10, 0.5, 0.75)),
)
LENGTHS = tuple(TextEvaluation("validation", n, n, 1.5, 4.48, 99, (Slice(0, n - 1, 99, 1.5),), 2.1) for n in (32, 64))
ON_TEXT = dataclasses.replace(
    ON_TASK,
    config=RunConfig(MODEL, Text("no/such/folder", 32, tokenizer="bytes", vocab_size=257, sha256="s"), TrainConfig()),
    evaluation=LENGTHS[0],
    solved_at=None,
    lengths=LENGTHS,
)


def plain(record: Record) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(record.to_dict()))
    return values


@pytest.mark.parametrize("record", [ON_TASK, ON_TEXT], ids=["task", "text"])
def test_what_is_written_is_read_again(record: Record, tmp_path: Path) -> None:
    assert Record.from_dict(plain(record)) == record
    record.write(tmp_path / "run.json")
    assert Record.read(tmp_path / "run.json") == record
    write_records([record, record], tmp_path / "runs.jsonl")
    assert read_records(tmp_path / "runs.jsonl") == [record, record]


def test_committed_records_are_read() -> None:
    assert len(COMMITTED) > 10
    for path in COMMITTED:
        for line in path.read_text().splitlines():
            values = json.loads(line)
            values["config"]["train"] = {"shard_group": None} | values["config"]["train"]  # a newer setting
            assert plain(Record.from_dict(values)) == values


def broken(change: Any) -> dict[str, Any]:
    values = copy.deepcopy(plain(ON_TEXT))
    change(values)
    return values


@pytest.mark.parametrize(("values", "message"), [
    ({}, "expected a run's record of format 'resolvent-run', got None"),
    (broken(lambda v: v.update(version=3)), "version 2, got 3"),
    (broken(lambda v: v.update(step=3)), "unknown setting 'step' of a run's record.*Did you mean 'steps'"),
    (broken(lambda v: v.pop("seconds")), "a run's record is incomplete: expected seconds, too"),
    (broken(lambda v: v.update(tokens="many")), "expected tokens to be int ≥ 0, got 'many'"),
    (broken(lambda v: v.update(curve=[[1, 2]])), "a point of the curve to be a list of 3 numbers, got \\[1, 2\\]"),
    (broken(lambda v: v["evaluation"].pop("loss")), "an evaluation on text is incomplete: expected loss"),
    (broken(lambda v: v["evaluation"].update(by_position=[[1, 2, 3, None]])), "list of 4 numbers"),
    (broken(lambda v: v["config"]["model"].update(coefficients="tied")), "unknown setting 'coefficients' of a model"),
    (broken(lambda v: v["config"]["train"].update(stps=1)), "unknown setting 'stps' of training.*Did you mean 'steps'"),
    (broken(lambda v: v["config"].pop("task")), "a run is incomplete: expected task, too"),
])  # fmt: skip
def test_bad_records_are_named(values: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Record.from_dict(values)
    (tmp_path / "run.json").write_text(json.dumps(values))
    with pytest.raises(RecordError, match=rf"run.json.*{message}.*to run again"):
        Record.read(tmp_path / "run.json")


def test_metrics_are_read_up_to_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    lines = [StepMetrics(1, 2.0, 0.1, 1.0, 0.5, 9.0), StepMetrics(2, 1.5, 0.1, 1.0, 1.0, 9.0, accuracy=0.25)]
    path.write_text("".join(json.dumps(line.to_dict()) + "\n" for line in lines) + '{"step": 3, "lo')
    assert read_metrics(path) == lines
    assert [line.value for line in lines] == [None, 0.25]
