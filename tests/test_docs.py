"""Documents are executed: README commands and snippets run, and every test that a text names exists."""

import ast
import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.studies.registry import STUDIES
from resolvent.studies.study import Selection
from tests.commands import command

ROOT = Path(__file__).parent.parent
# whose snippets and commands are run
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("guide", "tutorial", "howto", "explorer"))]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(code: str, folder: Path) -> str:
    """What it prints, as a script that nothing has been imported for: with names of its own."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(compile(code, "a snippet", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def snippets() -> list[str]:
    return [snippet for page in PAGES for snippet in blocks(page, "python")]


def outputs() -> dict[str, str]:
    """What is printed by those snippets of the pages that are followed by it."""
    shown = r"^```python\n((?:(?!^```).)*?)^```\n\n```text\n(.*?)^```"
    return dict(each for page in PAGES for each in re.findall(shown, page.read_text(), flags=re.MULTILINE | re.DOTALL))


CLAIMS = {  # of snippets with these words: what they say of their values
    "same =": "from torch.nn.functional import scaled_dot_product_attention\n"
    "torch.testing.assert_close(same, scaled_dot_product_attention(qa, ka, x, is_causal=True))",
    "last, cache": "torch.testing.assert_close(last, y[:, -1:], rtol=1e-4, atol=1e-5)",
    "prefill, token =": "every_row = rv.mix(x, 'exponential+cache', a=(q, k), b=(q, k), gate=0.5)\n"
    "torch.testing.assert_close(token, every_row[:, :, 99:])",
}


@pytest.mark.parametrize("snippet", snippets())
def test_python_snippets(snippet: str, tmp_path: Path) -> None:
    """Snippets run, a comment that shows a value shows the right one, and so does a block of output below."""
    lines = []
    for line in snippet.splitlines():
        value = re.match(r"^(?![\s#])(?!import|from|\w+(?:, \w+)* =|print)(.+?)\s{2,}# ([(\d\[]|array)(.*)$", line)
        if value:
            shown = re.split(r": ", value[2] + value[3])[0]
            lines.append(f"assert repr(({value[1]})) == {shown!r}, repr(({value[1]}))")
        else:
            lines.append(line)
    printed = run("\n".join([*lines, *(claim for words, claim in CLAIMS.items() if words in snippet)]), tmp_path)
    assert printed == outputs().get(snippet, printed)


def test_outputs_and_claims_are_there() -> None:
    assert len(outputs()) >= 4
    assert all(any(words in snippet for snippet in snippets()) for words in CLAIMS)


def test_parameter_counts_as_stated() -> None:
    from resolvent.model import LanguageModel, preset

    text = (ROOT / "docs" / "coefficients.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) % \|$", text, flags=re.MULTILINE)
    assert len(rows) == 4
    for name, *stated, more in rows:
        structures = ("first-order", "attention", "dense")
        counts = [LanguageModel.shape_only(preset(name, pattern=p)).parameter_count() for p in structures]
        assert [f"{count:,}" for count in counts] == stated
        assert f"{100 * (counts[2] / counts[1] - 1):.1f}" == more


def test_runs_of_a_study_as_stated() -> None:
    cells = STUDIES["table1"].plan(Selection(preset="small")).cells
    assert f"three tasks and {len(cells)} runs" in " ".join((ROOT / "docs" / "guide.md").read_text().split())


@pytest.mark.usefixtures("cells_run_here")
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    ours = [words[1:] for words in commands if words[:1] == ["resolvent"]]
    assert len(ours) >= 5
    assert ["--install-completion"] not in ours, "it would change the shell of whoever runs the tests"
    for arguments in ours:
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, (arguments, done.output)


def run_shortened(block: str, more: dict[str, list[str]], folder: Path) -> None:
    """The commands of a block that takes long, each with the options that `more` has for it, on a small text."""
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [next(word for word in line if word in more) for line in commands] == list(more)
    for line, (name, options) in zip(commands, more.items(), strict=True):
        texts = {"wikitext2": "wikitext2.txt", "python": "python.txt"} if name == "prepare" else {}
        done = command(*(texts.get(word, word) for word in line[1:]), *options, folder=folder)
        assert done.returncode == 0, done.stderr


def changed(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.usefixtures("cells_run_here")
def test_language_commands(tmp_path: Path) -> None:
    """Those that take minutes or hours, on small texts and for two steps."""
    short, long = blocks(ROOT / "docs" / "guide.md", "sh")
    (tmp_path / "wikitext2.txt").write_text("Robert is an English film , television and theatre actor . \n" * 60)
    less = changed("train.steps=2", "train.warmup=1", "task.context=32")
    structures = ["--structures", "first-order"]
    run_shortened(short, {"prepare": [], "train": less, "generate": [], "pareto": [*less, *structures]}, tmp_path)
    assert (tmp_path / "out" / "language-quick-wikitext2-bytes" / "pareto.png").exists()

    (tmp_path / "python.txt").write_text("def f(x):\n    return x + 1\n\n\nclass A:\n    value = f(3)\n\n\n" * 90)
    less += changed("model.layers=1", "model.dim=16")
    rates, structures = ["--steps", "2", "--rates", "1e-3,2e-3"], ["--structures", "dense"]
    more = {"prepare": ["--held-out", "0.2"], "context-gain": ["--context", "32"], "tune": [*less, *rates]}
    run_shortened(long, more | {"ladder": [*less, *structures]}, tmp_path)
    assert (tmp_path / "out" / "gain.png").exists()
    assert (tmp_path / "out" / "language-python-python-bpe-1024" / "ladder.png").exists()


@pytest.mark.usefixtures("cells_run_here")
def test_tutorial_trains_and_reports(tmp_path: Path) -> None:
    """Its commands, for a few steps, and what it does with the record."""
    page = ROOT / "docs" / "tutorial.md"
    less = changed("train.steps=6", "train.eval_every=3", "train.eval_batches=1", "train.batch=8", "model.dim=16")
    run_shortened("".join(blocks(page, "sh")), {"train": less, "study": less}, tmp_path)
    [snippet] = blocks(page, "py")
    assert run(snippet, tmp_path).startswith("Record(quadratic+cache on copy, seed 0: accuracy ")
    assert (tmp_path / "out" / "report" / "report.html").exists()


def test_tutorial_draws_what_it_shows(tmp_path: Path) -> None:
    done = command("analyze", "exponential+cache", "--draw", "--n", "12", folder=tmp_path)
    assert done.stdout == blocks(ROOT / "docs" / "tutorial.md", "text")[0]


def test_readme_table_is_what_is_printed(tmp_path: Path) -> None:
    done = command("analyze", "--n", "1024", folder=tmp_path)
    table = blocks(ROOT / "README.md", "text")[0]
    for line in table.splitlines():
        if "─" not in line:
            assert line.split() in [printed.split() for printed in done.stdout.splitlines()]


def test_readme_is_short() -> None:
    """A newcomer decides within a page: what it is for, how to install it, six lines of Python, a figure, hardware."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    screen = "\n".join(lines[:44])
    for needed in ("It is for", "make demo", "pip install", "```python", "![", "| hardware |"):
        assert needed in screen, needed


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for document in DOCUMENTS:
        for target in re.findall(r"^make (\w+)|`make (\w+)`", document.read_text(), flags=re.MULTILINE):
            assert re.search(rf"^{''.join(target)}:", makefile, flags=re.MULTILINE), (document.name, target)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_and_tests_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / target).exists(), target
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        tree = ast.parse((ROOT / file).read_text())
        assert not name or name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


def test_named_commands_exist() -> None:
    """In documents, examples, help texts and messages."""
    commands = cast(TyperGroup, get_command(app)).commands
    documents = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    sources = [*documents, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py"), ROOT / "Makefile"]
    for path in sources:
        for name, child in re.findall(
            r"(?:[`'/]|^)resolvent (\w[\w-]*)(?: (\w[\w-]*))?", path.read_text(), re.MULTILINE
        ):
            assert name in commands, (path, name)
            if child and name in ("bench", "data", "study"):
                assert child in cast(TyperGroup, commands[name]).commands, (path, name, child)
