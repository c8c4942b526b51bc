"""Habits of the code that a reader relies on, checked over every file."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import resolvent as rv

SOURCE = Path(rv.__file__).parent
MOST_PARAMETERS = 8
DIALECT = {"found", "said", "how", "there", "old", "rights", "like", "where", "whole", "parts", "place", "room"}


def files() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())


def test_two_classes_never_share_a_name() -> None:
    names: dict[str, list[str]] = defaultdict(list)
    for file, tree in files():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names[node.name].append(file)
    assert {name: where for name, where in names.items() if len(where) > 1} == {}


def _compiled(function: ast.FunctionDef) -> bool:
    """Whether it is a kernel in Triton, which takes all it reads as arguments."""
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_no_function_takes_more_than_eight_parameters() -> None:
    """Compiled kernels aside, and keyword-only options of the public verbs and commands."""
    wide = []
    for file, tree in files():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "kernels/" not in file and not _compiled(node):
                positional = len(node.args.posonlyargs) + len(node.args.args)
                public = not node.name.startswith("_") or node.name == "__init__"
                counted = positional + (0 if public else len(node.args.kwonlyargs))
                if counted > MOST_PARAMETERS:
                    wide.append(f"{file}:{node.lineno} {node.name}")
    assert wide == []


def test_names_say_what_things_are() -> None:
    dialect = []
    for file, tree in files():
        for node in ast.walk(tree):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in DIALECT
            if stored or (isinstance(node, ast.arg) and node.arg in DIALECT):
                dialect.append(f"{file}:{node.lineno}")
    assert dialect == []


def test_text_files_are_utf_8_whatever_the_locale() -> None:
    """Every call that reads or writes text names the encoding; `files.write_text` has it in itself."""
    unnamed, not_text = [], ("os", "tarfile", "webbrowser", "Corpus", "Image")
    for file, tree in files():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = {keyword.arg for keyword in node.keywords}
                modes = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                binary = any(isinstance(mode, str) and "b" in mode for mode in modes)
                module = isinstance(node.func.value, ast.Name) and node.func.value.id in not_text
                opens = node.func.attr in ("read_text", "write_text") or (node.func.attr == "open" and not module)
                if opens and not binary and "encoding" not in words:
                    unnamed.append(f"{file}:{node.lineno}")
    assert unnamed == []


def test_any_stays_rare() -> None:
    lines = [line for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines() if "Any" in line]
    assert len(lines) <= 40, len(lines)


def test_files_stay_short() -> None:
    long = {
        file: count
        for file, count in ((path, len((SOURCE / path).read_text().splitlines())) for path, _ in files())
        if count > (500 if "kernels/" in file else 350)
    }
    assert long == {}
