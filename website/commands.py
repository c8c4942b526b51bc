"""The reference of the command line, from the help texts of the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from resolvent.cli import app

_TITLE = """# Commands

What `resolvent COMMAND --help` prints. `resolvent --install-completion` sets up completion for your shell."""
_STYLE = re.compile(r"(?<!\\)\[/?(?:bold|dim)\]")  # of help texts in a terminal


def page() -> str:
    """All commands, as Markdown."""
    return "\n\n".join([_TITLE, *_sections(get_command(app), "resolvent")]) + "\n"


def _sections(command: object, name: str) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for child in sorted(command.commands):
            yield from _sections(command.commands[child], f"{name} {child}")
    if not isinstance(command, TyperCommand):
        return
    context = typer.Context(command)
    yield f"## {name}"
    yield _text(inspect.cleandoc(command.help or ""))
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    rows = [_row(parameter, context) for parameter in command.params
            if isinstance(parameter, TyperArgument | TyperOption)]  # fmt: skip
    yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])


def _row(parameter: TyperArgument | TyperOption, context: typer.Context) -> str:
    names, meaning = parameter.get_help_record(context) or (parameter.name or "", "")
    return f"| `{names.strip()}` | {_text(meaning)} |".replace("\n", " ")


def _text(help_text: str) -> str:
    """Without the marks of a terminal; those of Markdown are taken literally."""
    plain = _STYLE.sub("", help_text).replace("\\[", "[")
    return re.sub(r"([<>*_|\[\]])", r"\\\1", plain)
