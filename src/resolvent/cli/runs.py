"""Commands about runs: list them, compare them, and remove what is not needed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from typer.core import TyperGroup

from resolvent.cli.shared import AsJson, app, say_written
from resolvent.errors import SettingError

if TYPE_CHECKING:
    from typer._click.core import Context

    from resolvent.train.runs import Run

_WIDEST = 1000  # characters
_UNITS = {"min": 60, "h": 3_600, "d": 86_400}


class _ListByDefault(TyperGroup):
    """`runs`, and `runs FOLDER`, are `runs list FOLDER`. Write ./compare for a folder with the name of a command."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


runs = typer.Typer(
    help="List, compare and clean up runs: 'resolvent runs' lists those in the folder runs, 'resolvent runs FOLDER' "
    "those in another one.",
    cls=_ListByDefault,
)
app.add_typer(runs, name="runs")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with runs in it, at any depth.")]
TaskName = Annotated[str | None, typer.Option(help="Only runs on this task.")]
PatternName = Annotated[
    str | None,
    typer.Option(help="Only runs with this pattern in some layer; 'exponential*' matches all that start with it."),
]
StateName = Annotated[str | None, typer.Option(help="Only runs in this state: running, finished or interrupted.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="KEY=VALUE", help="Only runs with this setting, such as train.seed=1 (repeatable)."
    ),
]


@runs.command("list")
def list_runs(
    folder: Folder = Path("runs"),
    *,
    task: TaskName = None,
    pattern: PatternName = None,
    state: StateName = None,
    where_settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List runs: what each is, how far it is and how well it does."""
    from resolvent.report.runs import list_table

    selected = _selected(folder, task, pattern, state, where_settings)
    if as_json:
        print(json.dumps([run.to_dict() for run in selected], indent=2))
    elif selected:
        _console().print(list_table(selected, time.time()))
    else:
        print(f"no such runs in {folder}", file=sys.stderr)


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
        raise SettingError("expected at least two runs to compare.")
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


@runs.command("clean")
def clean_runs(
    folder: Folder = Path("runs"),
    *,
    task: TaskName = None,
    pattern: PatternName = None,
    state: Annotated[str, typer.Option(help="Runs in this state: interrupted or finished.")] = "interrupted",
    where_settings: Settings = None,
    older: Annotated[
        str,
        typer.Option(metavar="AGE", help="Only runs not written to for at least this long, such as 30min, 12h or 7d."),
    ] = "0d",
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints", help="Remove only checkpoints: unfinished runs then restart from the first step."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """Remove runs that were interrupted, or their checkpoints. Shows what, and asks.

    Only files that runs write are removed, and never those of a run that is
    running.
    """
    from resolvent.report.runs import duration, size
    from resolvent.train.cleaning import plan_removal

    now, age = time.time(), _age(older)
    selected = [run for run in _selected(folder, task, pattern, state, where_settings) if now - run.changed >= age]
    removals = plan_removal(selected, checkpoints_only=checkpoints)
    if not removals:
        print(f"nothing to remove in {folder}", file=sys.stderr)
        return
    for removal in removals:
        files = " ".join(path.name for path in removal.paths)
        print(f"{removal.run.folder}: {size(removal.nbytes)}, step {removal.run.step:,}, {removal.run.state}, "
              f"{duration(max(now - removal.run.changed, 0))} old ({files})")  # fmt: skip
    total = f"{len(removals)} run{'s' * (len(removals) > 1)}, {size(sum(removal.nbytes for removal in removals))}"
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"Remove {total}?")):
        raise SettingError(f"nothing was removed: expected --yes to remove {total}.")
    for removal in removals:
        if not removal.remove():
            print(f"{removal.run.folder} is in use, or finished by now: kept", file=sys.stderr)
        elif removal.run.folder.exists() and not checkpoints:
            print(f"{removal.run.folder} has other files: kept with them", file=sys.stderr)
    print(f"removed {total}")


def _console() -> Console:
    """As wide as a terminal; in a file or a pipe, as wide as tables are, so that no name is broken."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDEST)


def _selected(
    folder: Path, task: str | None, pattern: str | None, state: str | None, settings: list[str] | None
) -> list[Run]:
    from resolvent.train.runs import RunFilter, find_runs

    pairs = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise SettingError(f"expected a setting as KEY=VALUE, such as train.seed=1, got '{setting}'.")
        pairs[key.strip()] = value.strip()
    chosen = RunFilter(task, pattern, state, pairs)
    return chosen.apply(find_runs(folder, lambda problem: print(problem, file=sys.stderr)))


def _age(text: str) -> float:
    """Seconds, from an age such as 30min, 12h or 7d."""
    for unit, seconds in _UNITS.items():
        number = text.removesuffix(unit)
        if number != text and number.isdecimal():
            return int(number) * seconds
    raise SettingError(f"expected an age such as 30min, 12h or 7d, got '{text}'.")
