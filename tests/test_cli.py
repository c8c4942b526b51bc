"""The command line as a user meets it: what is printed and written, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import resolvent as rv
from resolvent.bench.models import LongText, TrainingStep
from resolvent.cli import app
from resolvent.cli.model import _label
from resolvent.patterns.published import PUBLISHED
from resolvent.report import tables
from tests.commands import command

SIGNATURE = b"\x89PNG"


def run(*arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    done = command(*arguments)
    assert (done.returncode == 0) == ok, done.stderr
    return done


def test_analyze_json_for_all_structures() -> None:
    for spec in rv.PAPER_STRUCTURES:
        content = json.loads(CliRunner().invoke(app, ["analyze", spec, "--n", "64", "--json"]).stdout)
        assert content == json.loads(rv.analyze(spec, 64).to_json())


def test_analyze_text_plot_and_routing(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "page.png"
    done = run("analyze", "exponential+cache", "--n", "16", "--copy-routing", "--plot", str(picture))
    assert "exponential+cache on 16 tokens" in done.stdout
    assert done.stdout.rstrip().endswith("load per node, at most 4")
    assert picture.read_bytes()[:4] == SIGNATURE
    assert str(picture) in done.stderr

    routing = json.loads(run("analyze", "quadratic", "--n", "10", "--json", "--copy-routing").stdout)["routing"]
    assert [(path[0], path[-1]) for path in routing] == [(p, p + 10) for p in range(10)]
    assert "--json lists the paths" in run("analyze", "quadratic", "--n", "100", "--copy-routing").stdout
    assert "no routing: no feedback" in run("analyze", "local:4", "--copy-routing").stdout


def test_draw(tmp_path: Path) -> None:
    assert run("draw", "quadratic", "--n", "9").stdout.rstrip() == rv.quadratic().draw(9)
    picture = tmp_path / "mask.png"
    run("draw", "quadratic+cache", "--n", "64", "--png", str(picture))
    assert picture.read_bytes()[:4] == SIGNATURE


def test_draw_a_pair_and_a_mask(tmp_path: Path) -> None:
    assert call("draw", "local:3/exponential", "--n", "9").stdout.rstrip() == rv.pattern("local:3/exponential").draw(9)
    call("draw", "local:3/exponential", "--png", str(tmp_path / "pair.png"))
    assert (tmp_path / "pair.png").read_bytes()[:4] == SIGNATURE
    mask = rv.pattern("butterfly").mask(12)
    np.save(tmp_path / "mask.npy", mask)
    table = rv.explicit(mask)
    assert call("draw", "--mask", str(tmp_path / "mask.npy")).stdout.rstrip() == table.draw(12)
    assert call("draw", "--mask", str(tmp_path / "mask.npy"), "--n", "5").stdout.rstrip() == table.draw(5)
    assert "one of them" in error_of("draw")
    assert "one of them" in error_of("draw", "dense", "--mask", str(tmp_path / "mask.npy"))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").write_text("")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "mask.npy").read_bytes()[:-9])
    for name in ("objects", "text", "empty", "cut"):
        assert "expected a boolean array of shape (n, n)" in error_of("draw", "--mask", str(tmp_path / f"{name}.npy"))
    np.save(tmp_path / "future.npy", np.ones((3, 3), dtype=np.bool_))
    assert "expected a causal mask" in error_of("draw", "--mask", str(tmp_path / "future.npy"))


def test_compare_defaults_to_the_paper(tmp_path: Path) -> None:
    done = run("compare", "--n", "64", "--plot", str(tmp_path / "c.png"))
    for spec in rv.PAPER_STRUCTURES:
        assert spec in done.stdout
    assert "…" not in done.stdout.replace(" … ", "")  # nothing cut off at 80 columns
    run("compare", "dense", "order:3", "--n", "64", "--pages", str(tmp_path))
    assert len(list(tmp_path.glob("*.png"))) == 3
    content = json.loads(run("compare", "dense", "order:3", "--n", "10", "--json").stdout)
    assert [row["pattern"] for row in content] == ["dense", "order:3"]


def test_patterns_lists_every_family() -> None:
    text = run("patterns").stdout
    for name in (
        "attention",
        "local:w",
        "first-order",
        "order:k",
        "dense",
        "exponential",
        "quadratic+cache",
        "stride:EXPR",
    ):
        assert name in text
    assert "■" in text
    assert "published by others" in text
    for family in PUBLISHED:
        assert family.signature in text
    assert "Alon" in text
    assert "claim:" in text
    listed = json.loads(run("patterns", "--json").stdout)
    assert listed["paper"] == list(rv.PAPER_STRUCTURES)
    assert listed["published"]["fenwick"]["source"] == "Guo et al. 2025, Log-Linear Attention"
    assert set(listed["published"]) == {family.signature for family in PUBLISHED}


TEACHES = {
    "": ["Start with", "resolvent analyze exponential+cache", "patterns", "compare"],
    "analyze": ["Congestion is the number of tokens", "--copy-routing", "default: 1024", "quick|search|exact"],
    "draw": ["a row is a token", "--png"],
    "compare": ["default: (the paper's nine structures)", "--plot", "--pages"],
    "patterns": ["drawing", "--json"],
    "bench": ["take turns in one process", "sdpa, flex, paper or scipy", "repeatable, to measure growth", "--threads"],
}


@pytest.mark.parametrize("words", [[], ["analyze"], ["draw"], ["compare"], ["patterns"], ["bench"]])
def test_help_teaches(words: list[str]) -> None:
    text = " ".join(run(*words, "--help").stdout.replace("│", " ").split())
    assert "resolvent" in text.split("[OPTIONS]")[0]
    for word in TEACHES[words[0] if words else ""]:
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyze", "expo"], "Did you mean 'exponential'?"),
        (["draw", "stride:import os"], "cannot read 'import os'"),
        (["analyze", "dense", "--n", "-3"], "expected an integer ≥ 1 or a string such as '128k', got '-3'"),
        (["draw", "dense", "--n", "100000"], "expected n ≤ 32,768"),
        (["analyze", "dense", "--effort", "hard"], "'quick', 'search', 'exact'"),
        (["analyze", "dense", "--heads", "0"], "heads to be an integer ≥ 1"),
        (["draw", "dense", "--png", "/dev/null/x.png"], "/dev/null"),
        (["draw", "dense", "--png", "x.foo"], "ends in .png, .pdf, .svg, got 'x.foo'"),
        (["draw", "dense", "--png", "folder/"], "ends in .png, .pdf, .svg, got 'folder'"),
        (["analyze", "attention", "--n", "100000000000"], "at most 20,000,000 tokens"),
        (["draw", "dense", "--n", "5000", "--png", "x.png"], "expected n ≤ 2,048 for a figure"),
    ],
)
def test_errors_are_one_line_without_a_traceback(arguments: list[str], message: str) -> None:
    done = run(*arguments, ok=False)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_version() -> None:
    assert run("--version").stdout.strip() == f"resolvent {rv.__version__}"


@pytest.mark.parametrize("arguments", [["--version"], ["draw", "quadratic", "--n", "9"], ["analyze", "expo"]])
def test_a_process_of_its_own_says_the_same(arguments: list[str]) -> None:
    """And ends with the same code."""
    done = subprocess.run([sys.executable, "-m", "resolvent", *arguments], capture_output=True, text=True)
    here = command(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (here.returncode, here.stdout, here.stderr)


def call(*arguments: str) -> Result:
    """In this process, which has torch loaded already."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def error_of(*arguments: str) -> str:
    """The message that `main` prints after "error:"."""
    return str(CliRunner().invoke(app, arguments).exception)


def four(*specs: str) -> list[str]:
    return [word for spec in specs for word in ("--pattern", spec)]


def test_model_is_described() -> None:
    text = call("model", "gpt2-125m", "--pattern", "attention").stdout
    assert "123,787,776" in text
    content = json.loads(call("model", "tiny", *four("dense", "first-order", "dense", "local:8"), "--json").stdout)
    assert content["profile"]["max_hops"] == 1
    assert [layer["patterns"] for layer in content["profile"]["layers"]][3] == ["local:8"]
    assert "Did you mean 'tiny'" in error_of("model", "tini")
    assert "needs a first-order pattern, got 'dense'" in error_of(
        "model", "tiny", "--pattern", "dense", "--rule", "mamba"
    )


def test_model_of_a_run_is_described(tmp_path: Path) -> None:
    """As any command that takes a model: the folder of a run, that of its model, or a checkpoint."""
    changes = ["train.steps=2", "train.batch=2", "train.eval_batches=1", "model.dim=16"]
    less = ["--preset", "smoke", *(word for change in changes for word in ("--set", change))]
    call("train", "copy", "--pattern", "dense", *less, "--out", str(tmp_path / "run"))
    paths = [tmp_path / "run", tmp_path / "run" / "model", tmp_path / "run" / "checkpoint.safetensors"]
    described = [json.loads(call("model", str(path), "--json").stdout) for path in paths]
    assert all(each["profile"] == described[0]["profile"] for each in described)
    assert (
        described[0]["profile"]["parameters"] == json.loads((tmp_path / "run" / "run.json").read_text())["parameters"]
    )
    assert "(2 steps, those of its run)" in call("model", str(paths[0])).stdout
    other = json.loads(call("model", str(paths[1]), "--pattern", "local:4", "--json").stdout)
    assert other["profile"]["layers"][0]["patterns"] == ["local:4"]
    assert "expected the folder of a run" in error_of("model", str(tmp_path / "none"))


def test_train_takes_a_pattern_per_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["train.steps=2", "train.batch=2", "train.eval_batches=1", "model.dim=16", "model.layers=3"]
    less = ["--preset", "smoke", *(word for change in changes for word in ("--set", change))]
    content = json.loads(call("train", "copy", *four("dense", "local:4", "order:2"), *less, "--json").stdout)
    assert content["config"]["model"]["pattern"] == ["dense", "local:4", "order:2"]
    text = call("train", "copy", "--pattern", "dense", *less).stdout
    assert text.startswith("dense on copy: accuracy ")
    assert "one pattern for all layers, or 3, one for each; got 2" in error_of(
        "train", "copy", *four("dense", "local:4"), *less
    )


def test_lengths_in_tokens_have_units(tmp_path: Path) -> None:
    for words in (["evaluate", str(tmp_path), "--corpus", "x", "--context", "2q"],
                  ["generate", str(tmp_path), "--tokens", "2q"]):  # fmt: skip
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert "expected an integer ≥ 1 or a string such as '128k'" in " ".join(done.output.replace("│", " ").split())


def test_every_study_has_a_command() -> None:
    from resolvent.studies.registry import STUDIES

    listed = call("study", "--help").stdout
    for name, study in STUDIES.items():
        assert name in listed
        text = " ".join(call("study", name, "--help").stdout.replace("│", " ").split())
        assert study.about.split(":")[0] in text
        assert "If interrupted, rerun the same command to resume; if complete, it prints the results." in text
        assert ("--corpus" in text) == (name not in ("table1", "dimension", "incontext", "design"))
        assert ("--times" in text) == (name == "length")


def test_model_is_timed() -> None:
    done = call("model", "tiny", "--n", "64", "--train-step", "--decode", "40", "--json")
    content = json.loads(done.stdout)
    assert [step["pattern"] for step in content["training_steps"]] == ["exponential+cache", "attention"]
    assert content["decode"]["difference"] < 1e-4  # of logits of a whole model in float32
    assert content["decode"]["cache_bytes"] > 0


def test_timings_as_text() -> None:
    step = TrainingStep(pattern="dense", n=64, seconds=1.0, peak_bytes=2**21)
    assert tables.training_step(step) == "  dense              a training step on 64 tokens: 1.00 s, peak memory 2 MiB"
    result = LongText(pattern="dense", tokens=40, first_seconds=0.001, last_seconds=0.002, cache_bytes=2048,
                      first_resident_bytes=2**20, last_resident_bytes=2**20, difference=1e-6)  # fmt: skip
    assert "2.00 ×" in tables.long_text(result)
    assert "1.0e-06 of the full forward pass" in tables.long_text(result)


def test_model_is_saved_and_inspected(tmp_path: Path) -> None:
    call("model", "tiny", *four("quadratic", "first-order", "dense", "local:8"), "--save", str(tmp_path / "m"))
    done = call("inspect", str(tmp_path / "m"), "--text", "as you like it", "--plot", str(tmp_path / "i.png"))
    assert "first-order, softmax" in done.stdout
    assert (tmp_path / "i.png").read_bytes()[:4] == SIGNATURE
    layers = json.loads(call("inspect", str(tmp_path / "m"), "--tokens", "1,2,3", "--json").stdout)
    assert len(layers) == 4
    assert layers[3]["gates"] is None
    assert "expected a layer from 0 to 3, got 9" in error_of("inspect", str(tmp_path / "m"), "--layer", "9")
    assert "integers such as 17,4,256" in error_of("inspect", str(tmp_path / "m"), "--tokens", "a,b")
    assert "expected the folder of a run" in error_of("inspect", str(tmp_path / "none"))


def test_labels_of_tokens() -> None:
    """Spaces are visible; what cannot be printed is its id."""
    assert [_label(text, 7) for text in ("a", " the", "\n", "\ufffd")] == ["a", "␣the", "7", "7"]


def test_lengths_as_text() -> None:
    content = json.loads(call("analyze", "first-order", "--n", "128k", "--json").stdout)
    assert (content["n"], content["max_hops"]) == (131_072, 131_071)
    profile = json.loads(call("model", "tiny", "--n", "2k", "--json").stdout)["profile"]
    assert profile == json.loads(call("model", "tiny", "--n", "2048", "--json").stdout)["profile"]
    report = json.loads(
        call("bench", "first-order", "--n", "1k", "--against", "none", "--rounds", "1", "--json").stdout
    )
    assert [length["n"] for length in report["lengths"]] == [1024]
    wrong = CliRunner().invoke(app, ["analyze", "dense", "--n", "4kb"])
    assert wrong.exit_code == 2
    assert "such as '128k', got '4kb'" in " ".join(wrong.output.replace("│", " ").split())
