"""The command line on terminals of any encoding, Ctrl-C at any moment, and completion."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import resolvent as rv
from resolvent.cli import app
from tests.commands import command

LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """As from a terminal, also where these tests run in the background, with Ctrl-C ignored."""
    return subprocess.run(
        [sys.executable, "-m", "resolvent", *arguments],
        capture_output=True,
        env=os.environ | environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "the locale's"])
def test_characters_that_a_terminal_lacks_are_spelled(encoding: str) -> None:
    words = ("analyze", "exponential+attention", "--draw", "--n", "4")
    done = run(*words, **LOCALE) if encoding == "the locale's" else command(*words, encoding=encoding)
    assert done.returncode == 0, done.stderr
    drawn = done.stdout.decode("ascii") if isinstance(done.stdout, bytes) else done.stdout
    exact = rv.pattern("exponential+attention").draw(4)
    for symbol, spelled in (("■", "#"), ("□", "o"), ("◆", "*"), ("·", ".")):
        exact = exact.replace(symbol, spelled)
    assert drawn.replace("·", ".").rstrip() == exact


@pytest.mark.parametrize("arguments", [
    ["analyze", "--families"], ["analyze", "dense", "quadratic", "--n", "32"], ["bench", "operator", "--help"],
])  # fmt: skip
def test_tables_and_help_on_an_ascii_terminal(arguments: list[str]) -> None:
    done = command(*arguments, encoding="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 100


def test_errors_on_an_ascii_terminal(tmp_path: Path) -> None:
    done = command("analyze", "dense", "--draw", "--n", "100000", encoding="ascii")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "n <= 32,768" in done.stderr
    name = os.fsdecode(bytes(tmp_path / "caf") + b"\xe9.png")  # of bytes that are not text in UTF-8
    done = command("analyze", "dense", "--draw", "--plot", name)
    assert (done.returncode, done.stderr) == (0, f"written: {name}\n")


# A module that stands before the real one on the path, and presses Ctrl-C when it is imported.
PRESSED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize(("module", "arguments"), [
    ("typer", ["analyze"]), ("torch", ["train", "copy"]), ("numba", ["analyze", "dense"]),
    ("matplotlib", ["analyze", "dense", "--draw", "--plot", "x.png"]),
])  # fmt: skip
def test_ctrl_c_is_one_line_also_during_imports(module: str, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(PRESSED)
    path = os.pathsep.join([str(tmp_path), str(Path(rv.__file__).parents[1])])
    done = run(*arguments, PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


def test_the_command_is_the_module() -> None:
    """What covers imports is covered by the console script, too."""
    text = (Path(rv.__file__).parents[2] / "pyproject.toml").read_text()
    assert 'resolvent = "resolvent.__main__:main"' in text


@pytest.mark.parametrize(("line", "offered"), [
    ("resolvent an", ["analyze"]),
    ("resolvent analyze exp", ["exponential", "exponential+cache"]),
    ("resolvent analyze dense quadratic+", ["quadratic+cache", "quadratic+attention", "quadratic+diagonal"]),
    ("resolvent analyze dense --copy", ["--copy-routing"]),
])  # fmt: skip
def test_shells_complete_commands_options_and_patterns(line: str, offered: list[str]) -> None:
    """As bash asks for it."""
    asked = {"_RESOLVENT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert CliRunner().invoke(app, [], prog_name="resolvent", env=asked).stdout.split() == offered
    assert "--install-completion" in command("--help").stdout
