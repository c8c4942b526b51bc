"""Records of benchmarks on disk: written, replaced, read back, and refused where they are damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from docs import speed as sections
from resolvent.bench.record import (
    PASSIVE,
    BenchRecord,
    BenchRecordError,
    Measurement,
    add_record,
    read_bench_records,
    wait_policy,
)
from resolvent.errors import SettingError
from tests.bench import samples
from tests.hostile.files import NOT_JSON, WRONG, leaves, replaced


def test_records_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench-here.jsonl"
    for record in samples.everything():
        add_record(record, path)
    assert read_bench_records(path) == samples.everything()


def test_a_run_replaces_the_earlier_one_of_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    for record in (samples.training(1.0), samples.decoding(), samples.training(2.0, PASSIVE), samples.training(3.0)):
        add_record(record, path)
    assert read_bench_records(path) == [samples.training(3.0), samples.decoding(), samples.training(2.0, PASSIVE)]


def test_records_of_another_machine_are_refused(tmp_path: Path) -> None:
    path, first = tmp_path / "bench.jsonl", samples.decoding()
    add_record(first, path)
    other = json.loads(json.dumps(first.to_dict())) | {"kind": "operator"}
    other["host"]["cpu"] = "Another CPU"
    message = "expected records of one machine, got some of A CPU .znver4. and some of Another CPU"
    with pytest.raises(BenchRecordError, match=f"bench.jsonl: {message}. Choose another --out"):
        add_record(BenchRecord.from_dict(other), path)
    assert read_bench_records(path) == [first]
    path.write_text(path.read_text() + json.dumps(other) + "\n")
    with pytest.raises(BenchRecordError, match=f"line 2: .*{message}"):
        read_bench_records(path)


def test_measurements_have_an_order() -> None:
    assert samples.timed("dense", "forward", 8, 2.0).least == 1.8
    with pytest.raises(SettingError, match=r"expected least, seconds and most > 0 in this order, got 0.0, 0.0 and 0.0"):
        Measurement.of([0.0], "dense", "forward", 8, 8)


def test_wait_policy_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert wait_policy() == "plain"
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert wait_policy() == "passive"


@pytest.mark.parametrize("text", NOT_JSON, ids=lambda text: f"{text[:6]!r} × {len(text)}")
def test_any_text_for_records(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text(text)
    with pytest.raises(BenchRecordError, match=r"bench.jsonl(, line 1: expected a benchmark's record| is empty)"):
        read_bench_records(path)


def test_every_record_is_refused_or_reported() -> None:
    whole: list[Any] = [json.loads(json.dumps(record.to_dict())) for record in samples.everything()]
    refusals = reports = 0
    for number in (0, 3):
        others = [BenchRecord.from_dict(line) for index, line in enumerate(whole) if index != number]
        for path in leaves(whole[number]):
            for wrong in WRONG:
                try:
                    record = BenchRecord.from_dict(replaced(whole[number], path, wrong))
                except ValueError as error:
                    assert len(str(error)) < 1000  # noqa: PT017
                    refusals += 1
                    continue
                for name in ("setup", record.kind, "wait-policy", "readme"):
                    assert sections.section([record, *others], name)
                reports += 1
    assert refusals > 500
    assert reports > 100


@pytest.mark.parametrize(("change", "message"), [
    ({"version": 2}, "expected a benchmark's record of version 1, got 2: use the release that wrote it"),
    ({"format": "resolvent-run"}, "expected a benchmark's record of format 'resolvent-bench'"),
    ({"kind": "decoding"}, "expected a kind of benchmark among operator, decode, generate, training, got 'decoding'"),
    ({"round": 3}, "unknown setting 'round' of a benchmark's record: .* Did you mean 'rounds'"),
    ({"measurements": []}, "expected at least one measurement, got none"),
])  # fmt: skip
def test_what_is_wrong_with_a_record(change: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        BenchRecord.from_dict(samples.decoding().to_dict() | change)
