"""What makes the site: examples run as cells, documents, commands and docstrings as pages, broken links found."""

from pathlib import Path

import pytest

from tests.markup import Markup
from website import cells, commands, docstrings, links
from website.documents import as_on_site

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


QUICK = ("own_pattern", "needle", "long_context")  # the others train, and `make docs` runs all


@pytest.mark.parametrize(
    "script", [path if path.stem in QUICK else pytest.param(path, marks=pytest.mark.slow) for path in EXAMPLES],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_examples_run_and_show_something(script: Path, tmp_path: Path) -> None:
    made = cells.example(script, tmp_path)
    assert made.startswith("# ")
    shown = [line for line in made.splitlines() if line.startswith("<div class='shown'>")]
    assert bool(shown) == (script.stem == "own_pattern")  # whose last cell is a figure
    for each in shown:
        Markup(each)


def test_an_example_that_prints_nothing_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("# %% [markdown]\n# # Title\n\n# %%\nx = 1\n")
    with pytest.raises(ValueError, match=r"begin with \['```text\\n'\] on the page of example.py"):
        cells.example(script, tmp_path)


def test_the_examples_are_those_that_the_tutorial_names() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    assert all(f"](../examples/{script.name})" in text for script in EXAMPLES)
    assert len(EXAMPLES) == 6


def test_cells_share_names_and_end_in_what_they_show(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("# %% [markdown]\n# # Title\n#\n# words\n\n# %%\nx = 20\nprint(x + 1)\n\n# %%\nx + 2\n")
    expected = "# Title\n\nwords\n\n```python\nx = 20\nprint(x + 1)\n```\n\n```text\n21\n```\n\n"
    assert cells.page(script, tmp_path) == expected + "```python\nx + 2\n```\n\n```text\n22\n```\n"
    with pytest.raises(ValueError, match="expected the script to begin with '# %%', got 'import os'"):
        cells.split("import os\n# %%\n")


def test_every_command_is_in_the_reference() -> None:
    text = commands.page()
    for name in ("analyze", "bench operator", "data prepare", "train", "study table1", "study tune"):
        assert f"## resolvent {name}\n" in text
    assert "| `--copy-routing` | Also print a routing" in text
    assert "[bold]" not in text


def test_docstrings_become_markdown() -> None:
    text = "Do it.\n\nsteps  how many\n       in all\nbatch  sequences\n\n>>> f(1)\n2\n\nMore."
    made = docstrings.readable(text)
    assert made == "Do it.\n\n- `steps`: how many in all\n- `batch`: sequences\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."


@pytest.mark.parametrize(("body", "problem"), [
    ("<a href='b.html#there'>b</a><img alt='a' src='a.png'>", None),
    ("<a href='c.html'>c</a>", "link to c.html, which does not exist"),
    ("<a href='b.html#gone'>b</a>", "link to b.html#gone, where there is no such anchor"),
    ("<img src='a.png'>", "image without a description: a.png"),
    ("<img alt='a' src='z.png'>", "link to z.png, which does not exist"),
    ("<script src='https://cdn.example/x.js'></script>", "loaded from elsewhere: https://cdn.example/x.js"),
    ("<a href='https://example.org'>away</a>", None),
])  # fmt: skip
def test_broken_links_are_found(body: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text("<h1 id='there'>b</h1>")
    (tmp_path / "a.png").write_bytes(b"")
    assert links.check(tmp_path) == ([] if problem is None else [f"a.html: {problem}"])


def test_a_site_without_pages_is_an_error(tmp_path: Path) -> None:
    assert "has no pages" in links.check(tmp_path)[0]


@pytest.mark.parametrize(("folder", "page", "link", "made"), [
    (".", "index.md", "[theory](docs/theory.md#x)", "[theory](theory.md#x)"),
    (".", "index.md", "![a](docs/figures/compare.png)", "![a](figures/compare.png)"),
    (".", "index.md", "[who](LICENSE)", "who"),
    ("docs", "guide.md", "[map](../ARCHITECTURE.md)", "[map](architecture.md)"),
    ("docs/reference", "reference/patterns.md", "[guide](../guide.md#a)", "[guide](../guide.md#a)"),
    ("docs", "guide.md", "[away](https://example.org) [here](#a)", "[away](https://example.org) [here](#a)"),
])  # fmt: skip
def test_links_lead_to_pages(folder: str, page: str, link: str, made: str) -> None:
    assert as_on_site(link, folder, page) == made
