"""Commands about runs: list them, compare them, and inspect the model of one."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from typer.core import TyperGroup

from resolvent.cli.models import RunFolder, TokenizerName
from resolvent.cli.shared import AsJson, app, say_written
from resolvent.errors import SettingError, closest
from resolvent.files import closest_path

if TYPE_CHECKING:
    from typer._click.core import Context

_WIDEST = 1000  # characters


class _ListByDefault(TyperGroup):
    """`runs`, and `runs FOLDER`, are `runs list FOLDER`. Write ./compare for a folder with the name of a command."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            if args and args[0].isidentifier() and not Path(args[0]).exists():
                near = closest(args[0], self.commands) or closest_path(Path(args[0]))
                commands = ", ".join(self.commands)
                raise SettingError(f"there is no folder {args[0]}, and no such command ({commands}).{near}")
            args = ["list", *args]
        return super().parse_args(ctx, args)


runs = typer.Typer(
    help="List, compare and inspect runs. 'resolvent runs FOLDER' lists the runs in a folder, by default in runs.",
    cls=_ListByDefault,
)
app.add_typer(runs, name="runs")


@runs.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of runs, at any depth.")] = Path("runs"),
    *,
    task: Annotated[str | None, typer.Option(help="Only runs on this task.")] = None,
    pattern: Annotated[
        str | None,
        typer.Option(help="Only runs with this pattern in some layer; 'exponential*' matches all that start with it."),
    ] = None,
    state: Annotated[
        str | None, typer.Option(help="Only runs in this state: running, finished or interrupted.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="KEY=VALUE", help="Only runs with this setting, such as train.seed=1 (repeatable)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs: settings, progress and results."""
    from resolvent.report.runs import list_table
    from resolvent.train.runs import RunFilter, find_runs, why_empty

    pairs = dict(map(_pair, settings or []))
    all_runs = find_runs(folder, lambda problem: print(problem, file=sys.stderr))
    selected = RunFilter(task, pattern, state, pairs).apply(all_runs)
    if as_json:
        print(json.dumps([run.to_dict() for run in selected], indent=2))
    elif selected:
        _console().print(list_table(selected, time.time()))
    else:
        print(f"no such runs in {folder}" if all_runs else why_empty(folder), file=sys.stderr)


@runs.command("compare")
def compare_runs(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    *,
    plot: Annotated[Path | None, typer.Option(help="Draw all curves on one plot (.png, .pdf or .svg).")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: settings that differ, results side by side, and their curves on one plot.

    Example: resolvent runs compare runs/a runs/b --plot out/curves.png
    """
    from resolvent.report import runs as report
    from resolvent.train.runs import different_settings, read_run

    if len(folders) < 2:
        raise SettingError("expected at least two runs to compare, got 1.")
    compared = [read_run(folder) for folder in folders]
    different = different_settings(compared)
    if as_json:
        print(json.dumps({"runs": [run.to_dict() for run in compared], "different": different}, indent=2))
    else:
        console = _console()
        if different:
            console.print(report.settings_table([run.name for run in compared], different))
        else:
            print("all settings are the same\n")
        console.print(report.results_table(compared))
    if plot is not None:
        from resolvent.report.figures import save

        say_written(save(report.curves_figure(compared), plot))


@runs.command("inspect")
def inspect_model(
    run: RunFolder,
    *,
    text: Annotated[str, typer.Option(help="Input text.")] = "to be or not to be",
    tokenizer: TokenizerName = None,
    tokens: Annotated[str | None, typer.Option(help="Token ids instead of a text, such as 17,4,256.")] = None,
    layer: Annotated[int, typer.Option(help="Layer of the figure, counted from 0.")] = 0,
    head: Annotated[int, typer.Option(help="Head of the figure, counted from 0.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write a figure of A, B and T, up to 4,096 tokens.")] = None,
    as_json: AsJson = False,
) -> None:
    """Inspect a model on a text: gates, row sums, hops, and a figure of A, B and T.

    |T1 - 1|: how far the rows of T = (I - B)^-1 A are from summing to one.
    ‖(I-B)⁻¹‖: how much feedback can amplify. Feedback: the mean number of
    feedback steps between an input and an output.
    """
    from resolvent.model.diagnostics import inspect
    from resolvent.report import figures, mixing
    from resolvent.train.model_source import open_model

    if tokens is not None and not all(token.strip().isdigit() for token in tokens.split(",")):
        raise SettingError(f"expected --tokens as integers such as 17,4,256, got '{tokens}'.")
    trained = open_model(run)
    if tokens is None:
        vocabulary = trained.tokenizer(tokenizer)
        ids = vocabulary.encode(text).tolist()
        labels = [_label(vocabulary.decode([token]), token) for token in ids]
    else:
        ids = [int(token) for token in tokens.split(",")]
        labels = [str(token) for token in ids]
    inspection = inspect(trained.load(), ids, layer, head)
    if as_json:
        print(json.dumps([layer.to_dict() for layer in inspection.layers], indent=2))
    else:
        Console().print(mixing.diagnostics_table(inspection.layers))
    if plot is not None:
        figure = mixing.mixing_figure(*inspection.matrices(), inspection.spectrum, labels, inspection.title)
        say_written(figures.save(figure, plot))


def _label(text: str, token: int) -> str:
    """A token at an axis: spaces are visible, what cannot be printed is its id."""
    return text.replace(" ", "␣") if text.isprintable() and "\ufffd" not in text else str(token)


def _console() -> Console:
    """As wide as a terminal; in a file or a pipe, as wide as tables are, so that no name is broken."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDEST)


def _pair(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise SettingError(f"expected a setting as KEY=VALUE, such as train.seed=1, got '{setting}'.")
    return key.strip(), value.strip()
