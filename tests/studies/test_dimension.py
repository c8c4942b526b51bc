"""The role of the dimension: what is run, that only the width changes, and what its records show."""

import dataclasses
from pathlib import Path

import pytest

from resolvent.studies.dimension import DIMENSION, results_of
from resolvent.studies.study import Selection
from resolvent.train.evaluations import AccuracyEvaluation
from resolvent.train.record import Record
from tests.small_runs import record_of

WIDTHS = (8, 16, 32, 64)


def records(accuracies: dict[str, dict[int, tuple[float, ...]]]) -> list[Record]:
    """Of the study's own configs, with these accuracies by structure and channels of a head."""
    made = []
    for cell in DIMENSION.plan(Selection(structures=list(accuracies))).cells:
        model = cell.config.model
        values = accuracies[model.pattern_label].get(model.dim // model.heads, ())
        if cell.seed - 20 < len(values):
            accuracy = values[cell.seed - 20]
            evaluation = AccuracyEvaluation(accuracy, sequence_accuracy=0.0, tokens=100)
            made.append(record_of(config=cell.config, evaluation=evaluation))
    return made


def test_only_the_width_changes(tmp_path: Path) -> None:
    cells = DIMENSION.plan(Selection(out=tmp_path, seeds=1)).cells
    assert len(cells) == len({cell.folder for cell in cells}) == 16
    by_structure: dict[str, list[int]] = {}
    for cell in cells:
        model = cell.config.model
        by_structure.setdefault(model.pattern_label, []).append(model.dim // model.heads)
        same = dataclasses.replace(model, pattern="dense", dim=64)
        assert dataclasses.replace(cell.config, model=same) == dataclasses.replace(
            cells[0].config, model=dataclasses.replace(cells[0].config.model, pattern="dense", dim=64)
        )
    assert all(tuple(widths) == WIDTHS for widths in by_structure.values())


def test_what_records_show() -> None:
    report = DIMENSION.report(records({
        "first-order": {8: (0.2, 0.25), 64: (0.5, 0.45)},
        "order:8": {8: (0.5, 0.6), 64: (0.55, 0.62)},
        "dense": {8: (0.9, 0.9), 64: (0.8, 0.85)},
    }))  # fmt: skip
    assert report.tables[0].head == ("structure", "congestion", "heads of 8", "heads of 64")
    assert report.tables[0].rows[0] == ("first-order", "24", "22.5 ± 2.5", "47.5 ± 2.5")
    assert [row[1] for row in report.tables[0].rows] == ["24", "3", "1"]
    assert [claim.grade for claim in report.claims.graded] == ["supported", "open", "contradicted"]
    assert len(report.figures[0].draw().axes) == 2


def test_copies_of_other_lengths_raise() -> None:
    own = records({"dense": {8: (0.9, 0.9)}})
    task = dataclasses.replace(own[0].config.task, length=12)
    other = dataclasses.replace(own[0], config=dataclasses.replace(own[0].config, task=task))
    with pytest.raises(ValueError, match=r"expected copies of one length, got \[12, 24\]"):
        results_of([own[1], other])
