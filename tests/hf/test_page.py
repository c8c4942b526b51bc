"""docs/hugging-face.md is executed; its example is run with the others (`make docs`)."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.model import LanguageModel, preset
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "hugging-face.md"


def run(arguments: list[str], folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder,
                          env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_command(line: str) -> None:
    done = CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_snippets_run_from_top_to_bottom(tmp_path: Path) -> None:
    run(["-W", "error", "-c", "\n".join(blocks(PAGE, "python"))], tmp_path)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    LanguageModel(preset("tiny", layers=1, vocab_size=257)).save("out/run/model")
    convert, evaluate = (block.splitlines() for block in blocks(PAGE, "sh"))
    for line in convert:
        run_command(line)
    assert LanguageModel.load("again").config == preset("tiny", layers=1, vocab_size=257)
    pytest.importorskip("lm_eval")
    run([str(ROOT / "examples" / "needle.py")], tmp_path)
    for line in evaluate:
        run(["-m", *shlex.split(line)], tmp_path)
