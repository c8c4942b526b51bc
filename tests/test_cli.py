"""The command line as a user meets it: what is printed and written, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from click.testing import Result
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

import resolvent as rv
from resolvent.cli import app
from resolvent.cli.runs import _label
from resolvent.model import LanguageModel, preset
from resolvent.patterns.published import PUBLISHED
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
    assert call("analyze", "quadratic", "--draw", "--n", "9").stdout.rstrip() == rv.quadratic().draw(9)
    both = "local:3/exponential"
    assert call("analyze", both, "--draw", "--n", "9").stdout.rstrip() == rv.pattern(both).draw(9)
    for spec, n in (("quadratic+cache", "64"), (both, "16")):
        call("analyze", spec, "--draw", "--n", n, "--plot", str(tmp_path / f"{n}.png"))
        assert (tmp_path / f"{n}.png").read_bytes()[:4] == SIGNATURE
    for several in ([], ["dense", "quadratic"]):
        assert "--draw takes one pattern" in error_of("analyze", *several, "--draw")


def test_a_mask_in_a_file(tmp_path: Path) -> None:
    mask = rv.pattern("butterfly").mask(12)
    np.save(tmp_path / "mask.npy", mask)
    table, file = rv.explicit(mask), ["--mask", str(tmp_path / "mask.npy")]
    assert call("analyze", *file, "--draw").stdout.rstrip() == table.draw(12)
    assert call("analyze", *file, "--draw", "--n", "5").stdout.rstrip() == table.draw(5)
    assert json.loads(call("analyze", *file, "--json").stdout)["n"] == 12
    assert "expected patterns or --mask FILE.npy, got both" in error_of("analyze", "dense", *file)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").write_text("")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "mask.npy").read_bytes()[:-9])
    for name in ("objects", "text", "empty", "cut"):
        assert "expected a boolean array of shape (n, n)" in error_of(
            "analyze", "--mask", str(tmp_path / f"{name}.npy")
        )
    np.save(tmp_path / "future.npy", np.ones((3, 3), dtype=np.bool_))
    assert "expected a causal mask" in error_of("analyze", "--mask", str(tmp_path / "future.npy"))


def test_several_patterns_are_compared_by_default_those_of_the_paper(tmp_path: Path) -> None:
    done = run("analyze", "--n", "64", "--plot", str(tmp_path / "c.png"))
    for spec in rv.PAPER_STRUCTURES:
        assert spec in done.stdout
    assert "…" not in done.stdout.replace(" … ", "")  # nothing cut off at 80 columns
    assert (tmp_path / "c.png").read_bytes()[:4] == SIGNATURE
    content = json.loads(call("analyze", "dense", "order:3", "--n", "10", "--json").stdout)
    assert [row["pattern"] for row in content] == ["dense", "order:3"]


def test_every_family_is_listed() -> None:
    text = run("analyze", "--families").stdout
    assert all(name in text for name in ("local:w", "quadratic+cache", "stride:EXPR"))
    for family in PUBLISHED:
        assert family.signature in text
    listed = json.loads(call("analyze", "--families", "--json").stdout)
    assert listed["paper"] == list(rv.PAPER_STRUCTURES)
    assert set(listed["published"]) == {family.signature for family in PUBLISHED}


MOST_COMMANDS = 12


def test_commands_are_few_and_old_names_are_unknown() -> None:
    commands = cast(TyperGroup, get_command(app)).commands
    assert len(commands) <= MOST_COMMANDS
    for words in (["compare"], ["data", "info"], ["study", "factors"]):
        done = run(*words, ok=False)
        assert f"No such command '{words[-1]}'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyze", "expo"], "Did you mean 'exponential'?"),
        (["analyze", "stride:import os"], "cannot read 'import os'"),
        (["analyze", "dense", "--n", "-3"], "expected an integer ≥ 1 or a string such as '128k', got '-3'"),
        (["analyze", "dense", "--draw", "--n", "100000"], "expected n ≤ 32,768"),
        (["analyze", "dense", "--effort", "hard"], "'quick', 'search', 'exact'"),
        (["analyze", "dense", "--draw", "--plot", "/dev/null/x.png"], "/dev/null"),
        (["analyze", "--mask", "none.npy"], "there is no file none.npy."),
        (["analyze", "dense", "--plot", "x.foo"], "ends in .png, .pdf, .svg, got 'x.foo'"),
        (
            ["design", "--reads", "8", "--weight", "reads"],
            "expected --weight as FIGURE=W, such as reads=2, got 'reads'",
        ),
        (["analyze", "dense", "--draw", "--plot", "folder/"], "ends in .png, .pdf, .svg, got 'folder'"),
        (["analyze", "dense", "--draw", "--n", "5000", "--plot", "x.png"], "expected n ≤ 2,048 for a figure"),
    ],
)
def test_errors_are_one_line_without_a_traceback(arguments: list[str], message: str) -> None:
    done = run(*arguments, ok=False)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_process_of_its_own_says_the_same() -> None:
    """And ends with the same code."""
    for arguments in (["--version"], ["analyze", "expo"]):
        done = subprocess.run([sys.executable, "-m", "resolvent", *arguments], capture_output=True, text=True)
        here = command(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (here.returncode, here.stdout, here.stderr)
    assert run("--version").stdout.strip() == f"resolvent {rv.__version__}"


def call(*arguments: str) -> Result:
    """In this process, which has torch loaded already."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def error_of(*arguments: str) -> str:
    """The message that `main` prints after "error:"."""
    return str(CliRunner().invoke(app, arguments).exception)


def test_train_takes_a_pattern_per_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["train.steps=2", "train.batch=2", "train.eval_batches=1", "model.dim=16", "model.layers=3"]
    less = ["--preset", "smoke", *(word for change in changes for word in ("--set", change))]
    patterns = ["--pattern", "dense", "--pattern", "local:4"]
    content = json.loads(call("train", "copy", *patterns, "--pattern", "order:2", *less, "--json").stdout)
    assert content["config"]["model"]["pattern"] == ["dense", "local:4", "order:2"]
    assert call("train", "copy", *patterns[:2], *less).stdout.startswith("dense on copy: accuracy ")
    assert "one pattern for all layers, or 3, one for each; got 2" in error_of("train", "copy", *patterns, *less)


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


def test_models_are_inspected(tmp_path: Path) -> None:
    LanguageModel(preset("tiny", pattern=["quadratic", "first-order", "dense", "local:8"])).save(tmp_path / "m")
    inspect = ["runs", "inspect", str(tmp_path / "m")]
    done = call(*inspect, "--text", "as you like it", "--plot", str(tmp_path / "i.png"))
    assert "first-order, softmax" in done.stdout
    assert (tmp_path / "i.png").read_bytes()[:4] == SIGNATURE
    layers = json.loads(call(*inspect, "--tokens", "1,2,3", "--json").stdout)
    assert len(layers) == 4
    assert layers[3]["gates"] is None
    assert "expected a layer from 0 to 3, got 9" in error_of(*inspect, "--layer", "9")
    assert "integers such as 17,4,256" in error_of(*inspect, "--tokens", "a,b")
    assert "expected the folder of a run" in error_of("runs", "inspect", str(tmp_path / "none"))
    # spaces are visible at the axes of the figure; what cannot be printed is its id
    assert [_label(text, 7) for text in ("a", " the", "\n", "\ufffd")] == ["a", "␣the", "7", "7"]


def test_lengths_have_units(tmp_path: Path) -> None:
    content = json.loads(call("analyze", "first-order", "--n", "128k", "--json").stdout)
    assert (content["n"], content["max_hops"]) == (131_072, 131_071)
    wrong = ["evaluate", str(tmp_path), "--corpus", "x", "--context"], ["generate", str(tmp_path), "--tokens"]
    for words in (*wrong, ["analyze", "dense", "--n"]):
        done = CliRunner().invoke(app, [*words, "4kb"])
        assert done.exit_code == 2
        printed = " ".join(done.output.replace("│", " ").split())
        assert "expected an integer ≥ 1 or a string such as '128k', got '4kb'" in printed
