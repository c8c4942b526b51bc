"""The command line as a user meets it: in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import resolvent as rv
from resolvent.cli import app
from resolvent.report import tables

SIGNATURE = b"\x89PNG"


def run(*arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "resolvent", *arguments], capture_output=True, text=True)
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


def test_compare_defaults_to_the_paper(tmp_path: Path) -> None:
    done = run("compare", "--n", "64", "--plot", str(tmp_path / "c.png"), "--pages", str(tmp_path))
    for spec in rv.PAPER_STRUCTURES:
        assert spec in done.stdout
    assert "…" not in done.stdout.replace(" … ", "")  # nothing cut off at 80 columns
    assert len(list(tmp_path.glob("*.png"))) == 10
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
    listed = json.loads(run("patterns", "--json").stdout)
    assert listed["paper"] == list(rv.PAPER_STRUCTURES)


TEACHES = {
    "": ["Start with", "resolvent analyze exponential+cache", "patterns", "compare"],
    "analyze": ["Congestion is the number of tokens", "--copy-routing", "default: 1024", "quick|search|exact"],
    "draw": ["a row is a token", "--png"],
    "compare": ["nine structures if none is named", "--plot", "--pages"],
    "patterns": ["picture", "--json"],
    "bench": ["take turns in one process", "sdpa, flex, paper or scipy", "repeat to see growth", "--threads"],
}


@pytest.mark.parametrize("command", [[], ["analyze"], ["draw"], ["compare"], ["patterns"], ["bench"]])
def test_help_teaches(command: list[str]) -> None:
    text = " ".join(run(*command, "--help").stdout.replace("│", " ").split())
    assert "resolvent" in text.split("[OPTIONS]")[0]
    for word in TEACHES[command[0] if command else ""]:
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyze", "expo"], "Did you mean 'exponential'?"),
        (["draw", "stride:import os"], "cannot read 'import os'"),
        (["analyze", "dense", "--n", "-3"], "expected an integer ≥ 1, got -3"),
        (["draw", "dense", "--n", "100000"], "expected n ≤ 32,768"),
        (["analyze", "dense", "--effort", "hard"], "'quick', 'search', 'exact'"),
        (["analyze", "dense", "--heads", "0"], "heads to be an integer ≥ 1"),
        (["draw", "dense", "--png", "/dev/null/x.png"], "/dev/null"),
        (["draw", "dense", "--png", "x.foo"], "ends in .png, .pdf, .svg, got 'x.foo'"),
        (["draw", "dense", "--png", "folder/"], "ends in .png, .pdf, .svg, got 'folder'"),
        (["analyze", "attention", "--n", "100000000000"], "at most 20,000,000 tokens"),
        (["draw", "dense", "--n", "5000", "--png", "x.png"], "expected n ≤ 2,048 for a picture"),
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


def call(*arguments: str) -> Result:
    """In this process, which has torch loaded already."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def refusal(*arguments: str) -> str:
    """What `main` would say after "error:"."""
    return str(CliRunner().invoke(app, arguments).exception)


def four(*specs: str) -> list[str]:
    return [word for spec in specs for word in ("--pattern", spec)]


def test_model_says_what_it_costs() -> None:
    text = call("model", "gpt2-125m", "--pattern", "attention").stdout
    assert "123,787,776" in text
    content = json.loads(call("model", "tiny", *four("dense", "first-order", "dense", "local:8"), "--json").stdout)
    assert content["profile"]["max_hops"] == 1
    assert [layer["patterns"] for layer in content["profile"]["layers"]][3] == ["local:8"]
    assert "Did you mean 'tiny'" in refusal("model", "tini")
    assert "does not fit dense" in refusal("model", "tiny", "--pattern", "dense", "--coefficients", "mamba")


def test_model_is_timed() -> None:
    done = call("model", "tiny", "--n", "64", "--train-step", "--decode", "40", "--json")
    content = json.loads(done.stdout)
    assert [step["pattern"] for step in content["training_steps"]] == ["exponential+cache", "attention"]
    assert content["decode"]["difference"] < 1e-4
    assert content["decode"]["cache_bytes"] > 0


def test_timings_in_words() -> None:
    step = {"pattern": "dense", "n": 64, "seconds": 1.0, "peak_bytes": 2**21}
    assert tables.training_step(step) == "  dense              a training step on 64 tokens: 1.00 s, 2 MiB at its peak"
    found = {"pattern": "dense", "tokens": 40, "first_seconds": 0.001, "last_seconds": 0.002, "cache_bytes": 2048,
             "first_resident_bytes": 2**20, "last_resident_bytes": 2**20, "difference": 1e-6}  # fmt: skip
    assert "2.00 ×" in tables.long_text(found)
    assert "1.0e-06 of the full forward pass" in tables.long_text(found)


def test_model_is_saved_and_inspected(tmp_path: Path) -> None:
    call("model", "tiny", *four("quadratic", "first-order", "dense", "local:8"), "--save", str(tmp_path / "m"))
    done = call("inspect", str(tmp_path / "m"), "--text", "as you like it", "--plot", str(tmp_path / "i.png"))
    assert "first-order, softmax" in done.stdout
    assert (tmp_path / "i.png").read_bytes()[:4] == SIGNATURE
    layers = json.loads(call("inspect", str(tmp_path / "m"), "--tokens", "1,2,3", "--json").stdout)
    assert len(layers) == 4
    assert layers[3]["gates"] is None
    assert "expected a layer from 0 to 3, got 9" in refusal("inspect", str(tmp_path / "m"), "--layer", "9")
    assert "whole numbers such as 17,4,256" in refusal("inspect", str(tmp_path / "m"), "--tokens", "a,b")
    assert "expected a model's folder" in refusal("inspect", str(tmp_path / "none"))
