"""Settings in TOML: all of them come back, mistakes are named, and options override the file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.model import ModelConfig
from resolvent.tasks import Copy
from resolvent.train import Record, RunConfig, TrainConfig
from resolvent.train.config_file import ConfigFile, read_config, write_config
from tests.small_runs import QUICK
from tests.train.test_train import essence

LESS = [word for change in QUICK for word in ("--set", change)]


def command(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["train", *words, "--json"], catch_exceptions=False)
    return dict(json.loads(done.stdout))


def error_of(*words: str) -> str:
    return str(CliRunner().invoke(app, ["train", *words]).exception)


words = st.text(st.characters(exclude_categories=["Cs"]))


@given(rate=st.floats(1e-9, 1e9), clip=st.sampled_from([1.0, float("inf")]), solved=st.none() | st.floats(0, 1))
def test_every_number_comes_back(rate: float, clip: float, solved: float | None, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    saved = RunConfig(ModelConfig(pattern=["dense", ["local:2", "dense"]], layers=2, heads=2), Copy(vocab_size=64),
                      TrainConfig(learning_rate=rate, clip=clip, solved=solved))  # fmt: skip
    write_config(path, saved)
    assert read_config(path) == saved


@given(corpus=words)
def test_every_path_comes_back(corpus: str, tmp_path_factory: Any) -> None:
    from resolvent.tasks import Text

    path = tmp_path_factory.mktemp("config") / "config.toml"
    saved = RunConfig(ModelConfig(), Text(corpus, vocab_size=3), TrainConfig())
    write_config(path, saved)
    task = ConfigFile.read(path).sections["task"]
    assert task["corpus"] == (corpus if corpus != "none" else None)


def test_a_run_is_repeated_from_its_file(tmp_path: Path) -> None:
    first = command(
        "copy", "--pattern", "quadratic", "--preset", "smoke", "--seed", "3", *LESS, "--out", str(tmp_path / "a")
    )
    again = command("--config", str(tmp_path / "a" / "config.toml"), "--out", str(tmp_path / "b"))
    assert again["config"] == first["config"]
    assert essence(Record.from_dict(again)) == essence(Record.from_dict(first))
    assert (tmp_path / "a" / "config.toml").read_bytes() == (tmp_path / "b" / "config.toml").read_bytes()


def test_options_stand_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('preset = "smoke"\n[task]\nname = "copy"\nlength = "8"\n[model]\npattern = "dense"\ndim = 32\n'
                    '[train]\nsteps = 3\nseed = 5\nsolved = "none"\n')  # fmt: skip
    less = ["--set", "train.batch=2", "--set", "train.eval_batches=1"]
    made = command("--config", str(path), *less)["config"]
    assert (made["model"]["pattern"], made["model"]["dim"], made["model"]["layers"]) == ("dense", 32, 2)
    assert (made["task"]["length"], made["train"]["seed"], made["train"]["solved"]) == (8, 5, None)
    made = command("copy", "--config", str(path), "--pattern", "local:4", "--rule", "distance", "--seed", "1",
                   "--set", "model.dim=16", *less)["config"]  # fmt: skip
    assert (made["model"]["pattern"], made["model"]["rule"], made["model"]["dim"]) == ("local:4", "distance", 16)
    assert made["train"]["seed"] == 1
    made = command("--config", str(path), "--pattern", "local:4", "--pattern", "dense", *less)["config"]
    assert made["model"]["pattern"] == ["local:4", "dense"]


@pytest.mark.parametrize(("text", "message"), [
    (b"[trian]\nsteps = 3", r"unknown name 'trian' in .*mine.toml: expected preset, .*rates. Did you mean 'train'"),
    (b"[train]\nstep = 3", r"mine.toml: unknown setting 'step' of training: .* Did you mean 'steps'\?"),
    (b"[task]\nname = 'copy'\nlenght = 3", r"unknown setting 'lenght' of the task copy: .*Did you mean 'length'\?"),
    (b"[model]\npatern = 'dense'", "Did you mean 'pattern'"),
    (b"preset = 'smal'", r"unknown preset 'smal'.*Did you mean 'small'\?"),
    (b"[train]\nsteps = 'many'", "mine.toml: expected steps to be int ≥ 1, got 'many'"),
    (b"train = 3", r"expected \[train\] to be an object of named values, got 3"),
    (b"steps = = 3", "mine.toml is not TOML: "),
    (b"\xff", "mine.toml is not TOML: "),
    (b"[task]\nname = 'recall'", "has settings of the task recall: expected that task, got copy"),
    (None, "expected a TOML file of settings"),
])  # fmt: skip
def test_mistakes_are_named(text: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_bytes(text)
    assert re.search(message, error_of("copy", "--config", str(path)))
