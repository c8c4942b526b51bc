"""The command line on terminals of any encoding, Ctrl-C at any moment, and completion."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import resolvent as rv

ENCODINGS = {
    "ascii, by the locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252:strict"},
}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """As from a terminal, also where these tests run in the background, with Ctrl-C ignored."""
    command = [sys.executable, "-m", "resolvent", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        env=os.environ | environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_characters_that_a_terminal_lacks_are_spelled(encoding: str) -> None:
    done = run("analyze", "exponential+attention", "--draw", "--n", "4", **ENCODINGS[encoding])
    assert done.returncode == 0, done.stderr
    drawn = done.stdout.decode("ascii" if "ascii" in encoding else "latin-1").replace("·", ".")
    exact = rv.pattern("exponential+attention").draw(4)
    for symbol, spelled in (("■", "#"), ("□", "o"), ("◆", "*"), ("·", ".")):
        exact = exact.replace(symbol, spelled)
    assert drawn.rstrip() == exact


@pytest.mark.parametrize("arguments", [
    ["analyze", "--families"], ["analyze", "dense", "quadratic", "--n", "32"], ["bench", "operator", "--help"],
])  # fmt: skip
def test_tables_and_help_on_an_ascii_terminal(arguments: list[str]) -> None:
    done = run(*arguments, **ENCODINGS["ascii, by the locale"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.decode("ascii")) > 100


def test_errors_on_an_ascii_terminal(tmp_path: Path) -> None:
    done = run("analyze", "dense", "--draw", "--n", "100000", **ENCODINGS["ascii"])
    assert done.returncode == 2
    assert done.stderr.decode("ascii").startswith("error: ")
    assert b"n <= 32,768" in done.stderr
    name = os.fsdecode(bytes(tmp_path / "caf") + b"\xe9.png")  # of bytes that are not text in UTF-8
    done = run("analyze", "dense", "--draw", "--plot", name, PYTHONIOENCODING="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"written: " + os.fsencode(name) + b"\n"


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
    code = "import sys; sys.argv[0] = 'resolvent'; from resolvent.__main__ import main; main()"
    words = {"_RESOLVENT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | words)
    assert done.stdout.split() == offered, done.stderr


def test_completion_is_installed_by_the_command() -> None:
    assert b"--install-completion" in run("--help").stdout
