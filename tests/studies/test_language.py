"""Studies on text: what is run, that runs are shared and never made twice, and what the commands write."""

import csv
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.model import LanguageModel
from resolvent.patterns import PAPER_STRUCTURES
from resolvent.report import language as report
from resolvent.report import results
from resolvent.report.variants import variants
from resolvent.studies import lengths
from resolvent.studies.grid import Cell
from resolvent.studies.language import PRESETS, STUDIES, cells
from resolvent.studies.table1 import cells as task_cells
from resolvent.text import prepare
from resolvent.train import record, train
from resolvent.train.perplexity import on_text
from resolvent.train.text import Text
from tests.train.test_text import WORDS

TINY = ["train.steps=6", "train.warmup=2", "train.batch=4", "train.eval_every=3", "train.eval_batches=1",
        "train.log_every=1", "model.dim=16", "model.heads=2", "model.layers=1", "task.context=16"]  # fmt: skip
FEW = ["first-order", "dense"]
STRUCTURES = {"pareto": FEW, "mamba": ["first-order"], "sharing": ["dense"], "normalisation": ["dense"], "length": FEW}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    (folder / "words.txt").write_text(" ".join(np.random.default_rng(0).choice(WORDS, 1500)))
    return str(prepare([str(folder / "words.txt")], folder / "words", "bytes").folder)


def of_study(study: str, corpus: str, out: Path, **options: Any) -> list[Cell]:
    settings = {"structures": STRUCTURES[study], "changes": TINY, "seeds": 1} | options
    return cells(study, "quick", corpus, out, **settings)


@pytest.fixture(scope="module")
def out(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of every study but one, made in this process, which is quicker than a process for each."""
    folder = tmp_path_factory.mktemp("study")
    for study in STUDIES:
        for cell in of_study(study, corpus, folder):
            if cell.done() is None and cell.structure != "dense · whole":
                train(cell.config, cell.folder)
    return folder


def words(study: str, corpus: str, out: Path, *more: str) -> list[str]:
    chosen = [word for name in STRUCTURES[study] for word in ("--structures", name)]
    changes = [word for change in TINY for word in ("--set", change)]
    return ["study", study, "--corpus", corpus, "--quick", "--out", str(out), "--seeds", "1", "--jobs", "1", *chosen,
            *changes, *more]  # fmt: skip


def call(study: str, corpus: str, out: Path, *more: str) -> Result:
    done = CliRunner().invoke(app, words(study, corpus, out, *more), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def stamps(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}


# What is run


def test_studies_share_their_runs(corpus: str, tmp_path: Path) -> None:
    folders = {study: {cell.folder for cell in cells(study, "quick", corpus, tmp_path)} for study in STUDIES}
    assert folders["pareto"] == folders["length"]
    assert len(folders["pareto"]) == 9
    assert {study: len(own - folders["pareto"]) for study, own in folders.items()} == {
        "pareto": 0, "mamba": 1, "sharing": 3, "normalisation": 6, "length": 0}  # fmt: skip


def test_cells_differ_by_structure_rule_and_seed_alone(corpus: str, tmp_path: Path) -> None:
    found = of_study("normalisation", corpus, tmp_path, seeds=2, structures=["dense", "order:8", "dense"])
    assert [cell.name for cell in found[:3]] == [
        "text · dense · seed 0", "text · dense · softmax:gate=0.5 · seed 0", "text · dense · whole · seed 0",
    ]  # fmt: skip
    assert len({cell.folder for cell in found}) == len(found) == 12
    first = found[0].config.to_dict()
    for cell in found:
        own = cell.config.to_dict()
        own["model"] |= {key: first["model"][key] for key in ("pattern", "coefficients")}
        own["train"]["seed"] = first["train"]["seed"]
        assert own == first
    assert first["task"]["context"] == 16
    assert [c.config.model.coefficients for c in of_study("sharing", corpus, tmp_path, rules=["tied:gate=mamba"])] == [
        "tied:gate=mamba"
    ]


def test_presets_give_seeds(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "quick", dataclasses.replace(PRESETS["quick"], seeds=2, first_seed=10))
    assert [cell.seed for cell in cells("mamba", "quick", corpus, tmp_path)] == [10, 10, 11, 11]
    assert [cell.seed for cell in cells("mamba", "quick", corpus, tmp_path, seeds=1)] == [10, 10]
    assert STUDIES["pareto"].structures == tuple(PAPER_STRUCTURES)


@pytest.mark.parametrize(("options", "message"), [
    ({"structures": ["denes"]}, "Did you mean 'dense'"),
    ({"rules": ["mambo"]}, "unknown coefficients 'mambo'.*Did you mean 'mamba'"),
    ({"rules": ["mamba"]}, "mamba does not fit dense"),
    ({"seeds": 0}, "expected at least one seed, got 0"),
    ({"changes": ["model.dims=3"]}, "Did you mean 'dim'"),
    ({"changes": ["model.coefficients=tied"]}, "the study sets model.coefficients itself: expected --rules instead"),
    ({"changes": ["model.pattern=dense"]}, "expected --structures instead of --set model.pattern=dense"),
    ({"changes": ["train.seed=3"]}, "expected --seeds"),
])  # fmt: skip
def test_bad_input(corpus: str, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_study("sharing", corpus, tmp_path, **options)


def test_bad_commands(corpus: str, tmp_path: Path) -> None:
    def refusal(*more: str) -> str:
        return str(CliRunner().invoke(app, words("pareto", corpus, tmp_path, *more)).exception)

    assert "expected --quick or --preset, got --quick and --preset laptop" in refusal("--preset", "laptop")
    assert "expected at least one job" in refusal("--jobs", "0")
    unknown = CliRunner().invoke(app, ["study", "pareto", "--corpus", corpus, "--preset", "laptob"])
    assert "unknown preset 'laptob' of text" in str(unknown.exception)
    missing = CliRunner().invoke(app, ["study", "mamba", "--corpus", str(tmp_path / "none"), "--quick"])
    assert "there is no corpus in" in str(missing.exception)
    assert not (tmp_path / "runs").exists()


# Commands


def test_what_is_missing_is_trained_and_the_rest_is_read(corpus: str, out: Path) -> None:
    before = stamps(out)
    command = [sys.executable, "-m", "resolvent", *words("normalisation", corpus, out)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert "whole" in done.stdout
    assert "…" not in done.stdout
    assert "contradicted  dense · whole overflows" in done.stdout
    assert "normalisation.html" in done.stderr
    after = stamps(out)
    assert {path for path in before if before[path] != after[path]} <= {out / "runs" / "dense"}  # a folder more in it
    made = {path.relative_to(out / "runs").parts[1] for path in after.keys() - before.keys()}
    assert made == {"whole"}
    call("normalisation", corpus, out)
    assert stamps(out) == after


def test_pareto_prints_and_writes(corpus: str, out: Path) -> None:
    before = stamps(out)
    printed = call("pareto", corpus, out).stdout
    assert stamps(out) == before
    assert "first-order" in printed
    assert "31.28" in printed
    assert "…" not in printed  # nothing cut off at 80 columns
    assert "Scale: " in printed
    assert "a < b: every seed of a has a perplexity below" in " ".join(printed.split())
    kept = results.read_records(out / "pareto-quick.jsonl")
    assert [r["config"]["model"]["pattern"] for r in kept] == FEW
    assert (out / "pareto.png").stat().st_size > 20_000
    assert (out / "pareto.md").read_text().startswith("# Perplexity against complexity, quick: ")
    assert (out / "pareto.html").read_text().count("data:image/png;base64,") == 1
    rows = list(csv.DictReader((out / "pareto.csv").read_text().splitlines()))
    assert [row["structure"] for row in rows] == FEW
    content = json.loads(call("pareto", corpus, out, "--json").stdout)
    assert content["records"] == kept
    assert {"paper", "compared", "grade"} == set(content["claims"][0])


@pytest.mark.parametrize("study", ["mamba", "sharing"])
def test_rules_side_by_side(corpus: str, out: Path, study: str) -> None:
    before = stamps(out)
    printed = call(study, corpus, out).stdout
    assert stamps(out) == before
    other = {"mamba": "first-order · mamba < first-order", "sharing": "dense · tied ≲ dense"}[study]
    assert other in printed
    assert (out / f"{study}.png").stat().st_size > 10_000
    assert len(results.read_records(out / f"{study}-quick.jsonl")) == 2


# Longer contexts


def test_lengths_are_measured_once(corpus: str, out: Path) -> None:
    printed = call("length", corpus, out, "--times", "2", "--times", "4").stdout
    assert [word for word in ("16", "32", "64") if word in printed.splitlines()[0].split()] == ["16", "32", "64"]
    before = stamps(out)
    again = json.loads(call("length", corpus, out, "--times", "2", "--times", "4", "--json").stdout)
    assert stamps(out) == before
    assert again["records"] == results.read_records(out / "length-quick.jsonl")
    for made in again["records"]:
        assert [e["context"] for e in made["lengths"]] == [16, 32, 64]
        assert made["lengths"][0]["loss"] == pytest.approx(made["evaluation"]["loss"], rel=1e-6)
        assert len({e["tokens"] for e in made["lengths"]}) == 1  # the same targets
    cell = of_study("length", corpus, out)[1]
    alone = on_text(LanguageModel.load(cell.folder / "model"), Text(corpus, 64), 1)
    there = again["records"][1]["lengths"][2]
    assert [there["loss"], there["bits_per_byte"]] == pytest.approx([alone["loss"], alone["bits_per_byte"]])
    assert np.allclose(there["by_place"], alone["by_place"])
    assert (out / "length.png").stat().st_size > 20_000
    found = variants(again["records"])
    assert all(grade != "not run" for *_, grade in report.grades(report.VIEWS["length"], found))


def test_lengths_of_another_run_are_not_kept(corpus: str, tmp_path: Path) -> None:
    [cell] = of_study("length", corpus, tmp_path, structures=["local:8"])
    with pytest.raises(ValueError, match="text · local:8 · seed 0 is not finished"):
        lengths.measured(cell)
    train(cell.config, cell.folder)
    first = lengths.measured(cell, [2])
    stale = json.loads((cell.folder / lengths.FOUND).read_text())
    stale["loss"] += 1
    stale["lengths"]["32"]["loss"] = 0.0
    (cell.folder / lengths.FOUND).write_text(json.dumps(stale))
    assert lengths.measured(cell, [2]) == first
    (cell.folder / lengths.FOUND).write_text("{")
    with pytest.raises(ValueError, match=r"lengths.json is damaged.*delete it to measure again"):
        lengths.measured(cell)
    assert record.read(cell.folder / "run.json")["evaluation"] == first["evaluation"]


def test_lengths_that_do_not_fit(corpus: str, out: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is too short for contexts of 16,000: expected more tokens of validation"):
        call("length", corpus, out, "--times", "1000")
    with pytest.raises(ValueError, match=r"expected multiples of the trained length, 1 or more, got \[0\]"):
        call("length", corpus, out, "--times", "0")
    with pytest.raises(ValueError, match="expected a run on text, got copy"):
        lengths.contexts(task_cells("smoke", tmp_path)[0], [2])
