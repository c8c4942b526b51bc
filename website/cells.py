"""Examples as pages: scripts of cells (`# %%`), run from top to bottom, with what each cell prints and shows."""

from __future__ import annotations

import ast
import base64
import contextlib
import html
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

_CELL, _WORDS = "# %%", " [markdown]"


@dataclass(frozen=True)
class Cell:
    """Some words, or some code."""

    source: str
    is_code: bool


def split(script: str) -> list[Cell]:
    """The cells of a script, in order."""
    first, *parts = f"\n{script}".split(f"\n{_CELL}")
    if first.strip():
        raise ValueError(f"expected the script to begin with '{_CELL}', got {first.strip().splitlines()[0]!r}.")
    return [_cell(part) for part in parts]


def _cell(part: str) -> Cell:
    kind, _, body = part.partition("\n")
    if kind != _WORDS:
        return Cell(body.strip("\n"), is_code=True)
    lines = body.strip().splitlines()
    return Cell("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines), is_code=False)


def page(path: Path, folder: Path) -> str:
    """A script as Markdown, run in the folder: words, code, what it printed and what its last expression shows."""
    names: dict[str, object] = {"__name__": "__main__"}
    return "\n\n".join(_blocks(split(path.read_text(encoding="utf-8")), names, path.name, folder)) + "\n"


def example(path: Path, folder: Path) -> str:
    """The page of an example, which has a title and prints something."""
    made = page(path, folder)
    missing = [part for part in ("# ", "```text\n") if f"\n{part}" not in f"\n{made}"]
    if missing:
        raise ValueError(f"expected lines that begin with {missing} on the page of {path.name}.")
    return made


def _blocks(cells: list[Cell], names: dict[str, object], file: str, folder: Path) -> Iterator[str]:
    for cell in cells:
        if not cell.is_code:
            yield cell.source
            continue
        yield f"```python\n{cell.source}\n```"
        printed, shown = run(cell.source, names, file, folder)
        if printed:
            yield f"```text\n{printed.rstrip()}\n```"
        if shown:
            yield f"<div class='shown'>{shown}</div>"


def run(source: str, names: dict[str, object], file: str, folder: Path) -> tuple[str, str]:
    """What a cell prints, and its last expression as a notebook would show it."""
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.chdir(folder), _as_main():
        exec(compile(tree, file, "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), file, "eval"), names)
    if isinstance(value, Figure):
        image = io.BytesIO()
        value.savefig(image, format="png", dpi=100, facecolor="white")
        picture = base64.b64encode(image.getvalue()).decode()
        drawn = html.escape(f"what {ast.unparse(last)} draws" if last else "", quote=True)
        return printed.getvalue(), f"<img alt='{drawn}' style='max-width:100%' src='data:image/png;base64,{picture}'>"
    if value is not None:
        print(repr(value), file=printed)
    return printed.getvalue(), ""


@contextlib.contextmanager
def _as_main() -> Iterator[None]:
    """Scripts know nothing of what builds the site: arguments of its command are not theirs."""
    before, sys.argv = sys.argv, ["example"]
    try:
        yield
    finally:
        sys.argv = before
