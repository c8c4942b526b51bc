"""The page in one file: its style, its scripts, and the answers for chosen patterns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from resolvent.errors import SettingError
from resolvent.explore.answers import MOST_TOKENS, answer
from resolvent.files import write_text
from resolvent.patterns import pattern
from resolvent.patterns.checks import require_length

PAGE = Path(__file__).parent / "page"
MOST_PATTERNS = 9
_TARGETS = 17  # tokens whose paths are kept
_LENGTH = 1024  # of the figures and the budget
_SLOTS = (4, 8, 16, 32, 64)
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_IMPORT = re.compile(r"^import (\{.*\}) from \"\./(\w+\.js)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:class|const|function) (\w+)", re.MULTILINE)


def export(specs: Sequence[str], n: int | str, path: Path) -> Path:
    """Write the page for these patterns to one file, which needs no server.

    Args:
        specs: Spellings of patterns, nine at most.
        n: Number of tokens that are drawn, at most 4,096.
        path: The file, which ends in .html.
    """
    if path.suffix != ".html":
        raise SettingError(f"expected a file name that ends in .html, got '{path}'.")
    if not 1 <= len(specs) <= MOST_PATTERNS:
        raise SettingError(f"expected 1 to {MOST_PATTERNS} patterns, got {len(specs)}.")
    spellings, n = [pattern(spec).spelling for spec in dict.fromkeys(specs)], require_length(n, MOST_TOKENS)
    if n < 2:
        raise SettingError(f"expected n ≥ 2 tokens to draw, got {n}.")
    targets = np.unique(np.linspace(1, n - 1, _TARGETS).round().astype(int)).tolist()
    answers = {_address(name, question): answer(name, question) for name, question in _questions(spellings, n, targets)}
    state = {"p": spellings, "n": n, "long": _LENGTH, "slots": 16, "heads": 1, "to": targets[-2 if n > 2 else 0]}
    choices = {"n": [n], "long": [_LENGTH], "slots": _SLOTS, "heads": [1], "to": targets}
    content = json.dumps({"answers": answers, "state": state, "choices": choices}, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page(content))
    return path


def _questions(spellings: Sequence[str], n: int, targets: Sequence[int]) -> Iterator[tuple[str, dict[str, str]]]:
    """All that the page can ask, with parameters in the order in which it gives them."""
    yield "catalogue", {}
    for p in spellings:
        yield "scene", {"p": p, "n": f"{n}"}
        yield "load", {"p": p, "n": f"{n}", "effort": "search"}
        yield "curves", {"p": p}
        yield "figures", {"p": p, "n": f"{_LENGTH}", "effort": "search"}
        for to in targets:
            yield "paths", {"p": p, "n": f"{n}", "to": f"{to}"}
    for slots in _SLOTS:
        yield "bounds", {"n": f"{_LENGTH}", "slots": f"{slots}"}
        yield "designs", {"n": f"{_LENGTH}", "slots": f"{slots}", "heads": "1"}


def _address(name: str, question: dict[str, str]) -> str:
    return f"{name}?{urlencode(question, safe='*')}".replace("~", "%7E")


def page(content: str) -> str:
    """The page with everything inside; `content` is JSON, and `<` in it cannot end a script."""
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    html = re.sub(r"<link rel=\"modulepreload\".*>\n", "", html)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    html = html.replace('<link rel="stylesheet" href="/page/style.css">', f"{policy}\n<style>\n{style}</style>")
    safe = content.replace("<", "\\u003c")
    data = f'<script type="application/json" id="embedded">{safe}</script>'
    script = f'<script type="module">\n{bundle("main.js")}</script>'
    html = html.replace('<script type="module" src="/page/main.js"></script>\n', "")
    return html.replace("</body>", f"{data}\n{script}\n</body>")


def bundle(entry: str) -> str:
    """The scripts as one, each in a scope of its own, after those that it imports; the entry is the last."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for _, imported in _IMPORT.findall(_script(name)):
                visit(imported)
            order.append(name)

    visit(entry)
    return "\n".join(map(_scope, order))


def _scope(name: str) -> str:
    """A module as a function that returns what it exports, and takes what it imports from those before."""
    text = _script(name)
    exported = ", ".join(_EXPORT.findall(text))
    body = _EXPORT.sub(lambda match: match[0].removeprefix("export "), text)
    body = _IMPORT.sub(lambda match: f"const {match[1]} = {_variable(match[2])};\n", body)
    return f"const {_variable(name)} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _variable(name: str) -> str:
    return f"module_{name.removesuffix('.js')}"


def _script(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")
