"""The study of the designer: what is run, what is not run twice, and what its records show."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from resolvent.studies.designed.fits import FitPoint, fit_line
from resolvent.studies.designed.study import DESIGN, nearest, picks
from resolvent.studies.designed.trained import layer_label, trained
from resolvent.studies.render import markdown
from resolvent.studies.study import Selection
from resolvent.studies.table1.cells import cells as table1_cells
from resolvent.studies.table1.cells import preset_of
from resolvent.train.evaluations import AccuracyEvaluation
from resolvent.train.record import Record, write_records
from tests.small_runs import record_of


def made(cells: list, accuracy: float = 0.5) -> list[Record]:  # type: ignore[type-arg]
    """Records of these cells; the more slots, the better."""
    evaluation = AccuracyEvaluation(accuracy, sequence_accuracy=0.0, tokens=100)
    return [record_of(config=cell.config, evaluation=evaluation) for cell in cells]


def test_what_is_run(tmp_path: Path) -> None:
    cells = DESIGN.plan(Selection(out=tmp_path)).cells
    assert len(cells) == len({cell.folder for cell in cells}) == 36
    assert {(cell.task, cell.seed) for cell in cells} == {
        (task, s) for task in ("copy", "recall") for s in (20, 21, 22)
    }
    size = preset_of("small")
    assert len({layer_label(heads) for heads in [*picks(size), *nearest(size)]}) == 6
    for heads in nearest(size):
        own = [cell.config for cell in cells if cell.structure == layer_label(heads)]
        same = [
            cell.config for cell in table1_cells("small", tmp_path, structures=[str(heads)], tasks=["copy", "recall"])
        ]
        assert own == same


def test_runs_that_records_have_are_not_repeated(tmp_path: Path) -> None:
    known = made(table1_cells("small", tmp_path, structures=["order:8"], tasks=["copy"]))
    write_records(known, tmp_path / "known.jsonl")
    plan = DESIGN.plan(Selection(out=tmp_path, records=[tmp_path / "known.jsonl"]))
    assert len(plan.cells) == 33
    assert plan.measure is not None
    assert plan.measure(lambda: None) == known


def test_what_records_show(tmp_path: Path) -> None:
    cells = DESIGN.plan(Selection(out=tmp_path, tasks=["copy"])).cells
    labels = list(dict.fromkeys(cell.structure for cell in cells))
    scores = {label: 0.9 - 0.1 * number for number, label in enumerate(labels)}
    records = [record for cell in cells for record in made([cell], scores[cell.structure])]
    wider = dataclasses.replace(records[0].config, model=dataclasses.replace(records[0].config.model, dim=128))
    records.append(record_of(config=wider, evaluation=records[0].evaluation))
    report = DESIGN.report(records)
    assert [row[0] for row in report.tables[0].rows] == labels
    assert report.tables[1].rows[0][:4] == ("copy", "congestion / channels", "19", "6")
    assert report.claims.graded
    assert "| 1 × binomial:15,lazy \\| 1 × first-order | copy |" in markdown(report), "no bar of a name ends a cell"
    [axes] = report.figures[0].draw().axes
    assert {text.get_text().replace("\n", " | ") for text in axes.texts if text.get_text()} == set(labels)
    assert len(trained(records, apart=True)) == 7


def test_runs_with_other_settings_are_only_in_the_fit(tmp_path: Path) -> None:
    """Another task, another budget, or another gate: not among the structures that are compared."""
    cells = DESIGN.plan(Selection(out=tmp_path, tasks=["copy"])).cells
    records = made(cells)
    config = records[0].config
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=9))
    shown = dataclasses.replace(config, task=dataclasses.replace(config.task, vocab_size=16))
    attention = table1_cells("small", tmp_path, structures=["attention"], tasks=["copy"])
    others = [record_of(config=each, evaluation=records[0].evaluation) for each in (longer, shown)] + made(attention)
    report = DESIGN.report([*records, *others])
    assert report.tables[0].rows == DESIGN.report(records).tables[0].rows
    assert report.tables[1].rows[0][2] == str(len(records) + len(others))


def test_a_mix_of_heads_has_its_own_theory(tmp_path: Path) -> None:
    mixed = ("binomial:15,lazy", "first-order")
    (cell,) = DESIGN.plan(Selection(out=tmp_path, structures=[mixed], tasks=["copy"], seeds=1)).cells  # type: ignore[list-item]
    assert cell.structure == "1 × binomial:15,lazy | 1 × first-order"
    assert cell.config.model.pattern == (mixed, mixed)
    (result,) = trained(made([cell]))
    assert result.tokens == 24
    assert result.congestion.lower == 3
    assert result.hops.max == 2


def test_a_line_is_fitted_with_its_error() -> None:
    rng = np.random.default_rng(0)
    points = [
        FitPoint(f"{g}", float(g), 0.8 - 0.1 * g + float(rng.normal(0, 0.01))) for g in range(6) for _ in range(3)
    ]
    fit = fit_line(points)
    assert fit is not None
    assert fit.slope == pytest.approx(-0.1, abs=4 * fit.slope_error)
    assert fit.explained > 0.98
    assert fit.held_out < 0.03 < fit.constant
    assert fit.rank == pytest.approx(-1)
    noise = fit_line([FitPoint(f"{g}", float(g % 2), 0.5 + 0.1 * (g // 2)) for g in range(8)])
    assert noise is not None
    assert noise.held_out >= noise.constant
    assert fit_line(points[:9]) is None
