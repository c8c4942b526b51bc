"""Studies on text: what is run, that runs are shared and never made twice, and what the commands write."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.model import LanguageModel
from resolvent.patterns import PAPER_STRUCTURES
from resolvent.studies.grid import Cell
from resolvent.studies.language import lengths, table
from resolvent.studies.language.lengths import LengthPlan
from resolvent.studies.language.presets import PRESETS, run_config
from resolvent.studies.language.study import TextStudy
from resolvent.studies.registry import STUDIES
from resolvent.studies.table1 import cells as task_cells
from resolvent.tasks import Text
from resolvent.train import Record, train
from resolvent.train.perplexity import on_text
from resolvent.train.record import read_records, write_records
from tests.operator_cases import TOLERANCE

TINY = ["train.steps=6", "train.warmup=2", "train.batch=4", "train.eval_every=3", "train.eval_batches=1",
        "train.log_every=1", "model.dim=16", "model.heads=2", "model.layers=1", "task.context=16"]  # fmt: skip
FEW = ["first-order", "dense"]
ON_TEXT = [name for name, study in STUDIES.items() if isinstance(study, TextStudy)]
STRUCTURES = {"pareto": FEW, "mamba": ["first-order"], "sharing": ["dense"], "normalization": ["dense"], "length": FEW,
              "ladder": FEW}  # fmt: skip


def cells(name: str, preset: str, corpus: str, out: Path, **options: Any) -> list[Cell]:
    study = STUDIES[name]
    assert isinstance(study, TextStudy)
    return study.cells(preset, corpus, out, **options)


def of_study(study: str, corpus: str, out: Path, **options: Any) -> list[Cell]:
    settings = {"structures": STRUCTURES.get(study, ["dense"]), "changes": TINY, "seeds": 1} | options
    return cells(study, "quick", corpus, out, **settings)


@pytest.fixture(scope="module")
def out(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three studies but one, which the others share, made in this process, which is quicker than others."""
    folder = tmp_path_factory.mktemp("study")
    for study in ("pareto", "sharing", "normalization"):
        for cell in of_study(study, corpus, folder):
            if cell.record() is None and cell.structure != "dense · joint":
                train(cell.config, cell.folder)
    return folder


def words(study: str, corpus: str, out: Path, *more: str) -> list[str]:
    chosen = [word for name in STRUCTURES.get(study, ["dense"]) for word in ("--structures", name)]
    changes = [word for change in TINY for word in ("--set", change)]
    settings = ["--corpus", corpus, "--preset", "quick", "--out", str(out), "--seeds", "1", "--jobs", "1"]
    return ["study", study, *settings, *chosen, *changes, *more]


def call(study: str, corpus: str, out: Path, *more: str) -> Result:
    done = CliRunner().invoke(app, words(study, corpus, out, *more), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def stamps(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}


# What is run


def test_studies_share_their_runs(corpus: str, tmp_path: Path) -> None:
    folders = {study: {cell.folder for cell in cells(study, "quick", corpus, tmp_path)} for study in ON_TEXT}
    assert folders["pareto"] == folders["length"]
    assert len(folders["pareto"]) == 9
    assert folders["ladder"] < folders["pareto"]
    assert {study: len(own - folders["pareto"]) for study, own in folders.items()} == {
        "pareto": 0, "mamba": 18, "sharing": 3, "normalization": 6, "length": 0, "ladder": 0}  # fmt: skip


def test_cells_differ_by_structure_rule_and_seed_alone(corpus: str, tmp_path: Path) -> None:
    found = of_study("normalization", corpus, tmp_path, seeds=2, structures=["dense", "order:8", "dense"])
    assert [cell.name for cell in found[:3]] == [
        "text · dense · seed 0", "text · dense · softmax:gate=0.5 · seed 0", "text · dense · joint · seed 0",
    ]  # fmt: skip
    assert len({cell.folder for cell in found}) == len(found) == 12
    first = found[0].config.to_dict()
    for cell in found:
        own = cell.config.to_dict()
        own["model"] |= {key: first["model"][key] for key in ("pattern", "rule")}
        own["train"]["seed"] = first["train"]["seed"]
        assert own == first
    assert first["task"]["context"] == 16
    assert [c.config.model.rule for c in of_study("sharing", corpus, tmp_path, rules=["tied:gate=mamba"])] == [
        "tied:gate=mamba"
    ]


def test_presets_give_seeds(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "quick", dataclasses.replace(PRESETS["quick"], seeds=2, first_seed=10))
    one = {"structures": ["dense"]}
    assert [cell.seed for cell in cells("sharing", "quick", corpus, tmp_path, **one)] == [10, 10, 11, 11]
    assert [cell.seed for cell in cells("sharing", "quick", corpus, tmp_path, seeds=1, **one)] == [10, 10]
    assert {cell.seed for cell in cells("sharing", "quick", corpus, tmp_path, first_seed=100)} == {100, 101}
    pareto = STUDIES["pareto"]
    assert isinstance(pareto, TextStudy)
    assert pareto.structures == tuple(PAPER_STRUCTURES)


@pytest.mark.parametrize(("options", "message"), [
    ({"rules": ["mambo"]}, "unknown rule 'mambo'.*Did you mean 'mamba"),
    ({"rules": ["mamba2"]}, "the 'mamba2' rule needs a first-order pattern, got 'dense'"),
    ({"seeds": 0}, "expected at least one seed, got 0"),
    ({"changes": ["model.rule=tied"]}, "the study sets model.rule itself: expected --rules instead"),
])  # fmt: skip
def test_bad_input(corpus: str, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_study("sharing", corpus, tmp_path, **options)


def test_bad_commands(corpus: str, tmp_path: Path) -> None:
    def refusal(*more: str) -> str:
        return str(CliRunner().invoke(app, words("pareto", corpus, tmp_path, *more)).exception)

    assert "expected at least one job" in refusal("--jobs", "0")
    missing = CliRunner().invoke(app, ["study", "mamba", "--corpus", str(tmp_path / "none"), "--preset", "quick"])
    assert "there is no corpus in" in str(missing.exception)
    assert not (tmp_path / "runs").exists()


# Commands


@pytest.mark.usefixtures("cells_run_here")
def test_what_is_missing_is_trained_and_the_rest_is_read(corpus: str, out: Path) -> None:
    before = stamps(out)
    done = call("normalization", corpus, out)
    assert "…" not in done.stdout
    assert "circumvented  dense · joint overflows" in done.stdout
    assert "normalization.html" in done.stderr
    after = stamps(out)
    assert {path for path in before if before[path] != after[path]} <= {out / "runs" / "dense"}  # a folder more in it
    made = {path.relative_to(out / "runs").parts[1] for path in after.keys() - before.keys()}
    assert made == {"joint"}
    call("normalization", corpus, out)
    assert stamps(out) == after


def test_pareto_prints_and_writes(corpus: str, out: Path) -> None:
    before = stamps(out)
    printed = call("pareto", corpus, out).stdout
    assert stamps(out) == before
    assert "first-order" in printed
    assert "…" not in printed  # nothing cut off at 80 columns
    kept = read_records(out / "pareto-quick.jsonl")
    assert [r.config.model.pattern for r in kept] == FEW
    assert (out / "pareto.png").stat().st_size > 20_000
    assert (out / "pareto.html").read_text().count("data:image/png;base64,") == 1
    content = json.loads(call("pareto", corpus, out, "--json").stdout)
    assert [Record.from_dict(each) for each in content["records"]] == kept
    assert {"paper", "compared", "grade"} == set(content["claims"][0])


def test_rules_are_compared_at_equal_parameters(corpus: str, out: Path) -> None:
    study = STUDIES["mamba"]
    assert isinstance(study, TextStudy)
    made = cells("mamba", "quick", corpus, out, seeds=1)
    counts = [LanguageModel.shape_only(cell.config.model).parameter_count() for cell in made]
    assert all(abs(count - counts[0]) <= 0.01 * counts[0] for count in counts)
    assert made[0].config.model.ff_dim is None
    assert {cell.seed for cell in made} == {10}
    preset = PRESETS["quick"].train.learning_rate
    assert made[-1].config.model.inner_dim < made[0].config.model.inner_dim  # for queries and keys
    for cell, rule in zip(made, [*study.rules, "softmax"], strict=True):
        assert cell.config.train.learning_rate == pytest.approx(preset * study.rates.get(rule, 1), rel=0.01)
    [changed] = cells("mamba", "quick", corpus, out, seeds=1, rules=["mamba2"], changes=["train.learning_rate=0.5"])
    assert changed.config.train.learning_rate == 0.5


# Longer contexts


def test_lengths_are_measured_once(corpus: str, out: Path) -> None:
    printed = call("length", corpus, out, "--times", "2", "--times", "4").stdout
    assert [word for word in ("16", "32", "64") if word in printed.splitlines()[0].split()] == ["16", "32", "64"]
    before = stamps(out)
    again = json.loads(call("length", corpus, out, "--times", "2", "--times", "4", "--json").stdout)
    assert stamps(out) == before
    records = [Record.from_dict(each) for each in again["records"]]
    assert records == read_records(out / "length-quick.jsonl")
    for made in records:
        assert [each.context for each in made.lengths] == [16, 32, 64]
        assert made.lengths[0] == made.evaluation
        assert len({each.tokens for each in made.lengths}) == 1  # the same targets
    cell = of_study("length", corpus, out)[1]
    alone = on_text(LanguageModel.load(cell.folder / "model"), Text(corpus, 64), 1)
    longest = records[1].lengths[2]
    assert [longest.loss, longest.bits_per_byte] == pytest.approx(
        [alone.loss, alone.bits_per_byte], rel=TOLERANCE[torch.float32]
    )
    assert np.allclose(
        *([dataclasses.astuple(row) for row in each.by_position] for each in (longest, alone)),
        rtol=TOLERANCE[torch.float32],
    )
    assert (out / "length.png").stat().st_size > 20_000
    assert all(each.grade != "not run" for each in STUDIES["length"].report(records).claims.graded)


def test_lengths_of_another_run_are_not_kept(corpus: str, tmp_path: Path) -> None:
    [cell] = of_study("length", corpus, tmp_path, structures=["local:8"])
    with pytest.raises(ValueError, match="text · local:8 · seed 0 is not finished"):
        lengths.measured(cell)
    train(cell.config, cell.folder)
    first = lengths.measured(cell, LengthPlan((2,)))
    stale = json.loads((cell.folder / lengths.FILE).read_text())
    stale["loss"] += 1
    stale["lengths"]["32"]["loss"] = 0.0
    (cell.folder / lengths.FILE).write_text(json.dumps(stale))
    assert lengths.measured(cell, LengthPlan((2,))) == first
    (cell.folder / lengths.FILE).write_text("{")
    with pytest.raises(ValueError, match=r"lengths.json is damaged.*delete it to measure again"):
        lengths.measured(cell)
    assert Record.read(cell.folder / "run.json").evaluation == first.evaluation


def test_lengths_that_do_not_fit(corpus: str, out: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is too short for contexts of 16,000: expected more tokens of validation"):
        call("length", corpus, out, "--times", "1000")
    with pytest.raises(ValueError, match=r"expected multiples of the trained length, 1 or more, got \[0\]"):
        call("length", corpus, out, "--times", "0")
    with pytest.raises(ValueError, match="expected a run on text, got one on 'copy'"):
        lengths.contexts(task_cells("smoke", tmp_path)[0], [2])


ROPES = ["10000", "near:within=4"]


def test_positions_are_trained_and_measured(corpus: str, out: Path) -> None:
    made = of_study("length", corpus, out, ropes=ROPES)
    assert [cell.name for cell in made] == [f"text · {name} · seed 0" for name in (*FEW, "dense · near:within=4")]
    assert made[:2] != made[1:]
    assert [cell.folder for cell in made[:2]] == [cell.folder for cell in of_study("length", corpus, out)]
    train(made[2].config, made[2].folder)
    options = [word for rope in ROPES for word in ("--ropes", rope)]
    options += ["--evaluated-ropes", "ntk:factor=2", "--times", "2", "--tokens", "256"]
    printed = call("length", corpus, out, *options).stdout
    assert "→ ntk:factor=2" in printed
    before = stamps(out)
    content = json.loads(call("length", corpus, out, *options, "--json").stdout)
    assert stamps(out) == before
    first, dense, near = (Record.from_dict(each).lengths for each in content["records"])
    assert [(each.context, each.rope) for each in first] == [(each.context, each.rope) for each in near] == [
        (16, ""), (32, "")]  # fmt: skip
    assert [(each.context, each.rope) for each in dense[2:]] == [(16, "ntk:factor=2"), (32, "ntk:factor=2")]
    assert {each.tokens for each in (*first, *dense, *near)} == {256}
    model = LanguageModel.load(made[1].folder / "model")
    alone = on_text(model.with_rope("ntk:factor=2"), Text(corpus, 32), 2, batches=4)
    assert dense[3].loss == pytest.approx(alone.loss, rel=TOLERANCE[torch.float32])


@pytest.mark.parametrize(("options", "message"), [
    (["--tokens", "100"], "expected --tokens as a multiple of 128, at most"),
    (["--evaluated-ropes", "nkt:factor=2"], "unknown rope 'nkt'"),
    (["--ropes", "near:within=4", "--rules", "joint"], "the 'joint' rule cannot read by distance"),
])  # fmt: skip
def test_positions_that_do_not_fit(corpus: str, out: Path, options: list[str], message: str) -> None:
    structures = ["--structures", "dense"]
    words_ = [word for word in words("length", corpus, out) if word not in ("--structures", *FEW)]
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, [*words_, *structures, *options], catch_exceptions=False)


# Shorter contexts


def test_shorter_contexts_are_measured_on_the_same_targets(corpus: str, out: Path) -> None:
    printed = call("ladder", corpus, out).stdout
    assert "This text" in printed
    before = stamps(out) | {out / "reach.json": (out / "reach.json").stat().st_mtime_ns}
    again = json.loads(call("ladder", corpus, out, "--json").stdout)
    assert stamps(out) | {out / "reach.json": (out / "reach.json").stat().st_mtime_ns} == before
    records = [Record.from_dict(each) for each in again["records"]]
    assert records == read_records(out / "ladder-quick.jsonl")
    text = Text(corpus, 16)
    tokens = text.opened.split("validation")
    for made, cell in zip(records, of_study("ladder", corpus, out), strict=True):
        assert [each.context for each in made.lengths] == [2, 4, 8, 16]
        assert {each.tokens for each in made.lengths} == {2 * (1 + (len(tokens) - 17) // 64)}
        assert made.reach is not None
        assert [each.window for each in made.reach.windows] == [8, 16]
        model = LanguageModel.load(cell.folder / "model")
        for each in made.lengths:  # by hand: the last two targets of windows that end every 64 tokens
            losses = []
            for end in range(16, len(tokens), 64):
                row = torch.from_numpy(tokens[end - each.context : end + 1].astype(np.int64))[None]
                with torch.no_grad():
                    logits = model.logits(model.hidden(row[:, :-1]))
                losses.append(torch.nn.functional.cross_entropy(logits[0, -2:], row[0, -2:]).item())
            assert each.loss == pytest.approx(np.mean(losses), rel=TOLERANCE[torch.float32])
    assert (out / "ladder.png").stat().st_size > 20_000
    assert "first-order uses its context" in {claim["compared"] for claim in again["claims"]}


@pytest.mark.parametrize("study", ["ladder", "length"])
def test_records_made_elsewhere_bring_their_measurements(study: str, corpus: str, out: Path, tmp_path: Path) -> None:
    """Nothing is trained or measured again, wherever the corpus lay; the models need not be there."""
    made = json.loads(call(study, corpus, out, "--json").stdout)
    moved = [Record.from_dict(each) for each in made["records"]]
    moved = [dataclasses.replace(each, config=each.config.updated({"task": {"corpus": "/away"}})) for each in moved]
    write_records(moved, tmp_path / "records.jsonl")
    again = json.loads(call(study, corpus, tmp_path, "--records", str(tmp_path / "records.jsonl"), "--json").stdout)
    assert again["claims"] == made["claims"]
    for one, other in zip(again["records"], made["records"], strict=True):
        assert one["lengths"] == other["lengths"]
    assert not list(tmp_path.rglob("model"))


@pytest.mark.parametrize(("number", "count", "size"), [
    (999, "999", "999 B"), (1000, "1k", "0.977 KiB"), (2048, "2.05k", "2 KiB"), (999_600, "1M", "976 KiB"),
    (1023 * 1024, "1.05M", "0.999 MiB"), (2**21, "2.1M", "2 MiB"), (2**30, "1.07G", "1 GiB"),
])  # fmt: skip
def test_numbers_have_three_digits_and_a_unit(number: int, count: str, size: str) -> None:
    assert (table._count(number), table._bytes(number)) == (count, size)


def test_what_is_finished_is_reported(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run of the study is finished in .*: leave out --finished"):
        call("ladder", corpus, tmp_path, "--finished")
    [cell] = of_study("ladder", corpus, tmp_path, structures=["dense"])
    train(cell.config, cell.folder)
    printed = call("ladder", corpus, tmp_path, "--finished").stdout
    assert "dense" in printed
    assert "first-order" not in printed


# Typed from the paper's table: steps, warm-up, rate, batch, context, layers, dim, ff dim.
PAPERS_MODELS = {
    "125m": (20_000, 1000, 5e-4, 128, 1024, 12, 768, 3072),
    "355m": (25_000, 2500, 2.5e-4, 128, 2048, 24, 1024, 4096),
    "775m": (25_000, 2500, 2e-4, 256, 2048, 36, 1280, 5120),
}


@pytest.mark.parametrize("size", PAPERS_MODELS)
def test_paper_presets_are_the_papers(size: str, corpus: str) -> None:
    """To the letter; what is recommended instead has a name of its own, and differs in what is named."""
    text = Text(str(corpus), 32).prepared()
    literal, ours = (
        run_config(PRESETS[f"{kind}-{size}"], text, "quadratic+cache", 0) for kind in ("gpt2", "recommended")
    )
    train, model = literal.train, literal.model
    assert (train.steps, train.warmup, train.learning_rate, train.batch, PRESETS[f"gpt2-{size}"].context,
            model.layers, model.dim, model.inner_dim) == PAPERS_MODELS[size]  # fmt: skip
    assert (train.weight_decay, train.beta_1, train.beta_2, train.clip) == (0.1, 0.9, 0.95, 1.0)
    assert (train.precision, train.spike, train.solved) == ("float16", None, None)
    assert model.dim // model.heads == 64
    assert model.rule == "softmax:gate=mamba"
    assert run_config(PRESETS[f"gpt2-{size}"], text, "attention", 0).model.rule == "softmax"
    assert PRESETS[f"gpt2-{size}"].model.vocab_size == 50_257
    different = ours.differences(literal)
    assert {part.split(" was")[0].strip() for part in different.split(", ") if " was" in part} == {
        "model.rule", "train.precision", "train.spike",
    }  # fmt: skip
